"""The model of the arm in Genesis: its file, its named parts, and the limits of its joints."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from envs.lift_cube.arm import Arm, find
from torchrl_gpu.errors import ConfigurationError, one_line

# Genesis takes the larger friction of two touching bodies: arm and floor leave it to the cube.
MIN_FRICTION: Final = 0.01
_BODY_COLOR: Final = (0.8, 0.8, 0.8, 1.0)  # of the collision bodies


def as_slice(indices: list[int]) -> slice | list[int]:
    """Return consecutive indices as a slice, which reads a view instead of a copy."""
    first, last = indices[0], indices[-1]
    return slice(first, last + 1) if indices == [*range(first, last + 1)] else indices


class ArmParts(NamedTuple):
    """Joints and links of the arm in Genesis, see `Arm`."""

    joints: list[Any]
    fingers: list[Any]
    hand: Any
    pads: list[Any]


def find_parts(arm: Arm, robot: Any) -> ArmParts:
    """Return the parts of `robot`, the arm in Genesis, that its description names.

    Raises:
        ConfigurationError: the arm lacks a named part, or has a moving joint that is not named.
    """
    joints = {joint.name: joint for joint in robot.joints if joint.n_dofs == 1}
    links = {link.name: link for link in robot.links}

    def named(kind: str, parts: Mapping[str, Any], setting: str, *names: str) -> list[Any]:
        for name in names:
            if name not in parts:
                raise ConfigurationError(
                    f"env.arm.{setting}: {arm.file} has no {kind} {name}; "
                    f"it has: {', '.join(parts)}"
                )
        return [parts[name] for name in names]

    parts = ArmParts(
        named("joint", joints, "joints", *arm.joints),
        named("joint", joints, "fingers", *arm.fingers),
        named("link", links, "hand", arm.hand)[0],
        named("link", links, "pads", *arm.pads),
    )
    loose = [name for name in joints if name not in (*arm.joints, *arm.fingers)]
    if loose:
        raise ConfigurationError(
            f"env.arm.fingers: {arm.file} has further moving joints, {', '.join(loose)}; name each "
            "joint in env.arm.joints or env.arm.fingers"
        )
    return parts


def add_arm(gs: Any, scene: Any, file: str, geometry: str = "visual") -> Any:
    """Add an arm to a scene of Genesis that is not built.

    `file` is that of `Arm`, `geometry` that of `WristCamera`, and `gs` the package `genesis`.

    Raises:
        ConfigurationError: the file does not exist, or Genesis cannot read it.
    """
    path = str(find(file) or file)
    morph = (
        gs.morphs.MJCF(file=path)
        if path.endswith(".xml")
        else gs.morphs.URDF(file=path, fixed=True)
    )
    # Without gravity compensation, the position controller would sag by centimetres.
    material = gs.materials.Rigid(gravity_compensation=1.0, friction=MIN_FRICTION)
    try:
        robot = scene.add_entity(morph, material=material, vis_mode=geometry)
    except Exception as error:  # each parser fails in its own way
        raise ConfigurationError(f"env.arm.file={file}: {one_line(error)}") from error
    for geom in robot.geoms:
        geom.mesh.set_color(_BODY_COLOR)  # instead of a random one
    return robot


def check_positions(arm: Arm, parts: ArmParts) -> None:
    """Refuse positions of the description that are beyond the limits of their joints."""
    rows: list[tuple[str, Sequence[float], list[Any]]] = [("home", arm.home, parts.joints)]
    for setting in ("open_position", "closed_position"):
        rows.append((setting, arm.per_finger(getattr(arm, setting)), parts.fingers))
    for setting, positions, joints in rows:
        for position, joint in zip(positions, joints, strict=True):
            lowest, highest = joint.desc.dofs_limit[0]
            if not lowest - 1e-4 <= position <= highest + 1e-4:
                raise ConfigurationError(
                    f"env.arm.{setting}: {position:g} is beyond the limits of {joint.name}, "
                    f"{lowest:.4g} to {highest:.4g}"
                )
