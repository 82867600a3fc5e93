import copy
import math
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from agents import SAC
from agents.sac import sample_tanh_normal
from tests.helpers.agents import (
    BATCH,
    CPU,
    ENVS,
    OBSERVATION,
    assert_equal,
    make_batch,
    parameters,
    small,
    small_specs,
)

make = partial(small, SAC)


@pytest.mark.parametrize("terminated", [False, True])
def test_critics_learn_the_lower_target_value_and_the_entropy(
    terminated: bool,
) -> None:
    agent = make(gamma=0.9, initial_temperature=0.2)
    for p in agent.target_critics.parameters():
        p.data += 0.1 * torch.randn(p.shape)  # so that target and online networks differ
    batch = make_batch(agent, terminated=terminated)
    torch.manual_seed(3)
    loss = agent.loss(batch).terms["loss/critic"]
    torch.manual_seed(3)
    next_action, next_log_prob = agent.actor.sample(batch["next"])
    one, other = agent.target_critics(batch["next"], next_action)
    next_value = torch.minimum(one, other) - 0.2 * next_log_prob
    target = batch["next", "reward"] + (0.0 if terminated else 0.9) * next_value
    error = agent.critics(batch, batch["action"]) - target
    torch.testing.assert_close(loss, error.square().mean(dim=(1, 2)).sum())


@pytest.mark.parametrize(("target_entropy", "direction"), [(100.0, 1.0), (-100.0, -1.0)])
def test_temperature_moves_towards_the_target_entropy(
    target_entropy: float, direction: float
) -> None:
    agent = make(target_entropy=target_entropy)
    before = agent.log_temperature.item()
    agent.update(make_batch(agent))
    assert math.copysign(1.0, agent.log_temperature.item() - before) == direction


def test_n_step_target_adds_the_entropy_of_the_last_step_alone() -> None:
    agent = make(gamma=0.5, n_step=3, initial_temperature=0.2)
    replay = agent.build_replay(64)
    for step in range(4):
        row = make_batch(agent, seed=step)[:ENVS]
        row["observation"] = torch.full((ENVS, OBSERVATION), float(step))
        row["next", "observation"] = torch.full((ENVS, OBSERVATION), step + 1.0)
        row["next", "reward"] = torch.full((ENVS, 1), 2.0**step)
        row["next", "truncated"] = torch.full((ENVS, 1), step == 3)
        replay.extend(row)
    batch = replay.sample(64)
    torch.manual_seed(3)
    loss = agent.loss(batch).terms["loss/critic"]

    first = batch["observation"][:, :1].long()
    # 1 + 2 / 2 + 4 / 4 from the first step, 2 + 4 / 2 + 8 / 4 from the second, fewer at the end
    rewards = torch.tensor([3.0, 6.0, 8.0, 8.0])[first]
    discounts = torch.tensor([0.125, 0.125, 0.25, 0.5])[first]
    last = TensorDict({"observation": (first + 3).clamp(max=4).float().expand(-1, OBSERVATION)})
    torch.manual_seed(3)
    action, log_prob = agent.actor.sample(last)
    values = agent.target_critics(last, action).amin(dim=0)
    error = agent.critics(batch, batch["action"]) - rewards - discounts * (values - 0.2 * log_prob)
    torch.testing.assert_close(loss, error.square().mean(dim=(1, 2)).sum())


def test_categorical_critics_learn_the_projected_target() -> None:
    agent = make(
        gamma=0.9,
        initial_temperature=0.2,
        critic="categorical",
        value_min=-3.0,
        value_max=3.0,
        atoms=7,
    )
    for p in agent.target_critics.parameters():
        p.data += 0.1 * torch.randn(p.shape)  # so that target and online networks differ
    batch = make_batch(agent)
    torch.manual_seed(3)
    loss = agent.loss(batch).terms["loss/critic"].item()
    torch.manual_seed(3)
    next_action, next_log_prob = agent.actor.sample(batch["next"])
    next_p = agent.target_critics(batch["next"], next_action).softmax(-1).tolist()
    log_p = agent.critics(batch, batch["action"]).log_softmax(-1).tolist()
    atoms = [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0]
    expected = 0.0
    for row in range(BATCH):
        means = [sum(p * z for p, z in zip(next_p[i][row], atoms, strict=True)) for i in (0, 1)]
        target = [0.0] * 7
        for p, z in zip(next_p[means.index(min(means))][row], atoms, strict=True):
            soft = z - 0.2 * next_log_prob[row].item()
            place = min(max(batch["next", "reward"][row].item() + 0.9 * soft, -3.0), 3.0) + 3.0
            lower = min(math.floor(place), 5)
            target[lower] += p * (lower + 1 - place)
            target[lower + 1] += p * (place - lower)
        for i in (0, 1):
            for m, log_q in zip(target, log_p[i][row], strict=True):
                expected += m * ((math.log(m) if m > 0.0 else 0.0) - log_q) / BATCH
    assert loss == pytest.approx(expected, rel=1e-4)


def test_actor_and_temperature_learn_once_per_period() -> None:
    agent = make(actor_period=3)
    before = parameters(agent)
    for step in range(7):
        assert agent.phase == (0 if step % 3 == 0 else 1)
        metrics = agent.update(make_batch(agent, seed=step)).metrics
        after = parameters(agent)
        changed = {name for name in after if not torch.equal(after[name], before[name])}
        learns = any(name.startswith("actor.") for name in changed)
        assert learns == ("log_temperature" in changed) == ("loss/actor" in metrics)
        assert learns == (step % 3 == 0)
        assert any(name.startswith("critics.") for name in changed)
        assert any(name.startswith("target_critics.") for name in changed)
        before = after


def test_period_of_the_actor_goes_on_after_a_resume() -> None:
    agent, other = make(actor_period=3), make(actor_period=3)
    for step in range(4):
        agent.update(make_batch(agent, seed=step))
    other.load_training_state(copy.deepcopy(agent.training_state()))
    for step in range(4, 8):
        for one in (agent, other):
            torch.manual_seed(step)
            one.update(make_batch(one, seed=step))
    assert_equal(parameters(agent), parameters(other))


def test_layer_norm_is_in_the_networks_of_its_setting() -> None:
    agent = make(actor_layer_norm=True, critic_layer_norm=False)
    norms = [sum(isinstance(m, nn.LayerNorm) for m in n.modules()) for n in agent.children()]
    assert dict(zip((name for name, _ in agent.named_children()), norms, strict=True)) == {
        "actor": 2,
        "policy": 2,  # the actor
        "twin_values": 0,
        "critics": 0,
        "target_critics": 0,
    }


def test_log_probability_is_the_sum_over_the_dimensions_of_the_density_after_tanh() -> None:
    mean, log_std = torch.randn(5, 3), torch.randn(5, 3).clamp(-1, 1)
    torch.manual_seed(1)
    _, joint = sample_tanh_normal(mean, log_std)
    torch.manual_seed(1)
    noise = torch.randn(5, 3)
    total = torch.zeros(5, 1)
    for i in range(3):
        u = mean[:, i : i + 1] + log_std[:, i : i + 1].exp() * noise[:, i : i + 1]
        normal = torch.distributions.Normal(mean[:, i : i + 1], log_std[:, i : i + 1].exp())
        total += normal.log_prob(u) - torch.log(1 - u.tanh().square())
    torch.testing.assert_close(joint, total, rtol=1e-4, atol=1e-4)


def test_log_probability_and_gradient_are_finite_far_out() -> None:
    mean = torch.tensor([[40.0], [-40.0]], requires_grad=True)
    _, log_prob = sample_tanh_normal(mean, torch.zeros(2, 1))
    log_prob.sum().backward()
    assert torch.isfinite(log_prob).all()
    assert mean.grad is not None
    assert torch.isfinite(mean.grad).all()


def test_the_log_standard_deviation_is_bounded() -> None:
    actor = make().actor
    with torch.no_grad():
        actor.network[-1].get_parameter("bias").copy_(torch.tensor([0.0, 0.0, -1e3, 1e3]))
    _, log_std = actor.distribution(TensorDict({"observation": torch.zeros(1, OBSERVATION)}, [1]))
    assert log_std.tolist() == [[-5.0, 2.0]]


def test_the_device_may_be_named() -> None:
    name: Any = "cpu"
    agent = SAC(*small_specs("continuous"), name, hidden_sizes=[16, 16])
    assert agent.device == agent.build_replay(100).device == CPU
