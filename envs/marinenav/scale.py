"""Observation scaling and bounds: observations scaled to order 1 by physical constants, or SI."""

from __future__ import annotations

import math
from typing import Annotated, Final, NamedTuple

import torch
from pydantic import Field
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

Normalize = Annotated[bool, Field(description="scale observations to order 1; False for SI units")]

MAX_YAW_RATE: Final = 1.5  # rad/s; above the steady yaw rate at the maximum thrust moment
MAX_ERROR: Final = 0.25  # m or m/s; the noise tables end at 4.2 standard deviations


class Units(NamedTuple):
    """SI value of one unit of each observation.

    Attributes:
        own: units of `perception.View.own`, `[7]`.
        objects: units of `perception.View.objects`, `[5]`.
    """

    own: Tensor
    objects: Tensor


def make_units(normalize: bool, dtype: torch.dtype, device: torch.device) -> Units:
    """Return the scaling constants of normalised observations, or ones for SI units."""
    own, objects = (
        torch.tensor(units if normalize else (1.0,) * len(units), dtype=dtype, device=device)
        for units in (OWN_UNITS, OBJECT_UNITS)
    )
    return Units(own, objects)


class Limits(NamedTuple):
    """Maximum magnitudes in the seas of an environment, SI units.

    Attributes:
        distance: maximum distance between start and goal, m.
        speed: maximum speed over ground, m/s.
        yaw_rate: maximum yaw rate, rad/s.
        radius: maximum radius of an object, m.
    """

    distance: float
    speed: float
    yaw_rate: float
    radius: float


def drawn_limits(num_vortices: int) -> Limits:
    """Return the limits of randomly generated seas."""
    stream = num_vortices * CIRCULATION / (2.0 * math.pi * CORE_RADIUS)
    return Limits(math.hypot(MAP_SIZE, MAP_SIZE), MAX_SPEED + stream, MAX_YAW_RATE, VESSEL_RADIUS)


def given_limits(sea: Sea) -> Limits:
    """Return the limits of seas that start from given states."""

    def maximum(values: Tensor) -> float:
        return float(values.abs().max()) if values.numel() else 0.0

    away = (sea.goal - sea.motion[POSITION]).norm(dim=0)
    speed = maximum(sea.motion[VELOCITY][:2].norm(dim=0))
    stream = (sea.vortices[2].abs() / (2.0 * math.pi * sea.vortices[3])).sum(0)
    return Limits(
        maximum(away),
        max(MAX_SPEED, speed) + maximum(stream),
        max(MAX_YAW_RATE, maximum(sea.motion[GROUND_VELOCITY][2])),
        max(VESSEL_RADIUS, maximum(sea.obstacles[2])),
    )


def observation_bounds(
    limits: Limits, max_steps: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the maximum magnitudes of `View.own` and `View.objects`, SI units.

    Args:
        limits: maximum magnitudes in the seas.
        max_steps: maximum number of steps of an episode.
    """
    _, speed, yaw_rate, radius = limits
    goal = limits.distance + max_steps * STEP_SECONDS * speed
    far, fast = SENSING_RANGE + radius, speed + MAX_ERROR
    return (
        (goal, goal, speed, speed, yaw_rate, MAX_THRUST, MAX_THRUST),
        (far, far, fast, fast, radius),
    )
