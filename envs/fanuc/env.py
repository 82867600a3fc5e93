"""The environment `fanuc` in TorchRL: a batch of arms that reach for their targets."""

import os
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, Composite, Unbounded

from envs.fanuc.arms import Arms
from envs.fanuc.bullet_arms import ARMS_PER_CORE, BULLET_ARM_MEMORY, BulletArms
from envs.fanuc.curriculum import Curriculum
from envs.fanuc.genesis_arms import GENESIS_ARM_MEMORY, GenesisArms
from envs.fanuc.geometry import ArmGeometry
from envs.fanuc.observation import observation_bounds
from envs.fanuc.render import TRAIL_LENGTH, ArmRenderer
from envs.fanuc.robot import NUM_JOINTS, load_robot
from envs.fanuc.simulation import STEP_SECONDS
from envs.fanuc.targets import GRADES, Grade, load_targets
from envs.fanuc.worker_pool import WorkerPool
from envs.genesis import GENESIS_MEMORY, simulator_device
from envs.settings import Device, MaxEpisodeSteps, Mode, NumEnvs, Seed, with_defaults
from torchrl_gpu.arguments import checked
from torchrl_gpu.devices.memory import check_memory
from torchrl_gpu.environments.action_table import single_moves
from torchrl_gpu.environments.capabilities import Capabilities
from torchrl_gpu.environments.environment import DONE_NAMES, Environment
from torchrl_gpu.errors import ConfigurationError

SOLVER_ITERATIONS = {"train": 10, "eval": 50, "demo": 50}

# Fraction of the maximum speed at which a discrete action moves its joint: slow enough that the
# flange of an outstretched arm moves less than the diameter of a target (0.03 m) in one step.
DISCRETE_SPEED = 0.3

# Training and evaluation use separate targets.
TARGET_SEEDS = {"train": 0, "eval": 1, "demo": 1}

CPU = torch.device("cpu")


class FanucEnv(Environment):
    """FANUC LR Mate arms in PyBullet or Genesis; each reaches a target with its flange.

    Actions are joint speeds as fractions of the data sheet's maximum speeds, at 60 Hz.
    `ArmEncoder` documents `observation`. `success` is true if the flange is within
    `success_radius` of the target, which terminates the episode. The time limit truncates it, and
    so does the loss of a worker process, which is replaced. An episode starts near the home posture
    with a reachable target.

    PyBullet simulates the arms in worker processes. A reset only writes to memory; the workers
    apply it at the start of the next step. Trajectories depend on `seed` and the actions alone, not
    on the number of workers. Genesis simulates all arms together on the device of the policy.
    Equal seeds give equal starts and targets in both.

    A discrete action holds still, or moves one joint up or down at 30 % of its maximum speed.

    The modes `eval` and `demo` have no curriculum, and targets absent from training. PyBullet uses
    10 solver iterations in `train` and 50 otherwise, and opens a window in `demo` if there is a
    display.

    Args:
        robot: model of the arm, `lr_mate_200ic` or `lr_mate_200id`.
        urdf: path of the URDF of another arm with six revolute joints in a serial chain; None for
            the arm of `robot`.
        simulator: `pybullet`, on the CPU; or `genesis`, on the device of the policy, with the
            extra `genesis` installed.
        num_workers: number of worker processes of PyBullet; None for one per core.
        max_episode_steps: a step is 1/60 s.
        success_radius: maximum distance in metres from flange to target that counts as success.
        curriculum: train on easy targets first and unlock the next grade when more than 70 % of
            the last 200 episodes succeed; False to draw all grades equally from the start.
        grade_ceiling: hardest grade of targets in every mode, `easy`, `medium` or `hard`.

    Raises:
        ConfigurationError: an argument is out of range or does not belong to the simulator, Genesis
            is not installed, or the URDF cannot be used.
    """

    @checked
    def __init__(
        self,
        *,
        num_envs: NumEnvs = 64,
        robot: Literal["lr_mate_200ic", "lr_mate_200id"] = "lr_mate_200ic",
        urdf: str | None = None,
        simulator: Literal["pybullet", "genesis"] = "pybullet",
        device: Device = "cpu",
        mode: Mode = "train",
        num_workers: Annotated[int, Field(ge=1)] | None = None,
        max_episode_steps: MaxEpisodeSteps = 150,
        success_radius: Annotated[float, Field(gt=0)] = 0.015,
        curriculum: bool = True,
        grade_ceiling: Grade = "hard",
        seed: Seed = 0,
    ) -> None:
        settings = {"num_envs": num_envs, "simulator": simulator}
        self.capabilities = self.capabilities_of(settings, torch.device(device))
        if simulator == "genesis" and num_workers is not None:
            raise ConfigurationError(
                f"env.num_workers={num_workers}: env.simulator=genesis has no worker processes; "
                "env.num_workers=null"
            )
        self.robot = load_robot(robot, urdf)
        check_memory(
            self.capabilities.memory,
            num_envs,
            self.capabilities.simulator_device or CPU,
            setting="env.num_envs",
            purpose={"pybullet": "PyBullet", "genesis": "Genesis"}[simulator],
            announce=False,
        )
        bank = load_targets(self.robot, TARGET_SEEDS[mode])
        self._arms: Arms
        self._pool: WorkerPool | None = None
        if simulator == "genesis":
            self._arms = GenesisArms(self.robot, num_envs, torch.device(device))
        else:
            has_display = sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY"))
            window = mode == "demo" and has_display
            iterations = SOLVER_ITERATIONS[mode]
            self._pool = WorkerPool(self.robot.urdf, num_envs, num_workers, iterations, window)
            self._arms = BulletArms(self.robot, self._pool)
        super().__init__(device=self._arms.device, batch_size=[num_envs])
        self.simulator = simulator
        self.max_episode_steps = max_episode_steps
        self.success_radius = success_radius
        self._shoulder = torch.tensor(self.robot.shoulder, dtype=torch.float32, device=self.device)
        self._starts = bank.starts.to(self.device)
        self._targets = bank.positions.to(self.device) - self._shoulder
        ceiling = GRADES.index(grade_ceiling)
        climbs = curriculum and mode == "train"
        self._curriculum = Curriculum(ceiling, level=0 if climbs else ceiling)
        self._generator = torch.Generator().manual_seed(seed)
        self._geometry = ArmGeometry(self.robot, self.device)
        self._renderer: ArmRenderer | None = None
        self._trail: deque[list[float]] = deque(maxlen=TRAIL_LENGTH)
        self._last_rendered = (0, 0)
        self._make_specs(num_envs)

    def _make_specs(self, num_envs: int) -> None:
        low, high = (
            torch.from_numpy(x).to(self.device).expand(num_envs, -1) for x in observation_bounds()
        )
        self.observation_spec = Composite(
            observation=Bounded(low, high), success=self._spec_of_flag(1), shape=(num_envs,)
        )
        self.action_spec = Bounded(
            -1.0, 1.0, shape=(num_envs, NUM_JOINTS), dtype=torch.float32, device=self.device
        )
        # TorchRL's transforms of rewards ask for a spec without bounds.
        self.reward_spec = Unbounded((num_envs, 1), dtype=torch.float32, device=self.device)
        self.full_done_spec = self._spec_of_dones()
        self._no = torch.zeros(num_envs, 1, dtype=torch.bool, device=self.device)

    @classmethod
    def capabilities_of(cls, settings: Mapping[str, Any], device: torch.device) -> Capabilities:
        """Return the capabilities of an environment: see `Environment.capabilities_of`."""
        settings = with_defaults(FanucEnv, settings)
        capabilities = Capabilities(
            discrete_actions=single_moves(NUM_JOINTS, (DISCRETE_SPEED, -DISCRETE_SPEED)),
            step_seconds=STEP_SECONDS,
            units={"action": "fraction of the maximum speed of each joint"},
            can_render=True,
            has_state=True,
            # More arms than in training would share the same cores and finish no sooner.
            max_evaluation_envs=settings["num_envs"],
        )
        if settings["simulator"] == "genesis":
            return replace(
                capabilities,
                simulator_device=simulator_device(device),
                fixed_memory=GENESIS_MEMORY,
                env_memory=GENESIS_ARM_MEMORY,
            )
        return replace(
            capabilities,
            can_overlap=True,
            simulator_device=CPU,
            envs_per_core=ARMS_PER_CORE,
            env_memory=BULLET_ARM_MEMORY,
        )

    def begin_step(self, tensordict: TensorDictBase) -> None:
        """Let the workers of PyBullet begin a step: see `Environment.begin_step`."""
        self._arms.begin_step(tensordict.get("action"))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict.get("action")
        judgement = self._arms.step(action, self.max_episode_steps, self.success_radius)
        if not judgement.interrupted:
            self._curriculum.record(judgement.success, judgement.done)
        return self._batch(
            {
                "observation": self._arms.observation,
                "success": judgement.success,
                "reward": judgement.reward,
                "terminated": judgement.success.clone(),
                "truncated": judgement.truncated,
                "done": judgement.done,
            }
        )

    def _root_after(self, after: TensorDictBase) -> TensorDictBase:
        self._restart(after.get("done"))
        return self.observe()

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        self._restart(~self._no if mask is None else mask)
        return self.observe()

    def _restart(self, mask: Tensor) -> None:
        """Start a new episode for some arms, chosen by a mask `[num_envs, 1]`."""
        rows = mask.view(-1).nonzero().view(-1)
        if len(rows):
            num_targets = (self._curriculum.level + 1) * len(self._targets) // len(GRADES)
            starts = self._starts.index_select(0, self._draw(len(self._starts), len(rows)))
            targets = self._targets.index_select(0, self._draw(num_targets, len(rows)))
            self._arms.place(rows, starts, targets)

    def _draw(self, below: int, count: int) -> Tensor:
        return torch.randint(below, (count,), generator=self._generator).to(self.device)

    def observe(self) -> TensorDict:
        """Return the current observations as a reset would, for instance after loading a state.

        Returns:
            TensorDict `[*B]` with `observation`; `success` and the done keys are false.
        """
        flags = dict.fromkeys(("success", *DONE_NAMES), self._no)
        return self._batch({"observation": self._arms.observation, **flags})

    def _set_seed(self, seed: int | None) -> None:
        self._generator.manual_seed(0 if seed is None else seed)

    @property
    def joint_positions(self) -> Tensor:
        """Joint angles `[num_envs, 6]`, rad; float64 in PyBullet, float32 in Genesis."""
        return self._arms.state[:, 0].clone()

    @property
    def joint_velocities(self) -> Tensor:
        """Joint speeds `[num_envs, 6]`, rad/s; float64 in PyBullet, float32 in Genesis."""
        return self._arms.state[:, 1].clone()

    @property
    def flange(self) -> Tensor:
        """Flange positions in the arms' base frames `[num_envs, 3]`, float32, metres."""
        return self._geometry.flange(self.joint_positions)

    @property
    def target(self) -> Tensor:
        """Target positions in the arms' base frames `[num_envs, 3]`, float32, metres."""
        return self._arms.target + self._shoulder

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers; empty in Genesis."""
        return [] if self._pool is None else self._pool.pids

    def metrics(self) -> dict[str, float]:
        """Return the index of the hardest unlocked grade of targets, 0 for easy."""
        return {"curriculum/grade": float(self._curriculum.level)}

    def render(self, index: int = 0) -> Tensor:
        """Draw one arm, its target and the recent trail of its flange, `[480, 640, 3]`, uint8."""
        if self._renderer is None:
            self._renderer = ArmRenderer(self.robot, target_radius=self.success_radius)
        # Another arm or a new episode starts a new trail.
        now = (index, int(self._arms.steps[index, 0]))
        if now <= self._last_rendered or index != self._last_rendered[0]:
            self._trail.clear()
        self._last_rendered = now
        self._trail.append(self.flange[index].tolist())
        joints, target = self._arms.state[index, 0].tolist(), self.target[index].tolist()
        return torch.from_numpy(self._renderer.frame(joints, target, self._trail))

    def caption(self, index: int) -> str:
        """Return the distance from flange to target, and whether the target is reached."""
        distance = float(self._arms.distance[index, 0])
        reached = ", reached" if distance < self.success_radius else ""
        return f"distance {1000 * distance:.0f} mm{reached}"

    def measurements(self, index: int) -> dict[str, float]:
        """Return the distance from flange to target in millimetres."""
        return {"distance [mm]": 1000 * float(self._arms.distance[index, 0])}

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Return the complete state of the environment as tensors and plain values."""
        return {
            "simulator": self.simulator,
            "arms": self._arms.state_dict(),
            "generator": self._generator.get_state(),
            "curriculum": self._curriculum.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any], *_: Any, **__: Any) -> None:
        """Restore a state; `observe()` then returns the current observations.

        Args:
            state_dict: result of `state_dict()` of an environment with the same simulator and the
                same number of arms.

        Raises:
            ConfigurationError: the state has another number of arms or is of another simulator.
        """
        count = len(state_dict["arms"]["steps"])
        if count != self.num_envs:
            raise ConfigurationError(f"num_envs={self.num_envs}: the saved state has {count} arms")
        simulator = state_dict["simulator"]
        if simulator != self.simulator:
            raise ConfigurationError(
                f"env.simulator={self.simulator}: the saved state is one of "
                f"env.simulator={simulator}"
            )
        self._arms.load_state_dict(state_dict["arms"])
        self._generator.set_state(state_dict["generator"])
        self._curriculum.load_state_dict(state_dict["curriculum"])

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the renderer and the simulator; may be called again."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
        self._arms.close()
        super().close(raise_if_closed=False)
