"""The first reset and step of an environment are compared with its specs."""

import copy
import pickle
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.envs import EnvBase, PendulumEnv

from tests.helpers.environments import IdentityEnv
from tests.trainers.evaluation.test_evaluation import policy_for
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.errors import ConfigurationError
from trainers.evaluation.evaluation import evaluate

LACKS, WIDE = None, torch.zeros(3, 5)
DOUBLE = torch.zeros(3, 2, dtype=torch.float64)
SHAPES = r", observation has shape \[3, 5\] and torch.float32, not \[3, 2\] and torch.float32"
EVERY = [
    ("_reset", "observation", LACKS, " lacks observation"),
    ("_reset", "observation", WIDE, SHAPES),
    ("_step", "observation", LACKS, " lacks observation"),
    ("_step", "observation", WIDE, SHAPES),
    ("_step", "reward", LACKS, " lacks reward"),
]
EXACT = [
    ("_reset", "observation", DOUBLE, ", observation has shape .* and torch.float64, not"),
    ("_step", "reward", torch.zeros(3), r", reward has shape \[3\] .*, not \[3, 1\]"),
    ("_step", "truncated", LACKS, " lacks truncated"),
]


class Wrong(IdentityEnv):
    """Returns another value of one entry, or none."""

    method = key = ""
    value: torch.Tensor | None = LACKS

    def _changed(self, method: str, result: TensorDict) -> TensorDict:
        if method != self.method:
            return result
        return result.exclude(self.key) if self.value is None else result.set(self.key, self.value)

    def _reset(self, tensordict: TensorDictBase | None = None, **named: Any) -> TensorDict:
        return self._changed("_reset", super()._reset(tensordict, **named))

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        return self._changed("_step", super()._step(tensordict))


class WrongOfTorchRL(EnvBase):
    """The same as an environment of TorchRL alone."""

    def __init__(self, env: Wrong) -> None:
        super().__init__(device=env.device, batch_size=env.batch_size)
        self.inner = env
        for name in ("observation", "full_action", "full_reward", "full_done"):
            setattr(self, f"{name}_spec", getattr(env, f"{name}_spec").clone())

    def _reset(self, tensordict: TensorDictBase | None = None, **named: Any) -> TensorDict:
        return self.inner._reset(tensordict, **named)

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        return self.inner._step(tensordict)

    def _set_seed(self, seed: int | None) -> None:
        self.inner._set_seed(seed)


def wrong(method: str, key: str, value: torch.Tensor | None) -> Wrong:
    env = Wrong(num_envs=3)
    env.method, env.key, env.value = method, key, value
    return env


@pytest.mark.parametrize(("method", "key", "value", "problem"), EVERY + EXACT)
def test_an_environment_has_to_return_its_specs(
    method: str, key: str, value: torch.Tensor | None, problem: str
) -> None:
    env = wrong(method, key, value)
    text = rf"^env: unlike its specs, the result of Wrong\.{method}{problem}"
    with pytest.raises(ConfigurationError, match=text):
        evaluate(env, policy_for(env), torch.device("cpu"), episodes=3)


@pytest.mark.parametrize("method", ["_reset", "_step"])
def test_an_environment_has_to_return_a_tensordict(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Wrong, method, lambda *_: 3)
    text = rf"^env: Wrong\.{method} has to return a TensorDict, not int$"
    env = as_environment(Wrong(num_envs=3))
    with pytest.raises(ConfigurationError, match=text):
        getattr(env, method)(TensorDict())


@pytest.mark.parametrize(("method", "key", "value", "problem"), EVERY)
def test_so_has_one_of_torchrl(
    method: str, key: str, value: torch.Tensor | None, problem: str
) -> None:
    env = as_environment(WrongOfTorchRL(wrong(method, key, value)))
    with pytest.raises(ConfigurationError, match=rf"WrongOfTorchRL\.{method}{problem}"):
        env.step(env.rand_action(env.reset()))


@pytest.mark.parametrize(("method", "key", "value", "problem"), EXACT)
def test_torchrl_completes_its_own(
    method: str, key: str, value: torch.Tensor | None, problem: str
) -> None:
    env = as_environment(WrongOfTorchRL(wrong(method, key, value)))
    after = env.step(env.rand_action(env.reset()))["next"]
    assert {name: after[name].shape for name in ("reward", "truncated")} == {
        "reward": (3, 1),
        "truncated": (3, 1),
    }


class InPlace(IdentityEnv):
    """Returns one tensor in all steps of an episode, which changes if the environment `moves`."""

    moves = True

    def _reset(self, tensordict: TensorDictBase | None = None, **named: Any) -> TensorDict:
        result = super()._reset(tensordict, **named)
        self.shown = result["observation"]
        return result

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        result = super()._step(tensordict)
        if self.moves:
            self.shown.copy_(result["observation"])
        return result.set("observation", self.shown)


def test_a_step_leaves_the_observation_before_it() -> None:
    env = as_environment(InPlace())
    with pytest.raises(ConfigurationError, match=r"InPlace\._step overwrites 'observation' of the"):
        env.rollout(1)


def test_an_observation_may_stay_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InPlace, "moves", False)
    as_environment(InPlace()).rollout(3)


def test_later_calls_are_those_of_the_class() -> None:
    env = as_environment(IdentityEnv())
    for other in (env, copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert {"_reset", "_step"} <= vars(other).keys()
        other.step(other.rand_action(other.reset()))
        assert not {"_reset", "_step"} & vars(other).keys()


@pytest.mark.parametrize("env", [IdentityEnv(), PendulumEnv()])  # whose step is a class method
def test_a_function_in_place_of_the_step_stays(
    env: EnvBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_environment(env)
    step, calls = env._step, []

    def counted(given: TensorDictBase) -> TensorDictBase:
        calls.append(given)
        return step(given)

    monkeypatch.setattr(env, "_step", counted)
    env.rollout(3, break_when_any_done=False)
    assert len(calls) == 3
