import math
from typing import Any

import pytest
import torch
from torchrl.data import Bounded, Composite
from torchrl.envs import PendulumEnv

from envs.marinenav import MarineNavEnv
from tests.helpers.environments import IdentityEnv
from torchrl_gpu.environments.specs import action_bounds, action_spec, observation_spec
from torchrl_gpu.errors import ConfigurationError


def keys_of(*arguments: Any) -> set[Any]:
    return set(observation_spec(*arguments).keys(include_nested=True, leaves_only=True))


def test_all_observations_but_the_outcome_keys_are_read_by_default() -> None:
    assert keys_of(IdentityEnv()) == {"observation"}


def test_observation_keys_select_observations() -> None:
    seas = MarineNavEnv(num_envs=2, num_robots=2)
    assert keys_of(seas, ["observation"]) == {"observation"}
    assert keys_of(seas, ["objects"]) == {"objects", "objects_mask"}
    assert observation_spec(seas, ["observation"]).shape == (4,)


@pytest.mark.parametrize("key", ["params.g", ("params", "g")])
def test_a_nested_key_is_a_tuple_or_joined_by_dots(key: Any) -> None:
    env = PendulumEnv()
    assert keys_of(env, ["th", key]) == {"th", ("params", "g")}
    assert keys_of(env, ["th", "thdot"]) == {"th", "thdot"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["obs"], "no observation obs; this environment has: observation, objects, objects_mask$"),
        (["observation", "y", "x"], "there is no observation x, y;"),
        ([], "there is no observation chosen;"),
        ("observation", r"observation_keys=observation: input should be a list; write \['obser"),
    ],
)
def test_an_unknown_key_lists_the_existing_ones(keys: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        observation_spec(MarineNavEnv(num_envs=2), keys)


@pytest.mark.parametrize(("names", "found"), [((), "no action_spec"), (("a", "b"), "a, b")])
def test_an_environment_needs_one_action(names: tuple[str, ...], found: str) -> None:
    env = IdentityEnv(num_envs=4)
    env.full_action_spec = Composite(
        {name: Bounded(-1.0, 1.0, (4, 1)) for name in names}, shape=(4,)
    )
    with pytest.raises(ConfigurationError, match=f"has one action; IdentityEnv has {found}$"):
        action_spec(env)


@pytest.mark.parametrize(("low", "high"), [(0.0, math.inf), (-math.inf, math.inf), (1.0, -1.0)])
def test_bounds_that_no_action_can_be_mapped_to_are_refused(low: float, high: float) -> None:
    spec = Bounded(torch.tensor([[-1.0, low]]), torch.tensor([[1.0, high]]), (1, 2))
    with pytest.raises(ConfigurationError, match="action_spec: component 1"):
        action_bounds(spec)
