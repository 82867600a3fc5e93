"""Inverse kinematics by damped least squares, and the rotations that it needs; batched."""

from __future__ import annotations

import torch
from torch import Tensor

# Damping of the least squares: the larger, the slower and smoother near singular postures.
_DAMPING = 0.05
# Longest change of a joint angle in one step, rad.
_MAX_CHANGE = 0.2


def joint_changes(jacobian: Tensor, position_error: Tensor, rotation_error: Tensor) -> Tensor:
    """Return the changes of joint angles `[N, J]` that reduce the errors of the hand.

    Each environment has its own Jacobian. Source: Wampler, "Manipulator inverse kinematic solutions
    based on vector formulations and damped least-squares methods", 1986.

    Args:
        jacobian: `[N, 6, J]`, linear above angular.
        position_error: way from the present to the desired position `[N, 3]`, m.
        rotation_error: rotation vector from the present to the desired orientation `[N, 3]`, rad.
    """
    error = torch.cat([position_error, rotation_error], dim=-1).unsqueeze(-1)
    damping = _DAMPING**2 * torch.eye(6, dtype=error.dtype, device=error.device)
    # dq = J^T (J J^T + lambda^2 I)^-1 e
    transposed = jacobian.mT
    changes = transposed @ torch.linalg.solve(jacobian @ transposed + damping, error)
    return changes.squeeze(-1).clamp(-_MAX_CHANGE, _MAX_CHANGE)


def rotation_between(present: Tensor, desired: Tensor) -> Tensor:
    """Return the rotation vector `[N, 3]` in rad that turns one orientation into another.

    Args:
        present: unit quaternions w, x, y, z `[N, 4]`.
        desired: unit quaternions w, x, y, z `[N, 4]`.
    """
    difference = multiply(desired, conjugate(present))
    # q and -q are the same rotation: choose the shorter way.
    difference = torch.where(difference[:, :1] < 0, -difference, difference)
    sine = difference[:, 1:].norm(dim=-1, keepdim=True)
    angle = 2.0 * torch.atan2(sine, difference[:, :1])
    return difference[:, 1:] / sine.clamp(min=1e-9) * angle


def conjugate(quaternion: Tensor) -> Tensor:
    """Return the inverse of unit quaternions w, x, y, z `[N, 4]`."""
    return torch.cat([quaternion[:, :1], -quaternion[:, 1:]], dim=-1)


def multiply(first: Tensor, second: Tensor) -> Tensor:
    """Return the product of quaternions w, x, y, z `[N, 4]`: first after second."""
    a, b = first[:, :1], second[:, :1]
    u, v = first[:, 1:], second[:, 1:]
    scalar = a * b - (u * v).sum(-1, keepdim=True)
    return torch.cat([scalar, a * v + b * u + torch.linalg.cross(u, v)], dim=-1)


def rotate(quaternion: Tensor, vector: Tensor) -> Tensor:
    """Rotate vectors `[N, 3]` or one vector `[3]` by unit quaternions w, x, y, z `[N, 4]`."""
    axis = quaternion[:, 1:]
    vector = vector.expand_as(axis)
    twice = 2.0 * torch.linalg.cross(axis, vector)
    return vector + quaternion[:, :1] * twice + torch.linalg.cross(axis, twice)
