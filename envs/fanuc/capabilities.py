"""Capabilities of the environment `fanuc`, and elements of its observations and actions."""

from collections.abc import Mapping
from typing import Any, Final

import torch

from envs.fanuc.bullet_arms import ARMS_PER_CORE, BULLET_ARM_MEMORY
from envs.fanuc.genesis_arms import GENESIS_ARM_MEMORY
from envs.fanuc.observation import DIRECTION_LENGTH, NEARNESS_LENGTH, longest_turn
from envs.fanuc.robot import CONTROL_RATE, SPEED_SHARE, Robot, load_robot
from envs.genesis import GENESIS_MEMORY, simulator_device
from torchrl_gpu.environments.action_table import single_moves
from torchrl_gpu.environments.capabilities import Capabilities, Element

_AXES: Final = ("x", "y", "z")


def arm_capabilities(settings: Mapping[str, Any], device: torch.device) -> Capabilities:
    """Return the capabilities of a `FanucEnv` by its settings, for a policy on a device."""
    robot = load_robot(settings["robot"], settings["urdf"], settings["tool"])
    rate = settings["control_rate"]
    fractions = [min(speed * rate / CONTROL_RATE, 1.0) for speed in settings["discrete_speeds"]]
    speeds = [sign * fraction for fraction in fractions for sign in (1, -1)]
    simulated: dict[str, Any]
    if settings["simulator"] == "genesis":
        simulated = {
            "simulator_device": simulator_device(device),
            "fixed_memory": GENESIS_MEMORY,
            "env_memory": GENESIS_ARM_MEMORY,
        }
    else:
        simulated = {
            "simulator_device": torch.device("cpu"),
            "env_memory": BULLET_ARM_MEMORY,
            "envs_per_core": ARMS_PER_CORE,
            "can_overlap": True,
        }
    return Capabilities(
        discrete_actions=single_moves(robot.num_joints, speeds),
        step_seconds=1 / rate,
        units={"action": "fraction of the maximum speed of each joint"},
        elements={"observation": observation_elements(robot), "action": action_elements(robot)},
        can_render=True,
        has_state=True,
        # More arms than in training would share the same cores and finish no sooner.
        max_evaluation_envs=settings["num_envs"],
        **simulated,
    )


def observation_elements(robot: Robot) -> tuple[Element, ...]:
    """Return the elements of an observation in the order that `ArmEncoder` documents."""
    names = _joint_names(robot)
    half, middle = (robot.upper - robot.lower) / 2, (robot.upper + robot.lower) / 2
    limits = zip(names, half.tolist(), middle.tolist(), strict=True)
    speeds = zip(names, robot.velocity.tolist(), strict=True)
    turned = names[1:]
    return (
        *(Element(f"{name} angle", "rad", scale, offset) for name, scale, offset in limits),
        *(Element(f"{name} speed", "rad/s", scale) for name, scale in speeds),
        *(Element(f"sin {name}") for name in turned),
        *(Element(f"cos {name}") for name in turned),
        *(
            Element(f"{place} {axis} from J1", "m", robot.reach)
            for place in ("tool", "target")
            for axis in _AXES
        ),
        *(Element(f"target - tool {axis}", "m", robot.reach) for axis in _AXES),
        *(Element(f"direction {axis}, over distance + {DIRECTION_LENGTH} m") for axis in _AXES),
        Element(f"exp(-distance / {NEARNESS_LENGTH} m)"),
        Element("turn of J1 to face the target", "rad", longest_turn(robot)),
    )


def action_elements(robot: Robot) -> tuple[Element, ...]:
    """Return the elements of an action: speeds that the joints are driven at."""
    speeds = zip(_joint_names(robot), (SPEED_SHARE * robot.velocity).tolist(), strict=True)
    return tuple(Element(f"{name} speed", "rad/s", scale) for name, scale in speeds)


def _joint_names(robot: Robot) -> list[str]:
    return [f"J{number}" for number in range(1, robot.num_joints + 1)]
