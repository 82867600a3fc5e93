"""Sensing of the robots: own state exactly, nearest objects with noise.

Objects are the R robots and the O obstacles of a sea, K = R + O in that order. Pairs of an object
and a sensing robot are `[..., K, R, N]`.
"""

from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from envs.compiling import look_up, stored
from envs.marinenav.noise import Noise
from envs.marinenav.physics import (
    GROUND_VELOCITY,
    HEADING,
    POSITION,
    THRUST,
    VESSEL_RADIUS,
    to_body,
)
from envs.streams import random_words

SENSING_RANGE: Final = 20.0  # m
MAX_OBJECTS: Final = 5
SELF_ROWS: Final = 7
OBJECT_ROWS: Final = 5

FAR_AWAY: Final = 1e4  # m, offset of missing objects
# Integer types of the sort keys of clearances, and the clearance at which keys saturate, m.
_KEY: Final = {torch.float32: torch.int32, torch.float64: torch.int64}
_MAX_CLEARANCE: Final = 31.0


class View(NamedTuple):
    """Observations of the robots of N seas, SI units, in the body frame."""

    # goal x, y, velocity over ground x, y, yaw rate, left and right thrust, `[7, R, N]`
    own: Tensor
    # x, y, velocity x, y, radius of the nearest objects, nearest first, `[5, 5, R, N]`; 0 if unused
    objects: Tensor
    mask: Tensor  # whether a slot holds an object, bool `[5, R, N]`


class Surroundings(NamedTuple):
    """Objects around the robots of N seas, without noise.

    Missing objects, and each robot relative to itself, are at a distance of `FAR_AWAY`.
    """

    offset: tuple[Tensor, Tensor]  # x, y from robot to object, world frame, m, `[K, R, N]` each
    velocity: tuple[Tensor, Tensor]  # x, y over ground, m/s, `[K, N]` each
    radius: Tensor  # m, `[K, N]`


def surroundings(motion: Tensor, active: Tensor, obstacles: Tensor) -> Surroundings:
    """Return the objects around the robots; the arguments are those of `Sea`."""
    x, y = motion[POSITION]
    velocity = torch.cat((motion[GROUND_VELOCITY][:2], torch.zeros_like(obstacles[:2])), 1)
    radius = torch.cat((torch.full_like(x, VESSEL_RADIUS), obstacles[2]))
    is_missing = torch.cat((~active, obstacles[2] == 0))
    away = torch.cat((x, obstacles[0])) + FAR_AWAY * is_missing
    itself = FAR_AWAY * torch.eye(len(radius), len(x), dtype=x.dtype, device=x.device)
    offset_x = stored(away[:, None] - x + itself[..., None])
    offset_y = stored(torch.cat((y, obstacles[1]))[:, None] - y)
    return Surroundings((offset_x, offset_y), (velocity[0], velocity[1]), radius)


def collides(around: Surroundings) -> Tensor:
    """Return which robots touch an object, bool `[R, N]`."""
    # |c - p| <= r_object + 2.7951
    return _clearance(around.offset, around.radius[:, None]).amin(0) <= VESSEL_RADIUS


def perceive(
    motion: Tensor, goal: Tensor, around: Surroundings, streams: Tensor, noise: Noise | None
) -> tuple[View, Tensor]:
    """Return the views of the robots, and the advanced states of the generators `[N]`.

    `motion` `[11, R, N]` and `goal` `[2, R, N]`, m, are those of `Sea`. Without noise, sensing is
    exact.
    """
    (x, y), radius = around.offset, around.radius[:, None]
    objects_in_sea, robots, seas = x.shape
    places = min(MAX_OBJECTS, objects_in_sea)
    if noise is not None:
        words, streams = random_words(streams, (objects_in_sea + places, robots))
        error_x, error_y = noise.displacement(words[:objects_in_sea])
        x, y = stored(x + error_x), stored(y + error_y)
        radius = radius * noise.radius_factor(words[:objects_in_sea])
    # kept if |p_noisy| <= 20 + r_noisy; the nearest by |p| - r
    index, mask = _nearest(stored(_clearance((x, y), radius)), places)
    numbers = torch.arange(robots * seas, device=x.device).view(robots, seas)
    pair, owner = stored(index * (robots * seas) + numbers), stored(index * seas + numbers[0])
    px, py, r = (look_up(row, pair) for row in (x, y, radius.expand_as(x)))
    vx, vy = (look_up(row, owner) for row in around.velocity)
    if noise is not None:
        error_x, error_y = noise.displacement(words[objects_in_sea:])
        vx, vy = vx + error_x, vy + error_y
    # R(theta)^T
    c, s = stored(motion[HEADING].cos()), stored(motion[HEADING].sin())
    to_goal = to_body(c, s, *(goal - motion[POSITION]))
    speed_x, speed_y, yaw = motion[GROUND_VELOCITY]
    own = torch.stack((*to_goal, *to_body(c, s, speed_x, speed_y), yaw, *motion[THRUST]))
    objects = torch.stack((*to_body(c, s, px, py), *to_body(c, s, vx, vy), r)).mul_(mask.to(r))
    if places < MAX_OBJECTS:
        missing = (0, 0, 0, 0, 0, MAX_OBJECTS - places)
        objects, mask = pad(objects, missing), pad(mask, missing)
    return View(own, objects, mask), streams


def _clearance(offset: tuple[Tensor, Tensor], radius: Tensor) -> Tensor:
    """Return |p| - r of each pair, m, `[K, R, N]`."""
    x, y = offset
    return torch.addcmul(x.square(), y, y).sqrt() - radius


def _nearest(clearance: Tensor, places: int) -> tuple[Tensor, Tensor]:
    """Return the objects of lowest clearance `[K, R, N]`, m, several times faster than `topk`.

    Their indices are int64 `[places, R, N]`, nearest first; bool of the same shape tells whether
    each is within range.
    """
    # Each key holds the clearance, and in its last bits the object's index, so keys are unique.
    # With 9 objects, a metre has 2^21 parts in a key; float32 itself has 2^19 at 20 m.
    integer = _KEY[clearance.dtype]
    limits = torch.iinfo(integer)
    numbers = 2 ** (len(clearance) - 1).bit_length()
    parts = (limits.max // 64) // numbers  # per metre; 32 m take half of the positive range
    number = torch.arange(len(clearance), dtype=integer, device=clearance.device)
    keys = (clearance.clamp(max=_MAX_CLEARANCE) * parts).to(integer)
    keys = stored(keys * numbers + number[:, None, None])
    nearest = [keys.amin(0)]
    for _ in range(1, places):
        # Offsets from the last key found wrap around, so keys up to it sort last.
        start = nearest[-1] + (limits.min + 1)
        nearest.append((keys - start).amin(0) + start)
    found = torch.stack(nearest)
    return (found & (numbers - 1)).long(), found < int(SENSING_RANGE * parts + 1) * numbers
