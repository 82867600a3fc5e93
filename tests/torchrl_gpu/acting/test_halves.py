from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule

from tests.helpers.environments import HalvesEnv
from torchrl_gpu.acting.collector import BatchCollector
from torchrl_gpu.acting.halves import HalvesCollector
from torchrl_gpu.environments.action_table import with_action_table
from torchrl_gpu.environments.environment import Environment

CPU = torch.device("cpu")


def noisy(env: HalvesEnv, acted: list[Any] | None = None) -> TensorDictModule:
    """Return a policy with noise, which also records the steps in flight when it acts."""

    def act(observation: torch.Tensor) -> torch.Tensor:
        if acted is not None:
            acted.append(tuple(part.in_flight for part in env.parts))
        return observation / 2 + torch.randn_like(observation) / 10

    return TensorDictModule(act, in_keys=["observation"], out_keys=["action"])


def make_collector(device: torch.device = CPU) -> tuple[HalvesEnv, HalvesCollector]:
    env = HalvesEnv(5)
    return env, HalvesCollector(env, device, ["observation"])


def test_one_half_simulates_while_the_policy_acts_for_the_other() -> None:
    env, collector = make_collector()
    acted: list[tuple[int, int]] = []
    policy = noisy(env, acted)
    collector.step(policy, policy)
    assert acted == [(0, 0), (1, 0), (0, 1), (1, 0)]
    collector.step(policy, None)
    assert len(acted) == 4
    assert [part.in_flight for part in env.parts] == [0, 0]


@pytest.mark.parametrize("ahead", [False, True])
def test_transitions_follow_each_other(ahead: bool) -> None:
    env, collector = make_collector()
    policy = noisy(env)
    before: TensorDictBase | None = None
    for number in range(1, 12):
        step = collector.step(policy, policy if ahead else None)
        assert step.batch_size == (5,)
        assert torch.allclose(step["action"], step["observation"] / 2, atol=0.6)
        error = (step["action"] - step["observation"]).square().sum(1, keepdim=True)
        assert torch.equal(step["next", "reward"], -error)
        if before is not None:
            follows = torch.equal(step["observation"], before["next", "observation"])
            assert follows != before["next", "done"].all()
        before = step
        assert collector.steps == number


@pytest.mark.parametrize("view", [lambda env: env, with_action_table])
def test_a_step_in_flight_continues_from_a_saved_state(view: Any) -> None:
    def random(env: Environment) -> TensorDictModule:
        spec = env.halves()[0].full_action_spec["action"]
        return TensorDictModule(
            lambda o: spec.rand()[:1].expand(len(o), *spec.shape[1:]).clone(),
            in_keys=["observation"],
            out_keys=["action"],
        )

    envs = [view(HalvesEnv(5)) for _ in range(2)]
    collector, again = (HalvesCollector(env, CPU, ["observation"]) for env in envs)
    policy = random(envs[0])
    for _ in range(4):
        collector.step(policy, policy)
    state, numbers = collector.state_dict(), torch.get_rng_state()
    expected = [collector.step(policy, policy) for _ in range(3)]
    torch.manual_seed(99)
    assert again.load_state_dict(state)
    torch.set_rng_state(numbers)
    for step in expected:
        assert (again.step(policy, policy) == step).all()


def test_a_state_of_the_whole_continues_in_halves_and_back() -> None:
    env, collector = make_collector()
    policy = noisy(env)
    collector.step(policy, None)
    whole = BatchCollector(HalvesEnv(5), CPU, ["observation"])
    assert whole.load_state_dict(collector.state_dict())
    root, has_acted = whole.state_dict()["root"], whole.state_dict()["has_acted"]
    assert not has_acted
    assert torch.equal(root["observation"], collector.state_dict()["root"]["observation"])
    _, other = make_collector()
    assert other.load_state_dict(whole.state_dict())
    assert torch.equal(other.step(policy)["observation"], root["observation"])


def test_no_transition_is_lost_by_an_interrupt_between_the_halves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env, collector = make_collector()
    policy = noisy(env)
    collector.step(policy, policy)

    def interrupted(tensordict: TensorDictBase) -> TensorDictBase:
        raise KeyboardInterrupt

    before = collector.state_dict()["root"]["observation"]
    with monkeypatch.context() as patch:
        patch.setattr(env.parts[1], "_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            collector.step(policy, policy)
    assert torch.equal(collector.step(policy, policy)["observation"], before)


def test_a_restart_begins_new_episodes_in_both_halves() -> None:
    env, collector = make_collector()
    policy = noisy(env)
    collector.step(policy, policy)
    collector.restart()
    assert not collector.state_dict()["has_acted"]
    assert all((part.steps == 0).all() for part in env.parts)
    assert collector.step(policy).batch_size == (5,)


def test_each_half_is_copied_once_each_way(accelerator: torch.device) -> None:
    env, collector = make_collector(accelerator)
    policy = noisy(env)
    steps = [collector.step(policy, policy) for _ in range(4)]
    assert all(step.device == accelerator for step in steps)
    assert [part.to_device.copies for part in collector.parts] == [4, 4]
    assert [part.to_host.copies for part in collector.parts] == [5, 5]
    for before, after in pairwise(steps):
        assert torch.equal(before["next", "observation"].cpu(), after["observation"].cpu())
