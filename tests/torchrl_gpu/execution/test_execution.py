"""An execution runs every action and every update of every agent."""

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from agents.base import Agent
from tests.helpers.agents import (
    AGENTS,
    BATCH,
    CASES,
    WITH_ALL_OPTIONS,
    Case,
    build_for,
    every_agent,
    make_batch,
    parameters,
)
from tests.helpers.draws import EqualDraws
from tests.helpers.environments import IdentityEnv
from tests.test_extending import example
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.execution import Execution
from torchrl_gpu.execution.learner import Learner, Losses, Update
from trainers.components.pairing import pair
from trainers.training.trainer import TorchRLTrainer


class Recording(Execution):
    """Counts calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def act(
        self, policy: Callable[[TensorDictBase], TensorDictBase], observation: TensorDictBase
    ) -> TensorDictBase:
        self.calls["act"] += 1
        return super().act(policy, observation)

    def update(self, learner: Learner, batch: TensorDictBase) -> Update:
        self.calls["update"] += 1
        return super().update(learner, batch)


@pytest.mark.parametrize(
    "agent_class", [*AGENTS, example("my_robots/td3.py", "TD3")], ids=lambda c: c.__name__
)
def test_an_execution_runs_every_step_of_a_training(
    agent_class: type[Agent], tmp_path: Path
) -> None:
    env = pair(IdentityEnv(num_envs=8), agent_class)
    agent = build_for(env, agent_class, rollout_length=8)
    execution = Recording()
    settings: dict[str, Any] = {"total_frames": 128, "random_frames": 0, "replay_capacity": 1000}
    trainer = TorchRLTrainer(
        env, agent, tmp_path, execution=execution, show_progress=False, loggers=["csv"], **settings
    )
    trainer.train()
    assert trainer.updates > 0
    assert execution.calls == {"act": 128 // 8, "update": trainer.updates}
    assert all(value.isfinite().all() for value in agent.state_dict().values())


def with_small_memory(agent: Agent, rows: int, error: Exception | None = None) -> list[int]:
    """Let the gradients of more than some transitions run out of memory; return all sizes."""
    loss, sizes = agent.loss, []

    def within_memory(batch: TensorDictBase) -> Losses:
        sizes.append(len(batch))
        losses = loss(batch)
        if len(batch) > rows:
            # In the middle of the backward pass, when some gradients exist.
            next(iter(losses.terms.values())).backward()
            raise error or torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return losses

    agent.loss = within_memory  # type: ignore[method-assign]
    return sizes


@every_agent
def test_out_of_memory_halves_the_batch_and_not_the_update(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    whole, parts = (case.make(**WITH_ALL_OPTIONS) for _ in range(2))
    sizes, execution = with_small_memory(parts, rows=5), Execution()
    weight = torch.rand(BATCH)
    with EqualDraws():
        for _ in range(2):
            expected = whole.update(make_batch(whole).set("weight", weight))
            found = execution.update(parts, make_batch(parts).set("weight", weight))
            torch.testing.assert_close(found.metrics, expected.metrics, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(found.priorities, expected.priorities, rtol=1e-4, atol=1e-5)
    for (name, one), other in zip(whole.named_parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-3, atol=1e-6, msg=name)
    torch.testing.assert_close(parameters(parts), parameters(whole), rtol=1e-3, atol=1e-4)
    # The size that fits is remembered and reported once.
    assert sizes == [BATCH, BATCH // 2, BATCH // 4] + [BATCH // 8] * 16
    (record,) = (record for record in caplog.records if "memory" in record.message)
    assert record.levelno == logging.WARNING
    assert f"{BATCH} transitions at once" in caplog.text
    assert f"parts of {BATCH // 8}" in caplog.text


def beyond_memory(batch: TensorDictBase) -> TensorDictBase:
    raise torch.cuda.OutOfMemoryError("CUDA out of memory.")


def test_images_beyond_the_memory_end_in_one_line() -> None:
    agent = CASES[0].make()
    batch = make_batch(agent)
    agent.augmentation = beyond_memory
    with pytest.raises(ConfigurationError, match=rf"images of {BATCH} transitions; a smaller"):
        agent.update(batch)


def test_too_many_environments_for_the_memory_end_in_one_line() -> None:
    act = beyond_memory
    with pytest.raises(ConfigurationError, match=r"actions of 7 environments or robots; a smaller"):
        Execution().act(act, TensorDict({}, [7]))


def test_parts_have_nearly_equal_sizes_and_count_by_them() -> None:
    whole, parts = CASES[0].make(), CASES[0].make()
    batch = make_batch(whole)[:21]
    sizes = with_small_memory(parts, rows=6)
    with EqualDraws():
        whole.update(batch)
        parts.update(batch)
    assert sizes == [21, 11, 6, 6, 6, 3]
    torch.testing.assert_close(parameters(parts), parameters(whole), rtol=1e-3, atol=1e-4)


def test_updates_of_a_script_remember_the_size_that_fits() -> None:
    agent = CASES[0].make()
    sizes = with_small_memory(agent, rows=BATCH // 2)
    for _ in range(2):
        agent.update(make_batch(agent))
    assert sizes == [BATCH] + [BATCH // 2] * 4


def test_an_optimizer_may_begin_with_an_empty_group() -> None:
    agent = CASES[0].make()
    agent.optimizer.param_groups.insert(0, {**agent.optimizer.param_groups[0], "params": []})
    before = [parameter.clone() for parameter in agent.parameters()]
    agent.update(make_batch(agent))
    changed = zip(before, agent.parameters(), strict=True)
    assert any(not torch.equal(old, new) for old, new in changed)


def test_memory_for_no_transition_ends_in_one_line() -> None:
    agent = CASES[0].make()
    with_small_memory(agent, rows=0)
    with pytest.raises(ConfigurationError, match=r"^cpu: the memory is insufficient .* a single"):
        agent.update(make_batch(agent))


def test_other_errors_pass() -> None:
    agent = CASES[0].make()
    sizes = with_small_memory(agent, 0, RuntimeError("shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="shapes"):
        agent.update(make_batch(agent))
    assert sizes == [BATCH]
