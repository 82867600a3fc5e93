"""Difficulty of the episodes: stages that follow one another by frames, or all at once."""

from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from envs.marinenav.placement import (
    MAP_SIZE,
    Contents,
    Draft,
    Size,
    begin_drafts,
    complete_drafts,
    is_complete,
)
from envs.streams import seed_streams
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.processes import ONE_PROCESS, Processes

_TRIALS: Final = 64  # random layouts that show whether the map has room for a stage


class Stage(NamedTuple):
    """Difficulty of the episodes that start within one stage of the curriculum."""

    from_frame: int  # first frame of the stage, counted over all seas
    robots: Annotated[int, Field(ge=1)]  # number of robots per sea
    obstacles: Annotated[int, Field(ge=0)]  # number of obstacles per sea
    min_start_goal_distance: float  # minimum distance from each start to its goal, m


# The training schedule of the paper; its stages are also the six evaluation levels.
PAPER_STAGES: Final = (
    Stage(0, 3, 0, 30.0),
    Stage(1_000_000, 4, 0, 35.0),
    Stage(2_000_000, 5, 0, 40.0),
    Stage(3_000_000, 5, 2, 40.0),
    Stage(4_000_000, 5, 3, 40.0),
    Stage(5_000_000, 5, 4, 40.0),
)


class Difficulty:
    """Contents of the episodes to come, looked up on the device without reading it on the host.

    Args:
        stages: stages ordered by first frame, the first one from frame 0.
        num_vortices: number of vortices per sea, equal in all stages.
        dtype: dtype of the distances.
        device: device of the lookup tables.
        mixed_seas: number of seas that train in all stages at once, whatever the first frames:
            every other sea in the last stage, the rest in turn in the others; None to train in one
            stage after the other.

    Attributes:
        processes: number of processes of the run, each with as many seas.
        mixture: contents of the seas that train in all stages at once; None without them.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        num_vortices: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        mixed_seas: int | None = None,
    ) -> None:
        from_frames, robots, obstacles, distances = zip(*stages, strict=True)
        counts = (robots, [num_vortices] * len(stages), obstacles)
        self._from_frames = torch.tensor(from_frames, device=device)
        self._counts = torch.tensor(counts, device=device)
        self._distances = torch.tensor(distances, dtype=dtype, device=device)
        self._mixed_seas = mixed_seas
        self.join(ONE_PROCESS)

    def join(self, processes: Processes) -> None:
        """Count the seas of other processes, which come before or after these by rank."""
        self.processes = processes.count
        self.mixture: Contents | None = None
        if (count := self._mixed_seas) is not None:
            seas = processes.rank * count + torch.arange(count, device=self._from_frames.device)
            last = len(self._from_frames) - 1
            stages = torch.where(seas % 2 == 0, last, seas // 2 % max(last, 1))
            self.mixture = self.of_stages(stages)

    def contents(self, frames: Tensor) -> Contents:
        """Return the contents of episodes that start at a step count of all seas, int64 `[]`."""
        if self.mixture is not None:
            return self.mixture
        return self.of_stages((frames >= self._from_frames).sum(0, keepdim=True) - 1)

    def of_stages(self, stages: Tensor) -> Contents:
        """Return the contents of the stages with the given indices, int64 `[N]`."""
        counts = self._counts.index_select(1, stages)
        return Contents(counts, self._distances.index_select(0, stages), stages)


def check_stages(stages: Sequence[Stage], size: Size) -> None:
    """Check that stages fit the tensors of a sea, and have room on the map.

    Raises:
        ConfigurationError: one of these conditions does not hold.
    """
    for stage in stages:
        for kind, count, most in (
            ("robots", stage.robots, size.robots),
            ("obstacles", stage.obstacles, size.obstacles),
        ):
            if count > most:
                raise ConfigurationError(
                    f"env.schedule: {count} {kind} in a stage; the maximum is env.num_{kind}={most}"
                )
        draw_layouts([stage], _TRIALS, size.vortices, seed=0)


def draw_layouts(
    stages: Sequence[Stage], layouts: int, num_vortices: int, seed: int
) -> tuple[Draft, Tensor]:
    """Draw a number of layouts of each stage, one stage after the other, on the host.

    Returns:
        The layouts, and the states of their random number generators.

    Raises:
        ConfigurationError: fewer than half of the layouts of a stage are complete. No formula gives
            the capacity of the map.
    """
    rows = torch.arange(len(stages)).repeat_interleave(layouts)
    host = torch.device("cpu")
    contents = Difficulty(stages, num_vortices, torch.float64, host).of_stages(rows)
    size = Size(*contents.counts.amax(1).tolist())
    streams = seed_streams(seed, len(rows), host)
    draft, streams = complete_drafts(begin_drafts(contents, size, len(rows)), streams)
    for stage, complete in zip(stages, is_complete(draft).split(layouts), strict=True):
        if 2 * (count := int(complete.sum())) < layouts:
            raise ConfigurationError(
                f"the map of {MAP_SIZE:g} x {MAP_SIZE:g} m has room for {stage.robots} robots with "
                f"env.min_start_goal_distance={stage.min_start_goal_distance:g}, {num_vortices} "
                f"vortices and {stage.obstacles} obstacles in only {count} of {layouts} random "
                "layouts; set fewer robots, vortices or obstacles, or a shorter distance"
            )
    return draft, streams
