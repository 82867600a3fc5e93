"""Observations of Gymnasium spaces: a check that they fit, and their conversion to tensors."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, Space
from numpy.typing import DTypeLike, NDArray
from torch import Tensor
from torchrl.data import Bounded, Composite, TensorSpec, Unbounded

from torchrl_gpu.environments.readers import MIN_PICTURE_SIZE
from torchrl_gpu.errors import ConfigurationError

# Keys with a fixed meaning in the TensorDict of a transition.
_TAKEN_KEYS = frozenset(
    ("action", "reward", "terminated", "truncated", "done", "next", "_reset", "success", "active")
)

# Sizes of the first dimension of an image that mark it as channels first, as does a dimension
# smaller than both others: that of a stack of grey images.
_CHANNELS = (1, 3, 4)


class _Reader(NamedTuple):
    """Converts batches of one space to tensors."""

    spec: TensorSpec  # of one environment
    read: Callable[[NDArray], Tensor]  # returns a copy of a batch `[B, ...]`
    is_image: bool = False


class Observations:
    """Converts batches of observations to tensors by key; the space is that of one environment.

    A vector or an element of a Discrete space becomes `observation`, an image `pixels`. Entries of
    a Dict space are converted likewise under their own names; names of nested entries are joined by
    dots.

    Raises:
        ConfigurationError: the space is not supported, or an entry has a reserved name or one that
            stands for another entry as well.
    """

    def __init__(self, space: Space) -> None:
        self._readers: dict[str, _Reader] = {}
        self._paths: dict[str, tuple[str, ...]] = {}
        for path, entry in _leaves(space):
            reader = _reader(entry)
            if reader is None:
                raise _refusal(".".join(path), entry, space)
            key = ".".join(path) or ("pixels" if reader.is_image else "observation")
            if key in _TAKEN_KEYS:
                raise ConfigurationError(
                    f"its observation has an entry {key!r}, which is a reserved key; rename the "
                    "entry"
                )
            if key in self._readers:
                raise ConfigurationError(
                    f"two entries of its observation have the name {key!r}; rename one of them"
                )
            self._readers[key], self._paths[key] = reader, path

    @property
    def images(self) -> list[str]:
        """Keys of the images."""
        return [key for key, reader in self._readers.items() if reader.is_image]

    def spec(self, num_envs: int) -> Composite:
        """Return the specs of all keys for a batch `[num_envs]`."""
        specs = {
            key: reader.spec.expand(num_envs, *reader.spec.shape).clone()
            for key, reader in self._readers.items()
        }
        return Composite(specs, shape=(num_envs,))

    def read(self, batch: Any) -> dict[str, Tensor]:
        """Return a copy of a batch of observations of a vector environment as tensors by key."""
        tensors = {}
        for key, reader in self._readers.items():
            entry = batch
            for name in self._paths[key]:
                entry = entry[name]
            tensors[key] = reader.read(entry)
        return tensors


class Checked(gymnasium.Wrapper):
    """Refuses observations and rewards that do not fit the spaces.

    Gymnasium casts and broadcasts some of them, and refuses others without their name.

    Raises:
        ConfigurationError: (by resets and steps) an entry of the observation has another shape or
            kind of dtype than its space or is not in its Discrete space, or the reward is not one
            number.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._entries = [*_leaves(env.observation_space)]

    def reset(self, **options: Any) -> Any:
        """Reset the environment, and check the observation."""
        result = self.env.reset(**options)
        self._check_observation("reset", result[0])
        return result

    def step(self, action: Any) -> Any:
        """Step the environment, check observation and reward, and return the reward as a float."""
        observation, reward, *others = self.env.step(action)
        self._check_observation("step", observation)
        if type(reward) is not float:
            if _array(reward).size != 1 or not _is(reward, np.float64):
                self._refuse("step", "reward", reward, "it must be one number")
            reward = float(_array(reward).item())
        return observation, reward, *others

    def _check_observation(self, call: str, observation: Any) -> None:
        for path, space in self._entries:
            entry = observation
            for name in path:
                entry = entry.get(name) if isinstance(entry, Mapping) else None
            name = ".".join(path) or "observation"
            if _array(entry).shape != space.shape or not _is(entry, space.dtype):
                self._refuse(call, name, entry, f"its space is a {describe(space)}")
            if isinstance(space, Discrete) and not 0 <= entry - space.start < space.n:
                ends = f"{space.start} to {space.start + space.n - 1}"
                self._refuse(call, name, entry, f"{entry} is not in its space, {ends}")

    def _refuse(self, call: str, name: str, value: Any, expected: str) -> None:
        env = self.spec.id if self.spec else type(self.unwrapped).__name__
        found = _array(value)
        kind = found.dtype if found.dtype.kind in "biufc" else type(value).__name__
        raise ConfigurationError(
            f"env.name={env}: {call} returned {name} as {kind} {found.shape}; {expected}"
        )


def _is(value: Any, dtype: DTypeLike) -> bool:
    """Return whether a value is of the kind of a dtype."""
    found = _array(value).dtype
    return found == dtype or np.can_cast(found, dtype, "same_kind")


def _array(value: Any) -> NDArray:
    """Return a value as an array, of objects if it is something else, such as a ragged list."""
    try:
        return value if type(value) is np.ndarray else np.asarray(value)
    except (RuntimeError, TypeError, ValueError):
        array = np.empty((), object)
        array[()] = value
        return array


def _leaves(space: Space, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Space]]:
    """Yield path and space of each entry of a Dict, however nested; or the space itself."""
    if not isinstance(space, Dict):
        yield path, space
        return
    for name, entry in space.spaces.items():
        yield from _leaves(entry, (*path, name))


def _reader(space: Space) -> _Reader | None:
    """Return the reader of a space, an observation or an entry of one; None if not supported."""
    if isinstance(space, Discrete):
        return _one_hot(space)
    return (_pixels(space) or _vector(space)) if isinstance(space, Box) else None


def _refusal(name: str, space: Space, whole: Space) -> ConfigurationError:
    """Return the error for a space that is not supported, of an entry `name` of an observation."""
    try:
        flat = whole.is_np_flattenable
    except NotImplementedError:  # of a class outside Gymnasium
        flat = False
    wrapper = "gymnasium.wrappers.FlattenObservation" if flat else "PACKAGE.CLASS"
    return ConfigurationError(
        f"observations of a {describe(space)}{name and f' ({name})'} are not supported; supported "
        "are Box and Discrete spaces, and Dicts of these; convert them by a wrapper of Gymnasium, "
        f"env.wrappers=[{wrapper}]"
    )


def _vector(space: Box) -> _Reader:
    """Return the reader of numbers in any shape, flattened: float32 `[B, D]`."""
    low, high = (
        torch.from_numpy(np.asarray(bound, np.float64).reshape(-1)).float()
        for bound in (space.low, space.high)
    )

    def read(batch: NDArray) -> Tensor:
        return torch.from_numpy(np.array(batch, np.float32, order="C").reshape(len(batch), -1))

    # Bounds of the largest float stand for no bounds; their range overflows to infinity.
    if bool(torch.isfinite(high - low).all()):
        return _Reader(Bounded(low, high, low.shape, dtype=torch.float32), read)
    return _Reader(Unbounded(low.shape, dtype=torch.float32), read)


def _pixels(space: Box) -> _Reader | None:
    """Return the reader of images with channels first: uint8 `[B, C, H, W]`.

    None where the space is not that of an image: bytes `(H, W)`, or with a dimension of channels,
    of at least 8 x 8 pixels.
    """
    if space.dtype != np.uint8 or len(space.shape) not in (2, 3):
        return None
    whole = (1, *space.shape) if len(space.shape) == 2 else space.shape
    first, *others = whole
    is_channels_last = first not in _CHANNELS and first >= min(others)
    height, width, channels = whole
    shape = (channels, height, width) if is_channels_last else whole
    if min(shape[1:]) < MIN_PICTURE_SIZE:
        return None

    def read(batch: NDArray) -> Tensor:
        images = np.moveaxis(batch, -1, 1) if is_channels_last else batch
        return torch.from_numpy(np.array(images, np.uint8, order="C")).view(-1, *shape)

    return _Reader(Bounded(0, 255, shape, dtype=torch.uint8), read, is_image=True)


def _one_hot(space: Discrete) -> _Reader:
    """Return the reader of elements of a Discrete space, one-hot: float32 `[B, n]`."""
    size, start = int(space.n), int(space.start)

    def read(batch: NDArray) -> Tensor:
        rows = np.zeros((len(batch), size), np.float32)
        rows[np.arange(len(batch)), np.asarray(batch) - start] = 1.0
        return torch.from_numpy(rows)

    return _Reader(Bounded(0.0, 1.0, (size,), dtype=torch.float32), read)


def describe(space: Space) -> str:
    """Return the kind of a space, with dtype and shape of a Box."""
    if isinstance(space, Box):
        return f"Box of {space.dtype} {space.shape}"
    return f"{type(space).__name__.removesuffix('Space')} space"
