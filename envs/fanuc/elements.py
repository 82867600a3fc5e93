"""Elements of the observations and actions of arms: names, units and scales."""

from envs.fanuc.observation import DIRECTION_LENGTH, NEARNESS_LENGTH, longest_turn
from envs.fanuc.robot import Robot
from torchrl_gpu.environments.capabilities import Element

_AXES = ("x", "y", "z")


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
    """Return the elements of an action: speeds of the joints."""
    speeds = zip(_joint_names(robot), robot.velocity.tolist(), strict=True)
    return tuple(Element(f"{name} speed", "rad/s", scale) for name, scale in speeds)


def _joint_names(robot: Robot) -> list[str]:
    return [f"J{number}" for number in range(1, robot.num_joints + 1)]
