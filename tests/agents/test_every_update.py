"""The gradient step of every agent: losses, targets, weights and priorities."""

import re
from typing import Any

import pytest
import torch
from tensordict import NestedKey
from torch import Tensor, nn

from agents import DQN, IQN, SAC
from agents.base import Agent, OffPolicyAgent, OnPolicyAgent
from agents.ddpg import DDPG
from agents.dqn import ValueBasedAgent
from agents.modules.encoders import ObservationEncoderFactory
from tests.helpers.agents import (
    BATCH,
    CASES,
    OBSERVATION,
    WITH_SCHEDULES,
    Case,
    every_agent,
    every_agent_that,
    every_agent_with,
    losses_of,
    make_batch,
    make_rollout,
    online_of,
    parameters,
)
from tests.helpers.draws import EqualDraws
from torchrl_gpu.errors import ConfigurationError

pytestmark = pytest.mark.directml

every_off_policy_agent = every_agent_that(lambda case: issubclass(case.agent_class, OffPolicyAgent))
every_value_based_agent = every_agent_that(
    lambda case: issubclass(case.agent_class, ValueBasedAgent)
)
every_off_policy_actor_critic = every_agent_that(
    lambda case: issubclass(case.agent_class, OffPolicyAgent) and case.actions == "continuous"
)

every_agent_and_kind_of_critic = pytest.mark.parametrize(
    ("case", "settings"),
    [(case, {}) for case in CASES]
    + [
        (Case(SAC, "continuous"), {"critic": "categorical", "twins": twins})
        for twins in ("minimum", "average")
    ],
)


def learned(agent: Agent) -> set[str]:
    """Return the names of all trained parameters; a shared parameter has several names."""
    ids = {
        id(parameter)
        for optimizer in agent.optimizers().values()
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    everything = agent.named_parameters(remove_duplicate=False)
    return {name for name, parameter in everything if id(parameter) in ids}


def targets(agent: Agent) -> dict[str, str]:
    """Map the name of each target parameter to the name of its online parameter."""
    names = [name for name, _ in agent.named_parameters() if name.startswith("target_")]
    return {name: online_of(name) for name in names}


def are_close(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.allclose(value, other[name]) for name, value in one.items())


@every_agent
def test_losses_reach_disjoint_parameters_and_together_all_trained_ones(case: Case) -> None:
    agent = case.make()
    batch = make_batch(agent)
    reached: list[str] = []
    for loss in losses_of(agent, batch):
        agent.zero_grad()
        losses_of(agent, batch)[loss].backward()
        touched = [name for name, p in agent.named_parameters() if p.grad is not None]
        assert touched, loss
        reached += touched
    assert len(reached) == len(set(reached))
    unique = {name for name, _ in agent.named_parameters()}
    assert set(reached) == learned(agent) & unique


@every_agent
def test_update_changes_trained_and_target_parameters_and_nothing_else(case: Case) -> None:
    agent = case.make(target_rate=0.1)
    before = parameters(agent)
    agent.update(make_batch(agent))
    after = parameters(agent)
    follows, moves = targets(agent), learned(agent)
    assert not follows.keys() & moves
    for name, value in after.items():
        if name in follows:
            expected = 0.9 * before[name] + 0.1 * after[follows[name]]
            torch.testing.assert_close(value, expected, msg=name)
        else:
            assert torch.equal(value, before[name]) != (name in moves), name


@every_agent_with("target_period")
def test_target_networks_are_copied_once_per_period(case: Case) -> None:
    agent = case.make(target_rate=1.0, target_period=3)
    start = parameters(agent)
    for step in range(1, 7):
        agent.update(make_batch(agent, seed=step))
        now = parameters(agent)
        for target, online in targets(agent).items():
            if step < 3:
                assert torch.equal(now[target], start[target]), target
            assert torch.equal(now[target], now[online]) == (step % 3 == 0), target


@every_agent
def test_the_learning_rate_follows_its_schedule(case: Case) -> None:
    agent = case.make(**WITH_SCHEDULES)
    batch, rates = make_batch(agent), []
    for frames in (0, 100, 200, 400, 500):
        agent.policy.frames.fill_(frames)
        agent.update(batch)
        (rate,) = {
            float(group["lr"])
            for optimizer in agent.optimizers().values()
            for group in optimizer.param_groups
        }
        rates.append(rate)
    assert rates == pytest.approx([1e-2, 8e-3, 6e-3, 2e-3, 2e-3])


@every_agent
def test_a_learning_rate_of_zero_changes_no_trained_parameter(case: Case) -> None:
    agent = case.make(learning_rate_end=0.0, learning_rate_frames=1)
    agent.policy.frames.fill_(1)
    before = parameters(agent)
    agent.update(make_batch(agent))
    after = parameters(agent)
    assert all(torch.equal(before[name], after[name]) for name in learned(agent))


def gradient_norm(network: nn.Module) -> float:
    gradients = [p.grad.flatten() for p in network.parameters() if p.grad is not None]
    return torch.cat(gradients).norm().item() if gradients else 0.0


@every_agent_with("max_gradient_norm")
def test_max_gradient_norm_limits_the_gradient(case: Case) -> None:
    limit = 1e-3
    agent = case.make(max_gradient_norm=limit)
    agent.update(make_batch(agent))
    # The limit holds per network, or for two networks together, one of which dominates the norm.
    largest = max(gradient_norm(network) for network in agent.children())
    assert 0.7 * limit < largest < 1.001 * limit


@every_agent_that(lambda case: issubclass(case.agent_class, DDPG))
def test_max_gradient_norm_limits_actor_and_critic_separately(case: Case) -> None:
    agent: Any = case.make(max_gradient_norm=1e-4)
    agent.update(make_batch(agent))
    assert gradient_norm(agent.actor) == pytest.approx(1e-4, rel=1e-2)
    assert gradient_norm(agent.critic) == pytest.approx(1e-4, rel=1e-2)


def test_max_gradient_norm_limits_the_step_of_an_optimizer_of_the_user() -> None:
    agent = Case(DQN, "discrete").make(max_gradient_norm=1e-3)
    agent.optimizer = torch.optim.SGD(agent.policy.parameters(), lr=1.0)
    before = nn.utils.parameters_to_vector(agent.policy.parameters())
    agent.update(make_batch(agent))
    step = nn.utils.parameters_to_vector(agent.policy.parameters()) - before
    assert step.norm().item() == pytest.approx(1e-3, rel=1e-2)


@every_off_policy_agent
def test_truncation_bootstraps_and_termination_does_not(case: Case) -> None:
    agent = case.make()

    def losses(
        ahead: float, terminated: bool = False, truncated: bool = False
    ) -> dict[str, Tensor]:
        batch = make_batch(agent, terminated=terminated)
        batch["next", "observation"] *= ahead
        batch["next", "truncated"] |= truncated
        return losses_of(agent, batch)

    running, ended = losses(1.0), losses(1.0, terminated=True)
    assert are_close(losses(1.0, truncated=True), running)
    assert not are_close(losses(-1.0, truncated=True), running)
    assert not are_close(ended, running)
    assert are_close(losses(-1.0, terminated=True), ended)


@every_off_policy_agent
def test_n_step_returns_discount_the_next_value_n_times(case: Case) -> None:
    agent = case.make(gamma=0.125)
    batch = make_batch(agent)
    one_step = losses_of(agent, batch)
    batch["steps_to_next_obs"] = torch.full((BATCH, 1), 3)
    assert are_close(losses_of(case.make(gamma=0.5, n_step=3), batch), one_step)
    assert not are_close(losses_of(agent, batch), one_step)


@every_agent_that(lambda case: case.actions == "continuous")
def test_action_bounds_do_not_change_the_gradient(case: Case) -> None:
    gradients = []
    for bounds in ((-1.0, 1.0), (2.0, 6.0)):
        agent = case.make(bounds=bounds)
        batch = make_batch(agent)
        torch.manual_seed(3)
        agent.update(batch)
        gradients.append([p.grad for p in agent.parameters() if p.grad is not None])
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


@every_off_policy_actor_critic
def test_actor_update_increases_the_value_of_its_actions(case: Case) -> None:
    agent = case.make(learning_rate=1e-2, initial_temperature=1e-3)
    actor = {id(parameter) for parameter in agent.policy.parameters()}
    others = [p for p in agent.parameters() if id(p) not in actor]
    start = [p.detach().clone() for p in others]
    batch = make_batch(agent)

    def value() -> float:
        """Return the mean value of the greedy actions by the critics, which stay the same."""
        agent.policy.eval()
        acted = agent.policy(batch.clone())
        torch.manual_seed(3)
        metrics = agent.loss(acted).metrics
        return next(mean.item() for name, mean in metrics.items() if name.endswith("/value"))

    before = value()
    for _ in range(25):
        agent.update(batch)
        torch._foreach_copy_([p.detach() for p in others], start)
    assert value() > before + 0.01


@every_agent_with("risk_level")
def test_the_risk_level_does_not_change_the_returns_that_are_learned(case: Case) -> None:
    losses = []
    for risk_level in (0.1, 1.0):
        agent = case.make(risk_level=risk_level)
        if isinstance(agent, IQN):  # it chooses the next action by the risk level
            networks: list[Any] = [agent.network, agent.target_network.network]
            for network in networks:
                for parameter in network.head[-1].parameters():
                    parameter.data[:] = parameter.data[:1]
        found = losses_of(agent, make_batch(agent))
        losses.append(found.get("loss/critic", found.get("loss/value")))
    assert losses[0] == losses[1]


@every_agent_and_kind_of_critic
def test_loss_under_autocast_is_close_to_single_precision(
    case: Case, settings: dict[str, Any]
) -> None:
    agent = case.make(**settings)
    batch = make_batch(agent)
    expected = losses_of(agent, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = losses_of(agent, batch)
    for name, loss in expected.items():
        torch.testing.assert_close(found[name].float(), loss, atol=0.05, rtol=0.05, msg=name)


@every_agent_and_kind_of_critic
def test_losses_metrics_and_priorities_of_a_batch_are_those_of_its_parts(
    case: Case, settings: dict[str, Any]
) -> None:
    agent = case.make(value_clip=0.1, saturation_penalty=0.1, **settings)
    batch = make_batch(agent)
    active = torch.ones(BATCH, 1, dtype=torch.bool)
    active[:5] = False
    batch = agent.prepare_batch(batch.set("active", active).set("weight", torch.rand(BATCH)))
    with EqualDraws():
        whole, first, rest = (agent.loss(part) for part in (batch, batch[:8], batch[8:]))

    def joined(first: dict[str, Tensor], rest: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: (8 * first[name] + (BATCH - 8) * rest[name]) / BATCH for name in first}

    torch.testing.assert_close(joined(first.terms, rest.terms), whole.terms)
    torch.testing.assert_close(joined(first.metrics, rest.metrics), whole.metrics)
    if whole.priorities is not None:
        assert first.priorities is not None
        assert rest.priorities is not None
        torch.testing.assert_close(torch.cat((first.priorities, rest.priorities)), whole.priorities)


@every_agent
def test_update_does_not_change_its_batch(case: Case) -> None:
    agent = case.make()
    batch = make_batch(agent)
    before = batch.clone()
    agent.update(batch)
    assert set(batch.keys(True, True)) == set(before.keys(True, True))
    assert (batch == before).all()


@every_agent
@pytest.mark.parametrize("change", ["another shape", "another dtype", "missing"])
@pytest.mark.parametrize(
    "key", ["action", "observation", ("next", "reward"), ("next", "terminated")], ids=str
)
def test_other_transitions_are_refused(case: Case, key: NestedKey, change: str) -> None:
    agent = case.make()
    rollout = make_rollout(agent)
    learn = agent.prepare if isinstance(agent, OnPolicyAgent) else agent.update
    batch = rollout if isinstance(agent, OnPolicyAgent) else rollout.reshape(-1)
    value = batch[key]
    expected = f"shape {list(value.shape)} and {value.dtype}"
    if change == "missing":
        batch, found = batch.exclude(key), "is missing"
    else:
        other = value.unsqueeze(-1) if change == "another shape" else value.half()
        batch[key] = other
        found = f"has shape {list(other.shape)} and {other.dtype}"
    name = key if isinstance(key, str) else ".".join(key)
    refusal = f"batch: {name} {found}; an agent takes {expected}"
    with pytest.raises(ConfigurationError, match=f"^{re.escape(refusal)}$"):
        learn(batch)


@every_agent
def test_an_update_refuses_steps_of_a_rollout_that_are_not_flattened(case: Case) -> None:
    agent = case.make()
    rollout = make_rollout(agent)
    batch = agent.prepare(rollout) if isinstance(agent, OnPolicyAgent) else rollout
    with pytest.raises(ConfigurationError, match=r"^batch: it has batch size .*reshape"):
        agent.update(batch)


@every_value_based_agent
def test_importance_weights_do_not_change_the_priorities(case: Case) -> None:
    found = []
    for weight in (None, torch.linspace(0.1, 1.0, BATCH).unsqueeze(1)):
        agent = case.make()
        batch = make_batch(agent)
        if weight is not None:
            batch["weight"] = weight
        torch.manual_seed(3)
        priorities = agent.update(batch).priorities
        assert priorities is not None
        assert priorities.shape == (BATCH,)
        assert not priorities.requires_grad
        assert (priorities > 0.0).all()
        found.append(priorities)
    torch.testing.assert_close(*found)


@every_value_based_agent
@pytest.mark.parametrize("key", ["weight", "priority_weight"])
@pytest.mark.parametrize("shape", [(BATCH,), (BATCH, 1)])
def test_importance_weights_under_either_key_have_effect(
    case: Case, key: str, shape: tuple[int, ...]
) -> None:
    agent = case.make()
    batch = make_batch(agent)
    weight = torch.linspace(0.1, 1.0, BATCH)
    expected = losses_of(agent, batch.clone().set("weight", weight.unsqueeze(1)))["loss/value"]
    unweighted = losses_of(agent, batch)["loss/value"]
    found = losses_of(agent, batch.set(key, weight.reshape(shape)))["loss/value"]
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, unweighted)


@every_value_based_agent
def test_importance_weight_scales_the_loss_of_its_transition(case: Case) -> None:
    agent = case.make()
    batch = make_batch(agent)

    def loss(weight: Tensor) -> Tensor:
        return losses_of(agent, batch.set("weight", weight))["loss/value"]

    whole = losses_of(agent, batch)["loss/value"]
    weight = torch.linspace(0.1, 0.9, BATCH).unsqueeze(1)
    torch.testing.assert_close(loss(weight) + loss(1.0 - weight), whole)
    # A transition of weight 0 has no effect.
    weight[: BATCH // 2] = 0.0
    without = loss(weight)
    batch["next", "reward"][: BATCH // 2] += 1.0
    torch.testing.assert_close(loss(weight), without)
    assert not torch.allclose(loss(1.0 - weight), whole - without)


@every_agent
def test_every_network_trains_its_own_vector_layer(case: Case) -> None:
    agent = case.make(encoder=ObservationEncoderFactory(vector_features=7))
    before = parameters(agent)
    agent.update(make_batch(agent))
    layers = [name for name in learned(agent) if before[name].shape == (7, OBSERVATION)]
    networks = {name.split(".")[0] for name in learned(agent)} - {"log_temperature"}
    assert {name.split(".")[0] for name in layers} == networks
    for name in layers:
        assert not torch.equal(agent.state_dict()[name], before[name]), name


@pytest.mark.parametrize("categorical", [False, True])
@every_off_policy_agent
def test_a_reward_that_is_not_a_number_reaches_the_loss(case: Case, categorical: bool) -> None:
    """The trainer names it then; an index made of it would end the process on a GPU."""
    settings: dict[str, Any] = (
        {"critic": "categorical"} if categorical and case.agent_class is SAC else {}
    )
    agent = case.make(**settings)
    batch = make_batch(agent)
    batch["next", "reward"][3] = torch.nan
    assert any(loss.isnan() for loss in losses_of(agent, batch).values())
