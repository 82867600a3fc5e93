"""Shared memory of the environment and its worker processes, with one row per arm."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from types import EllipsisType
from typing import IO

import numpy as np
from numpy.typing import NDArray

from envs.fanuc.observation import observation_size
from envs.fanuc.robot import Robot


class Exchange:
    """Arrays in one memory-mapped file, so that no state passes through a pipe.

    Args:
        path: path of an existing file, from `Exchange.create`; a worker can open it if it inherits
            `descriptors`.
        robot: description of the arm.
        num_arms: number of arms, rows of each array in the file.
        rows: rows of the arrays below; all by default.
    """

    # See `Arms`. The state is in the precision of the simulator, so that writing it back is exact.
    state: NDArray[np.float64]
    target: NDArray[np.float32]
    observation: NDArray[np.float32]
    distance: NDArray[np.float32]
    action: NDArray[np.float32]  # next actions, `[rows, N]`
    # Where the environment has written `state`, which the simulator must load before its next step.
    rewritten: NDArray[np.uint8]
    idle: NDArray[np.uint8]  # where the arm need not be simulated
    _file: IO[bytes] | None = None

    def __init__(
        self, path: Path, robot: Robot, num_arms: int, rows: slice | EllipsisType = ...
    ) -> None:
        self.path, joints = path, robot.num_joints
        # The widest type comes first, which aligns all arrays.
        layout = np.dtype(
            [
                ("state", "<f8", (num_arms, 2, joints)),
                ("action", "<f4", (num_arms, joints)),
                ("target", "<f4", (num_arms, 3)),
                ("observation", "<f4", (num_arms, observation_size(robot))),
                ("distance", "<f4", (num_arms, 1)),
                ("rewritten", "u1", (num_arms,)),
                ("idle", "u1", (num_arms,)),
            ]
        )
        # Extends a new file, which is empty.
        memory = np.memmap(path, dtype=layout, mode="r+", shape=(1,)).view(np.ndarray)[0]
        for name in layout.names or ():
            setattr(self, name, memory[name][rows])

    @classmethod
    def create(cls, robot: Robot, num_arms: int) -> Exchange:
        """Create and map the file, in `/dev/shm` if it is available.

        It has no name in any folder, so that nothing stays of it, however the program ends. Windows
        has no such files.
        """
        if sys.platform == "win32":
            handle, name = tempfile.mkstemp(prefix="torchrl-gpu-fanuc-")
            os.close(handle)
            return cls(Path(name), robot, num_arms)
        memory = Path("/dev/shm")
        folder = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        exchange = cls(Path(f"/dev/fd/{file.fileno()}"), robot, num_arms)
        exchange._file = file
        return exchange

    @property
    def descriptors(self) -> tuple[int, ...]:
        """File descriptors by which workers open `path`; none under Windows."""
        return () if self._file is None else (self._file.fileno(),)

    def remove(self) -> None:
        """Give the arrays and the file up; may be called again.

        Windows refuses to remove a file while a process maps it: the last one to give up its
        arrays succeeds.
        """
        if self._file is not None:
            self._file.close()
        self.__dict__ = {"path": self.path}
        if sys.platform == "win32":
            with contextlib.suppress(OSError):
                self.path.unlink()
