"""Observations, rewards and done flags of seas as tensors of TorchRL's layout, by key."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from envs.marinenav.perception import View
from envs.marinenav.scale import Units
from envs.marinenav.sea import Outcome, Sea


class Entries(NamedTuple):
    """Tensors of N seas with R robots, by key.

    Attributes:
        group: those of the robots, `[N, R, ...]`.
        whole: those of the seas as a whole, `[N, 1]`.
    """

    group: dict[str, Tensor]
    whole: dict[str, Tensor]


class Observer:
    """Observes seas in the units of an environment.

    Args:
        units: SI value of one unit of each observation.
    """

    def __init__(self, units: Units) -> None:
        self._own_factor = 1.0 / units.own[:, None, None]
        self._object_factor = 1.0 / units.objects[:, None, None, None]

    def scaled(self, view: View) -> View:
        """Return views in SI units as views in the units of the environment."""
        return View(view.own * self._own_factor, view.objects * self._object_factor, view.mask)

    def observe(self, sea: Sea, view: View) -> Entries:
        """Return the observations of seas, and which robots and seas have succeeded."""
        view = self.scaled(view)
        group = {
            "observation": view.own.permute(2, 1, 0),
            "objects": view.objects.permute(3, 2, 1, 0),
            "objects_mask": view.mask.permute(2, 1, 0),
            "active": _last(sea.active),
            "success": _last(sea.reached),
        }
        return Entries(group, {"success": (sea.reached | ~sea.exists).all(0).unsqueeze(-1)})

    def result(self, outcome: Outcome) -> Entries:
        """Return the observations after a step, with rewards and done flags."""
        sea = outcome.sea
        # Termination is per robot; the time limit of a sea truncates all robots that still move.
        terminated = ~sea.active
        truncated = sea.active & outcome.is_late
        group, whole = self.observe(sea, outcome.view)
        group["reward"] = _last(outcome.reward)
        group["terminated"] = _last(terminated)
        group["truncated"] = _last(truncated)
        group["done"] = _last(terminated | truncated)
        all_ended, out_of_time = terminated.all(0), truncated.any(0)
        whole["terminated"] = all_ended.unsqueeze(-1)
        whole["truncated"] = out_of_time.unsqueeze(-1)
        whole["done"] = (all_ended | out_of_time).unsqueeze(-1)
        return Entries(group, whole)


def _last(values: Tensor) -> Tensor:
    """Return `[R, N]` as `[N, R, 1]`."""
    return values.T.unsqueeze(-1)
