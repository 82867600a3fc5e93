"""A sea in the browser: one HTML file in which a policy steers vessels, without a server."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from envs.marinenav import colregs, perception, physics, placement
from envs.marinenav.curriculum import Stage
from envs.marinenav.noise import Noise
from envs.marinenav.placement import Size
from envs.marinenav.scale import Units
from envs.marinenav.scenario import Scenario, draw_scenarios
from envs.marinenav.sea import GOAL_RADIUS
from torchrl_gpu.errors import ConfigurationError

_SOURCES: Final = Path(__file__).with_name("browser")
_NAMES: Final = (("vessel", "vessels"), ("vortex", "vortices"), ("buoy", "buoys"))
_SCRIPTS: Final = ("sea.js", "chart.js", "page.js")

# Sizes of further seas on the page.
_OTHER_SIZES: Final = (
    *(Size(3, 2, 0), Size(4, 4, 2), Size(2, 6, 3), Size(6, 0, 5), Size(5, 3, 4)),
    *(Size(1, 5, 6), Size(3, 8, 2), Size(6, 2, 3), Size(4, 0, 8), Size(6, 4, 4)),
)
_MAX_COUNT: Final = 8  # vessels that the page has keys and colours for


def settings_of(min_distance: float, max_steps: int, units: Units) -> dict[str, Any]:
    """Return the constants that the scripts share with the modules of this environment.

    `min_distance` is that from each start to its goal, m; episodes end after `max_steps`.
    """
    return {
        "minThrust": physics.MIN_THRUST,
        "maxThrust": physics.MAX_THRUST,
        "maxThrustRate": physics.MAX_THRUST_RATE,
        "stepSeconds": physics.STEP_SECONDS,
        "substeps": physics.SUBSTEPS,
        "maxSteps": max_steps,
        "vesselLength": physics.VESSEL_LENGTH,
        "vesselWidth": physics.VESSEL_WIDTH,
        "vesselRadius": physics.VESSEL_RADIUS,
        "goalRadius": GOAL_RADIUS,
        "sensingRange": perception.SENSING_RANGE,
        "maxObjects": perception.MAX_OBJECTS,
        "ownUnits": units.own.tolist(),
        "objectUnits": units.objects.tolist(),
        "minSpeed": colregs.MIN_SPEED,
        "safetyMargin": colregs.SAFETY_MARGIN,
        "mapSize": placement.MAP_SIZE,
        "tries": placement.TRIES,
        "robotArea": placement.ROBOT_AREA,
        "vortexArea": placement.VORTEX_AREA,
        "obstacleArea": placement.OBSTACLE_AREA,
        "obstacleRadius": placement.OBSTACLE_RADIUS,
        "clearances": {
            "robot": placement.ROBOT_CLEARANCE,
            "vortex": placement.VORTEX_CLEARANCE,
            "obstacle": placement.OBSTACLE_CLEARANCE,
        },
        "coreRadius": physics.CORE_RADIUS,
        "circulation": physics.CIRCULATION,
        "boundarySpeed": placement.MAX_BOUNDARY_SPEED,
        "jointSpeed": placement.MAX_JOINT_SPEED,
        "minDistance": min_distance,
    }


def write_page(
    settings: dict[str, Any], size: Size, noise: Noise | None, policy: str, about: str
) -> str:
    """Return the text of the page, see `Environment.page`.

    The policy was trained in seas of `size`, with the sensor noise, which the page leaves out.
    """
    vessels, vortices, buoys = (
        f"{count or 'no'} {one if count == 1 else many}"
        for count, (one, many) in zip(size, _NAMES, strict=True)
    )
    left_out = f"The environment of this policy has at most {vessels}, {buoys} and {vortices}."
    if noise is not None:
        left_out += " This page leaves out its sensor noise."
    content = {
        **settings,
        "about": about,
        "leftOut": left_out,
        "scenarios": [_rounded(each) for each in _draw(size, settings["minDistance"])],
    }
    # A text of the settings must neither end the script nor begin another.
    text = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    scripts = {"settings": f"const SETTINGS = {text};", "policy": policy, **sources()}
    page = (_SOURCES / "page.html").read_text(encoding="utf-8")
    return re.sub(r"/\* (\S+) \*/", lambda found: scripts[found[1]].strip(), page)


def sources() -> dict[str, str]:
    """Return the scripts of the page by name, in their order."""
    return {name: (_SOURCES / name).read_text(encoding="utf-8") for name in _SCRIPTS}


def _draw(size: Size, min_distance: float) -> list[Scenario]:
    """Draw seas of the size of the environment and of others in turn, where the map has room."""
    sizes = [each for other in _OTHER_SIZES for each in (size, other)]
    seas: list[Scenario] = []
    for seed, (robots, vortices, obstacles) in enumerate(sizes):
        stage = Stage(0, min(robots, _MAX_COUNT), obstacles, min_distance)
        with suppress(ConfigurationError):
            seas += draw_scenarios([stage], 1, seed, vortices)
    return seas


def _rounded(scenario: Scenario) -> dict[str, Any]:
    """Return a scenario with positions in mm, and headings in 0.001 rad."""
    text = scenario.model_dump_json()
    dumped: dict[str, Any] = json.loads(text, parse_float=lambda number: round(float(number), 3))
    dumped["vortices"]["circulation"] = scenario.vortices.circulation
    return dumped
