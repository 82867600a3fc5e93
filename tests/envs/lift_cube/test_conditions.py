"""Conditions of the cube that differ among environments."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tensordict import TensorDict

from envs.lift_cube import LiftCubeEnv


@pytest.fixture(scope="module")
def varied() -> Iterator[LiftCubeEnv]:
    """Four environments with random friction and mass."""
    env = LiftCubeEnv(num_envs=4, curriculum=0.0, friction=(0.5, 2.0), mass=(0.5, 2.0), seed=2)
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
