"""Examination of an arm for the environment `lift_cube`: parts, reach, a trial and a picture."""

import logging
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envs.examination import Examination
from envs.genesis import start_genesis
from envs.lift_cube.arm import PANDA, Arm
from envs.lift_cube.arm_model import add_arm
from envs.lift_cube.draft import draft, unit
from envs.lift_cube.env import REACH_TOLERANCE, LiftCubeEnv
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.tables import table

_CPU: Final = torch.device("cpu")
_TRIALS: Final = 16
_GRID: Final = (9, 9, 5)  # positions along x, y and z of the workspace
_CLOSING_STEPS, _LIFTING_STEPS, _RISE = 25, 50, 0.1  # of a trial; m

_log = logging.getLogger(__name__)


def examine(settings: Mapping[str, Any]) -> Examination:
    """Return a report on an arm and a picture of it, for arguments of `LiftCubeEnv`.

    The report on an arm without a description has the names of its joints and links, and a draft of
    the description.

    Raises:
        ConfigurationError: the environment cannot simulate the arm; the message says why.
    """
    arm: Arm = settings["arm"]
    _log.info("Genesis reads the arm and compiles its kernels; this can take a minute")
    gs = start_genesis(_CPU)
    robot = add_arm(gs, gs.Scene(show_viewer=False), arm.file)
    joints = [joint for joint in robot.joints if joint.n_dofs == 1]
    links = ", ".join(link.name for link in robot.links)
    parts = f"{_table(joints)}\n\n  links      {links}"
    described = {*arm.joints, *arm.fingers}
    is_default = described == {*PANDA.joints, *PANDA.fingers}
    if is_default and not described <= {joint.name for joint in joints}:
        return Examination(arm.file, f"{parts}\n\n{draft(arm.file, robot)}", None)
    env = LiftCubeEnv(**{**settings, "num_envs": _TRIALS}, mode="demo", device="cpu")
    try:
        abilities, picture = _abilities(env)
        return Examination(arm.file, f"{parts}\n{abilities}", picture)
    finally:
        env.close()


def _table(joints: list[Any]) -> str:
    rows = []
    for joint in joints:
        low, high = (f"{limit:.2f}" for limit in joint.desc.dofs_limit[0])
        rows.append([f"  {joint.name}", low, high, unit(joint), joint.link.name])
    return table(["  joint", "lower", "upper", "unit", "moves link"], rows)


def _abilities(env: LiftCubeEnv) -> tuple[str, NDArray[np.uint8]]:
    """Return a report and a picture of the abilities of the arm."""
    arm = env.simulation.arm
    everywhere = torch.ones(_TRIALS, dtype=torch.bool)
    aside = torch.tensor([0.0, 0.0, 1.0]).expand(_TRIALS, 3) + env.grip
    home = torch.tensor(arm.home).expand(_TRIALS, -1)
    env.simulation.place(everywhere, home, aside, torch.zeros(_TRIALS))
    touching = _on_the_floor(env)
    if touching:
        raise ConfigurationError(
            f"env.arm.home: {', '.join(touching)} on the floor; choose joint angles without contact"
        )
    where = ", ".join(f"{value:.2f}" for value in env.simulation.observe().grip[0].tolist())
    limits = zip(arm.workspace_low, arm.workspace_high, _GRID, strict=True)
    points = torch.cartesian_prod(*(torch.linspace(*limit) for limit in limits))
    reached = env.is_reachable(points)
    lifted = int(_trial(env).sum())
    env.simulation.place(everywhere, home, aside, torch.zeros(_TRIALS))
    lean = env.simulation.lean()
    report = "\n".join(
        (
            f"  home       grip point at ({where}) m, pointing down to {lean:.1f} degrees",
            f"  reachable  {100 * reached.float().mean():.0f} % of the workspace, to "
            f"{1000 * REACH_TOLERANCE:.0f} mm and pointing down",
            f"  trial      lifts {lifted} of {_TRIALS} cubes: the gripper closes around a cube, "
            "and rises",
        )
    )
    return report, _draw(env, points[reached])


def _on_the_floor(env: LiftCubeEnv) -> list[str]:
    """Return the names of the links of the first arm that touch the floor."""
    simulation = env.simulation
    simulation.step(torch.tensor(simulation.arm.home).expand(_TRIALS, -1), torch.ones(_TRIALS, 1))
    contacts = simulation.robot.get_contacts(with_entity=simulation.scene.entities[0])
    valid = contacts["valid_mask"][0]
    touching = {int(link) for side in "ab" for link in contacts[f"link_{side}"][0][valid]}
    return [link.name for link in simulation.robot.links if link.idx in touching]


def _trial(env: LiftCubeEnv) -> Tensor:
    """Return whether the arm grasps and lifts a cube, bool `[N]`."""
    env.reset()
    simulation = env.simulation
    cube = simulation.observe().cube.clone()
    joints, *_ = simulation.postures(cube)
    simulation.place(torch.ones(_TRIALS, dtype=torch.bool), joints, cube, torch.zeros(_TRIALS))
    goal, closed = cube.clone(), -torch.ones(_TRIALS, 1)
    for number in range(_CLOSING_STEPS + _LIFTING_STEPS):
        if number >= _CLOSING_STEPS:
            goal[:, 2] += _RISE / _LIFTING_STEPS
        simulation.step(simulation.joints_towards(simulation.observe(), goal), closed)
    scene = simulation.observe()
    return scene.touches.all(1) & (scene.cube[:, 2] - cube[:, 2] > _RISE / 2)


def _draw(env: LiftCubeEnv, points: Tensor) -> NDArray[np.uint8]:
    simulation = env.simulation
    assert simulation.cameras is not None
    simulation.scene.draw_debug_spheres(points.numpy(), radius=0.006, color=(0.1, 0.4, 0.9, 1.0))
    return simulation.cameras.overview_image(0).numpy()
