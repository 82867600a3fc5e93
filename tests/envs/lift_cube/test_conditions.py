"""Conditions of the cube that differ among environments."""

from collections.abc import Iterator

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from envs.lift_cube import LiftCubeEnv
from envs.lift_cube.simulation import CUBE_SIZE
from envs.lift_cube.starts import draw_sizes
from tests.helpers.environments import trajectory
from tests.helpers.genesis import ERROR_CHECKS, traffic_of_10_steps
from torchrl_gpu.errors import ConfigurationError


@pytest.fixture(scope="module")
def varied() -> Iterator[LiftCubeEnv]:
    """Four environments with random sizes, friction and masses."""
    env = LiftCubeEnv(
        num_envs=4, curriculum=0.0, size=(0.8, 1.2), friction=(0.5, 2.0), mass=(0.5, 2.0), seed=2
    )
    yield env
    env.close()


@pytest.mark.slow
def test_masses_differ_among_environments_and_change_with_the_episode(varied: LiftCubeEnv) -> None:
    before = varied.simulation.cube.get_mass().clone()
    assert before.unique().numel() == 4
    assert 0.015 <= before.min() <= before.max() <= 0.06
    mask = torch.tensor([[False], [True], [False], [False]])
    varied.reset(TensorDict({"_reset": mask}, [4]))
    changed = varied.simulation.cube.get_mass() != before
    assert changed.tolist() == [False, True, False, False]


def _wait(env: LiftCubeEnv) -> Tensor:
    """Hold still until the cubes have come to rest, and return their heights."""
    root = env.reset()
    for _ in range(20):
        _, root = env.step_and_maybe_reset(root.set("action", torch.zeros(env.num_envs, 4)))
    return env.cube[:, 2].clone()


def test_cubes_of_different_sizes_rest_at_their_own_heights(varied: LiftCubeEnv) -> None:
    sizes = varied.simulation.cube_size
    assert sizes.unique().numel() == 4
    assert 0.024 <= sizes.min() <= sizes.max() <= 0.036
    assert torch.allclose(_wait(varied), sizes / 2, atol=3e-4)


def test_a_reset_keeps_the_sizes(varied: LiftCubeEnv) -> None:
    before, sizes = _wait(varied), varied.simulation.cube_size.clone()
    mask = torch.tensor([[True], [False], [False], [True]])
    varied.reset(TensorDict({"_reset": mask}, [4]))
    assert torch.equal(varied.cube[1:3, 2], before[1:3])
    assert torch.equal(varied.cube[[0, 3], 2], sizes[[0, 3]] / 2)


def _lifting(steps: int) -> Tensor:
    """Return actions `[steps, 4, 4]` that close the grippers and rise."""
    actions = torch.tensor([0.0, 0.0, 0.4, -1.0]).repeat(steps, 4, 1)
    actions[:10, :, 2] = 0.0
    return actions


def test_cubes_of_different_sizes_are_lifted(varied: LiftCubeEnv) -> None:
    varied.curriculum = 1.0
    steps = trajectory(varied, _lifting(40))
    assert steps["next", "success"].any(0).all()
    varied.curriculum = 0.0


def test_a_cube_slips_from_the_gripper_below_some_friction(varied: LiftCubeEnv) -> None:
    varied.curriculum = 1.0
    root = varied.reset()
    everywhere = torch.ones(4, dtype=torch.bool)
    varied.simulation.set_friction(everywhere, torch.tensor([0.02, 0.02, 1.0, 2.0]))
    heights = []
    for action in _lifting(25):
        _, root = varied.step_and_maybe_reset(root.set("action", action))
        heights.append(varied.cube[:, 2] - varied.simulation.cube_size / 2)
    varied.curriculum = 0.0
    highest = torch.stack(heights).amax(0)
    assert (highest[:2] < 0.01).all()
    assert (highest[2:] > 0.04).all()


def test_state_restores_friction_and_mass(varied: LiftCubeEnv) -> None:
    varied.reset()
    state = varied.state_dict()
    friction = varied.simulation.cube.geoms[0].solver.get_geoms_friction_ratio().clone()
    mass = varied.simulation.cube.get_mass().clone()
    varied.reset()
    varied.load_state_dict(state)
    assert torch.equal(varied.simulation.cube.get_mass(), mass)
    varied.reset(TensorDict({"_reset": torch.tensor([[False], [True], [True], [True]])}, [4]))
    again = varied.simulation.cube.geoms[0].solver.get_geoms_friction_ratio()
    assert torch.equal(again[0], friction[0])
    assert torch.equal(varied.simulation.cube.get_mass()[0], mass[0])
    assert not torch.equal(again[1:], friction[1:])


def test_new_friction_and_masses_read_nothing_on_the_host(varied: LiftCubeEnv) -> None:
    traffic = traffic_of_10_steps(varied)
    # At each of the ten starts, Genesis looks up the link with a mass, where it is on the CPU.
    assert traffic.host_reads == ERROR_CHECKS + 10, traffic.report()
    assert traffic.copies_to_device == 0, traffic.report()


def test_a_state_with_cubes_of_other_sizes_is_refused(varied: LiftCubeEnv) -> None:
    state = varied.state_dict()
    varied.load_state_dict(state)
    state["simulation"]["cube_size"] = state["simulation"]["cube_size"].flip(0)
    with pytest.raises(ConfigurationError, match="other sizes"):
        varied.load_state_dict(state)


def test_sizes_depend_on_the_seed_alone() -> None:
    assert draw_sizes((0.8, 1.2), 64, seed=4) == draw_sizes((0.8, 1.2), 64, seed=4)
    assert draw_sizes((0.8, 1.2), 64, seed=4) != draw_sizes((0.8, 1.2), 64, seed=5)
    assert draw_sizes((1.0, 1.0), 64, seed=4) == [CUBE_SIZE]
