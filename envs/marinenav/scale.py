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

# Rows of observations, in the body frame: name, unit, and divisor if they are normalised.
_VELOCITY: Final = tuple((f"velocity {way}", "m/s", MAX_SPEED) for way in ("ahead", "to starboard"))
_OWN: Final = (
    ("goal ahead", "m", MAP_SIZE),
    ("goal to starboard", "m", MAP_SIZE),
    *_VELOCITY,
    ("yaw rate", "rad/s", 1.0),  # the maximum steady yaw rate of a vessel is 0.98
    ("left thrust", "N", MAX_THRUST),
    ("right thrust", "N", MAX_THRUST),
)
_OBJECT: Final = (
    ("ahead", "m", SENSING_RANGE),
    ("to starboard", "m", SENSING_RANGE),
    *_VELOCITY,
    ("radius", "m", VESSEL_RADIUS),
)

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
        torch.tensor([row[2] if normalize else 1.0 for row in rows], dtype=dtype, device=device)
        for rows in (_OWN, _OBJECT)
    )
    return Units(own, objects)


def elements_of(units: Units) -> dict[NestedKey, tuple[Element, ...]]:
    """Return the elements of observations, objects and actions in these units."""
    own, objects = (
        tuple(Element(*row[:2], scale) for row, scale in zip(rows, unit.tolist(), strict=True))
        for rows, unit in zip((_OWN, _OBJECT), units, strict=True)
    )
    sides = ("left", "right")
    action = tuple(Element(f"rate of the {side} thrust", "N/s", 1_000.0) for side in sides)
    return {"observation": own, "objects": objects, "action": action}


def unit_names_of(units: Units) -> dict[NestedKey, str]:
    """Return the names of the units of actions and, if they are SI units, of observations."""
    si = ("observation", "objects") if bool((units.own == 1.0).all()) else ()
    return {"action": "1,000 N/s", **dict.fromkeys(si, "SI units")}


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
