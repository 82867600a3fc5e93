"""The collision regulations at sea (COLREGs): who has to give way, and by how much he fails to.

A robot has to turn to starboard for a vessel that comes head on or crosses from its starboard
side. phi is by how much its course lies to port of the tangent that passes the vessel astern.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from envs.marinenav.perception import View
from envs.marinenav.physics import VESSEL_RADIUS

MIN_SPEED: Final = 0.5  # m/s, below which a robot or an object has no course
SAFETY_MARGIN: Final = 1.0  # m around an object


def give_way_angle(view: View) -> Tensor:
    """Return phi of the first object for which a robot should give way and does not.

    Args:
        view: what the robots see, in SI units; objects nearest first.

    Returns:
        phi `[R, N]`, rad, 0 to pi; 0 where the rules ask nothing.
    """
    px, py, vx, vy, radius = view.objects.unbind(0)
    ego_x, ego_y = view.own[2], view.own[3]
    # beta = atan2(v_obj): cosine and sine of the object's course, without the angle
    speed = (vx.square() + vy.square()).sqrt()
    under_way = (speed >= MIN_SPEED) & view.mask
    under_way &= (ego_x.square() + ego_y.square()).sqrt() >= MIN_SPEED
    c, s = vx / speed.clamp(min=MIN_SPEED), vy / speed.clamp(min=MIN_SPEED)
    # pe = -R(beta)^T p_obj, ve = R(beta)^T v_ego: the robot as the object sees it
    pe_x, pe_y = -(c * px + s * py), s * px - c * py
    ve_x, ve_y = c * ego_x + s * ego_y, c * ego_y - s * ego_x
    # pe_x in [-9, 12], pe_y in [-17, 0], not pe_y + 7 > (-7/12)(pe_x - 12), a in [pi/4, 3 pi/4]
    crossing = (pe_x >= -9.0) & (pe_x <= 12.0) & (pe_y >= -17.0) & (pe_y <= 0.0)
    crossing &= pe_y + 7.0 <= (-7.0 / 12.0) * (pe_x - 12.0)
    crossing &= ve_y >= ve_x.abs()
    # pe_x in [0, 17], |pe_y| <= 4.5, |a| > 3 pi/4
    head_on = (pe_x >= 0.0) & (pe_x <= 17.0) & (pe_y.abs() <= 4.5) & (ve_x < -ve_y.abs())
    phi, exists = _phi(px, py, radius, ego_x, ego_y)
    applies = under_way & (crossing | head_on) & exists & (phi > 0.0)
    first = applies & (applies.cumsum(0) == 1)
    return (phi * first).sum(0)


def _phi(
    px: Tensor, py: Tensor, radius: Tensor, ego_x: Tensor, ego_y: Tensor
) -> tuple[Tensor, Tensor]:
    """Return phi and whether there is a tangent to measure it from."""
    # D = |p_obj|, b = r_obj + 1, t = sqrt(D^2 - b^2): the length of the tangent
    b = radius + SAFETY_MARGIN
    tangent = px.square() + py.square() - b.square()
    exists = tangent >= 0.0
    t = tangent.clamp(min=0.0).sqrt()
    # phi = wrap(wrap(atan2(p_obj) + asin(b / D) + atan2(2.7951, t)) - atan2(v_ego)), as the
    # argument of the product (p_x + i p_y)(t + i b)(t + i 2.7951)(v_x - i v_y)
    turn_x, turn_y = t.square() - b * VESSEL_RADIUS, t * (b + VESSEL_RADIUS)
    seen_x, seen_y = px * ego_x + py * ego_y, py * ego_x - px * ego_y
    return torch.atan2(seen_x * turn_y + seen_y * turn_x, seen_x * turn_x - seen_y * turn_y), exists
