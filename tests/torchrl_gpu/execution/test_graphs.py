"""Captured policies and updates agree with eager ones, for every agent."""

import copy
from collections import Counter
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from agents import DQN
from tests.helpers.agents import (
    ENVS,
    OBSERVATION,
    WITH_ALL_OPTIONS,
    WITH_SCHEDULES,
    Case,
    every_agent,
    make_batch,
    parameters,
)
from tests.stand_in import Abilities, count_host_reads
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.execution import Execution
from torchrl_gpu.execution.graphs import EAGER_CALLS
from torchrl_gpu.execution.options import GraphMode

with_graphs = pytest.mark.parametrize("accelerator", [Abilities(graphs=True)], indirect=True)
QUICKEST = Case(DQN, "discrete")
UPDATES = 20  # of two kinds at most, each of which is replayed six times


def learn(
    case: Case, execution: Execution, device: torch.device
) -> tuple[list[dict[str, Tensor]], dict[str, Tensor], int]:
    """Return metrics and parameters after updates, and the number of losses run in Python."""
    agent = case.make(**WITH_ALL_OPTIONS).to(device)
    calls: Counter[int] = Counter()
    loss = agent.loss

    def counted(batch: TensorDictBase) -> Any:
        calls[agent.phase] += 1
        return loss(batch)

    agent.loss = counted  # type: ignore[method-assign]
    torch.manual_seed(1)
    metrics, batches = [], [make_batch(agent, seed).to(device) for seed in range(8)]
    for number in range(UPDATES):
        update = execution.update(agent, batches[number % len(batches)])
        metrics.append({name: value.cpu() for name, value in update.metrics.items()})
    ends = {name: value.cpu() for name, value in parameters(agent).items()}
    return metrics, ends, max(calls.values())


@pytest.mark.slow
@with_graphs
@every_agent
def test_a_captured_update_learns_like_an_eager_one(case: Case, accelerator: torch.device) -> None:
    metrics, ends, _ = learn(case, Execution(accelerator), accelerator)
    found, found_ends, python_calls = learn(case, Execution(accelerator, graphs="on"), accelerator)
    torch.testing.assert_close(found, metrics, rtol=0.0, atol=0.0)
    torch.testing.assert_close(found_ends, ends, rtol=0.0, atol=0.0)
    # Each phase runs eagerly at first and is captured by one more call.
    assert python_calls == EAGER_CALLS + 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_agent
def test_a_captured_update_learns_like_an_eager_one_on_cuda(case: Case) -> None:
    cuda = torch.device("cuda")
    metrics, ends, _ = learn(case, Execution(cuda), cuda)
    found, found_ends, _ = learn(case, Execution(cuda, graphs="on"), cuda)
    # Some kernels of CUDA add in an order that differs from call to call.
    torch.testing.assert_close(found, metrics, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found_ends, ends, rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("settings", [{"precision": "bf16"}, {"compile": "default"}])
def test_graphs_go_with_bf16_and_compiled_losses_on_cuda(settings: dict[str, Any]) -> None:
    cuda = torch.device("cuda")
    metrics, ends, _ = learn(QUICKEST, Execution(cuda, **settings), cuda)
    found, found_ends, _ = learn(QUICKEST, Execution(cuda, graphs="on", **settings), cuda)
    torch.testing.assert_close(found, metrics, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(found_ends, ends, rtol=1e-2, atol=1e-3)


@with_graphs
@every_agent
def test_a_captured_policy_acts_and_explores_like_an_eager_one(
    case: Case, accelerator: torch.device
) -> None:
    def acted(graphs: GraphMode, explores: bool) -> Tensor:
        agent = case.make(epsilon_start=0.5, epsilon_frames=10**6).to(accelerator)
        agent.policy.train(explores)
        execution = Execution(accelerator, graphs=graphs)
        torch.manual_seed(1)
        actions = []
        for step in range(4 * EAGER_CALLS):
            seen = torch.full((ENVS, OBSERVATION), 0.1 * (step % 2), device=accelerator)
            observation = TensorDict({"observation": seen}, batch_size=[ENVS])
            actions.append(execution.act(agent.policy, observation)["action"])
        return torch.stack(actions).cpu()

    for explores in (True, False):
        expected, found = acted("off", explores), acted("on", explores)
        torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0)
        of_equal_observations = found[EAGER_CALLS + 1 :: 2]
        assert explores == (of_equal_observations != of_equal_observations[:1]).any()


@with_graphs
def test_a_captured_update_follows_the_schedule_of_the_learning_rate(
    accelerator: torch.device,
) -> None:
    agent = QUICKEST.make(**WITH_SCHEDULES).to(accelerator)
    execution = Execution(accelerator, graphs="on")
    batch = make_batch(agent).to(accelerator)
    rates = []
    for frames in range(0, 100 * (EAGER_CALLS + 4), 100):
        agent.policy.frames.fill_(frames)
        execution.update(agent, batch)
        rates.append(float(agent.optimizer.param_groups[0]["lr"]))
    end = [2e-3] * (EAGER_CALLS - 1)
    assert rates == pytest.approx([1e-2, 8e-3, 6e-3, 4e-3, 2e-3, *end])


@with_graphs
def test_replays_read_nothing_back_and_copy_nothing(accelerator: torch.device) -> None:
    agent = QUICKEST.make().to(accelerator)
    execution = Execution(accelerator, graphs="on")
    batch = make_batch(agent).to(accelerator)
    for _ in range(EAGER_CALLS + 1):
        execution.update(agent, batch)
    with count_host_reads() as counter:
        execution.update(agent, batch)
    assert not counter.events, counter.report()


@with_graphs
def test_an_update_that_reads_a_value_cannot_be_captured(accelerator: torch.device) -> None:
    agent = QUICKEST.make().to(accelerator)
    agent.after_update = lambda metrics: [x.item() for x in metrics.values()]  # type: ignore
    execution = Execution(accelerator, graphs="on")
    batch = make_batch(agent).to(accelerator)
    for _ in range(EAGER_CALLS):
        execution.update(agent, batch)
    with pytest.raises(ConfigurationError) as error:
        execution.update(agent, batch)
    assert str(error.value) == (
        "graphs: the update of DQN cannot be captured (operation not permitted when stream is "
        "capturing: _local_scalar_dense); use graphs=off"
    )


@with_graphs
def test_a_loaded_state_is_captured_anew(accelerator: torch.device) -> None:
    """The moments of a loaded optimizer are other tensors than those of the graph."""
    agent, other = (QUICKEST.make().to(accelerator) for _ in range(2))
    execution, eager = Execution(accelerator, graphs="on"), Execution(accelerator)
    batch = make_batch(agent).to(accelerator)
    saved = copy.deepcopy(agent.training_state())
    for _ in range(EAGER_CALLS + 2):
        execution.update(agent, batch)
    for learner in (agent, other):
        learner.load_training_state(copy.deepcopy(saved))
    execution.load_state_dict(execution.state_dict())
    for learner, runs in ((agent, execution), (other, eager)):
        for _ in range(EAGER_CALLS + 2):
            runs.update(learner, batch)
    for name, expected in parameters(other).items():
        found = parameters(agent)[name].cpu()
        torch.testing.assert_close(found, expected.cpu(), rtol=0.0, atol=0.0)


def test_a_device_without_graphs_is_refused() -> None:
    with pytest.raises(ConfigurationError) as error:
        Execution(graphs="on")
    assert str(error.value) == "graphs=on: cpu cannot capture graphs; use graphs=off"
