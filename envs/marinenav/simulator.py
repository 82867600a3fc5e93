"""Automatic resets of seas on the device, without reading done flags on the host.

Each sea stores its current episode, the initial state of the next one, and a draft of the one
after, which grows by a few candidates per step. The cost of a step therefore does not depend on the
number of resets. A sea whose episodes end before the next one is ready (about 30 steps, seldom 50)
repeats the last initial state. When a new stage of the curriculum begins, next episodes and drafts
of other stages are discarded.

A layout depends only on the seed, the sea and the number of the layout. When a sea is ready
depends on its own steps, not on the number of seas.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import torch
from tensordict import TensorDict
from torch import Tensor

from envs.compiling import replaced, stored
from envs.marinenav.curriculum import Difficulty, Stage
from envs.marinenav.noise import Noise
from envs.marinenav.placement import (
    COMPLETE,
    Draft,
    Size,
    begin_drafts,
    complete_drafts,
    extend_drafts,
)
from envs.marinenav.sea import Episode, Sea, Transition, advance, observe_seas, start_episodes
from envs.streams import random_words, split_streams

CANDIDATES: Final = 4  # layout candidates per sea and step
TURNS: Final = 16  # steps in which each sea has one turn to make a complete draft its next episode
ROW: Final = 16  # neighbouring seas that have their turn in the same step

Tensors = TypeVar("Tensors")


class SimulationState(NamedTuple):
    """Complete simulation state of N seas."""

    now: Episode
    next: Episode  # initial state of the next episodes
    is_ready: Tensor  # whether `next` is unused and of the current stage, bool `[N]`
    draft: Draft  # layouts of the episodes after `next`
    layouts: Tensor  # states of the random number generators of the layouts, int64 `[N]`
    frames: Tensor  # number of steps of all seas, also those of other processes, int64 `[]`


@dataclass(eq=False)
class Simulator:
    """Steps and resets simulation states; holds the constants of the simulation."""

    size: Size  # maximum number of robots, vortices and obstacles per sea
    difficulty: Difficulty  # of the episodes by frame
    noise: Noise | None  # of the sensors; None for exact sensing
    max_steps: int  # time limit of an episode

    def blank(self, streams: Tensor, frames: Tensor) -> SimulationState:
        """Return a simulation state of empty seas, the state before the first reset."""
        empty = begin_drafts(self.difficulty.contents(frames), self.size, len(streams))
        nothing = start_episodes(empty, streams, None)._replace(streams=streams)
        is_ready = torch.zeros_like(streams, dtype=torch.bool)
        # Split, so that equal seeds of training and of `draw_scenarios` give different layouts.
        return SimulationState(nothing, nothing, is_ready, empty, split_streams(streams), frames)

    def begin(self, state: SimulationState) -> SimulationState:
        """Start the next episode in all seas; reads conditions on the host."""
        state = self._complete(state)
        return self._complete(self.renew(state, torch.ones_like(state.is_ready)))

    def step(self, state: SimulationState, action: Tensor) -> tuple[SimulationState, Transition]:
        """Apply one action `[2, R, N]` per active robot; return the next state and the transition.

        See `physics.sail`.
        """
        transition = advance(state.now, action, self.noise, self.max_steps)
        frames = state.frames + self._all_seas(state)
        return self._prepare(replaced(state, now=transition.now, frames=frames)), transition

    def renew(self, state: SimulationState, is_over: Tensor) -> SimulationState:
        """Start the next episode in the seas of a mask, bool `[N]`."""
        now = choose(is_over, state.next, state.now)
        # An initial state that repeats has other sensor noise.
        streams = torch.where(is_over & state.is_ready, now.streams, state.now.streams)
        now = replaced(now, streams=streams)
        return replaced(state, now=now, is_ready=state.is_ready & ~is_over)

    def _prepare(self, state: SimulationState) -> SimulationState:
        """Extend the drafts, and turn complete drafts of some seas into their next episodes."""
        draft, layouts = extend_drafts(state.draft, state.layouts, CANDIDATES)
        draft = _map(stored, draft)
        empty = self.empty(state)
        stage, seas = empty.contents.stage, len(layouts)
        is_ready = state.is_ready & (state.next.stage == stage)
        is_current = draft.contents.stage == stage
        # One row of each block of seas; its first sea in place of those that do not exist
        first = state.frames // self._all_seas(state) % TURNS * ROW
        numbers = torch.arange(-(-seas // (TURNS * ROW)) * ROW, device=layouts.device)
        turn = first + numbers + numbers // ROW * ((TURNS - 1) * ROW)
        turn = torch.where(turn < seas, turn, first.clamp(max=seas - 1))
        is_due = pick((draft.kind == COMPLETE) & is_current & ~is_ready, turn) & (first < seas)
        drafted = _map(stored, pick(draft, turn))
        begun = start_episodes(drafted, split_streams(pick(layouts, turn)), self.noise)
        begun = _map(stored, begun)
        is_used = put(torch.zeros_like(is_ready), turn, is_due)
        return replaced(
            state,
            next=put(state.next, turn, choose(is_due, begun, pick(state.next, turn))),
            is_ready=is_ready | is_used,
            draft=choose(is_used | ~is_current, empty, draft),
            layouts=layouts,
        )

    def _complete(self, state: SimulationState) -> SimulationState:
        """Complete the next episodes of all seas; reads conditions on the host."""
        draft, layouts = complete_drafts(state.draft, state.layouts, candidates=CANDIDATES)
        begun = start_episodes(draft, split_streams(layouts), self.noise)
        return replaced(
            state,
            next=choose(state.is_ready, state.next, begun),
            is_ready=torch.ones_like(state.is_ready),
            draft=choose(state.is_ready, draft, self.empty(state)),
            layouts=layouts,
        )

    def _all_seas(self, state: SimulationState) -> int:
        return len(state.layouts) * self.difficulty.processes

    def empty(self, state: SimulationState) -> Draft:
        """Return empty drafts of the current stage."""
        contents = self.difficulty.contents(state.frames)
        return begin_drafts(contents, self.size, len(state.layouts))


class ScenarioSimulator(Simulator):
    """Steps seas with given initial states, to which every reset returns; see `Simulator`."""

    def __init__(self, first: Sea, noise: Noise | None, max_steps: int) -> None:
        size = Size(len(first.active), first.vortices.shape[1], first.obstacles.shape[1])
        stage = Stage(0, size.robots, size.obstacles, 0.0)
        motion = first.motion
        difficulty = Difficulty((stage,), size.vortices, motion.dtype, motion.device)
        super().__init__(size, difficulty, noise, max_steps)
        self._first = first

    def begin(self, state: SimulationState) -> SimulationState:
        """Return all seas to their initial states."""
        before = state.now.streams
        _, streams = random_words(before, (1,))
        first = observe_seas(self._first, split_streams(before), state.now.stage, self.noise)
        return state._replace(now=first._replace(streams=streams), next=first)

    def _prepare(self, state: SimulationState) -> SimulationState:
        """Return the state unchanged: the next episode is always the given one."""
        return state


def choose(condition: Tensor, this: Tensors, other: Tensors) -> Tensors:
    """Return, per sea, `this` where a condition `[N]` holds and `other` elsewhere."""
    return _map(lambda a, b: torch.where(condition, a, b), this, other)


def pick(tensors: Tensors, seas: Tensor) -> Tensors:
    """Return the values of the seas with the given indices, int64 `[G]`."""
    return _map(lambda a: a.index_select(-1, seas), tensors)


def put(tensors: Tensors, seas: Tensor, values: Tensors) -> Tensors:
    """Return `tensors` with the values of the seas with the given indices replaced, int64 `[G]`."""
    return _map(lambda a, b: a.index_copy(-1, seas, b), tensors, values)


def duplicate(tensors: Tensors) -> Tensors:
    """Return copies of the tensors, each in its own memory."""
    return _map(Tensor.clone, tensors)


def write(tensors: Tensors, values: Tensors) -> Tensors:
    """Copy values into the memory of tensors, and return the tensors."""
    return _map(lambda to, value: to if to is value else to.copy_(value), tensors, values)


def to_host(tensors: Tensors) -> Tensors:
    """Return the tensors on the CPU."""
    return _map(Tensor.cpu, tensors)


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
