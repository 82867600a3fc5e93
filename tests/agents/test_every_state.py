"""What holds for every agent that goes on from a saved state, with the same settings or others."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ExponentialLR

from agents.base import Agent, OffPolicyAgent
from tests.every_agent import (
    Case,
    assert_equal,
    every_agent,
    every_agent_that,
    make_batch,
    parameters,
)
from torchrl_gpu.errors import ConfigurationError


def trained(case: Case, **settings: Any) -> Agent:
    agent = case.make(**settings)
    for seed in range(3):
        agent.update(make_batch(agent, seed=seed))
    return agent


def resumed(case: Case, agent: Agent, **settings: Any) -> Agent:
    """Return an agent of the given settings that goes on where another is."""
    other = case.make(seed=1, **settings)
    other.load_training_state(copy.deepcopy(agent.training_state()))
    return other


@every_agent
def test_another_learning_rate_holds_from_there_on(case: Case) -> None:
    agent = trained(case, learning_rate=1e-2)
    slow, same = (resumed(case, agent, learning_rate=rate) for rate in (1e-10, 1e-2))
    distances = []
    for one in (slow, same):
        learned = [
            parameter
            for optimizer in one.optimizers().values()
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
        before = [parameter.clone() for parameter in learned]
        one.update(make_batch(one, seed=9))
        pairs = zip(learned, before, strict=True)
        distances.append(max((new - old).abs().max().item() for new, old in pairs))
    assert distances[0] < 1e-8
    assert distances[1] > 1e-3


@every_agent_that(lambda case: issubclass(case.agent_class, OffPolicyAgent))
def test_a_rate_that_a_scheduler_of_torch_has_moved_goes_on(case: Case) -> None:
    def scheduled() -> tuple[Agent, list[ExponentialLR]]:
        agent = case.make(learning_rate=1e-2)
        schedulers = [ExponentialLR(one, 0.5) for one in agent.optimizers().values()]
        agent.update(make_batch(agent))
        return agent, schedulers

    agent, schedulers = scheduled()
    for scheduler in schedulers:
        scheduler.step()
    other, _ = scheduled()
    other.load_training_state(copy.deepcopy(agent.training_state()))
    for optimizer in other.optimizers().values():
        assert [group["lr"] for group in optimizer.param_groups] == [5e-3]


@every_agent
def test_networks_of_another_size_are_refused_in_one_line(case: Case) -> None:
    agent = case.make(hidden_sizes=[16, 16])
    with pytest.raises(ConfigurationError, match="not those of these settings: size mismatch") as e:
        resumed(case, agent, hidden_sizes=[8, 8])
    assert "\n" not in str(e.value)


@every_agent_that(lambda case: case.agent_class.__name__ == "Rainbow")
@pytest.mark.parametrize("settings", [{"value_max": 7.0}, {"value_min": -9.0}])
def test_values_of_another_range_are_refused(case: Case, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        resumed(case, case.make(), **settings)


@every_agent
def test_the_same_settings_go_on_as_if_never_stopped(case: Case) -> None:
    agent = trained(case)
    other = resumed(case, agent)
    for one in (agent, other):
        torch.manual_seed(5)
        one.update(make_batch(one, seed=9))
    assert_equal(parameters(agent), parameters(other))
