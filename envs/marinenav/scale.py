"""Observation scaling and bounds: observations scaled to order 1 by physical constants, or SI."""

import math
from typing import Annotated, Final, NamedTuple

import torch
from pydantic import Field
from tensordict import NestedKey
from torch import Tensor

from envs.marinenav.perception import SENSING_RANGE
from envs.marinenav.physics import (
    CIRCULATION,
    CORE_RADIUS,
    GROUND_VELOCITY,
    MAX_SPEED,
    MAX_THRUST,
    POSITION,
    STEP_SECONDS,
    VELOCITY,
    VESSEL_RADIUS,
)
from envs.marinenav.placement import MAP_SIZE
from envs.marinenav.sea import Sea
from torchrl_gpu.environments.capabilities import Element

# Divisors of normalised observations, row by row.
OWN_UNITS: Final = (
    MAP_SIZE,  # m, goal x, y
    MAP_SIZE,
    MAX_SPEED,  # m/s
    MAX_SPEED,
    1.0,  # rad/s; the maximum steady yaw rate of a vessel is 0.98
    MAX_THRUST,  # N
    MAX_THRUST,
)
OBJECT_UNITS: Final = (SENSING_RANGE, SENSING_RANGE, MAX_SPEED, MAX_SPEED, VESSEL_RADIUS)

# Names and units of the rows, in the body frame.
_VELOCITY: Final = (("velocity ahead", "m/s"), ("velocity to starboard", "m/s"))
_OWN: Final = (
    *(("goal ahead", "m"), ("goal to starboard", "m"), *_VELOCITY, ("yaw rate", "rad/s")),
    *(("left thrust", "N"), ("right thrust", "N")),
)
_OBJECT: Final = (("ahead", "m"), ("to starboard", "m"), *_VELOCITY, ("radius", "m"))

Normalize = Annotated[bool, Field(description="scale observations to order 1; False for SI units")]

MAX_YAW_RATE: Final = 1.5  # rad/s; above the steady yaw rate at the maximum thrust moment
MAX_ERROR: Final = 0.25  # m or m/s; the noise tables end at 4.2 standard deviations


class Units(NamedTuple):
    """SI values of one unit of `perception.View.own` `[7]` and `perception.View.objects` `[5]`."""

    own: Tensor
    objects: Tensor


def make_units(normalize: bool, dtype: torch.dtype, device: torch.device) -> Units:
    """Return the scaling constants of normalised observations, or ones for SI units."""
    own, objects = (
        torch.tensor(units if normalize else (1.0,) * len(units), dtype=dtype, device=device)
        for units in (OWN_UNITS, OBJECT_UNITS)
    )
    return Units(own, objects)


def elements_of(units: Units) -> dict[NestedKey, tuple[Element, ...]]:
    """Return the elements of observations, objects and actions in these units."""
    own, objects = (
        tuple(map(Element, *zip(*named, strict=True), unit.tolist()))
        for named, unit in zip((_OWN, _OBJECT), units, strict=True)
    )
    sides = ("left", "right")
    action = tuple(Element(f"rate of the {side} thrust", "N/s", 1_000.0) for side in sides)
    return {"observation": own, "objects": objects, "action": action}


class Bounds(NamedTuple):
    """Maximum magnitudes of `perception.View.own` and `perception.View.objects`, SI units."""

    own: tuple[float, ...]
    objects: tuple[float, ...]


def drawn_bounds(num_vortices: int, max_steps: int) -> Bounds:
    """Return the bounds in randomly generated seas, in episodes of at most `max_steps`."""
    stream = num_vortices * CIRCULATION / (2.0 * math.pi * CORE_RADIUS)
    distance = math.hypot(MAP_SIZE, MAP_SIZE)
    return _bounds(distance, MAX_SPEED + stream, MAX_YAW_RATE, VESSEL_RADIUS, max_steps)


def given_bounds(sea: Sea, max_steps: int) -> Bounds:
    """Return the bounds in seas that start from given states."""

    def maximum(values: Tensor) -> float:
        return float(values.abs().max()) if values.numel() else 0.0

    away = (sea.goal - sea.motion[POSITION]).norm(dim=0)
    speed = maximum(sea.motion[VELOCITY][:2].norm(dim=0))
    stream = (sea.vortices[2].abs() / (2.0 * math.pi * sea.vortices[3])).sum(0)
    return _bounds(
        maximum(away),
        max(MAX_SPEED, speed) + maximum(stream),
        max(MAX_YAW_RATE, maximum(sea.motion[GROUND_VELOCITY][2])),
        max(VESSEL_RADIUS, maximum(sea.obstacles[2])),
        max_steps,
    )


def _bounds(
    distance: float, speed: float, yaw_rate: float, radius: float, max_steps: int
) -> Bounds:
    goal = distance + max_steps * STEP_SECONDS * speed
    far, fast = SENSING_RANGE + radius, speed + MAX_ERROR
    return Bounds(
        (goal, goal, speed, speed, yaw_rate, MAX_THRUST, MAX_THRUST),
        (far, far, fast, fast, radius),
    )
