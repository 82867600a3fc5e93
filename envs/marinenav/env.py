"""The environment `marinenav`: settings of a batch of seas, each with several vessels."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field

from envs.marinenav.curriculum import PAPER_STAGES, Difficulty, Stage, check_stages
from envs.marinenav.noise import make_noise
from envs.marinenav.placement import Size
from envs.marinenav.scale import Normalize, drawn_bounds, given_bounds, make_units
from envs.marinenav.scenario import check_scenarios, to_sea
from envs.marinenav.sea_env import SeaEnv, sea_capabilities
from envs.marinenav.simulator import ScenarioSimulator, Simulator
from envs.settings import Device, MaxEpisodeSteps, Mode, NumEnvs, Seed, with_defaults
from torchrl_gpu.arguments import checked
from torchrl_gpu.environments.capabilities import Capabilities
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.options import GraphMode

MAX_STEPS = 1001  # of an episode, 500.5 s

Dtype = Annotated[
    Literal["float32", "float64"], BeforeValidator(lambda name: str(name).removeprefix("torch."))
]

Robots = Annotated[int, Field(ge=1, le=32)]
Objects = Annotated[int, Field(ge=0, le=64)]
Distance = Annotated[float, Field(ge=0)]


class MarineNavEnv(SeaEnv):
    """Surface vehicles sail to their goals in seas with vortices and buoys, by local sensing.

    All seas are simulated together as tensors on the device, in steps of 0.5 s. The episodes of sea
    i depend on the seed, i and the actions in it, not on other seas. Robots are the group `robots`
    of TorchRL's multi-agent convention, `[num_envs, num_robots, ...]`:

    * `action` `[2]`: thrust rates of the left and right propeller, -1 to 1, in units of 1,000 N/s;
      values beyond act as the nearest bound.
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
        num_robots: number of robots per sea.
        num_obstacles: number of buoys per sea.
        num_vortices: number of vortices per sea, which cause the current.
        min_start_goal_distance: minimum distance from each start to its goal in metres.
        max_episode_steps: a step is 0.5 s.
        noise: add the paper's sensor noise to observed objects.
        curriculum: train by the stages of `schedule`; `num_robots` and `num_obstacles` are then
            maxima. Evaluation and demo always use the fixed numbers.
        schedule: curriculum stages, each (first frame, robots, obstacles, minimum start-goal
            distance in metres), by increasing frame from 0; None for the paper's six stages over
            6 million frames.
        mixture: train in all stages of `schedule` at once, whatever their first frames: every other
            sea in the last stage, the rest in turn in the others. It excludes `curriculum`; the
            same maxima hold.
        compile_step: compile the step with `torch.compile`, which takes about half a minute, and a
            few seconds when repeated on the same machine; None to compile it in trainings of at
            least 15,000 steps on the CPU, unless `compile=off`. Results agree within rounding.
            Where the compiler fails, a warning is logged and steps run eagerly.
        graphs: `on` replays steps and automatic resets as captured graphs, for which the host
            queues one piece of work instead of hundreds; `off` runs them one operation at a time;
            `auto` for on where that is known to be faster, on cuda.
        dtype: floating-point type of the simulation, `float32` or `float64`.

    Raises:
        ConfigurationError: an argument is out of range, the device cannot capture graphs, the
            memory is insufficient, or the map has no room for the robots, vortices and obstacles.
    """

    @classmethod
    def check_combination(cls, settings: Mapping[str, Any]) -> None:
        """Refuse settings that exclude or need each other: see `Environment`."""
        curriculum, mixture = settings["curriculum"], settings["mixture"]
        if curriculum and mixture:
            raise ConfigurationError(
                "env.curriculum, env.mixture: set one; stages follow one another or train all "
                "at once"
            )
        if (schedule := settings["schedule"]) is not None and not (curriculum or mixture):
            raise ConfigurationError(
                "env.schedule: without effect; add env.curriculum=true or env.mixture=true"
            )
        frames = [0] if schedule is None else [stage[0] for stage in schedule]
        if frames[:1] != [0] or frames != sorted(set(frames)):
            raise ConfigurationError(
                f"env.schedule: first frames must increase from frame 0, not {frames}"
            )

    @checked
    def __init__(
        self,
        *,
        num_envs: NumEnvs = 64,
        num_robots: Robots = 5,
        num_obstacles: Objects = 4,
        num_vortices: Objects = 0,
        min_start_goal_distance: Distance = 40.0,
        noise: bool = True,
        normalize: Normalize = True,
        curriculum: bool = False,
        schedule: Sequence[tuple[int, Robots, Objects, Distance]] | None = None,
        mixture: bool = False,
        max_episode_steps: MaxEpisodeSteps = MAX_STEPS,
        compile_step: bool | None = None,
        graphs: GraphMode = "auto",
        mode: Mode = "train",
        dtype: Dtype = "float32",
        device: Device = "cpu",
        seed: Seed = 0,
    ) -> None:
        size = Size(num_robots, num_vortices, num_obstacles)
        stages: Sequence[Stage] = (Stage(0, num_robots, num_obstacles, min_start_goal_distance),)
        MarineNavEnv.check_combination(locals())
        if (curriculum or mixture) and mode == "train":
            stages = PAPER_STAGES if schedule is None else [Stage(*stage) for stage in schedule]
        check_stages(stages, size)
        numbers, place = getattr(torch, dtype), torch.device(device)
        difficulty = Difficulty(
            stages, num_vortices, numbers, place, mixed_seas=num_envs if mixture else None
        )
        sensor_noise = make_noise(place, numbers) if noise else None
        super().__init__(
            Simulator(size, difficulty, sensor_noise, max_episode_steps),
            drawn_bounds(num_vortices, max_episode_steps),
            make_units(normalize, numbers, place),
            num_envs=num_envs,
            seed=seed,
            compile_step=compile_step,
            graphs=graphs,
        )

    @classmethod
    def capabilities_of(cls, settings: Mapping[str, Any], device: torch.device) -> Capabilities:
        """Return the capabilities of an environment: see `Environment.capabilities_of`."""
        settings = with_defaults(MarineNavEnv, settings)
        kinds = ("num_robots", "num_vortices", "num_obstacles")
        dtype = getattr(torch, settings["dtype"])
        units = make_units(settings["normalize"], dtype, torch.device("cpu"))
        return sea_capabilities(Size(*(settings[kind] for kind in kinds)), device, units)

    @staticmethod
    @checked
    def from_scenarios(
        episodes: Sequence[Any],
        dtype: Dtype = "float32",
        noise: bool = True,
        *,
        normalize: bool = False,
        device: Device = "cpu",
        seed: int = 0,
    ) -> SeaEnv:
        """Return an environment with one sea for each given initial state.

        A sea whose episode has ended stays unchanged until it is reset to the same initial state.
        The episodes have the format of `Scenario`; their sizes may differ. The other arguments are
        those of the class; `seed` determines the sensor noise alone.

        Raises:
            ConfigurationError: an episode lacks a field or has a wrong one.
        """
        scenarios = check_scenarios(episodes)
        numbers, place = getattr(torch, dtype), torch.device(device)
        first = to_sea(scenarios, numbers, place)
        sensor_noise = make_noise(place, numbers) if noise else None
        return SeaEnv(
            ScenarioSimulator(first, sensor_noise, MAX_STEPS),
            given_bounds(first, MAX_STEPS),
            make_units(normalize, numbers, place),
            num_envs=len(scenarios),
            seed=seed,
        )
