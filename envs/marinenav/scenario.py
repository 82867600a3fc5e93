"""Scenarios, the explicit initial states of episodes: checked, drawn by seed, saved as JSON.

The format is that of the recorded episodes of the reference environment; recorded actions and
observations are ignored. No content of a file is executed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from math import dist
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import torch
from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from envs.marinenav.curriculum import Stage, draw_layouts
from envs.marinenav.perception import FAR_AWAY
from envs.marinenav.physics import (
    CORE_RADIUS,
    GROUND_VELOCITY,
    MAX_THRUST,
    MIN_THRUST,
    MOTION_ROWS,
    POSITION,
    VESSEL_WIDTH,
    current,
)
from envs.marinenav.sea import Sea, start_episodes
from envs.streams import split_streams
from torchrl_gpu.arguments import checked, suggest
from torchrl_gpu.checkpoints.files import reason, write_text
from torchrl_gpu.errors import ConfigurationError

# m along each axis, far beyond any map: objects stay nearer than `FAR_AWAY`, where missing ones are
MAX_COORDINATE: Final = FAR_AWAY / 4.0

Finite = Annotated[float, Field(allow_inf_nan=False)]
Coordinate = Annotated[float, Field(ge=-MAX_COORDINATE, le=MAX_COORDINATE, allow_inf_nan=False)]
Pair = tuple[Coordinate, Coordinate]
Radius = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Thrust = Annotated[float, Field(ge=MIN_THRUST, le=MAX_THRUST)]


class _Lists(BaseModel):
    """Lists with one entry for each of the same items."""

    @model_validator(mode="after")
    def _is_consistent(self) -> _Lists:
        lists = {name: value for name, value in self if isinstance(value, list)}
        count = self.num_robots if isinstance(self, Scenario) else len(lists["position"])
        for name, values in lists.items():
            if len(values) != count:
                raise ValueError(f"{name} has {len(values)} entries where {count} are needed")
        return self


class Vortices(_Lists, extra="forbid"):
    """Vortices of one sea: centres (m), directions, circulations (m^2/s), one core radius (m).

    `clockwise` is the authors' name, for axes with x to the right and y up. On a chart with x to
    the north and y to the east such a vortex turns counter-clockwise.
    """

    position: list[Pair]
    clockwise: list[bool]
    circulation: list[Annotated[float, Field(ge=0, allow_inf_nan=False)]]
    core_radius: Radius = CORE_RADIUS


class Obstacles(_Lists, extra="forbid"):
    """Obstacles of one sea: centres and radii, m."""

    position: list[Pair]
    radius: list[Radius]


class Scenario(_Lists):
    """Initial state of an episode in one sea, SI units.

    Positions are at most 2,500 m from 0 along each axis. An episode begins only where the starts
    are at least the width of a vessel apart. The lists have one entry per robot.
    """

    num_robots: Annotated[int, Field(ge=1)]
    start: list[Pair]  # positions, m
    goal: list[Pair]  # positions, m
    theta0: list[Finite]  # headings, rad
    # Velocities through the water: x, y, yaw, in the world frame; m/s, rad/s.
    velocity_r0: list[tuple[Finite, Finite, Finite]]
    left_thrust0: list[Thrust]  # N
    right_thrust0: list[Thrust]  # N
    vortices: Vortices
    obstacles: Obstacles
    level: Annotated[int, Field(ge=0, lt=2**63)] = 0  # of the evaluation


def _has_room(scenario: Scenario) -> Scenario:
    """Refuse starts that overlap, as the vessels of a sea may after a collision."""
    for (one, here), (other, there) in combinations(enumerate(scenario.start), 2):
        if dist(here, there) < VESSEL_WIDTH:
            raise ValueError(
                f"the vessels {one} and {other} overlap at the start; put them at least "
                f"{VESSEL_WIDTH:g} m apart"
            )
    return scenario


class _File(BaseModel):
    """Content of a file; recorded episodes of the reference environment have no format."""

    format: Literal["marinenav scenarios"] | None = None
    version: Literal[1] = 1
    episodes: Annotated[list[Annotated[Scenario, AfterValidator(_has_room)]], Field(min_length=1)]

    @field_validator("episodes", mode="before")
    @classmethod
    def _have_known_fields(cls, episodes: Any, info: ValidationInfo) -> Any:
        """Refuse unknown fields, which only recorded episodes have."""
        for episode in episodes if info.data.get("format") and isinstance(episodes, list) else ():
            for name in episode if isinstance(episode, dict) else ():
                if name not in Scenario.model_fields:
                    raise ValueError(f"unknown field {name}{suggest(name, Scenario.model_fields)}")
        return episodes


def check_scenarios(episodes: Sequence[Mapping[str, Any] | Scenario]) -> list[Scenario]:
    """Return episodes as validated scenarios.

    Raises:
        ConfigurationError: there are no episodes, or one lacks a field or has an invalid one.
    """
    with _one_line_errors("scenarios"):
        return _File.model_validate({"episodes": episodes}).episodes


@contextmanager
def _one_line_errors(source: str) -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        text = problem["msg"].removeprefix("Value error, ")
        text = f"{text[:1].lower()}{text[1:]}"
        if problem["type"] == "extra_forbidden":
            text = "unknown field; leave it out"
        raise ConfigurationError(f"{source}: {place or 'file'}: {text}") from None


def to_sea(scenarios: Sequence[Scenario], dtype: torch.dtype, device: torch.device) -> Sea:
    """Return the initial states of scenarios as seas, padded to a common size."""

    def stack(rows: Sequence[Sequence[Sequence[float]]], width: int) -> Tensor:
        """Return rows of numbers of each sea as `[width, slots, N]`; missing rows are 0."""
        seas = [torch.tensor(row, dtype=dtype).reshape(-1, width) for row in rows]
        return pad_sequence(seas).permute(2, 0, 1).contiguous()

    motion = stack([_motion_rows(scenario) for scenario in scenarios], MOTION_ROWS)
    goal = stack([scenario.goal for scenario in scenarios], 2)
    vortices = stack([_vortex_rows(scenario.vortices) for scenario in scenarios], 4)
    vortices[3, vortices[3] == 0.0] = CORE_RADIUS  # of missing vortices
    buoys = [scenario.obstacles for scenario in scenarios]
    obstacles = stack(
        [[(x, y, r) for (x, y), r in zip(b.position, b.radius, strict=True)] for b in buoys], 3
    )
    counts = torch.tensor([scenario.num_robots for scenario in scenarios])
    exists = torch.arange(motion.shape[1])[:, None] < counts
    motion, goal, exists, obstacles, vortices = (
        tensor.to(device) for tensor in (motion, goal, exists, obstacles, vortices)
    )
    # V = velocity_r + [current at the start, 0]
    motion[GROUND_VELOCITY][:2] += current(motion[POSITION], vortices)
    steps = torch.zeros(len(scenarios), dtype=torch.int64, device=device)
    return Sea(motion, goal, exists, exists, torch.zeros_like(exists), obstacles, vortices, steps)


def _motion_rows(scenario: Scenario) -> list[tuple[float, ...]]:
    """Return the motion of each robot in still water, see `physics`."""
    thrusts = zip(scenario.left_thrust0, scenario.right_thrust0, strict=True)
    rows = zip(scenario.start, scenario.theta0, scenario.velocity_r0, thrusts, strict=True)
    return [(*place, theta, *v, *v, *thrust) for place, theta, v, thrust in rows]


def _vortex_rows(vortices: Vortices) -> list[tuple[float, ...]]:
    """Return x, y, signed circulation and core radius of each vortex."""
    rows = zip(vortices.position, vortices.clockwise, vortices.circulation, strict=True)
    return [
        (*place, circulation if clockwise else -circulation, vortices.core_radius)
        for place, clockwise, circulation in rows
    ]


def from_sea(sea: Sea) -> list[Scenario]:
    """Return the current states of seas as scenarios."""
    motion, goal, obstacles, vortices = (
        tensor.transpose(0, -1).tolist()
        for tensor in (sea.motion, sea.goal, sea.obstacles, sea.vortices)
    )
    scenarios = []
    for number, exists in enumerate(sea.exists.T.tolist()):
        robots = [slot for slot, is_there in enumerate(exists) if is_there]
        rows = [motion[number][slot] for slot in robots]
        whirls = [whirl for whirl in vortices[number] if whirl[2] != 0.0]
        buoys = [buoy for buoy in obstacles[number] if buoy[2] > 0.0]
        scenarios.append(
            Scenario(
                num_robots=len(robots),
                start=[row[:2] for row in rows],
                goal=[goal[number][slot] for slot in robots],
                theta0=[row[2] for row in rows],
                velocity_r0=[row[3:6] for row in rows],
                left_thrust0=[row[9] for row in rows],
                right_thrust0=[row[10] for row in rows],
                vortices=Vortices(
                    position=[whirl[:2] for whirl in whirls],
                    clockwise=[whirl[2] > 0.0 for whirl in whirls],
                    circulation=[abs(whirl[2]) for whirl in whirls],
                    core_radius=whirls[0][3] if whirls else CORE_RADIUS,
                ),
                obstacles=Obstacles(
                    position=[buoy[:2] for buoy in buoys], radius=[buoy[2] for buoy in buoys]
                ),
            )
        )
    return scenarios


@checked
def draw_scenarios(
    stages: Annotated[Sequence[Stage], Field(min_length=1)],
    episodes: Annotated[int, Field(ge=1)],
    seed: int,
    num_vortices: Annotated[int, Field(ge=0)] = 0,
) -> list[Scenario]:
    """Draw initial states from the distribution of the environment.

    Args:
        stages: stages that set the difficulty; their indices become the levels.
        episodes: number of scenarios per stage, at least 1; the result is ordered by stage.
        seed: random seed that determines the scenarios.
        num_vortices: number of vortices per sea.

    Raises:
        ConfigurationError: an argument is out of range, or the map has no room for a stage.
    """
    draft, streams = draw_layouts(stages, episodes, num_vortices, seed)
    scenarios = from_sea(start_episodes(draft, split_streams(streams), None).sea)
    return [
        scenario.model_copy(update={"level": level})
        for scenario, level in zip(scenarios, draft.contents.stage.tolist(), strict=True)
    ]


def save_scenarios(path: Path, scenarios: Sequence[Scenario]) -> None:
    """Write scenarios as JSON, atomically.

    Raises:
        ConfigurationError: the list is empty, a scenario is invalid, or the file cannot be written.
    """
    with _one_line_errors("scenarios"):
        content = _File(format="marinenav scenarios", episodes=list(scenarios))
    write_text(path, content.model_dump_json())


def load_scenarios(path: Path) -> list[Scenario]:
    """Read scenarios, or recorded episodes of the reference environment, which have no version.

    Raises:
        ConfigurationError: the file cannot be read, has another format or version, or an episode
            lacks a field or has an invalid one.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read scenarios {path}: {reason(error)}") from error
    with _one_line_errors(f"scenarios {path}"):
        return _File.model_validate_json(content).episodes
