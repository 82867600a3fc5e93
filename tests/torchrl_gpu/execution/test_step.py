"""The gradient step: its order, and several processes that take it together."""

from typing import Any

import pytest
import torch

from agents import PPO
from tests.helpers.agents import BATCH, Case, assert_equal, make_batch, parameters
from tests.helpers.ranks import on_ranks
from torchrl_gpu.execution.execution import Execution
from torchrl_gpu.execution.learner import Losses, Update
from torchrl_gpu.processes import Processes

# Their losses draw no random numbers, so that halves of a batch add up to the whole.
PPO_CASE = Case(PPO, "continuous")


def test_the_adaptive_rate_follows_the_mean_divergence() -> None:
    agents = [PPO_CASE.make(target_kl=0.01, learning_rate=1e-3) for _ in range(2)]

    def adapt(processes: Processes) -> float:
        agent = agents[processes.rank]
        agent.join(processes)
        loss = agent.loss
        # Divergences of 0 and 0.05, of which only the mean is above twice the target.
        divergence = torch.tensor(0.05 * processes.rank)

        def with_divergence(batch: Any) -> Any:
            losses = loss(batch)
            return losses._replace(metrics=losses.metrics | {"ppo/kl": divergence})

        agent.loss = with_divergence  # type: ignore[method-assign]
        agent.update(make_batch(agent))
        return float(agent.optimizer.param_groups[0]["lr"])

    assert on_ranks(2, adapt) == pytest.approx([1e-3 / 1.5] * 2)


def test_an_overflow_in_one_process_skips_the_step_in_all() -> None:
    agents = [PPO_CASE.make() for _ in range(2)]
    before = parameters(agents[0])

    def learn(processes: Processes) -> tuple[Update, Any]:
        agent, execution = agents[processes.rank], Execution(precision="fp16")
        agent.join(processes)
        if processes.rank == 1:
            parameter = next(agent.policy.parameters())
            parameter.register_hook(lambda gradient: gradient.fill_(torch.inf))
        update = execution.update(agent, make_batch(agent))
        return update, execution.state_dict()["precision"]["scale"]

    (_, scale), (_, other_scale) = on_ranks(2, learn)
    assert scale == other_scale == 2.0**15
    for agent in agents:
        assert_equal(parameters(agent), before)


def test_a_rank_without_memory_learns_alone_in_parts() -> None:
    agents = [PPO_CASE.make() for _ in range(2)]
    batch, quarter = make_batch(agents[0]), BATCH // 4

    def learn(processes: Processes) -> list[int]:
        agent, execution = agents[processes.rank], Execution()
        agent.join(processes)
        loss, sizes = agent.loss, []

        def within_memory(batch: Any) -> Losses:
            sizes.append(len(batch))
            if processes.rank == 1 and len(batch) > quarter:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
            return loss(batch)

        agent.loss = within_memory  # type: ignore[method-assign]
        for _ in range(2):
            execution.update(agent, batch)
        return sizes

    one, other = on_ranks(2, learn)
    assert one == [BATCH] * 2
    assert other == [BATCH, BATCH // 2] + [quarter] * 8
    assert_equal(parameters(agents[0]), parameters(agents[1]))
