"""TorchRL specs of observations, actions, rewards and done flags."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, Unbounded

from envs.marinenav.perception import MAX_OBJECTS
from envs.marinenav.scale import Limits, Units, object_bounds, own_bounds

GROUP: Final = "robots"
DONES: Final = ("done", "terminated", "truncated")


class Specs(NamedTuple):
    """The four specs of an environment, each a Composite of its keys."""

    observation: Composite
    action: Composite
    reward: Composite
    done: Composite


def make_specs(shape: tuple[int, int], limits: Limits, units: Units, max_steps: int) -> Specs:
    """Return the specs of an environment.

    Args:
        shape: number of seas, and number of robots per sea.
        limits: bounds of distance, speed, yaw rate and radius, SI units.
        units: scale of the observations; its dtype and device are those of all specs.
        max_steps: maximum number of steps of an episode.
    """
    dtype, device = units.own.dtype, units.own.device
    own = torch.tensor(own_bounds(limits, max_steps), dtype=dtype, device=device)
    objects = torch.tensor(object_bounds(limits), dtype=dtype, device=device)

    def within(bound: Tensor, *places: int) -> Bounded:
        high = bound.expand(*shape, *places, len(bound))
        return Bounded(-high, high, device=device, dtype=dtype)

    def flag(*shape: int) -> Categorical:
        return Categorical(2, shape=shape, dtype=torch.bool, device=device)

    def of_group(**specs: Any) -> Composite:
        group = Composite(specs, shape=shape, device=device)
        return Composite({GROUP: group}, shape=shape[:1], device=device)

    observation = of_group(
        observation=within(own / units.own),
        objects=within(objects / units.objects, MAX_OBJECTS),
        objects_mask=flag(*shape, MAX_OBJECTS),
        active=flag(*shape, 1),
        success=flag(*shape, 1),
    )
    observation["success"] = flag(shape[0], 1)
    action = of_group(action=Bounded(-1.0, 1.0, shape=(*shape, 2), dtype=dtype, device=device))
    # TorchRL's transforms of rewards ask for a spec without bounds.
    reward = of_group(reward=Unbounded((*shape, 1), dtype=dtype, device=device))
    done = of_group(**{key: flag(*shape, 1) for key in DONES})
    for key in DONES:
        done[key] = flag(shape[0], 1)
    return Specs(observation, action, reward, done)
