"""Where an episode begins: starts, goals, vortices and buoys, by rejection sampling.

A layout is drawn up as in the reference, one thing after the other: a candidate is accepted if it
goes together with everything accepted before it. The seas do not wait for each other: each tries
its own next candidates, several at a time, of which it takes the first that fits.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import torch
from torch import Tensor

from envs.marinenav.compiling import stored
from envs.marinenav.noise import random_words, uniform
from envs.marinenav.physics import CIRCULATION, CORE_RADIUS

MAP_SIZE: Final = 55.0  # m
TRIES: Final = 500  # candidates for all robots of a sea; as many for vortices, and for buoys

ROBOT_AREA: Final = (2.0, 53.0)  # m, of starts and goals along each axis
VORTEX_AREA: Final = (0.0, MAP_SIZE)
OBSTACLE_AREA: Final = (5.0, 50.0)
OBSTACLE_RADIUS: Final = 1.0
# m between two starts or two goals, and from the middle of another thing to a start or goal
ROBOT_CLEARANCE: Final = 10.0
VORTEX_CLEARANCE: Final = 10.0 + CORE_RADIUS
OBSTACLE_CLEARANCE: Final = 10.0 + OBSTACLE_RADIUS
MAX_BOUNDARY_SPEED: Final = 1.0  # m/s, where two vortices of the same direction meet
MAX_JOINT_SPEED: Final = 0.8  # of the edge speed, where two of opposite directions meet

# The kinds of things, in the order in which they are placed.
ROBOT, VORTEX, OBSTACLE, COMPLETE = range(4)

_CANDIDATES: Final = 32  # a round when a layout is drawn at one go


class Size(NamedTuple):
    """How many robots, vortices and obstacles the tensors of a sea have room for."""

    robots: int
    vortices: int
    obstacles: int


class Demand(NamedTuple):
    """What a layout shall hold, for N seas or for all alike.

    Attributes:
        counts: of robots, vortices and obstacles, int64 `[3, N]` or `[3, 1]`.
        min_distance: from each start to its goal, m, `[N]` or `[1]`.
    """

    counts: Tensor
    min_distance: Tensor


class Draft(NamedTuple):
    """The layouts of N seas as far as they have come. What is not placed lies at infinity.

    Attributes:
        ends: starts and goals, `[2, 2, R, N]`: end, axis, robot, sea; m.
        vortices: x, y (m), direction (1 clockwise, -1 not), `[3, V, N]`.
        obstacles: x, y, `[2, O, N]`, m.
        demand: what was asked for.
        kind: what is placed next, int64 `[N]`.
        placed: how many of this kind are, int64 `[N]`.
        tries: candidates of this kind tried so far, int64 `[N]`.
    """

    ends: Tensor
    vortices: Tensor
    obstacles: Tensor
    demand: Demand
    kind: Tensor
    placed: Tensor
    tries: Tensor


def begin_drafts(demand: Demand, size: Size, seas: int) -> Draft:
    """Return drafts with nothing in them yet."""
    distance, counts = demand.min_distance, demand.counts

    def nowhere(*shape: int) -> Tensor:
        return distance.new_full((*shape, seas), torch.inf)

    kind, placed, tries = torch.zeros(3, seas, dtype=torch.int64, device=distance.device)
    return Draft(
        nowhere(2, 2, size.robots),
        nowhere(3, size.vortices),
        nowhere(2, size.obstacles),
        Demand(counts.expand(3, seas).contiguous(), distance.expand(seas).contiguous()),
        kind,
        placed,
        tries,
    )


def complete_drafts(draft: Draft, streams: Tensor) -> tuple[Draft, Tensor]:
    """Carry drafts to their ends, which takes some reads by the host.

    Args:
        draft: of N seas.
        streams: random number generators, `[N]`.

    Returns:
        The drafts, with less in them than asked for where `TRIES` candidates did not suffice, and
        the generators afterwards.
    """
    while bool((draft.kind != COMPLETE).any()):
        words, after = random_words(streams, (2, _CANDIDATES))
        streams = torch.where(draft.kind == COMPLETE, streams, after)
        draft = try_candidates(draft, words)
    return draft, streams


def try_candidates(draft: Draft, words: Tensor) -> Draft:
    """Place at most one more thing in every sea: the first candidate that fits.

    Args:
        draft: of N seas.
        words: random bits of the candidates, int32 `[2, C, N]`.
    """
    is_robot, is_vortex, is_obstacle = (draft.kind == kind for kind in range(COMPLETE))
    # Candidate places `[axis, C, N]`; that of a robot has two ends.
    low, high = (
        torch.where(is_robot, robot, torch.where(is_vortex, vortex, obstacle)).to(draft.ends)
        for robot, vortex, obstacle in zip(ROBOT_AREA, VORTEX_AREA, OBSTACLE_AREA, strict=True)
    )
    draws = stored(uniform(words, draft.ends.dtype))
    place, goal = (low + (high - low) * draws).unbind(1)
    ends = torch.stack((place, torch.where(is_robot, goal, place)))
    # |goal - start| >= d_min
    fits = (_squared(goal - place) >= draft.demand.min_distance.square()) | ~is_robot
    # starts, goals more than 10 m apart; nothing else within 10 m plus its radius of either
    clearance = torch.where(
        is_robot,
        ROBOT_CLEARANCE,
        torch.where(is_vortex, VORTEX_CLEARANCE, OBSTACLE_CLEARANCE),
    )
    squared = (ends[:, :, None] - draft.ends[:, :, :, None]).square().sum(1)
    fits = fits & (squared.amin((0, 1)) > clearance.square())
    direction = torch.where(draws[0, 1] < 0.5, 1.0, -1.0).to(draws)
    if draft.vortices.shape[1] > 0:
        fits = fits & _suits_vortices(place, direction, draft.vortices, is_vortex, is_obstacle)
    if draft.obstacles.shape[1] > 0:
        apart = _squared(place[:, None] - draft.obstacles[:, :, None])
        fits = fits & (apart.amin(0) >= (2.0 * OBSTACLE_RADIUS) ** 2)
    # Candidates beyond the last try do not count.
    number = torch.arange(1, words.shape[1] + 1, device=words.device)[:, None]
    fits = fits & (draft.tries + number <= TRIES) & (draft.kind != COMPLETE)
    first = fits & (fits.cumsum(0) == 1)
    found = first.any(0)
    tries = draft.tries + torch.where(found, (first * number).sum(0), words.shape[1])
    ends = (ends * first).sum(2)
    whirl = torch.cat((ends[0], (direction * first).sum(0, keepdim=True)))
    kind, placed, tries = _turn_to_next_kind(draft, draft.placed + found, tries)
    return Draft(
        _put(draft.ends, ends, draft.placed, found & is_robot),
        _put(draft.vortices, whirl, draft.placed, found & is_vortex),
        _put(draft.obstacles, ends[0], draft.placed, found & is_obstacle),
        draft.demand,
        kind,
        placed,
        tries,
    )


def _suits_vortices(
    place: Tensor, direction: Tensor, vortices: Tensor, is_vortex: Tensor, is_obstacle: Tensor
) -> Tensor:
    """Return which candidates go together with the vortices, bool `[C, N]`."""
    distance = _squared(place[:, None] - vortices[:2, :, None]).sqrt()
    # same direction: distance >= (Gamma_i + Gamma_j) / (2 pi * 1.0)
    reach = 2.0 * CIRCULATION / (2.0 * math.pi * MAX_BOUNDARY_SPEED)
    # opposite: Gamma_large / (2 pi (d - 2 r_c)) <= 0.8 * Gamma_small / (2 pi r_c), which by its
    # sign also lets overlapping cores pass
    speed = CIRCULATION / (2.0 * math.pi * (distance - 2.0 * CORE_RADIUS))
    joint = MAX_JOINT_SPEED * CIRCULATION / (2.0 * math.pi * CORE_RADIUS)
    is_alike = direction == vortices[2, :, None]
    agrees = (is_alike & (distance >= reach)) | (~is_alike & (speed <= joint))
    # the core stays on the map
    inside = (place >= CORE_RADIUS) & (place <= MAP_SIZE - CORE_RADIUS)
    suits = (agrees.all(0) & inside.all(0)) | ~is_vortex
    return suits & ((distance > CORE_RADIUS + OBSTACLE_RADIUS).all(0) | ~is_obstacle)


def _turn_to_next_kind(
    draft: Draft, placed: Tensor, tries: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Go on to the next kind of which something is wanted, where one is finished or given up."""
    kind = draft.kind
    for number, wanted in enumerate(draft.demand.counts):
        is_over = (kind == number) & ((placed >= wanted) | (tries >= TRIES))
        kind = kind + is_over
        placed, tries = placed * ~is_over, tries * ~is_over
    return kind, placed, tries


def _put(things: Tensor, thing: Tensor, slot: Tensor, condition: Tensor) -> Tensor:
    """Write `thing` `[*C, N]` to its slot of `things` `[*C, slots, N]` where a condition holds."""
    slots = torch.arange(things.shape[-2], device=things.device)[:, None]
    return torch.where((slots == slot) & condition, thing.unsqueeze(-2), things)


def _squared(vector: Tensor) -> Tensor:
    return vector.square().sum(0)
