from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase

from agents import PPO, Rainbow
from agents.base import Agent
from tests.helpers.agents import ENVS, OBSERVATION, build, build_for, small_specs
from tests.helpers.environments import MatchEnv
from tests.helpers.replay import allocated_bytes, transition_of
from tests.helpers.training import train_briefly
from torchrl_gpu.environments.capabilities import Capabilities
from torchrl_gpu.environments.specs import ActionKind
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.execution import Execution
from torchrl_gpu.execution.products import ProductLayer
from torchrl_gpu.processes import Processes
from trainers.training.experience import (
    Experience,
    ReplayExperience,
    experience_of,
    learned_transitions,
)


def make(agent_class: type[Agent], actions: ActionKind, **settings: Any) -> Agent:
    torch.manual_seed(0)
    return build(agent_class, *small_specs(actions), **settings)


def after_a_step(experience: Experience, agent: Agent) -> list[TensorDictBase]:
    """Store a step of the agent and return the batches that are due."""
    experience.store(transition_of(agent))
    return list(experience.batches())


@pytest.mark.parametrize(
    ("batch_size", "sizes"), [(5, [4] * 3), (7, [6, 6]), (4, [4] * 3), (50, [12])]
)
def test_minibatches_of_a_rollout_have_equal_size(
    batch_size: int, sizes: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    agent = make(PPO, "discrete", rollout_length=3, batch_size=batch_size, epochs=2)
    experience = experience_of(agent, ENVS, 100, 0)
    assert caplog.messages == (
        ["agent.batch_size=50: a rollout has 12 transitions, all of them in one batch"]
        if batch_size == 50
        else []
    )
    assert [len(batch) for _ in range(3) for batch in after_a_step(experience, agent)] == 2 * sizes


def test_a_rollout_that_is_not_returned_is_refused() -> None:
    agent = make(PPO, "discrete", rollout_length=1)
    agent.prepare = lambda rollout: None  # type: ignore[assignment]
    with pytest.raises(ConfigurationError, match=r"PPO.prepare has to .* TensorDict, not NoneType"):
        after_a_step(experience_of(agent, ENVS, 100, 0), agent)


def test_a_batch_above_the_rollout_of_all_processes_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for rank in range(2):
        processes = Processes()
        processes.rank, processes.count = rank, 2
        agent = make(PPO, "discrete", rollout_length=3, batch_size=25)
        agent.join(processes)
        experience_of(agent, 2 * ENVS, 100, 0)
    said = "agent.batch_size=50: a rollout has 24 transitions, all of them in one batch"
    assert caplog.messages == [said]


def test_remainder_of_a_rollout_differs_from_epoch_to_epoch() -> None:
    agent = make(PPO, "discrete", rollout_length=4, batch_size=6, epochs=20)
    experience = experience_of(agent, ENVS, 100, 0)
    batches = [batch for _ in range(4) for batch in after_a_step(experience, agent)]
    seen = torch.cat([batch["advantage"] for batch in batches])
    assert len(seen) == 20 * 15
    assert len(seen.unique()) == 16


def test_the_learned_transitions_are_those_of_all_batches() -> None:
    ppo = make(PPO, "discrete", rollout_length=3, batch_size=4, epochs=2)
    rainbow = make(Rainbow, "discrete", batch_size=8, utd_ratio=0.25, n_step=1)
    for agent, frames in ((ppo, 9 * ENVS), (rainbow, 41 * ENVS)):
        experience = experience_of(agent, ENVS, 1_000, random_frames=5)
        steps = range(frames // ENVS)
        batches = [batch for _ in steps for batch in after_a_step(experience, agent)]
        assert learned_transitions(agent, frames, 5, ENVS) == sum(map(len, batches))


def test_half_precision_finds_the_policy_that_acted_unchanged() -> None:
    agent = make(PPO, "continuous", rollout_length=64, batch_size=256, epochs=1)
    with torch.no_grad():  # the small weights of an untrained last layer hide the rounding
        agent.get_parameter("actor.network.network.4.weight").mul_(300.0)
    execution = Execution(precision="bf16")
    experience = experience_of(agent, ENVS, 100, 0, execution=execution)
    batches = [batch for _ in range(64) for batch in after_a_step(experience, agent)]
    assert execution.update(agent, batches[0]).metrics["ppo/kl"].abs() < 1e-7


def test_a_resumed_run_prepares_its_first_rollout_by_the_library_of_the_updates() -> None:
    agent, execution = make(PPO, "discrete", rollout_length=1), Execution()
    execution.load_state_dict(execution.state_dict() | {"products": "onednn"})
    after_a_step(experience_of(agent, ENVS, 100, 0, execution=execution), agent)
    layers = [module for module in agent.modules() if isinstance(module, ProductLayer)]
    assert {layer.library for layer in layers} == {execution.products}


@pytest.mark.parametrize("parts", [None, [{}]])
def test_a_run_without_an_open_rollout_begins_one(parts: list[dict[str, Any]] | None) -> None:
    agent = make(PPO, "discrete", rollout_length=3, batch_size=4, epochs=1)
    experience = experience_of(agent, ENVS, 100, 0)
    for _ in range(2):
        assert not after_a_step(experience, agent)
    experience.load_state_dict({}, parts)
    assert [len(after_a_step(experience, agent)) for _ in range(3)] == [0, 0, 3]


def test_the_replay_of_an_environment_with_frame_stacks_holds_each_frame_once() -> None:
    agent = make(Rainbow, "discrete")
    can = Capabilities(frame_stacks={"observation": OBSERVATION})
    stacks, frames = (experience_of(agent, ENVS, 1000, 0, can=c) for c in (Capabilities(), can))
    assert isinstance(stacks, ReplayExperience)
    assert isinstance(frames, ReplayExperience)
    saved = allocated_bytes(stacks.replay) - allocated_bytes(frames.replay)
    assert saved == 1000 * (OBSERVATION - 1) * 4 - 1000 * 8  # ages take a number for each step


@pytest.mark.parametrize("n_step", [1, 3])
def test_updates_that_are_due_wait_for_the_first_transition(n_step: int) -> None:
    agent = make(Rainbow, "discrete", batch_size=8, utd_ratio=0.25, n_step=n_step)
    experience = experience_of(agent, ENVS, 100, random_frames=0)
    for _ in range(2):
        rows = torch.zeros(ENVS, 1, dtype=torch.bool)
        experience.store(transition_of(agent).set("active", rows))
        assert not list(experience.batches())
    last = transition_of(agent)
    rows[1] = True
    experience.store(last.set("active", rows))
    batches = list(experience.batches())
    assert len(batches) == 3
    for batch in batches:
        assert torch.equal(batch["observation"], last["observation"][1].expand(8, -1))


@pytest.mark.parametrize("change", [{"owed": 10**6}, {"owed": -1}, {"frames": 0.5}])
def test_updates_that_no_step_owes_are_refused(change: dict[str, Any]) -> None:
    agent = make(Rainbow, "discrete")
    experience: Any = experience_of(agent, ENVS, capacity=100, random_frames=8)
    state, parts = experience.state_dict(), [experience.replay.state_dict()]
    with pytest.raises(ConfigurationError, match="not a whole number"):
        experience.load_state_dict({**state, **change}, parts)
    experience.load_state_dict(state, parts)


def test_priorities_reach_the_replay_buffer_after_each_update() -> None:
    agent = make(Rainbow, "discrete", batch_size=64, utd_ratio=0.5, n_step=1)
    experience: Any = experience_of(agent, ENVS, 100, 0)
    (batch, _) = after_a_step(experience, agent)
    # Only the first transition has a high priority.
    first = batch["place"] == batch["place"].min()
    experience.update_priorities(batch, torch.where(first, 1e6, 0.0))
    assert (experience.replay.sample(64)["place"] == batch["place"].min()).float().mean() > 0.95


def test_a_trainer_hands_priorities_to_the_replay(tmp_path: Path) -> None:
    torch.manual_seed(0)
    env = MatchEnv(num_envs=4)
    agent = build_for(env, Rainbow, weight_exponent_start=1.0)
    trainer = train_briefly(env, agent, tmp_path, random_frames=64)
    experience: Any = trainer.experience
    # Transitions of equal priority all have the weight 1.
    assert experience.replay.sample(64)["weight"].min() < 0.9
