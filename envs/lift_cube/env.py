"""The environment `lift_cube`: an arm lifts a cube from the floor, simulated in Genesis."""

import logging
from collections.abc import Mapping
from typing import Annotated, Any, Final

import torch
from pydantic import Field
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn import functional as F
from torchrl.data import Bounded, TensorSpec, Unbounded

from envs.arm_env import ArmEnv
from envs.genesis import GENESIS_MEMORY, simulator_device
from envs.lift_cube.arm import PANDA, Arm
from envs.lift_cube.camera import WristCamera, choose, refuse_unseen
from envs.lift_cube.episodes import Episodes
from envs.lift_cube.images import WristImages
from envs.lift_cube.observation import SceneEncoder, observation_elements
from envs.lift_cube.simulation import STEP_SECONDS, Simulation, environment_memory
from envs.lift_cube.starts import Starts, check_cube_range, draw_sizes
from envs.lift_cube.task import Judge, Task
from envs.settings import Device, MaxEpisodeSteps, Mode, NumEnvs, Seed, with_defaults
from torchrl_gpu.arguments import Range, checked
from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.environments.action_table import single_moves
from torchrl_gpu.environments.capabilities import Capabilities, Element
from torchrl_gpu.errors import ConfigurationError

logger = logging.getLogger(__name__)

STEP_LENGTH: Final = 0.02  # m, maximum move of the target of the grip point in one step
WRIST_CAMERA = WristCamera()
REACH_TOLERANCE, TILT_TOLERANCE = 1e-3, 0.02  # m, rad; of `is_reachable`
_UNCHANGED = (1.0, 1.0)
_ACTION: Final = (
    *(Element(f"move of the grip point's target {axis}", "m", STEP_LENGTH) for axis in "xyz"),
    Element("opening of the gripper, -1 closed to 1 open"),
)
# Discrete actions: rows 0 to 6 hold still or move half a step along x, y or z with the gripper
# open; rows 7 to 13 do the same with the gripper closed.
_STEPS: Final = single_moves(3, (0.5, -0.5))
_MOVES: Final = tuple((*step, gripper) for gripper in (1.0, -1.0) for step in _STEPS)


class LiftCubeEnv(ArmEnv):
    """An arm with a gripper reaches a cube on the floor, grasps it and lifts it by 6.5 cm.

    An action `[4]` in [-1, 1] moves the target of the grip point by up to 2 cm along x, y and z,
    within the workspace, and sets the opening of the gripper (-1 closed, 1 open). Inverse
    kinematics keeps the hand pointing down. A step takes 20 ms. An episode ends with success, or is
    truncated. Genesis simulates on the device of the policy if it has a backend for it, else on the
    CPU.

    Args:
        task: `lift`, or `reach` to touch the cube only.
        pixels: observe images of a camera at the wrist, stacked by `frame_stack`, instead of the
            position of the cube.
        frame_stack: number of last images that the agent observes together; the first image of an
            episode fills the stack; more than 1 needs `pixels`.
        arm: description of the arm.
        camera: description of the camera at the wrist; without `pixels` it appears only
            in films.
        curriculum: share of the training episodes that start with the open gripper around the cube.
        cube_range: maximum distance of the cube from the centre of the workspace at the start,
            along x and along y, in metres.
        joint_noise: maximum random offset of each joint angle at the start, in rad.
        size: lowest and highest edge length of the cube as multiples of 3 cm, above 0. Genesis
            cannot change sizes: at most 8 are drawn from the seed when the scene is built, and each
            environment keeps its own.
        friction: lowest and highest friction of the cube as multiples of 0.5, drawn for each
            episode, above 0.
        mass: lowest and highest mass of the cube as multiples of 30 g, drawn for each episode,
            above 0.
        show_viewer: open a window that shows the simulation.

    Attributes:
        simulation: simulated scene.

    Raises:
        ConfigurationError: an argument is out of range, Genesis is not installed, or the arm cannot
            be used.
    """

    @classmethod
    def check_combination(cls, settings: Mapping[str, Any]) -> None:
        """Refuse settings that exclude or need each other: see `Environment`."""
        if (frames := settings["frame_stack"]) > 1 and not settings["pixels"]:
            raise ConfigurationError(
                f"env.frame_stack={frames}: there are no images to stack; add env.pixels=true"
            )

    @checked
    def __init__(
        self,
        *,
        num_envs: NumEnvs = 16,
        task: Task = "lift",
        pixels: bool = False,
        frame_stack: Annotated[int, Field(ge=1)] = 1,
        arm: Arm = PANDA,
        camera: WristCamera = WRIST_CAMERA,
        device: Device = "cpu",
        mode: Mode = "train",
        max_episode_steps: MaxEpisodeSteps = 200,
        curriculum: Annotated[float, Field(ge=0, le=1)] = 0.25,
        cube_range: Annotated[float, Field(gt=0)] = 0.1,
        joint_noise: Annotated[float, Field(ge=0)] = 0.02,
        size: Range = _UNCHANGED,
        friction: Range = _UNCHANGED,
        mass: Range = _UNCHANGED,
        show_viewer: bool = False,
        seed: Seed = 0,
    ) -> None:
        LiftCubeEnv.check_combination(locals())
        filmed = mode == "demo"
        if not (pixels or filmed):
            refuse_unseen(camera)
        check_cube_range(cube_range, arm)
        self.capabilities = self.capabilities_of(locals(), torch.device(device))
        wrist = camera if pixels or filmed else None
        self.simulation = Simulation(
            arm,
            num_envs,
            torch.device(device),
            cube_sizes=draw_sizes(size, num_envs, seed),
            wrist=wrist,
            overview=filmed,
            own_mass=mass != _UNCHANGED,
            show_viewer=show_viewer,
        )
        super().__init__(device=self.simulation.device, batch_size=[num_envs])
        self.pixels, self.camera = pixels, camera
        self.max_episode_steps = max_episode_steps
        self.curriculum = curriculum
        self.friction, self.mass = friction, mass
        self.mode: Mode = mode
        self._generator = torch.Generator(self.device).manual_seed(seed)
        self._starts = Starts(
            self.simulation,
            self._generator,
            cube_range=cube_range,
            joint_noise=joint_noise,
            camera=camera,
            friction=friction,
            mass=mass,
        )
        elements = observation_elements(arm, with_cube=not pixels)
        self._encode = SceneEncoder(elements, self.device, with_cube=not pixels)
        self._low, self._high = self._starts.workspace
        self._judge = Judge(task, self.simulation.cube_size / 2)
        self._images = None if wrist is None else WristImages(self.simulation, wrist, frame_stack)
        self._episodes = Episodes(self.simulation.observe(), task)
        self._restart(torch.ones(num_envs, 1, dtype=torch.bool, device=self.device))
        now = self._observations()
        pictures: dict[str, TensorSpec] = {}
        if pixels:
            pictures["pixels"] = Bounded(0, 255, now["pixels"].shape, self.device, torch.uint8)
        vector = Unbounded(now["observation"].shape, self.device, torch.float32)
        self._make_specs(4, vector, **pictures)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        now, simulation = self._episodes, self.simulation
        action = tensordict.get("action").detach().clamp(-1.0, 1.0)
        target = torch.add(now.target, action[:, :3], alpha=STEP_LENGTH)
        now.target = target.clamp(self._low, self._high)
        joints = simulation.joints_towards(now.scene, now.target)
        simulation.step(joints, action[:, 3:])
        now.scene = simulation.observe()
        if self._images is not None:
            self._images.advance()
        change = (action - now.last_action).square().sum(-1)
        progress = self._judge(now.scene, now.was_lifted, change)
        now.advance(action, progress)
        success = progress.success.unsqueeze(-1)
        truncated = (now.steps >= self.max_episode_steps) > success
        reward = progress.reward.unsqueeze(-1)
        return self._after_step(reward, success, truncated, success | truncated)

    def _restart(self, mask: Tensor) -> None:
        chosen = mask[:, 0]
        start = self._starts.draw(self.curriculum if self.mode == "train" else 0.0)
        self.simulation.place(chosen, start.joints, start.cube, start.yaw)
        if self.friction != _UNCHANGED:
            self.simulation.set_friction(chosen, start.friction)
        if self.mass != _UNCHANGED:
            self.simulation.set_mass(chosen, start.mass)
        if self._images is not None:
            self._images.restart(chosen, start.shift, start.brightness)
        self._episodes.restart(chosen, self.simulation.observe())

    def _observations(self) -> dict[str, Tensor]:
        now = self._episodes
        tensors = {"observation": self._encode(now.scene, now.target)}
        if self._images is not None and self.pixels:
            tensors["pixels"] = self._images.stacks
        return tensors

    def metrics(self) -> dict[str, Tensor]:
        """Return the mean `[]` of each term of the reward since the last call, as `reward/TERM`."""
        return self._episodes.metrics()

    def render(self, index: int = 0) -> Tensor:
        """Draw one environment beside the image of its wrist camera, `[480, 1120, 3]`, uint8.

        Raises:
            ConfigurationError: the environment was not built in mode `demo`, or there is no
                environment of this index.
        """
        cameras = self.simulation.cameras
        if cameras is None or self._images is None or not cameras.has_overview:
            raise ConfigurationError("lift_cube draws pictures only in mode=demo")
        index = self._checked_index(index)
        overview = cameras.overview_image(index)
        height = len(overview)
        wrist = self._images.stacks[index : index + 1, -3:].to(torch.float32)
        wrist = F.interpolate(wrist, (height, height))[0].permute(1, 2, 0).to(torch.uint8)
        return torch.cat([overview.cpu(), wrist.cpu()], dim=1)  # Madrona draws on the GPU

    def caption(self, index: int) -> str:
        """Return the height of the cube or the distance to it, and whether it is touched."""
        name, lengths = self._judge.measure(self._episodes.scene)
        touches = ("", ", touched", ", grasped")[int(self._episodes.scene.touches[index].sum())]
        return f"{name} {1000 * float(lengths[index]):.0f} mm{touches}"

    def reward_terms(self, index: int) -> dict[str, float]:
        """Return the terms of the last reward: see `Judge.parts`."""
        progress = self._episodes.progress
        return {} if progress is None else self._judge.parts(progress, index)

    def measurements(self, index: int) -> dict[str, float]:
        """Return the height of the cube above the floor, or the distance to it, in millimetres."""
        name, lengths = self._judge.measure(self._episodes.scene)
        return {f"{name} [mm]": 1000 * float(lengths[index])}

    def _set_seed(self, seed: int | None) -> None:
        self._generator.manual_seed(0 if seed is None else seed)

    @classmethod
    def capabilities_of(cls, settings: Mapping[str, Any], device: torch.device) -> Capabilities:
        """Return the capabilities of an environment: see `Environment.capabilities_of`."""
        settings = with_defaults(LiftCubeEnv, settings)
        num_envs, pixels = settings["num_envs"], settings["pixels"]
        sizes = len(draw_sizes(settings["size"], num_envs, 0))
        units = {"action": "2 cm per step along x, y, z; opening of the gripper"}
        if pixels:  # the ways to draw do not give the same images
            backend = accelerator_of(device).genesis_backend
            units["pixels"] = f"RGB, drawn by {choose(settings['camera'].renderer, backend)}"
        return Capabilities(
            discrete_actions=_MOVES,
            frame_stacks={"pixels": settings["frame_stack"]} if pixels else {},
            step_seconds=STEP_SECONDS,
            units=units,
            elements={
                "observation": observation_elements(settings["arm"], with_cube=not pixels),
                "action": _ACTION,
            },
            can_render=True,
            has_state=True,
            can_switch_mode=True,
            # A scene of this size is built for training already.
            max_evaluation_envs=num_envs,
            simulator_device=simulator_device(device),
            fixed_memory=GENESIS_MEMORY,
            env_memory=environment_memory(sizes, settings["camera"] if pixels else None),
        )

    def set_mode(self, mode: Mode) -> None:
        """Switch the curriculum on (`train`) or off; the next reset starts new episodes."""
        self.mode = mode

    def is_reachable(self, position: Tensor) -> Tensor:
        """Return whether the gripper reaches positions within 1 mm, pointing down within 1 degree.

        Positions of the grip point are `[*B, 3]`, m; the result is `[*B]`, bool. The search starts
        in the home posture, stays within the limits of the joints and ignores contacts. It does not
        disturb the episodes.
        """
        goal = position.reshape(-1, 3).to(self._low)
        if not len(goal):
            return goal.new_zeros(position.shape[:-1], dtype=torch.bool)
        state = self.simulation.state_dict()
        _, gaps, tilts = self.simulation.postures(goal)
        self.simulation.load_state_dict(state)
        self._episodes.scene = self.simulation.observe()
        return ((gaps <= REACH_TOLERANCE) & (tilts <= TILT_TOLERANCE)).view(position.shape[:-1])

    @property
    def grip(self) -> Tensor:
        """Positions of the grip point `[num_envs, 3]`, m."""
        return self._episodes.scene.grip

    @property
    def cube(self) -> Tensor:
        """Positions of the centre of the cube `[num_envs, 3]`, m."""
        return self._episodes.scene.cube.clone()

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Return the complete state of the environment as tensors."""
        return {
            **self._episodes.state_dict(),
            "simulation": self.simulation.state_dict(),
            "images": {} if self._images is None else self._images.state_dict(),
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], *_: Any, **__: Any) -> None:
        """Restore a state; `observe()` then returns the current observations.

        Each kind of device has its own generator of random numbers: if the state was saved on
        another one, the generator is left unchanged and a warning is logged.

        Raises:
            ConfigurationError: the state belongs to another scene or task.
        """
        self._episodes.load_state_dict(state_dict)
        self.simulation.load_state_dict(state_dict["simulation"])
        self._episodes.scene = self.simulation.observe()
        if self._images is not None:
            self._images.load_state_dict(state_dict["images"])
        if state_dict["generator"].shape == self._generator.get_state().shape:
            self._generator.set_state(state_dict["generator"])
        else:
            logger.warning(
                "lift_cube: its random state was saved on another kind of device; later episodes "
                "differ"
            )

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Release the simulator; may be called again."""
        self.simulation.close()
        super().close(raise_if_closed=False)
