"""Conditions of the cube that differ among environments."""

from collections.abc import Iterator

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from envs.lift_cube import LiftCubeEnv
from envs.lift_cube.simulation import CUBE_SIZE
from envs.lift_cube.starts import draw_sizes
from torchrl_gpu.errors import ConfigurationError


@pytest.fixture(scope="module")
def varied() -> Iterator[LiftCubeEnv]:
    """Four environments with random sizes, friction and masses."""
    env = LiftCubeEnv(
        num_envs=4, curriculum=0.0, size=(0.8, 1.2), friction=(0.5, 2.0), mass=(0.5, 2.0), seed=2
    )
    yield env
    env.close()


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


def test_cubes_of_different_sizes_are_lifted(varied: LiftCubeEnv) -> None:
    varied.curriculum = 1.0
    root, succeeded = varied.reset(), torch.zeros(4, 1, dtype=torch.bool)
    close, lift = torch.tensor([0.0, 0.0, 0.0, -1.0]), torch.tensor([0.0, 0.0, 0.4, -1.0])
    for number in range(40):
        action = (close if number < 10 else lift).expand(4, 4)
        step, root = varied.step_and_maybe_reset(root.set("action", action))
        succeeded |= step["next", "success"]
    assert succeeded.all()
    varied.curriculum = 0.0


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
