from __future__ import annotations

import math

import torch
from torch import Tensor

from envs.lift_cube.control import joint_changes, multiply, rotate, rotation_between


def _turn(axis: list[float], angle: float) -> Tensor:
    direction = torch.tensor(axis) / torch.tensor(axis).norm()
    return torch.cat([torch.tensor([math.cos(angle / 2)]), math.sin(angle / 2) * direction])[None]


def test_rotation_between_two_orientations_turns_one_into_the_other() -> None:
    start, end = _turn([1.0, 2.0, 0.5], 0.7), _turn([0.0, 1.0, -1.0], 2.5)
    vector = rotation_between(start, end)
    turn = _turn(vector[0].tolist(), float(vector.norm()))
    reached = multiply(turn, start)
    assert torch.allclose(reached * reached[0, 0].sign(), end * end[0, 0].sign(), atol=1e-5)


def test_opposite_quaternions_are_the_same_orientation() -> None:
    start = _turn([0.0, 0.0, 1.0], 1.0)
    assert torch.allclose(rotation_between(start, -start), torch.zeros(1, 3), atol=1e-6)


def test_rotate_turns_x_into_y() -> None:
    quarter = _turn([0.0, 0.0, 1.0], math.pi / 2)
    x, y = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.0, 1.0, 0.0]])
    assert torch.allclose(rotate(quarter, x), y, atol=1e-6)


def test_each_environment_uses_its_own_jacobian() -> None:
    jacobians = torch.randn(3, 6, 7, generator=torch.Generator().manual_seed(0))
    position, rotation = torch.full((3, 3), 0.01), torch.zeros(3, 3)
    together = joint_changes(jacobians, position, rotation)
    for row in range(3):
        alone = joint_changes(jacobians[row : row + 1], position[:1], rotation[:1])
        assert torch.allclose(together[row : row + 1], alone, atol=1e-6)
    moved = (jacobians @ together.unsqueeze(-1)).squeeze(-1)
    assert torch.allclose(moved[:, :3], position, atol=2e-3)


def test_changes_are_bounded_at_a_singular_posture() -> None:
    changes = joint_changes(torch.zeros(1, 6, 7), torch.ones(1, 3), torch.ones(1, 3))
    assert changes.isfinite().all()
    assert changes.abs().max() <= 0.2
