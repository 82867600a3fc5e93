"""All processes exchange the same tensors in the same order, whatever their rank."""

import pytest
import torch

from benchmarks.collectives import Collective, Link, Traffic, playing, traffic
from tests.helpers.agents import WITH_ALL_OPTIONS, Case, every_agent

OPTIONS = {**WITH_ALL_OPTIONS, "rollout_length": 8, "batch_size": 8, "utd_ratio": 1.0}
COUNTS = (16, 256)


def traffic_of(case: Case, rank: int, count: int) -> Traffic:
    agent = case.make(**OPTIONS)
    # As the processes of a run, each draws other numbers.
    torch.manual_seed(rank)
    with playing(rank, count) as processes:
        return traffic(agent, processes)


@pytest.mark.slow
@every_agent
@pytest.mark.parametrize("count", COUNTS)
def test_all_ranks_exchange_the_same_in_updates_and_rows(case: Case, count: int) -> None:
    first, *others = (traffic_of(case, rank, count) for rank in (0, count // 3, count - 1))
    for other in others:
        assert other == first
    assert all(first.updates)
    assert len(first.row) == 1


@every_agent
def test_an_update_costs_few_collectives(case: Case) -> None:
    found = traffic_of(case, 1, 16)
    # One for the gradients and metrics, one for a normalizer or advantages, one for priorities.
    most = 3 if case.agent_class.__name__ == "Rainbow" else 2
    assert max(len(update) for update in found.updates[4:6]) <= most
    groups = [
        group
        for optimizer in case.make(**OPTIONS).optimizers().values()
        for group in optimizer.param_groups
    ]
    learned = sum(parameter.numel() for group in groups for parameter in group["params"])
    largest = max(found.updates[4], key=lambda collective: collective.bytes)
    assert largest.bytes <= torch.float32.itemsize * (learned + 16)  # with up to 16 metrics


def test_the_model_takes_the_shorter_of_ring_and_tree() -> None:
    link = Link(bandwidth=1e9, ring_hop=1e-6, tree_hop=2e-6)
    small = Collective("allreduce_", (((1000,), torch.float32),))
    large = Collective("allreduce_", (((1000, 1000), torch.float32),))
    # 8 hops in trees against 30 in rings.
    assert small.seconds(16, link) == pytest.approx(14e-6 + 8 * 2e-6 + 2 * 4e3 / 1e9)
    assert large.seconds(16, link) == pytest.approx(14e-6 + 30 * (1e-6 + 4e6 / 16 / 1e9))
