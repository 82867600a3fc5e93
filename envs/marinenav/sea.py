"""State of the seas and its transition by one action per robot.

`streams` are the states of random number generators, one per sea, and `noise` is the sensor noise,
None for exact sensing; see the module `noise`.
"""

import math
from functools import reduce
from typing import Final, NamedTuple

import torch
from torch import Tensor

from envs.compiling import replaced, stored
from envs.marinenav.colregs import give_way_angle
from envs.marinenav.noise import Noise, uniform
from envs.marinenav.perception import View, collides, perceive, surroundings
from envs.marinenav.physics import CIRCULATION, CORE_RADIUS, POSITION, current, sail
from envs.marinenav.placement import OBSTACLE_RADIUS, Draft
from envs.streams import random_words

GOAL_RADIUS: Final = 2.0  # m
STEP_REWARD: Final = -0.1
GIVE_WAY_REWARD: Final = -0.1  # per radian of phi
COLLISION_REWARD: Final = -5.0
GOAL_REWARD: Final = 10.0


class Sea(NamedTuple):
    """The state of N seas. Robots that do not exist are inactive and at rest at the origin."""

    motion: Tensor  # of the robots, `[11, R, N]`, see `physics`
    goal: Tensor  # `[2, R, N]`, m
    exists: Tensor  # whether a robot exists, bool `[R, N]`
    active: Tensor  # whether it exists and still moves
    reached: Tensor  # whether it has reached its goal
    obstacles: Tensor  # x, y, radius, `[3, O, N]`, m; radius 0 for a missing obstacle
    vortices: Tensor  # x, y, circulation, core radius, `[4, V, N]`, see `physics.current`
    steps: Tensor  # of this episode, until its last robot has ended, int64 `[N]`


class Episode(NamedTuple):
    """Episodes in N seas."""

    sea: Sea
    view: View  # also of robots that have just collided or arrived
    streams: Tensor  # states of the generators of the sensor noise, int64 `[N]`
    stage: Tensor  # of the curriculum to which the episode belongs, int64 `[N]`


class Terms(NamedTuple):
    """Terms of the rewards, each `[R, N]`; 0 for robots that were inactive before the action."""

    step: Tensor
    progress: Tensor
    give_way: Tensor
    collision: Tensor
    goal: Tensor


class Transition(NamedTuple):
    """Result of one action per robot."""

    now: Episode  # after the action
    terms: Terms
    reward: Tensor  # sum of the terms, `[R, N]`
    is_late: Tensor  # whether the episode has reached its time limit, bool `[N]`


def advance(now: Episode, action: Tensor, noise: Noise | None, max_steps: int) -> Transition:
    """Apply the actions `[2, R, N]` of all active robots for 0.5 s, see `physics.sail`."""
    sea = now.sea
    # Inactive robots stay in place: `lerp` is exact at 0 and 1, and much faster than `where`.
    moves = sea.active.to(sea.motion)
    motion = stored(torch.lerp(sea.motion, sail(sea.motion, action, sea.vortices), moves))
    around = surroundings(motion, sea.active, sea.obstacles)
    view, streams = perceive(motion, sea.goal, around, now.streams, noise)
    before, after = (
        (sea.goal - place[POSITION]).square().sum(0).sqrt() for place in (sea.motion, motion)
    )
    collided = collides(around) & sea.active
    arrived = (after <= GOAL_RADIUS) & sea.active & ~collided
    terms = Terms(
        step=STEP_REWARD * moves,
        progress=(before - after) * moves,
        give_way=GIVE_WAY_REWARD * give_way_angle(view) * moves,
        collision=COLLISION_REWARD * collided,
        goal=GOAL_REWARD * arrived,
    )
    afterwards = replaced(
        sea,
        motion=motion,
        active=sea.active & ~(collided | arrived),
        reached=sea.reached | arrived,
        steps=sea.steps + sea.active.any(0),
    )
    is_late = afterwards.steps >= max_steps
    following = Episode(afterwards, view, streams, now.stage)
    return Transition(following, terms, reduce(torch.add, terms), is_late)


def start_episodes(draft: Draft, streams: Tensor, noise: Noise | None) -> Episode:
    """Return the initial states of complete drafts: robots at rest with random headings."""
    exists = draft.ends[0, 0].isfinite()
    start, goal = torch.where(exists, draft.ends, 0.0).unbind(0)
    words, streams = random_words(streams, exists.shape[:1])
    heading = 2.0 * math.pi * uniform(words, start.dtype)[:1] * exists
    still = torch.zeros_like(heading)
    place, is_there = draft.vortices[:2], draft.vortices[0].isfinite()
    circulation = torch.where(is_there, CIRCULATION * draft.vortices[2], 0.0)[None]
    vortices = torch.cat(
        (torch.where(is_there, place, 0.0), circulation, torch.full_like(circulation, CORE_RADIUS))
    )
    is_there = draft.obstacles[0].isfinite()
    obstacles = torch.where(is_there, draft.obstacles, 0.0)
    obstacles = torch.cat((obstacles, (OBSTACLE_RADIUS * is_there).to(obstacles)[None]))
    motion = torch.cat((start, heading, *[still] * 3, current(start, vortices), *[still] * 3))
    sea = Sea(
        motion,
        goal,
        exists,
        exists.clone(),
        torch.zeros_like(exists),
        obstacles,
        vortices,
        torch.zeros_like(streams),
    )
    return observe_seas(sea, streams, draft.contents.stage, noise)


def observe_seas(sea: Sea, streams: Tensor, stage: Tensor, noise: Noise | None) -> Episode:
    """Return the episodes that begin in the given states of the seas."""
    around = surroundings(sea.motion, sea.active, sea.obstacles)
    return Episode(sea, *perceive(sea.motion, sea.goal, around, streams, noise), stage)
