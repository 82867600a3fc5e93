"""Capabilities of environments, and their shared `step_and_maybe_reset`."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torchrl.envs import EnvBase, RewardScaling, TransformedEnv
from torchrl.envs.utils import check_env_specs

from envs.fanuc import FanucEnv
from envs.gym import GymnasiumEnv
from envs.marinenav import MarineNavEnv
from tests.helpers.environments import IdentityEnv, MatchEnv, trajectory
from torchrl_gpu.arguments import check_settings
from torchrl_gpu.environments.action_table import with_action_table
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.environment import Environment, Mode
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.processes import Processes

ENVIRONMENTS: dict[str, Callable[[], Environment]] = {
    "identity": lambda: IdentityEnv(num_envs=3, max_episode_steps=4),
    "match": lambda: MatchEnv(num_envs=3, max_episode_steps=4),
    "gym": lambda: GymnasiumEnv(name="CartPole-v1", num_envs=3),
    "marinenav": lambda: MarineNavEnv(num_envs=3, num_robots=2, max_episode_steps=7),
    "with a table": lambda: with_action_table(MarineNavEnv(num_envs=3, max_episode_steps=7)),
}
every_environment = pytest.mark.parametrize("make", ENVIRONMENTS.values(), ids=ENVIRONMENTS.keys())


class Switching(IdentityEnv):
    """Reports its mode as a metric."""

    capabilities = replace(
        IdentityEnv.capabilities, can_switch_mode=True, can_render=True, step_seconds=0.5
    )
    counters = frozenset({"is_eval"})
    mode: Mode = "train"

    def set_mode(self, mode: Mode) -> None:
        self.mode = mode

    def metrics(self) -> dict[str, float]:
        return {"is_eval": float(self.mode == "eval")}

    def render(self, index: Any = 0) -> torch.Tensor:
        return torch.full((4, 4, 3), index, dtype=torch.uint8)

    def caption(self, index: int) -> str:
        return f"number {index}"

    def measurements(self, index: int) -> dict[str, float]:
        return {"number [1]": float(index)}


def scaled(env: EnvBase) -> Environment:
    return as_environment(TransformedEnv(env, RewardScaling(0.0, 2.0)))


@every_environment
def test_the_environment_passes_check_env_specs(make: Callable[[], Environment]) -> None:
    check_env_specs(make())


@every_environment
def test_step_and_maybe_reset_equals_that_of_torchrl(make: Callable[[], Environment]) -> None:
    def collect(step: Callable[[Environment, TensorDictBase], Any]) -> list[TensorDictBase]:
        env = make()
        env.set_seed(3)
        torch.manual_seed(0)
        root, steps = env.reset(), []
        for _ in range(30):
            root = env.rand_action(root)
            transition, root = step(env, root)
            steps += [transition.clone(), root.exclude(*env.action_keys).clone()]
        return steps

    own = collect(lambda env, root: env.step_and_maybe_reset(root))
    torchrl = collect(lambda env, root: EnvBase._step_and_maybe_reset(env, root))
    for left, right in zip(own, torchrl, strict=True):
        assert set(left.keys(True)) == set(right.keys(True))
        assert (left == right).all()


@every_environment
def test_unknown_keys_are_carried_over(make: Callable[[], Environment]) -> None:
    env = make()
    root = env.rand_action(env.reset()).set("hidden", torch.ones(3, 2))
    _, root = env.step_and_maybe_reset(root)
    assert root["hidden"].equal(torch.ones(3, 2))


def test_unknown_keys_of_robots_are_carried_over() -> None:
    env = MarineNavEnv(num_envs=3, num_robots=2)
    root = env.rand_action(env.reset()).set(("robots", "hidden"), torch.ones(3, 2, 4))
    _, root = env.step_and_maybe_reset(root)
    assert root["robots", "hidden"].equal(torch.ones(3, 2, 4))


def test_capabilities_default_to_none() -> None:
    env = GymnasiumEnv(name="CartPole-v1", num_envs=1)
    assert not env.capabilities.can_switch_mode
    assert (env.metrics(), env.caption(0), env.measurements(0)) == ({}, "", {})
    with pytest.raises(ConfigurationError, match="IdentityEnv cannot render"):
        IdentityEnv().render()
    with pytest.raises(ConfigurationError, match="GymnasiumEnv cannot switch to mode=eval"):
        env.set_mode("eval")
    with pytest.raises(ConfigurationError, match="GymnasiumEnv has no table of discrete actions"):
        with_action_table(env)
    with pytest.raises(ConfigurationError, match="IdentityEnv has no page for a browser"):
        IdentityEnv().page("", "")


class Limited(Environment):
    """Has other arguments than its base class, and checks them."""

    @classmethod
    def check_combination(cls, settings: Mapping[str, Any]) -> None:
        if settings["num_envs"] > settings["max_num_envs"]:
            raise ConfigurationError("env.num_envs: more than env.max_num_envs")


class Small(Limited, MarineNavEnv):
    def __init__(self, *, num_envs: int = 2, max_num_envs: int = 4) -> None:
        super().__init__(num_envs=num_envs)


class Arm(Limited, FanucEnv):
    def __init__(self, *, num_envs: int = 1, max_num_envs: int = 4) -> None:
        super().__init__(num_envs=num_envs, num_workers=1)


SETTINGS: list[tuple[type[Environment], dict[str, Any]]] = [
    (FanucEnv, {"simulator": "pybullet", "num_envs": 2}),
    (MarineNavEnv, {"num_envs": 3, "num_robots": 2, "num_obstacles": 1}),
    (MarineNavEnv, {"num_vortices": 2, "dtype": "float64"}),
    (Small, {}),
    (Arm, {}),
]


@pytest.mark.parametrize(("kind", "settings"), SETTINGS)
def test_capabilities_are_known_before_the_environment_is_built(
    kind: type[Environment], settings: dict[str, Any]
) -> None:
    given = check_settings(kind, settings, "env", ("mode", "device", "seed"))
    before = kind.capabilities_of(given, torch.device("cpu"))
    with closing(kind(**settings)) as env:
        assert env.capabilities == before


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_gymnasium_makes_no_environment_to_know_its_capabilities(
    vectorization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"name": "CartPole-v1", "num_envs": 2}
    settings["vectorization"] = vectorization
    with closing(GymnasiumEnv(**settings)) as env:
        built = env.capabilities
    monkeypatch.setattr("envs.gym.env.make_vector", None)
    before = GymnasiumEnv.capabilities_of(settings, torch.device("cpu"))
    assert before.can_overlap == built.can_overlap == (vectorization == "async")
    assert replace(built, step_seconds=None, can_render=None) == before


def test_an_environment_may_assign_its_number_of_environments() -> None:
    env = IdentityEnv(num_envs=3)
    assert env.num_envs == 3
    env.num_envs = 3
    assert env.num_envs == 3


@pytest.mark.parametrize("kind", [FanucEnv, MarineNavEnv])
def test_an_unknown_device_is_refused(kind: type[Environment]) -> None:
    arguments: dict[str, Any] = {"num_envs": 1, "device": "auto"}
    with pytest.raises(ConfigurationError, match="device=auto: not a device of PyTorch"):
        kind(**arguments)


@pytest.mark.parametrize("view", [scaled, with_action_table])
def test_a_view_has_the_capabilities_of_the_wrapped_environment(
    view: Callable[[Environment], Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, planned = Switching(), []
    env = view(base)
    declared, wrapped = base.capabilities, env.capabilities
    tables = (wrapped.discrete_actions, wrapped.action_table)
    assert tables in ((declared.discrete_actions, None), (None, declared.discrete_actions))
    assert wrapped == replace(declared, discrete_actions=tables[0], action_table=tables[1])
    assert env.render(3).eq(3).all()
    assert env.caption(3) == "number 3"
    assert env.measurements(3) == {"number [1]": 3.0}
    env.set_mode("eval")
    assert base.mode == "eval"
    assert env.metrics() == {"is_eval": 1.0}
    assert env.counters == base.counters == {"is_eval"}
    processes = Processes()
    env.join(processes)
    assert env.processes is base.processes is processes
    monkeypatch.setattr(base, "plan", lambda *run: planned.append(run))
    env.plan(7, True)
    assert planned == [(7, True)]


@pytest.mark.parametrize("view", [lambda env: env, scaled, with_action_table])
def test_one_instance_serves_training_and_evaluation(
    view: Callable[[Environment], Environment],
) -> None:
    env, undisturbed = view(Switching()), view(Switching())
    spec = env.full_action_spec["action"]
    actions = torch.stack([spec.rand() for _ in range(6)])
    expected = trajectory(undisturbed, actions)
    steps, state = trajectory(env, actions[:3]), env.state_dict()
    env.set_mode("eval")
    trajectory(env, actions)
    env.set_mode("train")
    env.load_state_dict(state)
    found = trajectory(env, actions[3:], env.step_mdp(steps[-1]))
    assert (found == expected[3:]).all()


@pytest.mark.parametrize("view", [scaled, with_action_table])
def test_a_view_closes_the_wrapped_environment(
    view: Callable[[Environment], Environment],
) -> None:
    closed = []

    class Closing(IdentityEnv):
        def close(self, *, raise_if_closed: bool = True) -> None:
            closed.append(self)

    base = Closing()
    env = view(base)
    env.close()
    env.close()
    assert base in closed


@pytest.mark.slow
def test_step_and_maybe_reset_compiles() -> None:
    eager, compiled = (MarineNavEnv(num_envs=3, max_episode_steps=2, seed=3) for _ in range(2))
    compiled.compile(fullgraph=True, backend="eager")
    spec = eager.full_action_spec["robots", "action"]
    actions = torch.stack([spec.rand() for _ in range(3)])
    expected, found = (trajectory(env, actions) for env in (eager, compiled))
    assert (found == expected).all()
