"""Stacks of the last images of each environment."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torchrl.data import Bounded, Composite

from envs.gym.episodes import Tensors


class ImageStacks:
    """Replaces each image by a stack of the last images of its environment, newest one last.

    At the start of an episode all images of a stack are the first one. With 1 frame, images stay.
    """

    def __init__(self, keys: Sequence[str], frames: int) -> None:
        self._frames = frames
        self._keys = keys if frames > 1 else ()
        self._stacks: Tensors = {}
        # Whether the next step of an environment only resets it, as in next-step autoreset.
        self._resets: NDArray[np.bool_] | None = None

    @property
    def counts(self) -> dict[str, int]:
        """Number of images in each stack, by key."""
        return dict.fromkeys(self._keys, self._frames)

    def spec(self, spec: Composite) -> Composite:
        """Return the specs of observations with stacks in place of images."""
        for key in self._keys:
            num_envs, channels, *size = spec[key].shape
            shape = (num_envs, self._frames * channels, *size)
            spec[key] = Bounded(0, 255, shape, dtype=torch.uint8)
        return spec

    def restart(self, tensors: Tensors, chosen: NDArray[np.bool_]) -> Tensors:
        """Stack the images after new episodes have begun in chosen environments, bool `[num_envs]`.

        `tensors` are the observations from `Episodes.begin` or `Episodes.restart`.
        """
        active = tensors.get("active")
        self._resets = None if active is None else ~active.numpy().reshape(-1)
        first = chosen if self._resets is None else chosen & ~self._resets
        return self._stacked(tensors, first)

    def step(self, tensors: Tensors) -> Tensors:
        """Stack the images after a step, from `Episodes.step`."""
        for key, stack in self._stacks.items():
            image = tensors[key]
            self._stacks[key] = torch.cat((stack[:, image.shape[1] :], image), 1)
        first, self._resets = self._resets, None
        return self._stacked(tensors, first)

    def state_dict(self) -> dict[str, Any]:
        """Return the stacks, and which environments the next step only resets."""
        resets = None if self._resets is None else torch.from_numpy(self._resets)
        return {"stacks": dict(self._stacks), "resets": resets}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict()`."""
        self._stacks = dict(state["stacks"])
        self._resets = None if state["resets"] is None else state["resets"].numpy()

    def _stacked(self, tensors: Tensors, first: NDArray[np.bool_] | None) -> Tensors:
        """Return the observations with stacks; the environments in `first` start new ones."""
        if first is not None and first.any():
            mask = torch.from_numpy(first).reshape(-1, 1, 1, 1)
            for key in self._keys:
                repeated = tensors[key].repeat(1, self._frames, 1, 1)
                stack = self._stacks.get(key, repeated)
                self._stacks[key] = torch.where(mask, repeated, stack)
        return {**tensors, **self._stacks}
