"""Dynamics of surface vehicles in vortex currents, for a batch of seas.

x points north, y east, headings turn clockwise; body x points forward, body y to starboard. All
values are SI. Here and in the other modules components are the first dimension and seas the last,
`[2, R, N]` for a vector of each of R robots in N seas: operations then run along contiguous memory,
and values per sea broadcast over its robots.

Source: Lin, Huang, Chen, Englot, "Distributional Reinforcement Learning based Integrated Decision
Making and Control for Autonomous Surface Vehicles", RA-L 2025, arXiv 2412.09466.
"""

import math
from itertools import product
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad

SUBSTEP_SECONDS: Final = 0.05
SUBSTEPS: Final = 10
STEP_SECONDS: Final = SUBSTEP_SECONDS * SUBSTEPS

MIN_THRUST: Final = -500.0  # N
MAX_THRUST: Final = 1000.0
MAX_THRUST_RATE: Final = 1000.0  # N/s, at an action of 1
# Actions of the paper as fractions of the maximum thrust rate: left and right, see `MarineNavEnv`.
DISCRETE_ACTIONS: Final = tuple(product((0.0, -0.5, -1.0, 0.5, 1.0), repeat=2))
# m/s through the water, slightly above the steady speed at full thrust, 3.33
MAX_SPEED: Final = 3.5

VESSEL_LENGTH: Final = 5.0  # m
VESSEL_WIDTH: Final = 2.5
VESSEL_RADIUS: Final = 0.5 * math.hypot(VESSEL_LENGTH, VESSEL_WIDTH)

CORE_RADIUS: Final = 0.5  # m, of a vortex
EDGE_SPEED: Final = 3.0  # m/s, of the current at the edge of the core
CIRCULATION: Final = 2.0 * math.pi * CORE_RADIUS * EDGE_SPEED  # m^2/s

# Rows of a robot's motion.
POSITION: Final = slice(0, 2)  # m
HEADING: Final = 2  # rad
POSE: Final = slice(0, 3)
VELOCITY: Final = slice(3, 6)  # x, y, yaw relative to the water, in the world frame: m/s, rad/s
GROUND_VELOCITY: Final = slice(6, 9)  # x, y, yaw over ground, in the world frame: m/s, rad/s
THRUST: Final = slice(9, 11)  # left, right: N
MOTION_ROWS: Final = 11


def current(points: Tensor, vortices: Tensor) -> Tensor:
    """Return the velocity of the water over ground `[2, P, N]`, m/s, at points `[2, P, N]`, m.

    Vortices `[4, V, N]` are x, y (m), circulation (m^2/s, positive counter-clockwise on a chart
    with north up, 0 for a missing vortex) and core radius (m).
    """
    away = vortices[:2, :, None] - points[:, None]
    circulation, core = vortices[2, :, None], vortices[3, :, None]
    distance = away.square().sum(0).sqrt()
    # Gamma d / (2 pi r_c^2) inside the core, Gamma / (2 pi d) outside; divided by d for the unit
    # vector u = (c - p) / d
    speed_by_distance = circulation / (2.0 * math.pi * torch.maximum(distance, core).square())
    # t = (-u_y, u_x)
    return torch.stack(
        ((-away[1] * speed_by_distance).sum(0), (away[0] * speed_by_distance).sum(0))
    )


def sail(motion: Tensor, action: Tensor, vortices: Tensor) -> Tensor:
    """Return the motion of the robots after one step of 0.5 s.

    Args:
        motion: motion of the robots, `[11, R, N]`; rows as named by the constants of this module.
        action: thrust rates of the left and right propeller, -1 to 1, in units of 1,000 N/s,
            `[2, R, N]`; values beyond act as the nearest bound.
        vortices: vortices of the seas, `[4, V, N]`, see `current`; V may be 0.
    """
    pose, velocity = motion[POSE], motion[VELOCITY]
    # T = clip(T + 0.5 * rate, -500, 1000)
    gain = MAX_THRUST_RATE * STEP_SECONDS
    rate = action.clamp(-1.0, 1.0)
    thrust = torch.add(motion[THRUST], rate, alpha=gain).clamp(MIN_THRUST, MAX_THRUST)
    # X = T_l + T_r, M = 1.25 (T_l - T_r), as speed changes per substep
    dt = SUBSTEP_SECONDS
    surge = (thrust[0] + thrust[1]) * (dt / 380.0)
    turn = (thrust[0] - thrust[1]) * (1.25 * dt / 1430.0)
    is_still = vortices.shape[1] == 0
    ground = velocity
    for _ in range(SUBSTEPS):
        # V = velocity_r + [w, 0]
        ground = velocity
        if not is_still:
            ground = velocity + pad(current(pose[:2], vortices), (0, 0, 0, 0, 0, 1))
        pose = torch.add(pose, ground, alpha=dt)
        # (u_r, v_r) = R^T velocity_r, (u, v) = R^T V
        c, s = pose[2].cos(), pose[2].sin()
        vx, vy, r = velocity.unbind(0)
        u_r, v_r = to_body(c, s, vx, vy)
        u, v = (u_r, v_r) if is_still else to_body(c, s, ground[0], ground[1])
        # u_dot = [400 r v - (100 + 150 |u_r|) u_r + X] / 380
        push = torch.addcmul(surge, r, v, value=400.0 * dt / 380.0)
        u_new = torch.addcmul(push, u_r, _slowed(u_r, 100.0, 150.0, 380.0))
        # v_dot = [-400 r u + 20 u_r r - (100 + 150 |v_r|) v_r] / 400
        drift = torch.add(20.0 * u_r, u, alpha=-400.0) * r
        v_new = torch.addcmul(drift * (dt / 400.0), v_r, _slowed(v_r, 100.0, 150.0, 400.0))
        # r_dot = [-20 u_r v_r - (980 + 950 |r|) r + M] / 1430
        twist = torch.addcmul(turn, u_r, v_r, value=-20.0 * dt / 1430.0)
        r_new = torch.addcmul(twist, r, _slowed(r, 980.0, 950.0, 1430.0))
        velocity = torch.stack((*_to_world(c, s, u_new, v_new), r_new))
    heading = pose[2].remainder(2.0 * math.pi)
    return torch.cat((pose[:2], heading[None], velocity, ground, thrust))


def _slowed(speed: Tensor, linear: float, quadratic: float, inertia: float) -> Tensor:
    """Return the fraction of a speed that remains after the drag of one substep."""
    # 1 - 0.05 (linear + quadratic |speed|) / inertia
    share = SUBSTEP_SECONDS / inertia
    return torch.rsub(speed.abs(), 1.0 - linear * share, alpha=quadratic * share)


def _to_world(c: Tensor, s: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return torch.addcmul(c * u, s, v, value=-1.0), torch.addcmul(s * u, c, v)


def to_body(c: Tensor, s: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate vectors from the world frame to the body frame of heading cosine c and sine s."""
    return torch.addcmul(c * x, s, y), torch.addcmul(c * y, s, x, value=-1.0)
