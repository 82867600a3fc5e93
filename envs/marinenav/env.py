"""The environment `marinenav` in TorchRL: a batch of seas, each with several vessels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from envs.marinenav.actions import DISCRETE_ACTIONS
from envs.marinenav.curriculum import PAPER_STAGES, Difficulty, Stage, check_stages
from envs.marinenav.noise import make_noise, seed_streams
from envs.marinenav.observations import Entries, Observer
from envs.marinenav.perception import View
from envs.marinenav.physics import STEP_SECONDS
from envs.marinenav.placement import Size
from envs.marinenav.render import SeaRenderer
from envs.marinenav.scale import Limits, Normalize, drawn_limits, given_limits, make_units
from envs.marinenav.scenario import Scenario, check_scenarios, to_sea
from envs.marinenav.sea import Outcome, Sea
from envs.marinenav.simulator import (
    ScenarioSimulator,
    SimulationState,
    Simulator,
    flatten,
    unflatten,
)
from envs.marinenav.specs import DONES, GROUP, make_specs
from envs.settings import Device, MaxEpisodeSteps, Mode, NumEnvs, Seed
from torchrl_gpu.arguments import checked
from torchrl_gpu.environments.capabilities import Capabilities
from torchrl_gpu.environments.environment import Environment
from torchrl_gpu.errors import ConfigurationError

MAX_STEPS = 1001  # of an episode, 500.5 s

# Bytes that each pair of a robot and another object takes in a step, measured on the CPU with 4096
# and 32768 seas of the default size: 330, rounded up.
_PAIR_MEMORY = 512

Dtype = Annotated[
    Literal["float32", "float64"], BeforeValidator(lambda name: str(name).removeprefix("torch."))
]
TensorStep = Callable[[SimulationState, Tensor], tuple[SimulationState, Outcome, View]]


class MarineNavEnv(Environment):
    """Surface vehicles sail to their goals in seas with vortices and buoys, by local sensing.

    All seas are simulated together as tensors on the device, in steps of 0.5 s. Sea i depends on
    the seed and i alone. Robots are the group `robots` of TorchRL's multi-agent convention,
    `[num_envs, num_robots, ...]`:

    * `action` `[2]`: thrust rates of the left and right propeller, -1 to 1, in units of 1,000 N/s.
    * `observation` `[7]`: goal x, y and velocity over ground x, y in the body frame, yaw rate, left
      and right thrust. `objects` `[5, 5]`: x, y, velocity x, y and radius of the 5 nearest robots
      and buoys within 20 m, nearest first, with `objects_mask` `[5]`.
    * `reward` `[1]`: -0.1 per step, plus the metres gained towards the goal, minus 0.1 phi where
      the collision regulations require a turn by phi, minus 5 on collision, plus 10 at the goal.
    * `terminated` `[1]`: the robot has collided, has reached its goal or does not exist;
      `truncated` `[1]`: it ran out of time; `done` `[1]`: either of the two; `success` `[1]`: it
      has reached its goal. Each remains true until the sea is reset.
    * `active` `[1]`: whether the robot moves. A step from an inactive state is not a transition.

    The root has `done`, `terminated`, `truncated` and `success` of the whole sea, `[num_envs, 1]`:
    an episode terminates when no robot is active, and is truncated at the time limit.
    `step_and_maybe_reset` then starts the next episode without reading tensors on the host; `next`
    holds the true last observation.

    Row 5 i + j of `discrete_actions` `[25, 2]` is left thrust rate i and right thrust rate j of 0,
    -500, -1,000, 500 and 1,000 N/s.

    Args:
        num_robots: number of robots per sea, 1 to 32.
        num_obstacles: number of buoys per sea, 0 to 64.
        num_vortices: number of vortices per sea, which cause the current, 0 to 64.
        min_start_goal_distance: minimum distance from each start to its goal in metres, at least 0.
        noise: add the paper's sensor noise to observed objects.
        curriculum: train by the stages of `schedule`; `num_robots` and `num_obstacles` are then
            maxima. Evaluation and demo always use the fixed numbers.
        schedule: curriculum stages, each (first frame, robots, obstacles, minimum start-goal
            distance in metres), by increasing frame from 0; None for the paper's six stages over
            6 million frames.
        mixture: train in all stages of `schedule` at once, whatever their first frames: every other
            sea in the last stage, the rest in turn in the others. It excludes `curriculum`; the
            same maxima hold.
        compile_step: compile the step with `torch.compile`, which takes minutes at the first step
            and pays off on accelerators.
        dtype: floating-point type of the simulation, `float32` or `float64`.

    Raises:
        ConfigurationError: an argument is out of range, or the map has no room for the robots,
            vortices and obstacles.
    """

    @checked
    def __init__(
        self,
        *,
        num_envs: NumEnvs = 64,
        num_robots: Annotated[int, Field(ge=1, le=32)] = 5,
        num_obstacles: Annotated[int, Field(ge=0, le=64)] = 4,
        num_vortices: Annotated[int, Field(ge=0, le=64)] = 0,
        min_start_goal_distance: Annotated[float, Field(ge=0)] = 40.0,
        noise: bool = True,
        normalize: Normalize = True,
        curriculum: bool = False,
        schedule: Sequence[tuple[int, int, int, float]] | None = None,
        mixture: bool = False,
        max_episode_steps: MaxEpisodeSteps = MAX_STEPS,
        compile_step: bool = False,
        mode: Mode = "train",
        dtype: Dtype = "float32",
        device: Device = "cpu",
        seed: Seed = 0,
    ) -> None:
        size = Size(num_robots, num_vortices, num_obstacles)
        stages: Sequence[Stage] = (Stage(0, num_robots, num_obstacles, min_start_goal_distance),)
        if curriculum and mixture:
            raise ConfigurationError(
                "curriculum, mixture: set one; stages follow one another or train all at once"
            )
        if (curriculum or mixture) and mode == "train":
            stages = PAPER_STAGES if schedule is None else [Stage(*stage) for stage in schedule]
        check_stages(stages, size)
        numbers, place = getattr(torch, dtype), torch.device(device)
        super().__init__(device=place, batch_size=[num_envs])
        self._simulator = Simulator(
            size,
            Difficulty(
                stages, num_vortices, numbers, place, mixed_seas=num_envs if mixture else None
            ),
            make_noise(self.device, numbers) if noise else None,
            max_episode_steps,
        )
        self._set_up(numbers, normalize, compile_step, seed)

    @classmethod
    def from_scenarios(
        cls,
        episodes: Sequence[Mapping[str, Any] | Scenario],
        dtype: Any = torch.float32,
        noise: bool = True,
        *,
        normalize: bool = False,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> MarineNavEnv:
        """Return an environment with one sea for each given initial state.

        A sea whose episode has ended stays unchanged until it is reset to the same initial state.

        Args:
            episodes: initial states in the format of `Scenario`, one per sea; sizes may differ.
            dtype: floating-point type of the simulation, float32 or float64.
            noise: add the paper's sensor noise to observed objects.
            normalize: scale observations to order 1; False for SI units.
            device: device of all tensors.
            seed: random seed of the sensor noise.

        Raises:
            ConfigurationError: an episode lacks a field or has a wrong one.
        """
        return _ScenarioEnv(
            episodes, dtype=dtype, noise=noise, normalize=normalize, device=device, seed=seed
        )

    @classmethod
    def capabilities_of(cls, settings: Mapping[str, Any], device: torch.device) -> Capabilities:
        """Return the capabilities of an environment: see `Environment.capabilities_of`."""
        robots: int = settings["num_robots"]
        objects: int = robots + settings["num_obstacles"] + settings["num_vortices"]
        return Capabilities(
            discrete_actions=DISCRETE_ACTIONS,
            step_seconds=STEP_SECONDS,
            can_render=True,
            renders_several=True,
            has_state=True,
            simulator_device=device,
            env_memory=robots * objects * _PAIR_MEMORY,
        )

    def _set_up(self, dtype: torch.dtype, normalize: bool, compile_step: bool, seed: int) -> None:
        self.dtype = dtype
        size = self._simulator.size
        settings = {
            "num_robots": size.robots,
            "num_obstacles": size.obstacles,
            "num_vortices": size.vortices,
        }
        self.capabilities = self.capabilities_of(settings, self.device)
        self.units = make_units(normalize, dtype, self.device)
        self._observer = Observer(self.units)
        advance = self._simulator.step
        self._advance = torch.compile(advance, fullgraph=True) if compile_step else advance
        self._state = self._simulator.blank(
            seed_streams(seed, self.num_envs, self.device),
            torch.zeros((), dtype=torch.int64, device=self.device),
        )
        self._has_begun = False
        self._renderer: SeaRenderer | None = None
        specs = make_specs(
            (self.num_envs, size.robots),
            self._limits(),
            self.units,
            self._simulator.max_steps,
        )
        self.observation_spec = specs.observation
        self.action_spec = specs.action
        self.reward_spec = specs.reward
        self.full_done_spec = specs.done

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict.get((GROUP, "action")).permute(2, 1, 0)
        self._state, outcome = self._advance(self._state, action)
        return self._gather(self._observer.result(outcome))

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Start new episodes in the seas that are done, without reading `done` on the host.

        Args:
            tensordict: `done` `[num_envs, 1]` and the current observations; updated in place.
        """
        return tensordict.update(self._root_after(tensordict))

    def _root_after(self, after: TensorDictBase) -> TensorDictBase:
        self._state = self._simulator.renew(self._state, after.get("done")[:, 0])
        return self.observe()

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None or not self._has_begun:
            # The first reset starts all seas, whatever the mask selects.
            self._state = self._simulator.begin(self._state.streams, self._state.frames)
            self._has_begun = True
        else:
            self._state = self._simulator.renew(self._state, mask[:, 0])
        return self.observe()

    def observe(self) -> TensorDict:
        """Return the current observations as a reset would, for instance after loading a state."""
        observed = self._observer.observe(*self._state.now)
        for entries in observed:
            for key in DONES:
                entries[key] = torch.zeros_like(entries["success"])
        return self._gather(observed)

    def _gather(self, entries: Entries) -> TensorDict:
        group = self._batch(entries.group, self._simulator.size.robots)
        return self._batch({GROUP: group, **entries.whole})

    def _limits(self) -> Limits:
        return drawn_limits(self._simulator.size.vortices)

    def _set_seed(self, seed: int | None) -> None:
        streams = seed_streams(seed or 0, self.num_envs, self.device)
        self._state = self._state._replace(streams=streams)

    @property
    def num_envs(self) -> int:
        """Number of seas."""
        return self.batch_size[0]

    def state(self) -> Tensor:
        """Return the motion of the robots, `[num_envs, num_robots, 11]`, SI units.

        The columns are x, y, heading; velocity through the water x, y, yaw, in the world frame;
        velocity over ground x, y, yaw; left and right thrust.
        """
        return self._state.now.sea.motion.permute(2, 1, 0).clone()

    @property
    def sea(self) -> Sea:
        """State of all seas, read-only; the last dimension is the sea."""
        return self._state.now.sea

    def tensor_loop(self) -> tuple[TensorStep, SimulationState]:
        """Return a pure step function and the current simulation state, to step without TorchRL.

        The function takes the simulation state and actions `[2, num_robots, num_envs]`. It returns
        the next state, in which seas whose episode ended have started the next one; the outcome
        of the actions in SI units; and the observations in the units of the environment.
        """

        def step(state: SimulationState, action: Tensor) -> tuple[SimulationState, Outcome, View]:
            state, outcome = self._advance(state, action)
            state = self._simulator.renew(state, outcome.is_over)
            return state, outcome, self._observer.scaled(state.now.view)

        return step, self._state

    def metrics(self) -> dict[str, Tensor]:
        """Return the index of the current curriculum stage as `curriculum/stage`, int64 `[]`.

        A mixture of stages has no metrics.
        """
        return self._simulator.difficulty.metrics(self._state.frames)

    def render(self, index: int | Sequence[int] = 0) -> Tensor:
        """Draw seas from above, north up; see `SeaRenderer`.

        Args:
            index: index of the sea, or indices of several seas that are drawn in a grid.

        Returns:
            Image `[720, 720, 3]`, uint8; less high for a grid with empty rows.
        """
        if self._renderer is None:
            self._renderer = SeaRenderer()
        return self._renderer.draw(self._state.now, index)

    def caption(self, index: int) -> str:
        """Return the time since the start of the episode, and the number of arrived vessels.

        Args:
            index: index of the sea.
        """
        steps, arrived, vessels = self._progress(index)
        return f"{steps * STEP_SECONDS:.1f} s, {arrived} of {vessels} vessels arrived"

    def measurements(self, index: int) -> dict[str, float]:
        """Return the percentage of the vessels that have reached their goals.

        Args:
            index: index of the sea.
        """
        _, arrived, vessels = self._progress(index)
        return {"vessels arrived [%]": 100 * arrived / vessels}

    def _progress(self, index: int) -> list[int]:
        """Return the steps of the episode, the arrived robots and all robots of one sea."""
        sea = self.sea
        reached, exists = sea.reached[:, index].sum(), sea.exists[:, index].sum()
        return torch.stack([sea.steps[index], reached, exists]).tolist()

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Tensor]:
        """Return the complete state of the simulation as tensors, random generators included."""
        return {name: tensor.clone() for name, tensor in flatten(self._state).items()}

    def load_state_dict(self, state_dict: Mapping[str, Tensor], *_: Any, **__: Any) -> None:
        """Restore a state; `observe()` then returns the current observations.

        Args:
            state_dict: result of `state_dict()` of an environment with the same sizes.

        Raises:
            ConfigurationError: a tensor is missing or has another shape.
        """
        for name, tensor in flatten(self._state).items():
            other = state_dict.get(name)
            if other is None or other.shape != tensor.shape:
                shape = None if other is None else list(other.shape)
                raise ConfigurationError(
                    f"the saved state does not fit this environment: {name} has shape {shape}, "
                    f"not {list(tensor.shape)}"
                )
        self._state = unflatten(self._state, state_dict)
        self._has_begun = True


class _ScenarioEnv(MarineNavEnv):
    """`MarineNavEnv` with given initial states; see `MarineNavEnv.from_scenarios`."""

    @checked
    def __init__(
        self,
        episodes: Sequence[Any],
        *,
        dtype: Dtype,
        noise: bool,
        normalize: bool,
        device: torch.device | str,
        seed: int,
    ) -> None:
        scenarios = check_scenarios(episodes)
        numbers, place = getattr(torch, dtype), torch.device(device)
        super(MarineNavEnv, self).__init__(device=place, batch_size=[len(scenarios)])
        self._first = to_sea(scenarios, numbers, self.device)
        self._simulator = ScenarioSimulator(
            self._first, make_noise(self.device, numbers) if noise else None, MAX_STEPS
        )
        self._set_up(numbers, normalize, compile_step=False, seed=seed)

    def _limits(self) -> Limits:
        return given_limits(self._first)
