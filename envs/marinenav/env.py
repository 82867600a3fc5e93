"""The world `marinenav` as TorchRL sees it: many seas, in each a few vessels on their ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from envs.marinenav.actions import discrete_actions
from envs.marinenav.curriculum import PAPER_STAGES, Schedule, Stage, check_stages
from envs.marinenav.layout import Size
from envs.marinenav.noise import make_noise, seed_streams
from envs.marinenav.perception import View
from envs.marinenav.physics import STEP_SECONDS
from envs.marinenav.render import SeaRenderer
from envs.marinenav.scale import Limits, drawn_limits, given_limits, make_units
from envs.marinenav.scenario import Scenario, check_scenarios, to_sea
from envs.marinenav.sea import Outcome, Sea
from envs.marinenav.specs import GROUP, make_specs
from envs.marinenav.world import ScenarioSimulator, Simulator, World, flatten, unflatten
from torchrl_gpu.arguments import checked
from torchrl_gpu.environments.environment import Environment
from torchrl_gpu.errors import ConfigurationError

MAX_STEPS = 1001  # of an episode, 500.5 s

Dtype = Annotated[
    Literal["float32", "float64"], BeforeValidator(lambda name: str(name).removeprefix("torch."))
]
TensorStep = Callable[[World, Tensor], tuple[World, Outcome, View]]


class MarineNavEnv(Environment):
    """Surface vehicles in seas with vortices and buoys, each to its own goal, by its own sensing.

    Everything happens in tensors on the device, all seas at once. Robots are the group `robots` of
    TorchRL's multi-agent convention, `[num_envs, num_robots, ...]`:

    * `action` `[2]`: thrust rates of the left and right propeller as shares of 1,000 N/s.
    * `observation` `[7]`: goal x, y and velocity over ground x, y in the body frame, yaw rate, left
      and right thrust. `objects` `[5, 5]`: x, y, velocity x, y and radius of the nearest things
      within 20 m, nearest first, with `objects_mask` `[5]`.
    * `reward` `[1]`: -0.1, plus the metres nearer to the goal, minus 0.1 phi where the collision
      regulations ask for a turn by phi, minus 5 for a collision, plus 10 at the goal.
    * `terminated`, `truncated`, `done`, `success` `[1]`: whether the robot's way has ended, by a
      collision or at the goal; by the time limit; either; at the goal. They stay.
    * `active` `[1]`: whether the robot moves; only from where this is true a step is a transition.

    The root has `done`, `terminated`, `truncated` and `success` of the whole sea, `[num_envs, 1]`:
    an episode ends with the way of the last robot, or with its time. `step_and_maybe_reset` then
    begins the next one without the host knowing; `next` holds the true last observation.

    Row 5 i + j of `discrete_actions` `[25, 2]` has the i-th rate left and the j-th right, of 0,
    -500, -1,000, 500 and 1,000 N/s.

    Args:
        num_envs: how many seas, at least 1.
        num_robots: in each sea, at least 1.
        num_obstacles: buoys in each sea.
        num_vortices: in each sea.
        min_start_goal_distance: from each start to its goal, m, at least 0.
        noise: whether sensing errs as in the paper.
        normalize: divide what is observed by the constants of `scale`; otherwise SI units.
        curriculum: in training, begin with `schedule` instead of the numbers above, which are then
            the most there may be.
        schedule: stages as (first frame, robots, obstacles, start-goal distance); None for the
            paper's, over 6 million frames. A frame is a step of one sea.
        max_episode_steps: steps after which an episode is truncated, at least 1.
        compile_step: fuse a step by `torch.compile`, which is built for minutes; for accelerators.
        mode: `train`, or `eval` and `demo`, which know no curriculum.
        dtype: of all values, `float32` or `float64`.
        device: where the seas lie.
        seed: of the seas; the one of number i depends on the seed and i alone.

    Raises:
        ConfigurationError: an argument is out of range, or the map cannot hold what is asked for.
    """

    discrete_actions: Tensor
    step_seconds = STEP_SECONDS
    can_render = True
    renders_several = True
    has_state = True

    @checked
    def __init__(
        self,
        *,
        num_envs: Annotated[int, Field(ge=1)] = 64,
        num_robots: Annotated[int, Field(ge=1, le=32)] = 5,
        num_obstacles: Annotated[int, Field(ge=0, le=64)] = 4,
        num_vortices: Annotated[int, Field(ge=0, le=64)] = 0,
        min_start_goal_distance: Annotated[float, Field(ge=0)] = 40.0,
        noise: bool = True,
        normalize: bool = True,
        curriculum: bool = False,
        schedule: Sequence[tuple[int, int, int, float]] | None = None,
        max_episode_steps: Annotated[int, Field(ge=1)] = MAX_STEPS,
        compile_step: bool = False,
        mode: Literal["train", "eval", "demo"] = "train",
        dtype: Dtype = "float32",
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        size = Size(num_robots, num_vortices, num_obstacles)
        stages: Sequence[Stage] = (Stage(0, num_robots, num_obstacles, min_start_goal_distance),)
        if curriculum and mode == "train":
            stages = PAPER_STAGES if schedule is None else [Stage(*stage) for stage in schedule]
        check_stages(stages, size)
        numbers, place = getattr(torch, dtype), torch.device(device)
        super().__init__(device=place, batch_size=[num_envs])
        self._simulator = Simulator(
            size,
            Schedule(stages, num_vortices, numbers, self.device),
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
        """Return an environment whose seas begin with the states given, each once.

        A sea that has ended stays as it is until it is reset; then it begins the same again.

        Args:
            episodes: one for each sea, in the format of `Scenario`; they may differ in size.
            dtype: of all values, float32 or float64.
            noise: whether sensing errs as in the paper.
            normalize: as in the constructor; SI units, as in the format, unless asked for.
            device: where the seas lie.
            seed: of the noise.

        Raises:
            ConfigurationError: an episode lacks a field or has a wrong one.
        """
        return _ScenarioEnv(
            episodes, dtype=dtype, noise=noise, normalize=normalize, device=device, seed=seed
        )

    def _set_up(self, dtype: torch.dtype, normalize: bool, compile_step: bool, seed: int) -> None:
        self.dtype = dtype
        self.discrete_actions = discrete_actions(dtype, self.device)
        self.units = make_units(normalize, dtype, self.device)
        self._own_factor = 1.0 / self.units.own[:, None, None]
        self._object_factor = 1.0 / self.units.objects[:, None, None, None]
        advance = self._simulator.step
        self._advance = torch.compile(advance, fullgraph=True) if compile_step else advance
        self._world = self._simulator.blank(
            seed_streams(seed, self.num_envs, self.device),
            torch.zeros((), dtype=torch.int64, device=self.device),
        )
        self._has_begun = False
        self._renderer: SeaRenderer | None = None
        specs = make_specs(
            (self.num_envs, self._simulator.size.robots),
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
        self._world, outcome = self._advance(self._world, action)
        sea = outcome.sea
        # The way of a robot ends for good, the time of a sea for all that still move.
        terminated = ~sea.active
        truncated = sea.active & outcome.is_late
        group, whole = self._told(sea, outcome.view)
        group["reward"] = _last(outcome.reward)
        group["terminated"] = _last(terminated)
        group["truncated"] = _last(truncated)
        group["done"] = _last(terminated | truncated)
        all_ended, out_of_time = terminated.all(0), truncated.any(0)
        whole["terminated"] = all_ended.unsqueeze(-1)
        whole["truncated"] = out_of_time.unsqueeze(-1)
        whole["done"] = (all_ended | out_of_time).unsqueeze(-1)
        return self._gather(group, whole)

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Begin new episodes in the seas that are done, without asking whether there are any.

        Args:
            tensordict: `done` `[num_envs, 1]` and what else there is to act upon; is updated.
        """
        self._world = self._simulator.renew(self._world, tensordict.get("done")[:, 0])
        group, whole = self._told_at_start()
        tensordict.get(GROUP).update(group)
        return tensordict.update(whole)

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None or not self._has_begun:
            # The first reset begins all seas, also those that were not asked for.
            self._world = self._simulator.begin(self._world.streams, self._world.frames)
            self._has_begun = True
        else:
            self._world = self._simulator.renew(self._world, mask[:, 0])
        return self.observe()

    def observe(self) -> TensorDict:
        """Return what is seen now, as a reset would: what to act upon after loading a state."""
        return self._gather(*self._told_at_start())

    def _told(self, sea: Sea, view: View) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return what there is to tell of each robot, and what of each sea as a whole."""
        view = self._scaled(view)
        group = {
            "observation": view.own.permute(2, 1, 0),
            "objects": view.objects.permute(3, 2, 1, 0),
            "objects_mask": view.mask.permute(2, 1, 0),
            "active": _last(sea.active),
            "success": _last(sea.reached),
        }
        return group, {"success": (sea.reached | ~sea.exists).all(0).unsqueeze(-1)}

    def _scaled(self, view: View) -> View:
        return View(view.own * self._own_factor, view.objects * self._object_factor, view.mask)

    def _told_at_start(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return `_told` of the present, with nothing done, as after a reset."""
        group, whole = self._told(*self._world.now)
        for told in (group, whole):
            for key in ("terminated", "truncated", "done"):
                told[key] = torch.zeros_like(told["success"])
        return group, whole

    def _gather(self, group: dict[str, Tensor], whole: dict[str, Tensor]) -> TensorDict:
        robots = (self.num_envs, self._simulator.size.robots)
        nested = TensorDict(group, batch_size=robots, device=self.device)
        return TensorDict({GROUP: nested, **whole}, batch_size=(self.num_envs,), device=self.device)

    def _limits(self) -> Limits:
        return drawn_limits(self._simulator.size.vortices)

    def _set_seed(self, seed: int | None) -> None:
        streams = seed_streams(seed or 0, self.num_envs, self.device)
        self._world = self._world._replace(streams=streams)

    @property
    def num_envs(self) -> int:
        """How many seas there are."""
        return self.batch_size[0]

    def state(self) -> Tensor:
        """Return where the robots are, `[num_envs, num_robots, 11]`, SI units.

        The rows are x, y, heading; velocity through the water x, y, yaw, in the world frame;
        velocity over ground x, y, yaw; left and right thrust.
        """
        return self._world.now.sea.motion.permute(2, 1, 0).clone()

    @property
    def sea(self) -> Sea:
        """The state of all seas, the seas in the last dimension; not to be written to."""
        return self._world.now.sea

    def tensor_loop(self) -> tuple[TensorStep, World]:
        """Return the function that steps a world, and the world, to step it without TorchRL.

        The function takes a world and actions `[2, num_robots, num_envs]`, and returns the world
        afterwards, where seas that have ended are at the beginning of their next episodes, what
        came of the actions, in SI units, and what the robots now see, in those of the environment.
        """

        def step(world: World, action: Tensor) -> tuple[World, Outcome, View]:
            world, outcome = self._advance(world, action)
            world = self._simulator.renew(world, outcome.is_over)
            return world, outcome, self._scaled(world.now.view)

        return step, self._world

    def metrics(self) -> dict[str, float]:
        """Return the number of the curriculum's present stage, 0 for the first."""
        stage = self._simulator.schedule.stage(self._world.frames)
        return {"curriculum/stage": float(stage.item())}

    def render(self, index: int | Sequence[int] = 0) -> Tensor:
        """Draw seas from above, north upwards; see `SeaRenderer`.

        Args:
            index: which sea; several are drawn in a grid.

        Returns:
            A picture `[720, 720, 3]`, uint8, a little less high where the grid is not full.
        """
        if self._renderer is None:
            self._renderer = SeaRenderer()
        return self._renderer.draw(self._world.now, index)

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Tensor]:
        """Return everything that the future depends on, as tensors."""
        return {name: tensor.clone() for name, tensor in flatten(self._world).items()}

    def load_state_dict(self, state_dict: Mapping[str, Tensor], *_: Any, **__: Any) -> None:
        """Go on from `state_dict()`; `observe()` then gives what to act upon.

        Args:
            state_dict: of an environment of the same sizes.

        Raises:
            ConfigurationError: it is of another size.
        """
        for name, tensor in flatten(self._world).items():
            other = state_dict.get(name)
            if other is None or other.shape != tensor.shape:
                shape = None if other is None else list(other.shape)
                raise ConfigurationError(
                    f"the state is of another world: {name} is {shape}, not {list(tensor.shape)}"
                )
        self._world = unflatten(self._world, state_dict)
        self._has_begun = True


class _ScenarioEnv(MarineNavEnv):
    """Begins with given states, each once. See `MarineNavEnv.from_scenarios`."""

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


def _last(values: Tensor) -> Tensor:
    """Return `[R, N]` as `[N, R, 1]`."""
    return values.T.unsqueeze(-1)
