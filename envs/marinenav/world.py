"""Seas that begin anew by themselves, without the host ever asking whether one has ended.

Besides the episode that it is in, each sea keeps the next one ready, and the one after that is
being drawn up, a few candidates a step. So a step costs the same whether episodes end or not. A
sea whose episodes are so short that the next is not ready (that takes two dozen steps) begins the
last one again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar

import torch
from torch import Tensor

from envs.marinenav.compiling import stored
from envs.marinenav.curriculum import Schedule, Stage
from envs.marinenav.layout import (
    COMPLETE,
    Draft,
    Size,
    begin_drafts,
    complete_drafts,
    try_candidates,
)
from envs.marinenav.noise import Noise, random_words, split_streams
from envs.marinenav.perception import View
from envs.marinenav.sea import Outcome, Sea, advance, look, put_to_sea

CANDIDATES: Final = 4  # tried in each sea at every step
TURNS: Final = 16  # steps after which each sea has had its turn to get its next episode ready

Tensors = TypeVar("Tensors")


class Episode(NamedTuple):
    """The beginning of an episode.

    Attributes:
        sea: the state.
        view: what the robots see.
    """

    sea: Sea
    view: View


class World(NamedTuple):
    """Everything that the future of N seas depends on.

    Attributes:
        now: the state of the seas, and what the robots see.
        next: the episodes that follow.
        is_ready: whether `next` has not been used yet, bool `[N]`.
        draft: the episodes after that.
        streams: random number generators, int64 `[N]`.
        frames: steps of all seas so far, int64 without dimensions.
    """

    now: Episode
    next: Episode
    is_ready: Tensor
    draft: Draft
    streams: Tensor
    frames: Tensor


class Simulator:
    """Steps and resets worlds; holds what never changes.

    Args:
        size: how much room there is in a sea.
        schedule: what episodes shall hold.
        noise: of perception; None for none.
        max_steps: after which an episode is truncated.
    """

    def __init__(self, size: Size, schedule: Schedule, noise: Noise | None, max_steps: int) -> None:
        self.size = size
        self.schedule = schedule
        self.noise = noise
        self.max_steps = max_steps

    def blank(self, streams: Tensor, frames: Tensor) -> World:
        """Return a world without anything in it, which is where a reset can begin from."""
        empty = begin_drafts(self.schedule.demand(frames), self.size, len(streams))
        nothing = Episode(*put_to_sea(empty, streams, None))
        is_ready = torch.zeros_like(streams, dtype=torch.bool)
        return World(nothing, nothing, is_ready, empty, streams, frames)

    def begin(self, streams: Tensor, frames: Tensor) -> World:
        """Return a world in which all seas are at the beginning of an episode.

        Args:
            streams: random number generators of N seas.
            frames: steps of all seas so far.
        """
        empty = begin_drafts(self.schedule.demand(frames), self.size, len(streams))
        episodes = []
        for _ in range(2):
            draft, streams = complete_drafts(empty, streams)
            episodes.append(Episode(*put_to_sea(draft, split_streams(streams), self.noise)))
        now, following = episodes
        is_ready = torch.ones_like(streams, dtype=torch.bool)
        return World(now, following, is_ready, empty, streams, frames)

    def step(self, world: World, action: Tensor) -> tuple[World, Outcome]:
        """Let all active robots act once.

        Args:
            world: the state.
            action: `[2, R, N]` in [-1, 1].

        Returns:
            The world afterwards, and what came of the action.
        """
        outcome, streams = advance(world.now.sea, action, world.streams, self.noise, self.max_steps)
        world = world._replace(
            now=Episode(outcome.sea, outcome.view),
            streams=streams,
            frames=world.frames + len(streams),
        )
        return self._prepare(world), outcome

    def renew(self, world: World, is_over: Tensor) -> World:
        """Let some seas begin the episodes that are ready for them.

        Args:
            world: the state, which `begin` has returned once.
            is_over: which seas, bool `[N]`.
        """
        return world._replace(
            now=_begin_anew(is_over, world.next, world.now),
            is_ready=world.is_ready & ~is_over,
        )

    def _prepare(self, world: World) -> World:
        """Go on drawing up episodes, and get some seas' next ones ready."""
        words, streams = random_words(world.streams, (2, CANDIDATES))
        draft = _map(stored, try_candidates(world.draft, words))
        seas = len(streams)
        share = -(-seas // TURNS)
        numbers = torch.arange(share, device=streams.device)
        turn = (world.frames // seas * share + numbers) % seas
        drafted = _map(stored, pick(draft, turn))
        begun = Episode(*put_to_sea(drafted, split_streams(pick(streams, turn)), self.noise))
        begun = _map(stored, begun)
        is_due = (drafted.kind == COMPLETE) & ~pick(world.is_ready, turn)
        following = put(world.next, turn, choose(is_due, begun, pick(world.next, turn)))
        is_used = put(torch.zeros_like(world.is_ready), turn, is_due)
        empty = begin_drafts(self.schedule.demand(world.frames), self.size, seas)
        return world._replace(
            next=following,
            is_ready=world.is_ready | is_used,
            draft=choose(is_used, empty, draft),
            streams=streams,
        )


class ScenarioSimulator(Simulator):
    """Steps seas that begin with given states; what has ended stays as it is.

    Args:
        first: the given states.
        noise: of perception; None for none.
        max_steps: after which an episode is truncated.
    """

    def __init__(self, first: Sea, noise: Noise | None, max_steps: int) -> None:
        size = Size(len(first.active), first.vortices.shape[1], first.obstacles.shape[1])
        stage = Stage(0, size.robots, size.obstacles, 0.0)
        motion = first.motion
        schedule = Schedule((stage,), size.vortices, motion.dtype, motion.device)
        super().__init__(size, schedule, noise, max_steps)
        self._first = first

    def begin(self, streams: Tensor, frames: Tensor) -> World:
        """Return a world in which all seas are in their given states."""
        view = look(self._first, split_streams(streams), self.noise)
        _, streams = random_words(streams, (1,))
        first = Episode(self._first, view)
        return self.blank(streams, frames)._replace(now=first, next=first)

    def _prepare(self, world: World) -> World:
        """Have nothing to do: every next episode is the same one."""
        return world


def choose(condition: Tensor, this: Tensors, other: Tensors) -> Tensors:
    """Return, sea by sea, `this` where a condition `[N]` holds and `other` where not."""
    return _map(lambda a, b: torch.where(condition, a, b), this, other)


def _begin_anew(is_over: Tensor, following: Episode, now: Episode) -> Episode:
    """Return what `choose` would, for finite values: `lerp` is exact at 0 and 1, and faster."""
    weight = is_over.to(now.sea.motion)

    def one(new: Tensor, old: Tensor) -> Tensor:
        if old.is_floating_point():
            return torch.lerp(old, new, weight)
        return torch.where(is_over, new, old)

    return _map(one, following, now)


def pick(tensors: Tensors, seas: Tensor) -> Tensors:
    """Return what belongs to some seas, int64 `[G]`."""
    return _map(lambda a: a.index_select(-1, seas), tensors)


def put(tensors: Tensors, seas: Tensor, values: Tensors) -> Tensors:
    """Return `tensors` with other values for some seas, int64 `[G]`."""
    return _map(lambda a, b: a.index_copy(-1, seas, b), tensors, values)


def to_device(tensors: Tensors, device: torch.device) -> Tensors:
    """Return the tensors on another device."""
    return _map(lambda a: a.to(device), tensors)


def flatten(tensors: Any, name: str = "") -> dict[str, Tensor]:
    """Return the tensors in nested named tuples by their paths, as in `now.sea.motion`."""
    if isinstance(tensors, Tensor):
        return {name: tensors}
    flat: dict[str, Tensor] = {}
    for field, entry in zip(tensors._fields, tensors, strict=True):
        flat.update(flatten(entry, f"{name}.{field}" if name else field))
    return flat


def unflatten(like: Tensors, flat: Mapping[str, Tensor]) -> Tensors:
    """Undo `flatten`: return named tuples as `like`, filled with copies on its device."""
    tensors = iter(flat[name].to(old).clone() for name, old in flatten(like).items())
    return _map(lambda _: next(tensors), like)


def _map(function: Any, first: Any, *others: Any) -> Any:
    """Apply a function to the tensors in nested named tuples."""
    if isinstance(first, Tensor):
        return function(first, *others)
    return type(first)(*(_map(function, *entries) for entries in zip(first, *others, strict=True)))
