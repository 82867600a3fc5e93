"""Whether an arm can reach a position: inverse kinematics from known postures nearby."""

import torch
from torch import Tensor

from envs.fanuc.geometry import ArmGeometry
from envs.fanuc.targets import MIN_CLEARANCE
from torchrl_gpu.errors import ConfigurationError

TOLERANCE = 1e-3  # m, between tool and position
NEIGHBOURS = 8
ITERATIONS = 20
DAMPING = 0.05**2  # m^2 per rad^2


class Reach:
    """Finds collision-free postures within the joint limits whose tool is at given positions.

    Searches by damped least squares (Nakamura and Hanafusa, "Inverse kinematic solutions with
    singularity robustness", 1986), from the eight known postures nearest to the position.

    Args:
        geometry: geometry of the arm, on the device of the positions.
        postures: known postures without collision `[K, N]`, rad.
    """

    def __init__(self, geometry: ArmGeometry, postures: Tensor) -> None:
        self._geometry, self._postures = geometry, postures
        self._positions = geometry.position(postures)

    def is_reachable(self, position: Tensor) -> Tensor:
        """Return whether a posture is found within 1 mm of each position, bool `[*B]`.

        The positions of the tool are `[*B, 3]`, metres, in the base frame. One at the very edge of
        the work space can be missed.
        """
        geometry, goal = self._geometry, position.reshape(-1, 3).to(self._positions)
        count = min(NEIGHBOURS, len(self._postures))
        nearest = torch.cdist(goal, self._positions).topk(count, largest=False).indices
        joints = self._postures[nearest].flatten(0, 1)
        goals = goal.repeat_interleave(count, 0)
        eye = DAMPING * torch.eye(3, device=goal.device)
        for _ in range(ITERATIONS):
            error = goals - geometry.position(joints)
            jacobian = geometry.jacobian(joints)
            # NaN, and so no posture, where rounding leaves nothing of the damping.
            pull, _ = torch.linalg.solve_ex(jacobian @ jacobian.mT + eye, error.unsqueeze(-1))
            joints = joints + (jacobian.mT @ pull).squeeze(-1)
            joints = joints.clamp(geometry.lower, geometry.upper)
            eye = eye / 2  # convergence is slow until the damping is gone
        gap = (goals - geometry.position(joints)).norm(dim=1)
        fits = (gap <= TOLERANCE) & (geometry.clearance(joints) > MIN_CLEARANCE)
        return fits.view(-1, count).any(1).view(position.shape[:-1])

    def check(self, target: Tensor) -> None:
        """Refuse targets of arms `[num_envs, 3]` that are out of reach: see `is_reachable`."""
        for arm in (~self.is_reachable(target)).nonzero()[:1, 0].tolist():
            nearest = self._positions[(self._positions - target[arm]).norm(dim=1).argmin()]
            places = (target[arm], nearest)
            here, there = ([round(x, 3) for x in place.tolist()] for place in places)
            raise ConfigurationError(
                f"target {here} of arm {arm} cannot be reached within {1000 * TOLERANCE:g} mm; "
                f"the nearest known one is {there}"
            )
