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

    Attributes:
        offset: from each robot to each object, world frame, `[2, K, R, N]`.
        velocity: of each object over ground, `[2, K, N]`.
        radius: of each object, `[K, N]`.
        is_there: whether there is an object, and another than the robot itself, `[K, R, N]`.
    """

    offset: Tensor
    velocity: Tensor
    radius: Tensor
    is_there: Tensor


def surroundings(motion: Tensor, active: Tensor, obstacles: Tensor) -> Surroundings:
    """Return what is around the robots.

    Args:
        motion: of the robots, `[11, R, N]`.
        active: which of them exist and still move, bool `[R, N]`.
        obstacles: x, y, radius, `[3, O, N]`; radius 0 for none.
    """
    position, velocity = motion[POSITION], motion[GROUND_VELOCITY][:2]
    places = torch.cat((position, obstacles[:2]), 1)
    velocity = torch.cat((velocity, torch.zeros_like(obstacles[:2])), 1)
    radius = torch.cat((torch.full_like(motion[HEADING], VESSEL_RADIUS), obstacles[2]))
    exists = torch.cat((active, obstacles[2] > 0))
    is_other = ~torch.eye(len(radius), len(active), dtype=torch.bool, device=motion.device)
    return Surroundings(
        places[:, :, None] - position[:, None],
        velocity,
        radius,
        exists[:, None] & is_other[..., None],
    )


def collides(around: Surroundings) -> Tensor:
    """Return which robots touch an object, bool `[R, N]`."""
    # |c - p| <= r_object + 2.7951
    distance = around.offset.square().sum(0).sqrt()
    return ((distance <= around.radius[:, None] + VESSEL_RADIUS) & around.is_there).any(0)


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
    offset = around.offset
    radius = around.radius[:, None].expand_as(offset[0])
    if noise is not None:
        words, streams = random_words(streams, radius.shape[:2])
        offset = stored(offset + noise.displacement(words))
        radius = stored(radius * noise.radius_factor(words))
    # kept if |p_noisy| <= 20 + r_noisy; the nearest by |p| - r
    clearance = offset.square().sum(0).sqrt() - radius
    seen = around.is_there & (clearance <= SENSING_RANGE)
    places = min(MAX_OBJECTS, len(radius))
    index = clearance.masked_fill(~seen, torch.inf).topk(places, dim=0, largest=False).indices
    mask = seen.gather(0, index)
    speeds = around.velocity[:, :, None].expand_as(offset)
    px, py, vx, vy, r = (stored(row.gather(0, index)) for row in (*offset, *speeds, radius))
    if noise is not None:
        words, streams = random_words(streams, index.shape[:2])
        error_x, error_y = stored(noise.displacement(words))
        vx, vy = vx + error_x, vy + error_y
    # R(theta)^T
    c, s = stored(motion[HEADING].cos()), stored(motion[HEADING].sin())
    to_goal = to_body(c, s, *(goal - motion[POSITION]))
    speed_x, speed_y, yaw = motion[GROUND_VELOCITY]
    own = torch.stack((*to_goal, *to_body(c, s, speed_x, speed_y), yaw, *motion[THRUST]))
    objects = torch.stack((*to_body(c, s, px, py), *to_body(c, s, vx, vy), r)) * mask
    missing = (0, 0, 0, 0, 0, MAX_OBJECTS - places)
    return View(own, pad(objects, missing), pad(mask, missing)), streams
