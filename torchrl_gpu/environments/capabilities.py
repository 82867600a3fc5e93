"""Capabilities of an environment that this library uses besides TorchRL's API."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from tensordict import NestedKey


class Element(NamedTuple):
    """One number of an observation or an action: `offset + scale * number` is a quantity.

    Attributes:
        name: name of the quantity, as in `J1 angle`.
        unit: its unit, as in `rad`; empty for a quantity without one.
        scale: quantity that a difference of 1 stands for, in this unit.
        offset: quantity that 0 stands for, in this unit.
    """

    name: str
    unit: str = ""
    scale: float = 1.0
    offset: float = 0.0


@dataclass(frozen=True)
class Capabilities:
    """Abilities of an environment; known before it is built, as far as its settings determine them.

    In an environment with a group of robots, keys are those in the group.

    Attributes:
        discrete_actions: table of discrete actions, `A` rows of `action_dim` numbers within the
            bounds of the continuous action; None if agents with discrete actions cannot act here.
        action_table: table whose row numbers are the actions here, because a table of discrete
            actions has been applied or the simulator takes several choices at once; None for an
            environment that takes its actions as they are.
        frame_stacks: number of frames of each observation that is a stack, by key; a replay then
            stores each frame once. The first dimension of such an observation holds its last frames
            one after the other, the newest one last: `[*B, frames * C, H, W]` for images. At the
            start of an episode all frames are the first one.
        outcome_keys: observation keys that describe a transition and that agents do not observe by
            default: `success`, bool `[*B, 1]`, true if the task is solved; `active`, bool
            `[*B, 1]`, false if the next step is not a transition (as for a robot that has
            finished).
        step_seconds: simulated time of one step in seconds; None if unknown.
        units: units of observations and of `action`, by key; those without a unit are left out.
        elements: elements of the last dimension of observations and of `action`, by key; those
            whose elements are unknown are left out.
        action_range: lowest and highest values, `action_dim` numbers each, that the actions -1 and
            1 stand for in the simulator; None if it takes the actions as they are.
        can_render: whether `render` returns a picture; for an environment with modes, whether it
            does in mode `demo`. None where only the built environment knows.
        renders_several: whether `render` also accepts a list of indices, and then draws these
            environments in the layout of `torchrl_gpu.environments.captions.grid`.
        has_page: whether `page` returns an HTML file in which a policy acts.
        has_state: whether `state_dict()` is the complete state, so that a restored environment
            continues its episodes exactly, or `load_state_dict` raises `EpisodesLostError`.
        can_overlap: whether `begin_step` starts the simulation and returns at once, so that the
            program can compute while the environment simulates.
        can_switch_mode: whether `set_mode` works, so that one instance serves training and
            evaluation.
        max_evaluation_envs: maximum number of environments that an evaluation builds by default;
            None for no limit. An environment that needs one process per copy, for instance, gives
            the number of the training environment.
        envs_per_core: number of environments that occupy one core of the host, at least 1; None for
            a simulator that steps all environments together, whose number follows the device.
        simulator_device: device that simulates the environments; None if unknown, so that
            `env.num_envs=auto` stands for the default.
        fixed_memory: bytes that the simulator takes on its device for any number of environments.
        env_memory: bytes that each environment takes there.
    """

    discrete_actions: tuple[tuple[float, ...], ...] | None = None
    action_table: tuple[tuple[float, ...], ...] | None = None
    frame_stacks: Mapping[NestedKey, int] = field(default_factory=dict)
    outcome_keys: tuple[NestedKey, ...] = ("success", "active")
    step_seconds: float | None = None
    units: Mapping[NestedKey, str] = field(default_factory=dict)
    elements: Mapping[NestedKey, tuple[Element, ...]] = field(default_factory=dict)
    action_range: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    can_render: bool | None = False
    renders_several: bool = False
    has_page: bool = False
    has_state: bool = False
    can_overlap: bool = False
    can_switch_mode: bool = False
    max_evaluation_envs: int | None = None
    envs_per_core: int | None = None
    simulator_device: torch.device | None = None
    fixed_memory: int = 0
    env_memory: int = 0

    def memory(self, num_envs: int) -> int:
        """Return the bytes that a number of environments takes on the simulator's device."""
        return self.fixed_memory + num_envs * self.env_memory
