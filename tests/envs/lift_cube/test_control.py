import math

import torch
from torch import Tensor

from envs.lift_cube.control import (
    carried,
    comparison,
    damping_matrix,
    jacobian,
    joint_changes,
    lever,
    tilt,
)


def _turn(axis: list[float], angle: float) -> Tensor:
    direction = torch.tensor(axis) / torch.tensor(axis).norm()
    return torch.cat([torch.tensor([math.cos(angle / 2)]), math.sin(angle / 2) * direction])[None]


def _conjugate(quaternion: Tensor) -> Tensor:
    return quaternion * torch.tensor([1.0, -1.0, -1.0, -1.0])


def _product(first: Tensor, second: Tensor) -> Tensor:
    a, b, u, v = first[:, :1], second[:, :1], first[:, 1:], second[:, 1:]
    scalar = a * b - (u * v).sum(-1, keepdim=True)
    return torch.cat([scalar, a * v + b * u + torch.linalg.cross(u, v)], dim=-1)


def test_tilt_is_the_rotation_vector_of_a_small_angle() -> None:
    start = _turn([1.0, 2.0, 0.5], 0.7)
    turn, axis = _turn([0.0, 1.0, -1.0], 0.1), torch.tensor([0.0, 1.0, -1.0])
    turned = tilt(start, comparison(_product(turn, start)[0]))
    assert torch.allclose(turned[0], 0.1 * axis / axis.norm(), atol=1e-3)


def test_opposite_quaternions_are_the_same_orientation() -> None:
    start = _turn([0.0, 0.0, 1.0], 1.0)
    assert torch.allclose(tilt(start, comparison(-start[0])), torch.zeros(1, 3), atol=1e-6)


def test_a_body_carries_its_points() -> None:
    turn, point = _turn([1.0, 2.0, 0.5], 0.7), torch.tensor([0.3, -0.2, 0.5])
    turned = _product(_product(turn, torch.cat([torch.zeros(1), point])[None]), _conjugate(turn))
    body = torch.tensor([[1.0, 2.0, 3.0]])
    assert torch.allclose(carried(body, turn, lever(point)), body + turned[:, 1:], atol=1e-6)


def test_jacobian_of_a_turning_and_a_sliding_joint() -> None:
    axes = torch.tensor([[[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]])
    anchors = torch.tensor([[[1.0, 0.0, 0.0], [5.0, 6.0, 7.0]]])
    turns, point = torch.tensor([[1.0], [0.0]]), torch.tensor([[3.0, 0.0, 4.0]])
    turning, sliding = jacobian(axes, anchors, turns, point)[0]
    assert turning.tolist() == [0.0, 2.0, 0.0, 0.0, 0.0, 1.0]
    assert sliding.tolist() == [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def test_each_environment_uses_its_own_jacobian() -> None:
    jacobians = torch.randn(3, 7, 6, generator=torch.Generator().manual_seed(0))
    error = torch.cat([torch.full((3, 3), 0.01), torch.zeros(3, 3)], dim=-1)
    damping = damping_matrix(torch.device("cpu"))
    together = joint_changes(jacobians, error, damping)
    for row in range(3):
        alone = joint_changes(jacobians[row : row + 1], error[:1], damping)
        assert torch.allclose(together[row : row + 1], alone, atol=1e-6)
    moved = (jacobians.mT @ together.unsqueeze(-1)).squeeze(-1)
    assert torch.allclose(moved, error, atol=2e-3)


def test_changes_are_bounded_at_a_singular_posture() -> None:
    damping = damping_matrix(torch.device("cpu"))
    changes = joint_changes(torch.zeros(1, 7, 6), torch.ones(1, 6), damping)
    assert changes.isfinite().all()
    assert changes.abs().max() <= 0.2
