"""Records the open episode of a Gymnasium environment, so that a resumed run can play it again.

Gymnasium has no means to save a simulator. The generators at the start of an episode and its
actions determine where it is, in any simulator that computes the same results again.
"""

import hashlib
import json
import logging
import math
import threading
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Discrete
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map_only

logger = logging.getLogger(__name__)

_SECONDS_UNTIL_ANNOUNCED = 1.0

# All that is needed to play an episode again: numbers, strings and arrays by name.
Record = dict[str, Any]


@dataclass
class _Episode:
    """An episode so far."""

    seed: int | None  # of its reset
    options: dict[str, Any] | None  # of its reset
    generator: Mapping[str, Any] | None  # state of the environment's generator before the reset
    emulator: Any  # state of an Atari emulator before the reset, with its random numbers
    actions: bytearray = field(default_factory=bytearray)  # bytes of all actions
    rewards: array = field(default_factory=lambda: array("d"))


class Recorder(gymnasium.Wrapper):
    """Records the open episode, and plays a recorded episode again.

    A record that is assigned to `episode` is played by the next reset, which returns the last
    observation. If the environment does not repeat the recorded rewards and this observation, the
    reset begins a new episode.

    Args:
        env: environment with all other wrappers.
        resets_within: whether the reset after the end of an episode belongs to the same step.

    Attributes:
        repeated: whether the last reset has played a record to the same rewards and observation.
        owes_reset: whether that episode is over, so that the next step has to reset the
            environment: the vector environment takes it for one that goes on.
    """

    def __init__(self, env: gymnasium.Env, *, resets_within: bool) -> None:
        super().__init__(env)
        self.repeated = False
        self._resets_within = resets_within
        self._base = env.unwrapped
        space = env.action_space
        # The rows of a batch for a Discrete space are int64 in every case.
        self._dtype = np.dtype(np.int64 if isinstance(space, Discrete) else space.dtype)
        self._shape = space.shape or ()
        self._episode = _Episode(None, None, None, None)
        self._observation: Any = ()
        # The episode before the last step of the batch, its number of steps, and its observation.
        self._before: tuple[_Episode, int, Any] = self._episode, 0, ()
        self._record: Record | None = None
        self.owes_reset = False

    def step(self, action: NDArray) -> Any:
        """Step the environment and record it."""
        if self.owes_reset:
            observation, info = self.reset()
            return observation, 0.0, False, False, info
        episode = self._episode
        self._before = episode, len(episode.rewards), self._observation
        # Before the environment may change it.
        recorded = np.asarray(action, self._dtype).tobytes()
        result = self.env.step(action)
        self._observation = result[0]
        episode.actions += recorded
        try:
            episode.rewards.append(result[1])
        except TypeError:  # an array of one number; anything else is refused by the vector
            is_number = isinstance(result[1], np.ndarray) and result[1].size == 1
            episode.rewards.append(result[1].item() if is_number else math.nan)
        return result

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin a new episode, or play the record that is assigned to `episode`."""
        record, self._record = self._record, None
        self.repeated = self.owes_reset = False
        if not self._resets_within:
            self._before = self._episode, len(self._episode.rewards), self._observation
        if record is not None:
            try:
                return self._repeat(record)
            except Exception:  # a simulator that is elsewhere may do anything
                self.owes_reset = False
        return self._begin(seed, options)

    def _begin(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        _renew_world(self._base)
        generator = _generator_of(self._base)
        emulator: Any = getattr(self._base, "ale", None)
        state = emulator.cloneSystemState() if hasattr(emulator, "cloneSystemState") else None
        self._episode = _Episode(seed, options, generator.state if generator else None, state)
        self._observation, info = self.env.reset(seed=seed, options=options)
        return self._observation, info

    def _repeat(self, record: Record) -> Any:
        """Play a recorded episode, and return its last observation and info."""
        if generator := _generator_of(self._base):
            generator.state = json.loads(record["generator"])
        if len(record["emulator"]):
            emulator = self._base.get_wrapper_attr("ale")
            state_of = type(emulator.cloneSystemState())
            emulator.restoreSystemState(state_of(record["emulator"].tobytes()))
        observation, info = self._begin(record["seed"], record["options"])
        for action, expected in zip(record["actions"], record["rewards"], strict=True):
            if self.owes_reset:
                raise ValueError("the episode ends earlier")
            observation, reward, terminated, truncated, info = self.step(action)
            if np.float64(reward).tobytes() != expected.tobytes():
                raise ValueError("another reward")
            self.owes_reset = bool(terminated or truncated)
        if record["observation"] != _digest(observation):
            raise ValueError("another observation")
        self.repeated = True
        return observation, info

    @property
    def episode(self) -> Record:
        """Record of the open episode; assign one to have it played by the next reset."""
        return self._recorded(self._episode, len(self._episode.rewards), self._observation)

    @episode.setter
    def episode(self, record: Record) -> None:
        self._record = record

    @property
    def episode_before_step(self) -> Record:
        """Record of the episode that was open before the last step of the batch."""
        return self._recorded(*self._before)

    def _recorded(self, episode: _Episode, steps: int, observation: Any) -> Record:
        size = steps * self._dtype.itemsize * prod(self._shape)
        actions = np.frombuffer(episode.actions[:size], self._dtype)
        emulator = b"" if episode.emulator is None else episode.emulator.serialize()
        return {
            "seed": episode.seed,
            "options": episode.options,
            "generator": json.dumps(episode.generator, default=np.ndarray.tolist),
            "emulator": np.frombuffer(bytearray(emulator), np.uint8),
            "actions": actions.reshape(steps, *self._shape),
            "rewards": np.array(episode.rewards[:steps]),
            "observation": _digest(observation),
        }


class TransparentRecorder(Recorder):
    """Recorder with the attributes of the environment, which scripts use by TorchRL's wrapper."""

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # before the constructor
            raise AttributeError(name)
        return getattr(self.env, name)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute of the environment."""
        return self.env.set_wrapper_attr(name, value, force=force)


def _digest(observation: Any) -> str:
    """Return a hash of all bytes of an observation, however nested."""
    found = hashlib.sha256()

    def add(entry: Any) -> None:
        if isinstance(entry, Mapping):
            entry = tuple(entry[name] for name in sorted(entry))
        if isinstance(entry, tuple):
            for each in entry:
                add(each)
        else:
            found.update(np.asarray(entry).tobytes())

    add(observation)
    return found.hexdigest()


def as_tensors(record: Record) -> Record:
    """Return a record with tensors in place of arrays."""
    return tree_map_only(np.ndarray, torch.from_numpy, record)


def as_arrays(record: Record) -> Record:
    """Return a record with arrays in place of tensors."""
    return tree_map_only(Tensor, Tensor.numpy, record)


@contextmanager
def announced(records: Iterable[Record]) -> Iterator[None]:
    """Say that records are played, if that takes longer than a second."""
    steps = sum(len(record["rewards"]) for record in records)
    message = "playing %s steps of the open episodes again", f"{steps:,}"
    timer = threading.Timer(_SECONDS_UNTIL_ANNOUNCED, logger.info, message)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _generator_of(env: Any) -> Any:
    """Return the bit generator of an environment that draws from NumPy's `Generator`, or None."""
    return getattr(getattr(env, "np_random", None), "bit_generator", None)


def _renew_world(env: Any) -> None:
    """Give an environment of Gymnasium in Box2D a new world for its next episode.

    The order in which a used world computes contacts depends on the episodes before.
    """
    world = getattr(env, "world", None)
    if world is not None and type(env).__module__.startswith("gymnasium.envs.box2d."):
        listener = world.contactListener
        env._destroy()  # bodies belong to their world
        env.world = type(world)(gravity=world.gravity, contactListener=listener)
