"""Inverse kinematics by damped least squares, and the rotations that it needs; batched."""

import torch
from torch import Tensor

# Damping of the least squares: the larger, the slower and smoother near singular postures.
_DAMPING = 0.05
# Maximum change of a joint angle in one step, rad.
_MAX_CHANGE = 0.2


def jacobian(axes: Tensor, anchors: Tensor, turns: Tensor | None, point: Tensor) -> Tensor:
    """Return the Jacobians of a point of the hand, transposed, `[N, J, 6]`: linear, then angular.

    Args:
        axes: axes of the joints between base and hand, unit vectors `[N, J, 3]`.
        anchors: points on the axes `[N, J, 3]`, m.
        turns: 1 for a joint that turns about its axis, 0 for one that slides along it, `[J, 1]`;
            None if all turn.
        point: positions of the point `[N, 3]`, m.
    """
    circular = torch.linalg.cross(axes, point.unsqueeze(1) - anchors)
    if turns is None:
        return torch.cat([circular, axes], dim=-1)
    return torch.cat([torch.lerp(axes, circular, turns), turns * axes], dim=-1)


def joint_changes(transposed: Tensor, error: Tensor, damping: Tensor) -> Tensor:
    """Return the changes of joint angles `[N, J]` that reduce the errors of the hand.

    Each environment has its own Jacobian. Source: Wampler, "Manipulator inverse kinematic solutions
    based on vector formulations and damped least-squares methods", 1986.

    Args:
        transposed: `jacobian`, `[N, J, 6]`.
        error: way to the desired position in m, then rotation vector to the desired orientation in
            rad, `[N, 6]`.
        damping: `damping_matrix`.
    """
    # dq = J^T (J J^T + lambda^2 I)^-1 e; damped, the matrix is never singular.
    products = torch.baddbmm(damping, transposed.mT, transposed)
    pulls, _ = torch.linalg.solve_ex(products, error.unsqueeze(-1))
    return torch.bmm(transposed, pulls).squeeze(-1).clamp(-_MAX_CHANGE, _MAX_CHANGE)


def damping_matrix(device: torch.device) -> Tensor:
    """Return lambda^2 I `[6, 6]` of the damped least squares."""
    return _DAMPING**2 * torch.eye(6, device=device)


def comparison(desired: Tensor) -> Tensor:
    """Return the matrix `[4, 4]` with which `tilt` compares orientations to a desired one.

    Orientations are unit quaternions w, x, y, z.
    """
    w, x, y, z = desired
    # desired * conjugate(q), whose vector is sin(angle / 2) times the axis, is linear in q.
    columns = [[w, x, y, z], [x, -w, z, -y], [y, -z, -w, x], [z, y, -x, -w]]
    return 2.0 * torch.stack([torch.stack(column) for column in columns], dim=-1)


def tilt(current: Tensor, compared: Tensor) -> Tensor:
    """Return the rotation vectors `[N, 3]` in rad from current orientations to the desired one.

    They are 2 sin(angle / 2) long, which is the angle for small ones. `current` are unit
    quaternions `[N, 4]`, and `compared` is the `comparison` of the desired one.
    """
    difference = current @ compared
    # q and -q are the same rotation: choose the shorter way.
    return difference[:, 1:] * difference[:, :1].sign()


def lever(point: Tensor) -> Tensor:
    """Return the matrix `[16, 3]` with which `carried` moves a point `[3]`, m, of a body."""
    # Rotated by q = (w, a), a point v is (w^2 - a a) v + 2 a (a v) + 2 w (a x v): it is linear in
    # the products of the elements of q.
    products, axes = point.new_zeros(4, 4, 3), torch.eye(3, device=point.device)
    products[0, 0] = point
    products[0, 1:] = 2.0 * torch.linalg.cross(axes, point.expand(3, 3))
    products[1:, 1:] = 2.0 * axes.unsqueeze(1) * point.unsqueeze(1) - axes.unsqueeze(2) * point
    return products.flatten(0, 1)


def carried(position: Tensor, quaternion: Tensor, levers: Tensor) -> Tensor:
    """Return the positions `[N, 3]`, m, of a point fixed to bodies, by its `lever`.

    The positions of the bodies are `[N, 3]`, m, and their orientations unit quaternions `[N, 4]`.
    """
    products = quaternion.unsqueeze(2) * quaternion.unsqueeze(1)
    return torch.addmm(position, products.flatten(1), levers)
