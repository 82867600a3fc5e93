"""Baseline policies without learning: TensorDict in, TensorDict with actions out.

Each robot acts on its own observations. Any number of leading dimensions is supported, as by
`torchrl_gpu.acting.policy.PolicyWrapper`. The two planners simulate the vessel's dynamics in still
water and choose among the 25 discrete actions.
"""

import math
from abc import abstractmethod
from typing import Annotated

import torch
from pydantic import Field
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from envs.marinenav.perception import MAX_OBJECTS, OBJECT_ROWS, SELF_ROWS, View
from envs.marinenav.physics import (
    DISCRETE_ACTIONS,
    GROUND_VELOCITY,
    HEADING,
    MAX_THRUST,
    MAX_THRUST_RATE,
    MOTION_ROWS,
    POSITION,
    STEP_SECONDS,
    THRUST,
    VELOCITY,
    VESSEL_RADIUS,
    sail,
    to_body,
)
from envs.marinenav.scale import Normalize, make_units
from envs.settings import Device
from torchrl_gpu.arguments import CheckedFields


class Baseline(CheckedFields, TensorDictModuleBase):
    """Base class of rule-based policies; `normalize` and `device` are those of the environment."""

    normalize: Normalize = True
    device: Device = "cpu"

    def __post_init__(self) -> None:
        super().__init__()
        self.in_keys = ["observation", "objects", "objects_mask"]
        self.out_keys = ["action"]
        self._units = make_units(self.normalize, torch.float32, torch.device(self.device))
        self._actions = torch.tensor(DISCRETE_ACTIONS, device=self.device)

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write `action` `[*B, 2]` in [-1, 1] for observations with batch size `[*B]`."""
        own, objects, mask = (tensordict.get(key) for key in self.in_keys)
        lead = own.shape[:-1]
        view = View(
            (own * self._units.own).reshape(-1, SELF_ROWS).T,
            (objects * self._units.objects).reshape(-1, MAX_OBJECTS, OBJECT_ROWS).permute(2, 1, 0),
            mask.reshape(-1, MAX_OBJECTS).T,
        )
        action = self.act(view).T.reshape(*lead, 2).to(own.dtype)
        return tensordict.set("action", action)

    @abstractmethod
    def act(self, view: View) -> Tensor:
        """Return actions `[2, B]` in [-1, 1] for views in SI units, `[..., B]`."""


class RandomPolicy(Baseline):
    """Draws uniform actions.

    Args:
        seed: random seed of the actions.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._generator = torch.Generator().manual_seed(self.seed)

    def act(self, view: View) -> Tensor:
        """Draw on the host: the same actions on every device."""
        action = torch.rand(2, view.own.shape[1], generator=self._generator)
        return (2.0 * action - 1.0).to(view.own.device)


class StraightToGoal(Baseline):
    """Turns towards the goal and sails there at full thrust, ignoring all objects."""

    STEERING = 1500.0  # N per rad off course
    DAMPING = 1500.0  # N per rad/s of turning

    def act(self, view: View) -> Tensor:
        """Return the thrust rates that bring the thrusts to their set points."""
        x, y, _, _, yaw, left, right = view.own
        angle = torch.atan2(y, x)
        ahead = MAX_THRUST * _facing(angle)
        turn = self.STEERING * angle - self.DAMPING * yaw
        wanted = torch.stack((ahead + turn, ahead - turn))
        change = wanted - torch.stack((left, right))
        return (change / (MAX_THRUST_RATE * STEP_SECONDS)).clamp(-1.0, 1.0)


class Planner(Baseline):
    """Simulates each discrete action and takes the one of lowest cost.

    Args:
        horizon: number of simulated steps of 0.5 s, at least 1.
    """

    horizon: Annotated[int, Field(ge=1)] = 1

    def act(self, view: View) -> Tensor:
        """Return the action of lowest cost."""
        best = self.cost(view, self._look_ahead(view)).argmin(0)
        return self._actions[best].T

    @abstractmethod
    def cost(self, view: View, motions: Tensor) -> Tensor:
        """Return the cost of each action, `[25, B]`.

        `motions` `[horizon, 11, 25, B]` are those of the robots after each step of holding one
        action, in their body frames of the first step.
        """

    def _look_ahead(self, view: View) -> Tensor:
        count = len(self._actions)
        now = view.own.new_zeros(MOTION_ROWS, count, view.own.shape[1])
        now[VELOCITY] = now[GROUND_VELOCITY] = view.own[2:5, None]
        now[THRUST] = view.own[5:, None]
        action = self._actions.T[..., None]
        still = now.new_zeros(4, 0, 1)
        motions = []
        for _ in range(self.horizon):
            now = sail(now, action, still)
            motions.append(now)
        return torch.stack(motions)


class PotentialField(Planner):
    """Artificial potential fields: the goal attracts, objects repel, the vessel follows the force.

    The force follows Ge and Cui, "New potential functions for mobile robot path planning", IEEE
    Trans. Robotics and Automation 16(5), 2000, with the paper's constants.
    """

    ATTRACTION = 50.0
    REPULSION = 500.0
    INFLUENCE = 15.0  # m, d0
    NEAREST = 0.5  # m, lower bound of clearances
    CRUISE = 2.5  # m/s, upper bound of the desired speed
    APPROACH = 0.25  # 1/s, desired speed per metre of remaining distance
    LEAD = 1.5  # s, extrapolation of the heading

    def cost(self, view: View, motions: Tensor) -> Tensor:
        """Return the deviation of each action from the course and speed of the force."""
        force = self._force(view)
        course = torch.atan2(force[1], force[0])
        after = motions[-1]
        heading = after[HEADING] + self.LEAD * after[GROUND_VELOCITY][2]
        miss = torch.remainder(heading - course + math.pi, 2.0 * math.pi) - math.pi
        speed, _ = to_body(after[HEADING].cos(), after[HEADING].sin(), *after[VELOCITY][:2])
        left = view.own[:2].square().sum(0).sqrt()
        wanted = (self.APPROACH * left).clamp(max=self.CRUISE) * _facing(course)
        return miss.abs() + 0.3 * (speed - wanted).abs()

    def _force(self, view: View) -> Tensor:
        """Return the force on each robot, body frame, `[2, B]`."""
        goal = view.own[:2]
        to_goal = goal.square().sum(0).sqrt().clamp(min=self.NEAREST)
        place = view.objects[:2]
        distance = place.square().sum(0).sqrt().clamp(min=self.NEAREST)
        clearance = (distance - view.objects[4] - VESSEL_RADIUS).clamp(min=self.NEAREST)
        rise = (1.0 / clearance - 1.0 / self.INFLUENCE).clamp(min=0.0) * view.mask
        # F_1 = k (1/d - 1/d0) D^n / d^2 away from the object, F_2 = (n/2) k (1/d - 1/d0)^2 D^(n-1)
        # towards the goal, n = 2
        push = self.REPULSION * rise * to_goal.square() / clearance.square()
        pull = self.REPULSION * rise.square() * to_goal
        away = (-place / distance * push).sum(1)
        return self.ATTRACTION * goal + away + goal / to_goal * pull.sum(0)


class ModelPredictive(Planner):
    """Model predictive control over a short horizon, as if objects kept their velocities."""

    horizon: Annotated[int, Field(ge=1)] = 4

    CLEARANCE = 2.0  # m between hulls, below which a plan is penalised
    NEARNESS_COST = 10.0  # penalty per metre below the clearance
    TURN_COST = 2.0  # m per rad between the final heading and the goal's direction

    def cost(self, view: View, motions: Tensor) -> Tensor:
        """Return the remaining distance to the goal, plus the penalties of turning and nearness."""
        place = motions[:, POSITION]
        left = (view.own[:2, None] - place).square().sum(1).sqrt()
        last = motions[-1]
        ahead, aside = to_body(
            last[HEADING].cos(), last[HEADING].sin(), *(view.own[:2, None] - last[POSITION])
        )
        turn = torch.atan2(aside, ahead).abs()
        times = STEP_SECONDS * torch.arange(1, self.horizon + 1, device=last.device)
        # [horizon, 2, objects, 1, B] against [horizon, 2, 1, 25, B]
        objects = view.objects[:2] + view.objects[2:4] * times[:, None, None, None]
        gap = (objects[:, :, :, None] - place[:, :, None]).square().sum(1).sqrt()
        gap = gap - view.objects[4][:, None] - VESSEL_RADIUS
        short = (self.CLEARANCE - gap).clamp(min=0.0) * view.mask[:, None]
        return left[-1] + self.TURN_COST * turn + self.NEARNESS_COST * short.amax(1).sum(0)


def _facing(angle: Tensor) -> Tensor:
    """Return the fraction of full speed for a bearing, rad: 1 straight ahead, 0 from pi/4 on."""
    return (1.0 - angle.abs() / (math.pi / 4.0)).clamp(min=0.0)
