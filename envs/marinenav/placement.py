"""Placement of starts, goals, vortices and buoys at the start of episodes, by rejection sampling.

A layout is sampled as in the reference, one item after the other: a candidate is accepted if it
is compatible with all items accepted before. The seas proceed independently: each tests several
candidates for its own next item at a time and accepts the first that fits.
"""

import math
from typing import Final, NamedTuple

import torch
from torch import Tensor

from envs.compiling import stored
from envs.marinenav.noise import uniform
from envs.marinenav.physics import CIRCULATION, CORE_RADIUS
from envs.streams import random_words

MAP_SIZE: Final = 55.0  # m
TRIES: Final = 500  # maximum number of candidates per sea and kind

ROBOT_AREA: Final = (2.0, 53.0)  # m, of starts and goals along each axis
VORTEX_AREA: Final = (0.0, MAP_SIZE)
OBSTACLE_AREA: Final = (5.0, 50.0)
OBSTACLE_RADIUS: Final = 1.0
# m between two starts or two goals, and from the centre of a vortex or buoy to a start or goal
ROBOT_CLEARANCE: Final = 10.0
VORTEX_CLEARANCE: Final = 10.0 + CORE_RADIUS
OBSTACLE_CLEARANCE: Final = 10.0 + OBSTACLE_RADIUS
MAX_BOUNDARY_SPEED: Final = 1.0  # m/s, where two vortices of the same direction meet
MAX_JOINT_SPEED: Final = 0.8  # fraction of the edge speed, where two opposite vortices meet

# The kinds of items, in the order of placement.
ROBOT, VORTEX, OBSTACLE, COMPLETE = range(4)


class Size(NamedTuple):
    """Maximum number of robots, vortices and obstacles per sea, which sets the tensor shapes."""

    robots: int
    vortices: int
    obstacles: int


class Contents(NamedTuple):
    """Required contents of N seas, or, with 1 in place of N, of all seas alike."""

    counts: Tensor  # numbers of robots, vortices and obstacles, int64 `[3, N]`
    min_distance: Tensor  # from each start to its goal, m, `[N]`
    stage: Tensor  # index of the stage of the curriculum, int64 `[N]`


class Draft(NamedTuple):
    """Partial layouts of N seas. Coordinates of items that are not placed are infinite."""

    ends: Tensor  # starts and goals, `[2, 2, R, N]`: end, axis, robot, sea; m
    vortices: Tensor  # x, y (m), sign of the circulation, `[3, V, N]`
    obstacles: Tensor  # x, y, `[2, O, N]`, m
    contents: Contents  # required contents
    kind: Tensor  # of the next item, int64 `[N]`
    placed: Tensor  # number of items of this kind placed so far, int64 `[N]`
    tries: Tensor  # number of candidates of this kind tested so far, int64 `[N]`


def begin_drafts(contents: Contents, size: Size, seas: int) -> Draft:
    """Return empty drafts."""

    def nowhere(*shape: int) -> Tensor:
        return contents.min_distance.new_full((*shape, seas), torch.inf)

    kind, placed, tries = contents.stage.new_zeros(3, seas)
    return Draft(
        nowhere(2, 2, size.robots),
        nowhere(3, size.vortices),
        nowhere(2, size.obstacles),
        Contents(*(each.expand(*each.shape[:-1], seas).contiguous() for each in contents)),
        kind,
        placed,
        tries,
    )


def complete_drafts(draft: Draft, streams: Tensor, *, candidates: int = 32) -> tuple[Draft, Tensor]:
    """Complete the drafts by `extend_drafts` in a loop that reads a condition on the host.

    A draft has fewer items than required where `TRIES` candidates did not suffice. The layouts
    depend on `candidates`.
    """
    while bool((draft.kind != COMPLETE).any()):
        draft, streams = extend_drafts(draft, streams, candidates)
    return draft, streams


def is_complete(draft: Draft) -> Tensor:
    """Return which layouts have all required items, bool `[N]`."""
    placed = torch.cat((draft.ends[0, 0], draft.vortices[0], draft.obstacles[0])).isfinite()
    return placed.sum(0) == draft.contents.counts.sum(0)


def extend_drafts(draft: Draft, streams: Tensor, candidates: int) -> tuple[Draft, Tensor]:
    """Place at most one item per sea: the first of some random candidates that fits.

    The generators `streams` `[N]` advance only where a draft is incomplete: a layout thus depends
    only on the state at its beginning.
    """
    words, after = random_words(streams, (2, candidates))
    streams = torch.where(draft.kind == COMPLETE, streams, after)
    is_robot, is_vortex, is_obstacle = (draft.kind == kind for kind in range(COMPLETE))
    # Candidate positions `[axis, C, N]`; a robot has a start and a goal.
    low, high = (
        torch.where(is_robot, robot, torch.where(is_vortex, vortex, obstacle)).to(draft.ends)
        for robot, vortex, obstacle in zip(ROBOT_AREA, VORTEX_AREA, OBSTACLE_AREA, strict=True)
    )
    draws = stored(uniform(words, draft.ends.dtype))
    place, goal = (low + (high - low) * draws).unbind(1)
    ends = torch.stack((place, torch.where(is_robot, goal, place)))
    # |goal - start| >= d_min
    fits = (_squared(goal - place) >= draft.contents.min_distance.square()) | ~is_robot
    # Starts, and goals, more than 10 m apart; vortices and buoys 10 m plus radius from both.
    clearance = torch.where(is_vortex, VORTEX_CLEARANCE, OBSTACLE_CLEARANCE)
    clearance = torch.where(is_robot, ROBOT_CLEARANCE, clearance)
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
    extended = Draft(
        _put(draft.ends, ends, draft.placed, found & is_robot),
        _put(draft.vortices, whirl, draft.placed, found & is_vortex),
        _put(draft.obstacles, ends[0], draft.placed, found & is_obstacle),
        draft.contents,
        kind,
        placed,
        tries,
    )
    return extended, streams


def _suits_vortices(
    place: Tensor, direction: Tensor, vortices: Tensor, is_vortex: Tensor, is_obstacle: Tensor
) -> Tensor:
    """Return which candidates are compatible with the vortices, bool `[C, N]`."""
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
    """Advance to the next required kind where the current one is complete or out of tries."""
    kind = draft.kind
    for number, wanted in enumerate(draft.contents.counts):
        is_over = (kind == number) & ((placed >= wanted) | (tries >= TRIES))
        kind = kind + is_over
        placed, tries = placed * ~is_over, tries * ~is_over
    return kind, placed, tries


def _put(items: Tensor, item: Tensor, slot: Tensor, condition: Tensor) -> Tensor:
    """Write `item` `[*C, N]` to its slot of `items` `[*C, slots, N]` where a condition holds."""
    slots = torch.arange(items.shape[-2], device=items.device)[:, None]
    return torch.where((slots == slot) & condition, item.unsqueeze(-2), items)


def _squared(vector: Tensor) -> Tensor:
    return vector.square().sum(0)
