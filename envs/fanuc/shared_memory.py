"""Shared memory of the environment and its worker processes, with one row per arm."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from envs.fanuc.observation import OBSERVATION_SIZE
from envs.fanuc.robot import NUM_JOINTS


class Exchange:
    """Arrays in one memory-mapped file, so that no state passes through a pipe.

    Args:
        path: path of an existing file, from `Exchange.create`.
        num_arms: number of rows of each array.

    Attributes:
        state: joint angles [rad] and speeds [rad/s], `[num_arms, 2, 6]`, float64, the precision of
            the simulator, so that writing a state back is exact.
        action: next actions, `[num_arms, 6]`, float32.
        target: target positions relative to joint 1 in the base frame, `[num_arms, 3]`, float32,
            metres.
        observation: observations after the step, `[num_arms, 36]`, float32.
        distance: distances from flange to target after the step, `[num_arms, 1]`, float32, metres.
        rewritten: nonzero where the environment has written `state` and the simulator must load it
            before its next step, `[num_arms]`, uint8.
    """

    def __init__(self, path: Path, num_arms: int) -> None:
        self.path = path
        # The widest type comes first, which aligns all arrays.
        shapes = (
            ("<f8", (num_arms, 2, NUM_JOINTS)),
            ("<f4", (num_arms, NUM_JOINTS)),
            ("<f4", (num_arms, 3)),
            ("<f4", (num_arms, OBSERVATION_SIZE)),
            ("<f4", (num_arms, 1)),
            ("u1", (num_arms,)),
        )
        size = sum(np.dtype(kind).itemsize * int(np.prod(shape)) for kind, shape in shapes)
        if path.stat().st_size < size:
            with path.open("r+b") as file:
                file.truncate(size)
        memory = np.memmap(path, dtype="u1", mode="r+", shape=(size,))
        arrays, start = [], 0
        for kind, shape in shapes:
            end = start + np.dtype(kind).itemsize * int(np.prod(shape))
            arrays.append(memory[start:end].view(kind).reshape(shape).view(np.ndarray))
            start = end
        self.state: NDArray[np.float64] = arrays[0]
        self.action: NDArray[np.float32] = arrays[1]
        self.target: NDArray[np.float32] = arrays[2]
        self.observation: NDArray[np.float32] = arrays[3]
        self.distance: NDArray[np.float32] = arrays[4]
        self.rewritten: NDArray[np.uint8] = arrays[5]

    @classmethod
    def create(cls, num_arms: int) -> Exchange:
        """Create and map the file, in `/dev/shm` if it is available."""
        memory = Path("/dev/shm")
        folder = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
        handle, name = tempfile.mkstemp(prefix="torchrl-gpu-fanuc-", dir=folder)
        os.close(handle)
        return cls(Path(name), num_arms)

    def remove(self) -> None:
        """Remove the file; mapped arrays remain usable."""
        with contextlib.suppress(OSError):  # Windows refuses while another process maps the file
            self.path.unlink()
