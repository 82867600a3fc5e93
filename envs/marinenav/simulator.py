"""Automatic resets of seas on the device, without reading done flags on the host.

Each sea stores its current episode, the initial state of the next one, and a draft of the one
after, which grows by a few candidates per step. The cost of a step therefore does not depend on the
number of resets. A sea whose episodes end before the next one is ready (about two dozen steps)
repeats the last initial state.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import torch
from tensordict import TensorDict
from torch import Tensor

from envs.marinenav.compiling import stored
from envs.marinenav.curriculum import Difficulty, Stage
from envs.marinenav.noise import Noise, random_words, split_streams
from envs.marinenav.placement import (
    COMPLETE,
    Draft,
    Size,
    begin_drafts,
    complete_drafts,
    try_candidates,
)
from envs.marinenav.sea import Episode, Sea, Transition, advance, look, put_to_sea

CANDIDATES: Final = 4  # layout candidates per sea and step
TURNS: Final = 16  # steps in which each sea once can turn a complete draft into its next episode

Tensors = TypeVar("Tensors")


class SimulationState(NamedTuple):
    """Complete simulation state of N seas.

    Attributes:
        now: current state of the seas.
        next: initial state of the next episodes.
        is_ready: whether `next` is unused, bool `[N]`.
        draft: layouts of the episodes after `next`.
        streams: states of the random number generators, int64 `[N]`.
        frames: number of steps of all seas, int64 `[]`.
    """

    now: Episode
    next: Episode
    is_ready: Tensor
    draft: Draft
    streams: Tensor
    frames: Tensor


@dataclass(eq=False)
class Simulator:
    """Steps and resets simulation states; holds the constants of the simulation.

    Args:
        size: maximum number of robots, vortices and obstacles per sea.
        difficulty: difficulty of the episodes by frame.
        noise: sensor noise; None for exact sensing.
        max_steps: time limit of an episode, in steps.
    """

    size: Size
    difficulty: Difficulty
    noise: Noise | None
    max_steps: int

    def blank(self, streams: Tensor, frames: Tensor) -> SimulationState:
        """Return a simulation state of empty seas, the state before the first reset."""
        empty = begin_drafts(self.difficulty.contents(frames), self.size, len(streams))
        nothing = put_to_sea(empty, streams, None)
        is_ready = torch.zeros_like(streams, dtype=torch.bool)
        return SimulationState(nothing, nothing, is_ready, empty, streams, frames)

    def begin(self, streams: Tensor, frames: Tensor) -> SimulationState:
        """Return a simulation state in which all seas start an episode."""
        state = self.blank(streams, frames)
        episodes = []
        for _ in range(2):
            draft, streams = complete_drafts(state.draft, streams)
            episodes.append(put_to_sea(draft, split_streams(streams), self.noise))
        now, following = episodes
        return state._replace(now=now, next=following, is_ready=~state.is_ready, streams=streams)

    def step(self, state: SimulationState, action: Tensor) -> tuple[SimulationState, Transition]:
        """Apply one action `[2, R, N]` per active robot, see `physics.sail`.

        Returns:
            The next simulation state, and the transition.
        """
        transition, streams = advance(
            state.now.sea, action, state.streams, self.noise, self.max_steps
        )
        state = state._replace(
            now=transition.now, streams=streams, frames=state.frames + len(streams)
        )
        return self._prepare(state), transition

    def renew(self, state: SimulationState, is_over: Tensor) -> SimulationState:
        """Start the next episode in the seas of a mask, bool `[N]`."""
        return state._replace(
            now=_renewed(is_over, state.next, state.now),
            is_ready=state.is_ready & ~is_over,
        )

    def _prepare(self, state: SimulationState) -> SimulationState:
        """Extend the drafts, and turn complete drafts of some seas into their next episodes."""
        words, streams = random_words(state.streams, (2, CANDIDATES))
        draft = _map(stored, try_candidates(state.draft, words))
        seas = len(streams)
        share = -(-seas // TURNS)
        numbers = torch.arange(share, device=streams.device)
        turn = (state.frames // seas * share + numbers) % seas
        drafted = _map(stored, pick(draft, turn))
        begun = put_to_sea(drafted, split_streams(pick(streams, turn)), self.noise)
        begun = _map(stored, begun)
        is_due = (drafted.kind == COMPLETE) & ~pick(state.is_ready, turn)
        following = put(state.next, turn, choose(is_due, begun, pick(state.next, turn)))
        is_used = put(torch.zeros_like(state.is_ready), turn, is_due)
        empty = begin_drafts(self.difficulty.contents(state.frames), self.size, seas)
        return state._replace(
            next=following,
            is_ready=state.is_ready | is_used,
            draft=choose(is_used, empty, draft),
            streams=streams,
        )


class ScenarioSimulator(Simulator):
    """Steps seas with given initial states, to which every reset returns; see `Simulator`."""

    def __init__(self, first: Sea, noise: Noise | None, max_steps: int) -> None:
        size = Size(len(first.active), first.vortices.shape[1], first.obstacles.shape[1])
        stage = Stage(0, size.robots, size.obstacles, 0.0)
        motion = first.motion
        difficulty = Difficulty((stage,), size.vortices, motion.dtype, motion.device)
        super().__init__(size, difficulty, noise, max_steps)
        self._first = first

    def begin(self, streams: Tensor, frames: Tensor) -> SimulationState:
        """Return a simulation state in which all seas are in their initial states."""
        first = look(self._first, split_streams(streams), self.noise)
        _, streams = random_words(streams, (1,))
        return self.blank(streams, frames)._replace(now=first, next=first)

    def _prepare(self, state: SimulationState) -> SimulationState:
        """Return the state unchanged: the next episode is always the given one."""
        return state


def choose(condition: Tensor, this: Tensors, other: Tensors) -> Tensors:
    """Return, per sea, `this` where a condition `[N]` holds and `other` elsewhere."""
    return _map(lambda a, b: torch.where(condition, a, b), this, other)


def _renewed(is_over: Tensor, following: Episode, now: Episode) -> Episode:
    """Like `choose`, for finite values: `lerp` is exact at 0 and 1, and faster than `where`."""
    weight = is_over.to(now.sea.motion)

    def one(new: Tensor, old: Tensor) -> Tensor:
        if old.is_floating_point():
            return torch.lerp(old, new, weight)
        return torch.where(is_over, new, old)

    return _map(one, following, now)


def pick(tensors: Tensors, seas: Tensor) -> Tensors:
    """Return the values of the seas with the given indices, int64 `[G]`."""
    return _map(lambda a: a.index_select(-1, seas), tensors)


def put(tensors: Tensors, seas: Tensor, values: Tensors) -> Tensors:
    """Return `tensors` with the values of the seas with the given indices replaced, int64 `[G]`."""
    return _map(lambda a, b: a.index_copy(-1, seas, b), tensors, values)


def to_host(tensors: Tensors) -> Tensors:
    """Return the tensors on the CPU."""
    return _map(lambda a: a.cpu(), tensors)


def flatten(tensors: Any) -> dict[str, Tensor]:
    """Return the tensors of nested named tuples by their paths, such as `now.sea.motion`."""
    return dict(TensorDict.from_namedtuple(tensors).flatten_keys(".").items())


def unflatten(like: Tensors, flat: Mapping[str, Tensor]) -> Tensors:
    """Invert `flatten`: return named tuples like `like`, filled with copies on its device."""
    tensors = iter(flat[name].to(old).clone() for name, old in flatten(like).items())
    return _map(lambda _: next(tensors), like)


def _map(function: Any, first: Any, *others: Any) -> Any:
    """Apply a function to the tensors of nested named tuples."""
    if isinstance(first, Tensor):
        return function(first, *others)
    return type(first)(*(_map(function, *entries) for entries in zip(first, *others, strict=True)))
