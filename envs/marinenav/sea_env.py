"""Seas in TorchRL: specs, steps, resets, states and pictures."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, Composite, Unbounded

from envs.marinenav.page import settings_of, write_page
from envs.marinenav.perception import MAX_OBJECTS
from envs.marinenav.physics import DISCRETE_ACTIONS, STEP_SECONDS
from envs.marinenav.placement import COMPLETE, Size
from envs.marinenav.render import SeaRenderer
from envs.marinenav.scale import Bounds, Units, elements_of, unit_names_of
from envs.marinenav.sea import Episode, Sea, Terms
from envs.marinenav.simulator import (
    TURNS,
    SimulationState,
    Simulator,
    duplicate,
    flatten,
    unflatten,
    write,
)
from envs.streams import seed_streams, streams_of
from torchrl_gpu.checkpoints.contents import check_like
from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.devices.memory import check_memory
from torchrl_gpu.environments.capabilities import Capabilities
from torchrl_gpu.environments.environment import DONE_NAMES, Environment
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.compilation import compiled, compiler_problem, is_interrupted
from torchrl_gpu.execution.graphs import CapturedFunction
from torchrl_gpu.execution.options import GraphMode
from torchrl_gpu.processes import Processes

GROUP: Final = "robots"

Tensors = TypeVar("Tensors")

# Bytes that each pair of a robot and another object takes in a step, measured on the CPU with 4096
# and 32768 seas of the default size: 330, rounded up.
_PAIR_MEMORY: Final = 512

# Steps of a training that save more time than compiling takes: 3 ms of 4.5 ms each with 128 seas on
# one core, and half a minute.
_MIN_COMPILED_STEPS: Final = 15_000

logger = logging.getLogger(__name__)


def sea_capabilities(size: Size, device: torch.device, units: Units) -> Capabilities:
    """Return the capabilities of seas of a size, observed in some units, on a device."""
    objects = size.robots + size.obstacles + size.vortices
    return Capabilities(
        discrete_actions=DISCRETE_ACTIONS,
        step_seconds=STEP_SECONDS,
        units=unit_names_of(units),
        elements=elements_of(units),
        can_render=True,
        renders_several=True,
        has_page=True,
        has_state=True,
        simulator_device=device,
        env_memory=size.robots * objects * _PAIR_MEMORY,
    )


class SeaEnv(Environment):
    """Seas of a simulator; `MarineNavEnv` documents the keys.

    Dtype and device of all seas are those of the units of the observations.

    With graphs, steps and automatic resets are captured. The state then stays in the same memory,
    which each of them overwrites; their results are copies.

    Raises:
        ConfigurationError: the device cannot capture graphs, or the memory is insufficient.
    """

    def __init__(
        self,
        simulator: Simulator,
        bounds: Bounds,
        units: Units,
        *,
        num_envs: int,
        seed: int,
        compile_step: bool | None = None,
        graphs: GraphMode = "auto",
    ) -> None:
        super().__init__(device=units.own.device, batch_size=[num_envs])
        accelerator = accelerator_of(self.device)
        if graphs == "on" and not accelerator.graphs:
            raise ConfigurationError(
                f"env.graphs=on: {accelerator.choice} cannot capture graphs; use env.graphs=off"
            )
        self.capabilities = sea_capabilities(simulator.size, self.device, units)
        check_memory(
            self.capabilities.memory,
            num_envs,
            units.own.device,
            setting="env.num_envs",
            purpose="the simulation",
        )
        self.dtype = units.own.dtype
        self._simulator = simulator
        self._advance = simulator.step
        self._state = simulator.blank(
            seed_streams(seed, num_envs, self.device),
            torch.zeros((), dtype=torch.int64, device=self.device),
        )
        self._captures = graphs == "on" or (graphs == "auto" and accelerator.captures)
        if self._captures:
            self._state = duplicate(self._state)  # no two of its tensors in the same memory
            self._begin_captures()
        nothing = units.own.new_zeros(simulator.size.robots, num_envs)
        # Of the last step, in a list: the environment is slow to set attributes.
        self._terms = [duplicate(Terms(*[nothing] * len(Terms._fields)))]
        self._has_begun = False
        self._renderer = SeaRenderer()
        self._units = units
        self._own_factor = 1.0 / units.own[:, None, None]
        self._object_factor = 1.0 / units.objects[:, None, None, None]
        self._make_specs(bounds, units)
        self._chooses_compilation = compile_step is None
        if compile_step:
            self._compile()

    def _make_specs(self, bounds: Bounds, units: Units) -> None:
        shape = (self.num_envs, self._simulator.size.robots)

        def within(bound: Sequence[float], unit: Tensor, *places: int) -> Bounded:
            high = (unit.new_tensor(bound) / unit).expand(*shape, *places, len(unit))
            return Bounded(-high, high, device=self.device, dtype=self.dtype)

        flag, robots = self._spec_of_flag, self._simulator.size.robots

        def composite(of_group: dict[str, Any], **of_sea: Any) -> Composite:
            group = Composite(of_group, shape=shape, device=self.device)
            return Composite({GROUP: group, **of_sea}, shape=shape[:1], device=self.device)

        self.observation_spec = composite(
            {
                "observation": within(bounds.own, units.own),
                "objects": within(bounds.objects, units.objects, MAX_OBJECTS),
                "objects_mask": flag(robots, MAX_OBJECTS),
                "active": flag(robots, 1),
                "success": flag(robots, 1),
            },
            success=flag(1),
        )
        action = Bounded(-1.0, 1.0, shape=(*shape, 2), dtype=self.dtype, device=self.device)
        self.action_spec = composite({"action": action})
        # TorchRL's transforms of rewards ask for a spec without bounds.
        reward = Unbounded((*shape, 1), dtype=self.dtype, device=self.device)
        self.reward_spec = composite({"reward": reward})
        self.full_done_spec = composite(
            {name: flag(robots, 1) for name in DONE_NAMES},
            **{name: flag(1) for name in DONE_NAMES},
        )

    def plan(self, steps: int, may_compile: bool) -> None:
        """Compile the step where that saves time in so many steps: see `Environment.plan`."""
        accelerator = accelerator_of(self.device)
        is_long = steps >= _MIN_COMPILED_STEPS and accelerator.compiles_long_runs
        chooses = self._chooses_compilation and may_compile and is_long
        if not chooses or not accelerator.compile:
            return
        self._chooses_compilation = False
        self._compile()

    def _compile(self) -> None:
        """Compile the step, by a first one whose results are dropped; eager where that fails."""
        logger.info("compiling the step of the seas")
        started = time.perf_counter()
        step = compiled(self._simulator.step, "default", self.device, dynamic=False)
        # Whether or not the caller computes gradients: the compiler would make code for both.
        advance = torch.no_grad()(step)
        action = self.full_action_spec.zero().get((GROUP, "action"))
        try:
            advance(self._simulator.begin(self._state), action.permute(2, 1, 0))
        except Exception as error:
            problem = compiler_problem(error)
            if problem is None:
                raise
            if not is_interrupted(error):
                text = "the steps of the seas cannot be compiled and run eagerly: %s"
                logger.warning(text, problem)
            return
        self._advance = advance
        logger.info("compiled the step of the seas: %.0f s", time.perf_counter() - started)

    def _begin_captures(self) -> None:
        self._captured_step, self._captured_renewal = (
            CapturedFunction(function, f"the {name} of the seas", self.device, "env.graphs")
            for name, function in (("step", self._advanced), ("reset", self._renewed))
        )

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if not self._captures:
            return self._advanced(tensordict)
        with torch.no_grad():
            return self._own(self._captured_step(tensordict.select((GROUP, "action"))))

    def _advanced(self, tensordict: TensorDictBase) -> TensorDict:
        """Take a step, and return its results."""
        action = tensordict.get((GROUP, "action")).permute(2, 1, 0)
        state, transition = self._advance(self._state, action)
        self._keep(state)
        self._terms[0] = self._kept(self._terms[0], transition.terms)
        sea = transition.now.sea
        # Termination is per robot; the time limit of a sea truncates all robots that still move.
        terminated, truncated = ~sea.active, sea.active & transition.is_late
        all_ended, out_of_time = terminated.all(0), truncated.any(0)
        of_group, of_sea = self._observations(transition.now)
        of_group["reward"] = _last(transition.reward)
        of_group["terminated"] = _last(terminated)
        of_group["truncated"] = _last(truncated)
        of_group["done"] = _last(terminated | truncated)
        of_sea["terminated"] = all_ended.unsqueeze(-1)
        of_sea["truncated"] = out_of_time.unsqueeze(-1)
        of_sea["done"] = (all_ended | out_of_time).unsqueeze(-1)
        return self._gather(of_group, of_sea)

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Start new episodes in place where `done` is true, without reading it on the host."""
        return tensordict.update(self._root_after(tensordict))

    def _root_after(self, after: TensorDictBase) -> TensorDictBase:
        if not self._captures:
            return self._renewed(after)
        with torch.no_grad():
            return self._own(self._captured_renewal(after.select("done")))

    def _renewed(self, after: TensorDictBase) -> TensorDict:
        """Start new episodes where `done` is true, and return the observations of all seas."""
        self._keep(self._simulator.renew(self._state, after.get("done")[:, 0]))
        return self._observed()

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None or not self._has_begun:
            # The first reset starts all seas, with any mask.
            self._keep(self._simulator.begin(self._state))
            self._has_begun = True
        else:
            self._keep(self._simulator.renew(self._state, mask[:, 0]))
        return self.observe()

    def _keep(self, state: SimulationState) -> None:
        self._state = self._kept(self._state, state)

    def _own(self, results: TensorDict) -> TensorDict:
        """Return results that later steps leave as they are."""
        return results.clone() if self._captures else results

    def _kept(self, old: Tensors, new: Tensors) -> Tensors:
        """Return new tensors; with graphs, in the memory of the old ones, which the graphs use."""
        return write(old, new) if self._captures else new

    def observe(self) -> TensorDict:
        """Return the current observations as a reset would, for instance after loading a state."""
        return self._own(self._observed())

    def _observed(self) -> TensorDict:
        of_group, of_sea = self._observations(self._state.now)
        for key in DONE_NAMES:
            of_group[key] = torch.zeros_like(of_group["success"])
            of_sea[key] = torch.zeros_like(of_sea["success"])
        return self._gather(of_group, of_sea)

    def _observations(self, now: Episode) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the observations of the robots, and those of the seas as a whole."""
        sea, view = now.sea, now.view
        of_group = {
            "observation": (view.own * self._own_factor).permute(2, 1, 0),
            "objects": (view.objects * self._object_factor).permute(3, 2, 1, 0),
            "objects_mask": view.mask.permute(2, 1, 0),
            "active": _last(sea.active),
            "success": _last(sea.reached),
        }
        return of_group, {"success": (sea.reached | ~sea.exists).all(0).unsqueeze(-1)}

    def _gather(self, of_group: dict[str, Any], of_sea: dict[str, Any]) -> TensorDict:
        group = self._batch(of_group, self._simulator.size.robots)
        return self._batch({GROUP: group, **of_sea})

    def _set_seed(self, seed: int | None) -> None:
        streams = seed_streams(seed or 0, self.num_envs, self.device)
        self._begin_streams(streams, self._state.frames)

    def set_seeds(self, seeds: Sequence[int]) -> None:
        """Seed each sea: see `Environment.set_seeds`.

        The frames are rounded down to the first of `TURNS`, so that all later episodes are those of
        the seeds, independent of earlier ones.
        """
        frames = self._state.frames
        turns = TURNS * len(seeds) * self._simulator.difficulty.processes
        self._begin_streams(streams_of(seeds, self.device), frames - frames % turns)

    def _begin_streams(self, streams: Tensor, frames: Tensor) -> None:
        """Let the next reset start all seas from states `[N]` of their random generators."""
        now = self._state.now._replace(streams=streams)
        begun = self._simulator.blank(streams, frames)
        self._keep(begun._replace(now=now, next=self._state.next))
        self._has_begun = False

    def join(self, processes: Processes) -> None:
        """Count the frames, and the seas of a mixture, of all processes: see `Environment.join`."""
        super().join(processes)
        self._simulator.difficulty.join(processes)
        if self._captures:
            self._begin_captures()  # their graphs would hold the number of processes before
        if not self._has_begun:
            self._replan(self._state.frames)

    def _replan(self, frames: Tensor) -> None:
        """Let the next reset start all seas at a number of frames."""
        state = self._state._replace(frames=frames, is_ready=torch.zeros_like(self._state.is_ready))
        self._keep(state._replace(draft=self._simulator.empty(state)))
        self._has_begun = False

    @property
    def sea(self) -> Sea:
        """State of all seas in SI units, read-only; the last dimension is the sea."""
        sea = self._state.now.sea
        return duplicate(sea) if self._captures else sea

    def metrics(self) -> dict[str, Tensor]:
        """Return the mean stage of the current episodes, `[]`, as `curriculum/stage`, from 0.

        A mixture of stages has no metrics.
        """
        if self._simulator.difficulty.mixture is not None:
            return {}
        return {"curriculum/stage": self._state.now.stage.to(self.dtype).mean()}

    def render(self, index: int | Sequence[int] = 0) -> Tensor:
        """Draw seas from above, north up: see `SeaRenderer.draw`.

        Raises:
            ConfigurationError: an index names no sea, or the list of indices is empty.
        """
        return self._renderer.draw(self._state.now, self._checked_index(index))

    def caption(self, index: int) -> str:
        """Return the time since the start of the episode, and the number of arrived vessels."""
        steps, arrived, vessels = self._progress(index)
        return f"{steps * STEP_SECONDS:.1f} s, {arrived} of {vessels} vessels arrived"

    def reward_terms(self, index: int) -> dict[str, float]:
        """Return the terms of the last reward, means over the robots of one sea: see `Terms`."""
        terms = self._terms[0]._asdict().items()
        return {n.replace("_", " "): float(values[:, index].mean()) for n, values in terms}

    def measurements(self, index: int) -> dict[str, float]:
        """Return the percentage of the vessels that have reached their goals."""
        _, arrived, vessels = self._progress(index)
        return {"vessels arrived [%]": 100 * arrived / vessels}

    def _progress(self, index: int) -> list[int]:
        """Return the steps of the episode, the arrived robots and all robots of one sea."""
        sea = self.sea
        reached, exists = sea.reached[:, index].sum(), sea.exists[:, index].sum()
        return torch.stack([sea.steps[index], reached, exists]).tolist()

    def page(self, policy: str, about: str) -> str:
        """Return a sea in which a policy steers all vessels: see `Environment.page`."""
        simulator = self._simulator
        distance = simulator.difficulty.contents(self._state.frames).min_distance[0].item()
        settings = settings_of(distance, simulator.max_steps, self._units)
        return write_page(settings, simulator.size, simulator.noise, policy, about)

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Tensor]:
        """Return the complete state of the simulation as tensors, random generators included."""
        return {name: tensor.clone() for name, tensor in flatten(self._state).items()}

    def load_state_dict(self, state_dict: Mapping[str, Tensor], *_: Any, **__: Any) -> None:
        """Restore a state of equal sizes; `observe()` then returns the current observations.

        Raises:
            ConfigurationError: a tensor is missing or has another shape or dtype, or a layout could
                never be completed.
        """
        expected = flatten(self._state)
        check_like(state_dict, expected, "the saved state does not fit this environment: it")
        counters = ("draft.kind", "draft.placed", "draft.tries")
        kind, placed, tries = (state_dict[name] for name in counters)
        if not ((kind >= 0) & (kind <= COMPLETE) & (placed >= 0) & (tries >= 0)).all():
            raise ConfigurationError("the saved state holds a layout that nothing completes")
        self._keep(unflatten(self._state, state_dict))
        self._has_begun = True

    def progress(self) -> dict[str, Tensor]:
        """Return the frames, which determine the stage."""
        return {"frames": self._state.frames.clone()}

    def load_progress(self, state_dict: Mapping[str, Tensor]) -> None:
        """Restore the frames, and so the stage: see `Environment.load_progress`."""
        frames = state_dict["frames"]
        check_like(frames, self._state.frames, "the saved frames")
        self._replan(frames.to(self.device, copy=True))


def _last(values: Tensor) -> Tensor:
    """Return `[R, N]` as `[N, R, 1]`."""
    return values.T.unsqueeze(-1)
