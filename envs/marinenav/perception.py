"""What a robot senses: itself exactly, and the nearest objects around it with noise.

Objects are the R robots and the O obstacles of a sea, K = R + O of them, in that order; the pairs
of an object and the robot that sees it are `[..., K, R, N]`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from envs.marinenav.compiling import stored
from envs.marinenav.noise import Noise, random_words
from envs.marinenav.physics import (
    GROUND_VELOCITY,
    HEADING,
    POSITION,
    THRUST,
    VESSEL_RADIUS,
    to_body,
)

SENSING_RANGE: Final = 20.0  # m
MAX_OBJECTS: Final = 5
SELF_ROWS: Final = 7
OBJECT_ROWS: Final = 5

FAR_AWAY: Final = 1e4  # m, where an object lies that is not there
# The integers by which clearances are sorted, and beyond what they do not count, m.
_KEY: Final = {torch.float32: torch.int32, torch.float64: torch.int64}
_MAX_CLEARANCE: Final = 31.0


class View(NamedTuple):
    """What the robots of N seas see, in SI units.

    Attributes:
        own: goal x, y (body frame), velocity over ground x, y (body frame), yaw rate, left and
            right thrust, `[7, R, N]`.
        objects: x, y, velocity x, y (body frame), radius of the nearest objects, nearest first,
            `[5, 5, R, N]`; 0 where there is none.
        mask: whether there is an object, bool `[5, R, N]`.
    """

    own: Tensor
    objects: Tensor
    mask: Tensor


class Surroundings(NamedTuple):
    """The objects of N seas as the robots would see them without noise.

    What is not there lies far away, and so does, for itself, the robot that sees.

    Attributes:
        offset: x and y from each robot to each object, world frame, `[K, R, N]` each.
        velocity: x and y of each object over ground, `[K, N]` each.
        radius: of each object, `[K, N]`.
    """

    offset: tuple[Tensor, Tensor]
    velocity: tuple[Tensor, Tensor]
    radius: Tensor


def surroundings(motion: Tensor, active: Tensor, obstacles: Tensor) -> Surroundings:
    """Return what is around the robots.

    Args:
        motion: of the robots, `[11, R, N]`.
        active: which of them exist and still move, bool `[R, N]`.
        obstacles: x, y, radius, `[3, O, N]`; radius 0 for none.
    """
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
    """Return what the robots see.

    Args:
        motion: of the robots, `[11, R, N]`.
        goal: of the robots, `[2, R, N]`.
        around: the objects.
        streams: random number generators of the seas, `[N]`, see `random_words`.
        noise: how sensing errs; None for not at all.

    Returns:
        The view, and the generators after it.
    """
    (x, y), radius = around.offset, around.radius[:, None]
    things, robots, seas = x.shape
    places = min(MAX_OBJECTS, things)
    if noise is not None:
        words, streams = random_words(streams, (things + places, robots))
        error_x, error_y = noise.displacement(words[:things])
        x, y = stored(x + error_x), stored(y + error_y)
        radius = radius * noise.radius_factor(words[:things])
    # kept if |p_noisy| <= 20 + r_noisy; the nearest by |p| - r
    thing, mask = _nearest(stored(_clearance((x, y), radius)), places)
    numbers = torch.arange(robots * seas, device=x.device).view(robots, seas)
    pair, owner = stored(thing * (robots * seas) + numbers), stored(thing * seas + numbers[0])
    px, py, r = (_take(row, pair) for row in (x, y, radius.expand_as(x)))
    vx, vy = (_take(row, owner) for row in around.velocity)
    if noise is not None:
        error_x, error_y = noise.displacement(words[things:])
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
    """Return |p| - r, m, of every pair `[K, R, N]`."""
    x, y = offset
    return torch.addcmul(x.square(), y, y).sqrt() - radius


def _nearest(clearance: Tensor, places: int) -> tuple[Tensor, Tensor]:
    """Find the nearest objects; several times faster than `topk` along a dimension like this.

    Args:
        clearance: of every pair, `[K, R, N]`, m.
        places: how many are wanted.

    Returns:
        Their numbers, nearest first, int64 `[places, R, N]`, and whether they are within range.
    """
    # One integer tells how far an object is, and in its last bits which it is: no two are alike.
    # With 9 objects, a float32 metre has 2^21 parts; float32 itself has 2^19 of them at 20 m.
    integer = _KEY[clearance.dtype]
    limits = torch.iinfo(integer)
    numbers = 2 ** (len(clearance) - 1).bit_length()
    parts = (limits.max // 64) // numbers  # in a metre; 32 m take half of the positive range
    number = torch.arange(len(clearance), dtype=integer, device=clearance.device)
    keys = (clearance.clamp(max=_MAX_CLEARANCE) * parts).to(integer)
    keys = stored(keys * numbers + number[:, None, None])
    nearest = [keys.amin(0)]
    for _ in range(1, places):
        # Counted from the last one found, and around: what is not beyond it comes last.
        start = nearest[-1] + (limits.min + 1)
        nearest.append((keys - start).amin(0) + start)
    found = torch.stack(nearest)
    return (found & (numbers - 1)).long(), found < int(SENSING_RANGE * parts + 1) * numbers


def _take(values: Tensor, index: Tensor) -> Tensor:
    """Return the values at places of the flattened tensor; `take` would be slower."""
    return stored(values.reshape(-1).index_select(0, index.reshape(-1)).view(index.shape))
