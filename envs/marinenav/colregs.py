"""The collision regulations at sea (COLREGs): which robots must give way, and the missing turn.

A robot must turn to starboard for a vessel that comes head on or crosses from its starboard side.
phi is the angle from its course to the tangent that passes the vessel astern, if that tangent is
to starboard.
"""

from functools import reduce
from typing import Final

import torch
from torch import Tensor

from envs.marinenav.perception import View
from envs.marinenav.physics import VESSEL_RADIUS, to_body

MIN_SPEED: Final = 0.5  # m/s; slower robots and objects have no course
SAFETY_MARGIN: Final = 1.0  # m around an object
_TINY: Final = 1e-18  # m^2


def give_way_angle(view: View) -> Tensor:
    """Return phi `[R, N]`, rad, of the nearest object for which a robot must give way and does not.

    It is 0 to pi; 0 where no rule applies.
    """
    px, py, vx, vy, radius = view.objects.unbind(0)
    ego_x, ego_y = view.own[2], view.own[3]
    # beta = atan2(v_obj): cosine and sine of the object's course, without the angle
    speed_squared = torch.addcmul(vx.square(), vy, vy)
    ego_speed_squared = torch.addcmul(ego_x.square(), ego_y, ego_y)
    share = speed_squared.clamp(min=MIN_SPEED**2).rsqrt()
    c, s = vx * share, vy * share
    # pe = -R(beta)^T p_obj, ve = R(beta)^T v_ego: the robot in the frame of the object's course
    pe_x, pe_y = (-component for component in to_body(c, s, px, py))
    ve_x, ve_y = to_body(c, s, ego_x, ego_y)
    # pe_x in [-9, 12], pe_y in [-17, 0], not pe_y + 7 > (-7/12)(pe_x - 12), a in [pi/4, 3 pi/4]
    # All conditions of a situation hold where the smallest of their margins is not negative.
    crossing = _smallest(
        pe_x + 9.0,
        12.0 - pe_x,
        pe_y + 17.0,
        -pe_y,
        (-7.0 / 12.0) * (pe_x - 12.0) - (pe_y + 7.0),
        ve_y - ve_x.abs(),
    )
    # pe_x in [0, 17], |pe_y| <= 4.5, |a| > 3 pi/4
    head_on = _smallest(pe_x, 17.0 - pe_x, 4.5 - pe_y.abs(), -ve_x - ve_y.abs())
    situation = torch.maximum(crossing, head_on)
    # D = |p_obj|, b = r_obj + 1, t = sqrt(D^2 - b^2): the length of the tangent
    b = radius + SAFETY_MARGIN
    squared = torch.addcmul(torch.addcmul(px.square(), py, py), b, b, value=-1.0)
    # Square roots of 0 are several times slower than others on processors.
    t_squared = squared.clamp(min=_TINY)
    t = t_squared.sqrt()
    # phi = wrap(wrap(atan2(p_obj) + asin(b / D) + atan2(2.7951, t)) - atan2(v_ego)), as the
    # argument of the product (p_x + i p_y)(t + i b)(t + i 2.7951)(v_x - i v_y)
    turn_x, turn_y = t_squared - b * VESSEL_RADIUS, t * (b + VESSEL_RADIUS)
    seen_x, seen_y = px * ego_x + py * ego_y, py * ego_x - px * ego_y
    sine, cosine = seen_x * turn_y + seen_y * turn_x, seen_x * turn_x - seen_y * turn_y
    # Rows without an object have no speed.
    speeds = torch.minimum(speed_squared, ego_speed_squared) - MIN_SPEED**2
    applies = (_smallest(speeds, situation, squared) >= 0.0) & (sine > 0.0)
    # Select the first object to which a rule applies.
    count = torch.arange(len(px), 0, -1, dtype=px.dtype, device=px.device)[:, None, None]
    highest = (count * applies).amax(0, keepdim=True)
    first = (len(px) - highest).long().clamp(max=len(px) - 1)
    phi = torch.atan2(sine.gather(0, first), cosine.gather(0, first))
    return (phi * (highest > 0.0))[0]


def _smallest(*margins: Tensor) -> Tensor:
    return reduce(torch.minimum, margins)
