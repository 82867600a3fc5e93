"""The environment `fanuc` in TorchRL: a batch of arms that reach for their targets."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Final, Literal

import numpy as np
import torch
from pydantic import Field
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Bounded

from envs.arm_env import ArmEnv
from envs.fanuc.arms import Arms
from envs.fanuc.bullet_arms import BulletArms
from envs.fanuc.capabilities import arm_capabilities
from envs.fanuc.curriculum import Curriculum
from envs.fanuc.genesis_arms import GenesisArms
from envs.fanuc.observation import observation_bounds
from envs.fanuc.reach import Reach
from envs.fanuc.render import TARGET, ArmRenderer, body_names
from envs.fanuc.reward import Goal
from envs.fanuc.robot import BAR_RADIUS, CONTROL_RATE, load_robot
from envs.fanuc.starts import Starts
from envs.fanuc.targets import GRADES, MIN_CLEARANCE, Grade, home_of, load_targets
from envs.fanuc.worker_pool import WorkerPool
from envs.settings import Device, MaxEpisodeSteps, Mode, NumEnvs, Seed, StepTimeout, with_defaults
from envs.streams import seed_streams, streams_of
from torchrl_gpu.arguments import checked
from torchrl_gpu.checkpoints.contents import check_like
from torchrl_gpu.devices.memory import check_memory
from torchrl_gpu.environments.capabilities import Capabilities
from torchrl_gpu.environments.environment import STEP_TIMEOUT
from torchrl_gpu.environments.scene import Pose, Scene
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.processes import Processes

SOLVER_ITERATIONS = {"train": 10, "eval": 50, "demo": 50}

# Training and evaluation use separate targets.
TARGET_SEEDS = {"train": 0, "eval": 1, "demo": 1}

# Defaults that are compared with, because other values need `urdf=None` or `success="hold"`: the
# arm, and the number of steps and the speed in m/s of a tool at rest.
_ROBOT: Final = "lr_mate_200ic"
_HOLD: Final = (10, 0.05)

# At the first, targets are reached in time although joints move one after the other. At the second,
# the tool of an outstretched arm cannot step over a target, 0.03 m wide.
_DISCRETE_SPEEDS: Final = (1.0, 0.2)

_Positive = Annotated[float, Field(gt=0)]
_Speeds = Annotated[Sequence[Annotated[float, Field(gt=0, le=1)]], Field(min_length=1)]


class FanucEnv(ArmEnv):
    """FANUC LR Mate or other arms in PyBullet or Genesis; each reaches a target with its tool.

    Actions are joint speeds as fractions of the URDF's maximum speeds. `ArmEncoder` documents
    `observation`. `success` is true if the tool is within `success_radius` of the target, and for
    `success=hold` has rested there, which terminates the episode. The time limit truncates it, and
    so does the loss of a worker process that dies or hangs, which is replaced. An episode starts
    near the home posture with a reachable target.

    PyBullet simulates the arms in worker processes. A reset only writes to memory; the workers
    apply it at the start of the next step. Trajectories depend on `seed` and the actions alone, not
    on the number of workers. Genesis simulates all arms together on the device of the policy.
    Equal seeds give equal starts and targets in both.

    The modes `eval` and `demo` have no curriculum, and targets absent from training. PyBullet uses
    10 solver iterations in `train` and 50 otherwise, and opens a window in `demo` if there is a
    display.

    Args:
        robot: model of the arm, `lr_mate_200ic` or `lr_mate_200id`.
        urdf: path of the URDF of another arm with 4 to 8 revolute joints in a serial chain; one
            that does not exist is looked up among the files that come with PyBullet. None for the
            arm of `robot`.
        tool: link whose frame reaches the targets, fixed to the last joint's link; None for that
            link itself, the flange.
        home: joint angles near which episodes start, rad; None for the posture of the LR Mate, and
            for another arm the most manipulable of 1,000 random postures.
        bar_radius: radius in metres of the capsules that stand for meshes and boxes where targets
            and starts are checked for collisions.
        simulator: `pybullet`, on the CPU; or `genesis`, on the device of the policy, with the
            extra `genesis` installed.
        num_workers: number of worker processes of PyBullet; None for one per core.
        window: open a window in mode `demo`, if there is a display.
        control_rate: number of steps per second, Hz.
        max_episode_steps: a step lasts 1 / `control_rate`.
        success_radius: maximum distance in metres from tool to target that counts as success.
        success: condition of success: `reach`, the tool is within the radius once; or `hold`, it
            stays within the radius below `hold_speed` for `hold_steps` steps.
        hold_steps: number of consecutive steps of `success=hold`.
        hold_speed: maximum speed of the tool for `success=hold`, in m/s.
        curriculum: train on easy targets first and unlock the next grade when more than 70 % of
            the last 200 episodes succeed; False to draw all grades equally from the start.
        grade_ceiling: hardest grade of targets in every mode, `easy`, `medium` or `hard`.
        target_noise: maximum random displacement of each target in metres; the target remains
            reachable.
        discrete_speeds: speeds of the discrete actions, which hold still or move one joint up or
            down, as fractions of its maximum speed at 60 Hz; at another rate, a step turns the
            joint by the same angle, or by less at its maximum speed.

    Raises:
        ConfigurationError: an argument is out of range or does not belong to the simulator, Genesis
            is not installed, or the URDF cannot be used.
    """

    counters = frozenset({"workers/lost_episodes"})

    @classmethod
    def check_combination(cls, settings: Mapping[str, Any]) -> None:
        """Refuse settings that exclude or need each other: see `Environment`."""
        robot, urdf, workers = (settings[name] for name in ("robot", "urdf", "num_workers"))
        if urdf is not None and robot != _ROBOT:
            raise ConfigurationError(
                f"env.robot={robot}, env.urdf={urdf}: both name an arm; set one"
            )
        for name, usual in zip(("hold_steps", "hold_speed"), _HOLD, strict=True):
            if settings["success"] == "reach" and settings[name] != usual:
                raise ConfigurationError(
                    f"env.{name}={settings[name]}: without effect; add env.success=hold"
                )
        hold, longest = settings["hold_steps"], settings["max_episode_steps"]
        if settings["success"] == "hold" and hold > longest:
            raise ConfigurationError(
                f"env.hold_steps={hold}: an episode has only env.max_episode_steps={longest}"
            )
        if settings["simulator"] == "genesis" and workers is not None:
            raise ConfigurationError(
                f"env.num_workers={workers}: env.simulator=genesis has no worker processes; "
                "env.num_workers=null"
            )

    @checked
    def __init__(
        self,
        *,
        num_envs: NumEnvs = 64,
        robot: Literal["lr_mate_200ic", "lr_mate_200id"] = _ROBOT,
        urdf: Annotated[str, Field(min_length=1)] | None = None,
        tool: str | None = None,
        home: Sequence[float] | None = None,
        bar_radius: _Positive = BAR_RADIUS,
        simulator: Literal["pybullet", "genesis"] = "pybullet",
        device: Device = "cpu",
        mode: Mode = "train",
        num_workers: Annotated[int, Field(ge=1)] | None = None,
        window: bool = True,
        control_rate: Annotated[float, Field(ge=1, le=1000)] = CONTROL_RATE,
        max_episode_steps: MaxEpisodeSteps = 150,
        success_radius: _Positive = 0.015,
        success: Literal["reach", "hold"] = "reach",
        hold_steps: Annotated[int, Field(ge=1)] = _HOLD[0],
        hold_speed: _Positive = _HOLD[1],
        curriculum: bool = True,
        grade_ceiling: Grade = "hard",
        target_noise: Annotated[float, Field(ge=0, le=MIN_CLEARANCE / 2)] = 0.0,
        discrete_speeds: _Speeds = _DISCRETE_SPEEDS,
        step_timeout: StepTimeout = STEP_TIMEOUT,
        seed: Seed = 0,
    ) -> None:
        FanucEnv.check_combination(locals())
        self.capabilities = self.capabilities_of(locals(), torch.device(device))
        self.robot = load_robot(robot, urdf, tool, bar_radius)
        home = home_of(self.robot, home)
        check_memory(
            self.capabilities.memory,
            num_envs,
            self.capabilities.simulator_device or torch.device("cpu"),
            setting="env.num_envs",
            purpose={"pybullet": "PyBullet", "genesis": "Genesis"}[simulator],
        )
        bank = load_targets(self.robot, TARGET_SEEDS[mode], home=home)
        holds = (hold_steps, hold_speed) if success == "hold" else ()
        goal = Goal(success_radius, *holds)
        self._arms: Arms
        self._pool: WorkerPool | None = None
        if simulator == "genesis":
            self._arms = GenesisArms(self.robot, num_envs, torch.device(device), goal, control_rate)
        else:
            self._pool = WorkerPool(
                self.robot,
                num_envs,
                num_workers,
                SOLVER_ITERATIONS[mode],
                window and mode == "demo",
                control_rate,
                step_timeout,
            )
            self._arms = BulletArms(self.robot, self._pool, goal)
        super().__init__(device=self._arms.device, batch_size=[num_envs])
        self.stall_seconds = step_timeout if self._pool is None else None
        self.simulator = simulator
        self.max_episode_steps = max_episode_steps
        self.success_radius = success_radius
        self._shoulder = torch.tensor(self.robot.shoulder, dtype=torch.float32, device=self.device)
        ceiling = GRADES.index(grade_ceiling)
        climbs = curriculum and mode == "train"
        self._curriculum = Curriculum(ceiling, 0 if climbs else ceiling, self.device)
        self._climbs = climbs and ceiling > 0
        streams = seed_streams(seed, num_envs, self.device)
        self._geometry = self._arms.geometry
        self._starts = Starts(self._geometry, bank, self._curriculum, target_noise, streams)
        low, high = (
            torch.from_numpy(x).to(self.device).expand(num_envs, -1)
            for x in observation_bounds(self.robot)
        )
        self._make_specs(self.robot.num_joints, Bounded(low, high))

    @classmethod
    def capabilities_of(cls, settings: Mapping[str, Any], device: torch.device) -> Capabilities:
        """Return the capabilities of an environment: see `Environment.capabilities_of`."""
        return arm_capabilities(with_defaults(FanucEnv, settings), device)

    def join(self, processes: Processes) -> None:
        """Share the curriculum with other processes: see `Environment.join`."""
        super().join(processes)
        self._curriculum.processes = processes

    def begin_step(self, tensordict: TensorDictBase) -> None:
        """Let the workers of PyBullet begin a step: see `Environment.begin_step`."""
        self._arms.begin_step(tensordict.get("action"))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict.get("action")
        judgement = self._arms.step(action, self.max_episode_steps)
        if self._climbs:
            # Exploration disturbs holding: an episode that ends at its target counts.
            near = self._arms.distance < self.success_radius
            ended = self._no if judgement.interrupted else judgement.done
            self._curriculum.record(near, ended)
        return self._after_step(*judgement[:4])

    def _observations(self) -> dict[str, Tensor]:
        return {"observation": self._arms.observation}

    def set_idle(self, mask: Tensor) -> None:
        """Let the workers of PyBullet leave arms out: see `Environment.set_idle`."""
        self._arms.set_idle(mask)

    def _restart(self, mask: Tensor) -> None:
        angles, target = self._starts.draw(mask)
        self._arms.place(mask, angles, target - self._shoulder)

    def is_reachable(self, position: Tensor) -> Tensor:
        """Return whether the tool can reach positions: see `Reach.is_reachable`."""
        return self._reach.is_reachable(position.to(self.device))

    @cached_property
    def _reach(self) -> Reach:
        return Reach(self._geometry, self._starts.joints)

    def set_target(self, position: Tensor) -> None:
        """Give all arms other targets until their next episodes.

        Args:
            position: target positions in the base frame `[num_envs, 3]`, or one for all `[3]`,
                metres.

        Raises:
            ConfigurationError: a position is out of reach, or the tensor has another shape.
        """
        if position.shape not in ((3,), (self.num_envs, 3)):
            raise ConfigurationError(
                f"position: its shape is {list(position.shape)}; give [3] or [{self.num_envs}, 3]"
            )
        position = position.to(self._shoulder).expand(self.num_envs, 3)
        self._reach.check(position)
        self._arms.aim(~self._no, position - self._shoulder)

    def _set_seed(self, seed: int | None) -> None:
        self._starts.streams = seed_streams(seed or 0, self.num_envs, self.device)

    def set_seeds(self, seeds: Sequence[int]) -> None:
        """Seed each arm: see `Environment.set_seeds`."""
        self._starts.streams = streams_of(seeds, self.device)

    @property
    def joint_positions(self) -> Tensor:
        """Joint angles `[num_envs, N]`, rad; float64 in PyBullet, float32 in Genesis."""
        return self._arms.state[:, 0].clone()

    @property
    def joint_velocities(self) -> Tensor:
        """Joint speeds `[num_envs, N]`, rad/s; float64 in PyBullet, float32 in Genesis."""
        return self._arms.state[:, 1].clone()

    @property
    def tool_position(self) -> Tensor:
        """Tool positions in the arms' base frames `[num_envs, 3]`, float32, metres."""
        return self._geometry.position(self.joint_positions)

    @property
    def target(self) -> Tensor:
        """Target positions in the arms' base frames `[num_envs, 3]`, float32, metres."""
        return self._arms.target + self._shoulder

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers; empty in Genesis."""
        return [] if self._pool is None else self._pool.pids

    def metrics(self) -> dict[str, float | Tensor]:
        """Return the hardest unlocked grade of targets, and the episodes of lost workers."""
        metrics: dict[str, float | Tensor] = {"curriculum/grade": self._curriculum.level}
        if self._pool is not None:
            metrics["workers/lost_episodes"] = self._pool.lost_episodes
            self._pool.lost_episodes = 0
        return metrics

    def render(self, index: int = 0) -> Tensor:
        """Draw one arm, its target and the recent trail of its tool, `[480, 640, 3]`, uint8.

        Raises:
            ConfigurationError: there is no arm of this index.
        """
        index = self._checked_index(index)
        joints, tool, target = self._arms.state[:, 0], self.tool_position, self.target
        posture = (values[index].tolist() for values in (joints, target, tool))
        frame = self._renderer.follow(index, int(self._arms.steps[index, 0]), *posture)
        return torch.from_numpy(frame)

    def scene(self) -> Scene:
        """Return the scene of one arm and its target."""
        return self._renderer.scene(self._poses)

    def _poses(self, index: int) -> dict[str, Pose]:
        joints = self._geometry.relative_frames(self._arms.state[index, 0])[0].cpu().numpy()
        target = np.eye(4, dtype=np.float32)
        target[:3, 3] = self.target[index].cpu()
        return {TARGET: target, **dict(zip(body_names(self.robot), joints, strict=True))}

    @cached_property
    def _renderer(self) -> ArmRenderer:
        return ArmRenderer(self.robot, target_radius=self.success_radius)

    def caption(self, index: int) -> str:
        """Return the distance from tool to target, and whether the target is reached."""
        distance = float(self._arms.distance[index, 0])
        reached = ", reached" if distance < self.success_radius else ""
        return f"distance {1000 * distance:.0f} mm{reached}"

    def reward_terms(self, index: int) -> dict[str, float]:
        """Return the terms of the last reward: see `judge`."""
        terms = self._arms.terms.items()
        return {n: float(torch.as_tensor(x).expand(self.num_envs, 1)[index]) for n, x in terms}

    def measurements(self, index: int) -> dict[str, float]:
        """Return the distance from tool to target in millimetres."""
        return {"distance [mm]": 1000 * float(self._arms.distance[index, 0])}

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Return the complete state of the environment as tensors and plain values."""
        return {
            "simulator": self.simulator,
            "robot": self.robot.fingerprint,
            "arms": self._arms.state_dict(),
            "streams": self._starts.streams,
            "curriculum": self._curriculum.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any], *_: Any, **__: Any) -> None:
        """Restore a state; `observe()` then returns the current observations.

        Raises:
            ConfigurationError: the state is one of another number of arms, another simulator or
                another arm.
        """
        count = len(state_dict["arms"]["steps"])
        if count != self.num_envs:
            raise ConfigurationError(
                f"env.num_envs={self.num_envs}: the saved state has {count} arms"
            )
        simulator = state_dict["simulator"]
        if simulator != self.simulator:
            raise ConfigurationError(
                f"env.simulator={self.simulator}: the saved state is one of "
                f"env.simulator={simulator}"
            )
        if state_dict["robot"] != self.robot.fingerprint:
            raise ConfigurationError(f"{self.robot.urdf}: the saved state is of another arm")
        check_like(state_dict, self.state_dict(), "the saved state of the arms")
        self._arms.load_state_dict(state_dict["arms"])
        self._starts.streams = state_dict["streams"].to(self.device)
        self._curriculum.load_state_dict(state_dict["curriculum"])

    def progress(self) -> dict[str, Any]:
        """Return the state of the curriculum."""
        return {"curriculum": self._curriculum.state_dict()}

    def load_progress(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the curriculum: see `Environment.load_progress`."""
        self._curriculum.load_state_dict(state_dict["curriculum"])

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the renderer and the simulator; may be called again."""
        if (renderer := self.__dict__.pop("_renderer", None)) is not None:
            renderer.close()
        self._arms.close()
        super().close(raise_if_closed=False)
