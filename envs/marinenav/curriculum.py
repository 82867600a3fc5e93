"""How hard episodes are, and from when on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from envs.marinenav.layout import (
    MAP_SIZE,
    Demand,
    Size,
    begin_drafts,
    complete_drafts,
)
from envs.marinenav.noise import seed_streams
from torchrl_gpu.errors import ConfigurationError

# Layouts drawn to see whether the map can hold what is asked for, and how many have to be whole.
_TRIALS: Final = 64
_NEEDED: Final = 32


class Stage(NamedTuple):
    """How hard episodes are that begin from some frame on.

    Attributes:
        from_frame: steps of all seas together, from which on it holds.
        robots: how many.
        obstacles: how many.
        min_start_goal_distance: m.
    """

    from_frame: int
    robots: int
    obstacles: int
    min_start_goal_distance: float


# The training schedule of the paper; its stages are also the six levels of evaluation.
PAPER_STAGES: Final = (
    Stage(0, 3, 0, 30.0),
    Stage(1_000_000, 4, 0, 35.0),
    Stage(2_000_000, 5, 0, 40.0),
    Stage(3_000_000, 5, 2, 40.0),
    Stage(4_000_000, 5, 3, 40.0),
    Stage(5_000_000, 5, 4, 40.0),
)


class Schedule:
    """Says what an episode shall hold that begins at some frame, without the host.

    Args:
        stages: in the order of their first frames, the first from frame 0.
        num_vortices: in every stage.
        dtype: of distances.
        device: where the question is asked.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        num_vortices: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        frames, robots, obstacles, distances = zip(*stages, strict=True)
        counts = (robots, [num_vortices] * len(stages), obstacles)
        self._from_frames = torch.tensor(frames, device=device)
        self._counts = torch.tensor(counts, device=device)
        self._distances = torch.tensor(distances, dtype=dtype, device=device)

    def stage(self, frames: Tensor) -> Tensor:
        """Return the number of the stage after `frames` steps of all seas, int64 `[1]`."""
        return (frames >= self._from_frames).sum(0, keepdim=True) - 1

    def demand(self, frames: Tensor) -> Demand:
        """Return what an episode shall hold that begins after `frames` steps of all seas."""
        stage = self.stage(frames)
        return Demand(self._counts.index_select(1, stage), self._distances.index_select(0, stage))


def check_stages(stages: Sequence[Stage], size: Size) -> None:
    """Check that stages follow each other, fit their tensors, and can be drawn at all.

    Args:
        stages: of a schedule.
        size: the most that a sea can hold.

    Raises:
        ConfigurationError: they do not.
    """
    if not stages or stages[0].from_frame != 0:
        raise ConfigurationError("schedule: the first stage has to begin at frame 0")
    for former, stage in itertools.pairwise(stages):
        if stage.from_frame <= former.from_frame:
            raise ConfigurationError(
                f"schedule: a stage from frame {stage.from_frame} cannot follow one from frame "
                f"{former.from_frame}: first frames have to increase"
            )
    for stage in stages:
        if not 1 <= stage.robots <= size.robots:
            raise ConfigurationError(
                f"schedule: {stage.robots} robots in a stage; 1 to num_robots={size.robots} can be"
            )
        if not 0 <= stage.obstacles <= size.obstacles:
            raise ConfigurationError(
                f"schedule: {stage.obstacles} obstacles in a stage; 0 to "
                f"num_obstacles={size.obstacles} can be"
            )
        _check_possible(stage, size.vortices)


def _check_possible(stage: Stage, num_vortices: int) -> None:
    """Draw some layouts, because no formula says what a map of given size can hold."""
    counts = torch.tensor([[stage.robots], [num_vortices], [stage.obstacles]])
    demand = Demand(counts, torch.tensor([stage.min_start_goal_distance], dtype=torch.float64))
    size = Size(stage.robots, num_vortices, stage.obstacles)
    draft = begin_drafts(demand, size, _TRIALS)
    draft, _ = complete_drafts(draft, seed_streams(0, _TRIALS, torch.device("cpu")))
    things = (draft.ends[0, 0], draft.vortices[0], draft.obstacles[0])
    whole = torch.cat(things).isfinite().all(0).sum().item()
    if whole < _NEEDED:
        raise ConfigurationError(
            f"the map of {MAP_SIZE:g} x {MAP_SIZE:g} m holds {stage.robots} robots with "
            f"min_start_goal_distance={stage.min_start_goal_distance:g}, {num_vortices} vortices "
            f"and {stage.obstacles} obstacles in {whole} of {_TRIALS} drawings: ask for fewer "
            "things or a shorter distance"
        )
