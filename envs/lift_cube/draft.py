"""Draft of the description of an arm, from its file."""

import math
from typing import Any, Final

from torchrl_gpu.commands import command_line
from torchrl_gpu.errors import ConfigurationError

_CHAIN: Final = 3  # joints that move a hand along x, y and z
_FINGER_TRAVEL: Final = math.pi  # m or rad; a finger joint moves no farther
_GAIN: Final = 100.0  # where the file has none


def draft(file: str, robot: Any) -> str:
    """Return the command that describes an arm as far as its file tells.

    Unknown values are `???`, Hydra's missing value. `robot` is the arm in Genesis.

    Raises:
        ConfigurationError: the file describes no arm with a gripper.
    """
    arm, fingers = _arm_and_fingers(robot, f"env.arm.file={file}")
    links = {link.idx: link for link in robot.links}
    hand = links[fingers[0].link.parent_idx]
    moved = [joint.link for joint in fingers]
    tips = [link for link in moved if link.idx not in {other.parent_idx for other in moved}]
    pads = [tips[0], tips[-1]] if len(tips) > 1 else [hand, tips[0]]
    descriptions = [joint.desc for joint in (*arm, *fingers)]
    gains = [float(d.dofs_act_gain[0]) for d in descriptions]
    gains = [gain if gain > 1 else _GAIN for gain in gains]
    forces = [float(d.dofs_force_range[0, 1]) for d in descriptions]
    limits = [joint.desc.dofs_limit[0] for joint in fingers]
    values: dict[str, Any] = {
        "joints": [joint.name for joint in arm],
        "fingers": [joint.name for joint in fingers],
        "hand": hand.name,
        "pads": [pad.name for pad in pads],
        "open_position": [round(float(high), 3) for _, high in limits],
        "closed_position": [round(float(low), 3) for low, _ in limits],
        "stiffness": gains,
        "damping": [gain / 10 for gain in gains],
        "max_force": [force if math.isfinite(force) else _GAIN for force in forces],
        **dict.fromkeys(("home", "grip_point", "workspace_low", "workspace_high"), "???"),
    }
    arguments = [f"env.arm.{name}={_typed(value)}" for name, value in values.items()]
    return (
        "lift_cube needs a description of this arm. Names and gains are guesses from the file: "
        f"correct them.\nReplace each ???: home by [{len(arm)} angles in rad] with the hand "
        "pointing down at a cube, grip_point by\n[x,y,z in m] between the finger tips in the frame "
        "of the hand, workspace_low and workspace_high by the\nlowest and highest [x,y,z in m] of "
        "the grip point:\n\n"
        f"{command_line(['torchrl-gpu', 'robot', file, 'env=lift_cube'], *arguments)}"
    )


def _arm_and_fingers(robot: Any, setting: str) -> tuple[list[Any], list[Any]]:
    """Return the joints of the arm, from the base on, and those of its fingers.

    The fingers are the joints behind the first link that carries several. In a single chain, the
    last joint is that of a jaw.
    """
    joints = [joint for joint in robot.joints if joint.n_dofs > 0]
    for joint in joints:
        if joint.n_dofs > 1:
            raise ConfigurationError(
                f"{setting}: no arm: its joint {joint.name} moves in {joint.n_dofs} ways; an arm "
                "stands on a fixed base, and each joint turns or slides"
            )
    parents = {link.idx: link.parent_idx for link in robot.links}
    moved = {joint.link.idx for joint in joints}
    carried: dict[int, list[int]] = {}
    for link in sorted(moved):
        carrier = parents[link]
        while carrier >= 0 and carrier not in moved:
            carrier = parents[carrier]
        carried.setdefault(carrier, []).append(link)
    last, chain = -1, []
    while len(carried.get(last, ())) == 1:
        (last,) = carried[last]
        chain.append(last)
    arm = [joint for joint in joints if joint.link.idx in chain]
    fingers = [joint for joint in joints if joint.link.idx not in chain] or arm[-1:]
    arm = [joint for joint in arm if joint not in fingers]
    if len(arm) < _CHAIN:
        raise ConfigurationError(
            f"{setting}: no arm with a gripper: it needs {_CHAIN} or more joints one behind the "
            f"other from the base on, and fingers behind them; the file has {len(arm)} before its "
            "fingers"
        )
    for joint in fingers:
        low, high = joint.desc.dofs_limit[0]
        if high - low > _FINGER_TRAVEL:
            raise ConfigurationError(
                f"{setting}: no arm with a gripper: {joint.name} behind {arm[-1].name} moves by "
                f"{high - low:.3g} {unit(joint)}, more than a finger"
            )
    if not all(part.name for joint in (*arm, *fingers) for part in (joint, joint.link)):
        raise ConfigurationError(
            f"{setting}: a joint or a link of the arm has no name; name it in the file"
        )
    return arm, fingers


def unit(joint: Any) -> str:
    """Return the unit of the position of a joint."""
    return "m" if joint.type.name == "PRISMATIC" else "rad"


def _typed(value: Any) -> str:
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)
