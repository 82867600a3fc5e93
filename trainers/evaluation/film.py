"""Film a trained policy, with or without a display."""

import math
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import imageio.v2 as imageio
import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase
from torchrl.envs.utils import step_mdp

from torchrl_gpu.arguments import checked
from torchrl_gpu.checkpoints.files import new_file, partial_file
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.captions import picture_of, write_captions
from torchrl_gpu.environments.environment import Environment, name_of
from torchrl_gpu.environments.robots import Robots
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.execution import EAGER
from trainers.evaluation.evaluation import Evaluation
from trainers.metrics import EpisodeStatistics, read

Picture = npt.NDArray[np.uint8]
Video = Literal["mp4", "gif"]

# Step duration of an environment that does not declare one.
USUAL_STEP_SECONDS = 1 / 30
_MAX_SHOWN = 64  # environments
# A picture with a shorter side, in pixels, is enlarged, so that a caption fits above it.
_SHORT_SIDE, _ENLARGEMENT = 240, 4
# Frames per second. Many programs slow down a GIF of a higher rate.
_MAX_FRAME_RATES = {"mp4": 60, "gif": 25}
_MAX_FRAME_SECONDS = 100.0  # FFmpeg gets the frame rate with two decimals


class Film(NamedTuple):
    """A film and the results of its episodes.

    Attributes:
        path: path of the film.
        evaluation: means over the filmed episodes.
        measurements: means of the environment's measurements over the last states of the episodes,
            by name.
    """

    path: Path
    evaluation: Evaluation
    measurements: dict[str, float]

    def __str__(self) -> str:
        """Return the results in one line of text, or in two if there are measurements."""
        ends = ", ".join(f"{name} {value:.1f}" for name, value in self.measurements.items())
        return f"{self.evaluation}" + (f"\n  mean at the end: {ends}" if ends else "")


@checked
def film(
    env: EnvBase,
    policy: TensorDictModuleBase,
    device: torch.device,
    folder: Path,
    *,
    seed: int = 0,
    episodes: Annotated[int, Field(ge=1)] = 8,
    num_envs: Annotated[int, Field(ge=1)] = 1,
    video: Video = "mp4",
    speed: Annotated[float, Field(gt=0)] = 1.0,
    seconds_between: Annotated[float, Field(ge=0.0)] = 0.5,
) -> Film:
    """Film the greedy policy.

    The number of the episode and the environment's `caption` are written above the pictures; an
    environment without captions shows the return so far.

    Args:
        env: environment that can render; with `num_envs` above 1, one that renders several of its
            batch together.
        policy: policy to film; it is left in eval mode.
        device: device of the policy.
        folder: folder of the film; it is created if necessary.
        seed: seed of the environment; equal seeds give equal films.
        episodes: number of consecutive episodes.
        num_envs: number of environments, up to 64, shown side by side; an episode ends when it has
            ended in all of them.
        video: file format, `mp4` or `gif`.
        speed: playback speed as a multiple of real time; a step without a declared duration takes
            1/30 s. Steps beyond 60 frames per second (GIF: 25) are skipped.
        seconds_between: pause on the last frame of each episode, in seconds of film.

    Returns:
        Path of the film, a new file, and the results of its episodes.

    Raises:
        ConfigurationError: the environment cannot render, or not so many at once, or the film
            cannot be written.
    """
    env = as_environment(env)
    if not env.capabilities.can_render:
        raise ConfigurationError(f"mode=demo: {name_of(env)} cannot render")
    check_num_envs(num_envs, name_of(env), several=env.capabilities.renders_several)
    shown: int | list[int] = 0 if num_envs == 1 else list(range(num_envs))
    filmed = FilmedEpisodes(env, num_envs)
    policy.eval()
    env.set_seed(seed)
    new = new_file(folder / f"demo_{time.strftime('%Y%m%d_%H%M%S')}.{video}")
    step_seconds = (env.capabilities.step_seconds or USUAL_STEP_SECONDS) / speed
    frame_seconds = _frame_seconds(step_seconds, video)
    if frame_seconds > _MAX_FRAME_SECONDS:
        raise ConfigurationError(
            f"demo.speed={speed:g}: each picture would last {frame_seconds:.3g} s, at most "
            f"{_MAX_FRAME_SECONDS:g} s can be written; use a speed above "
            f"{speed * frame_seconds / _MAX_FRAME_SECONDS:.4g}"
        )
    steps_per_frame = frame_seconds / step_seconds
    rest = round(seconds_between / frame_seconds)
    options: dict[str, Any] = {"loop": 0} if video == "gif" else {"macro_block_size": 2}
    with (
        new as path,
        partial_file(path) as partial,
        closing(imageio.get_writer(partial, fps=1 / frame_seconds, **options)) as writer,
    ):
        for number in range(1, episodes + 1):
            image = None
            for _ in filmed.play(policy, device, steps_per_frame):
                captions = [
                    f"episode {number}/{episodes}, {caption}" for caption in filmed.captions()
                ]
                image = write_captions(enlarged(picture_of(env, shown)), captions)
                writer.append_data(image)
            for _ in range(rest):
                writer.append_data(image)
    return Film(path, filmed.evaluation(), filmed.measurements())


def check_num_envs(num_envs: int, name: str, *, several: bool) -> None:
    """Refuse more environments than are shown together."""
    most = _MAX_SHOWN if several else 1
    if num_envs > most:
        raise ConfigurationError(
            f"demo.num_envs={num_envs}: {name} shows at most {most} at a time; use "
            f"demo.num_envs={most}"
        )


def enlarged(picture: Picture) -> Picture:
    """Return a picture `[H, W, 3]`, a small one with every pixel repeated along both sides."""
    if min(picture.shape[:2]) >= _SHORT_SIDE:
        return picture
    return picture.repeat(_ENLARGEMENT, 0).repeat(_ENLARGEMENT, 1)


def _frame_seconds(step_seconds: float, video: Video) -> float:
    """Return the duration of a frame in seconds: that of one step, or of several.

    The duration of a GIF frame is a whole number of hundredths of a second.
    """
    steps = max(1, math.ceil(1 / (_MAX_FRAME_RATES[video] * step_seconds) - 1e-6))
    seconds = steps * step_seconds
    return seconds if video == "mp4" else math.ceil(100 * seconds - 1e-6) / 100


@torch.no_grad()
def step_once(
    env: Environment,
    robots: Robots,
    policy: TensorDictModuleBase,
    device: torch.device,
    state: TensorDictBase,
) -> TensorDictBase:
    """Step all environments by the actions of a policy on `device`, without resets.

    Returns:
        `state`, the root of the step `[N]`, with the actions and `next`.
    """
    seen = state.select(*robots.keys(policy.in_keys)).to(device)
    EAGER.act(policy, robots.view(seen))
    return env.step(state.update(seen.select(robots.action_key).to(env.device)))


class FilmedEpisodes:
    """Follows the first episode that each of the filmed environments plays after a reset.

    The first `count` environments of a batch are filmed.
    """

    def __init__(self, env: Environment, count: int) -> None:
        self._env = env
        self._count = count
        self._robots = Robots(env)
        self._num_envs = env.batch_size.numel()
        self._statistics = EpisodeStatistics(self._num_envs, "cpu")
        self._measurements: dict[str, float] = {}
        self._episodes = 0
        self.begin()

    def begin(self) -> None:
        """Begin a new episode in every environment, after a reset."""
        self._open = torch.arange(self._num_envs) < self._count
        self._returns = torch.zeros(self._num_envs)

    def add(self, transition: TensorDictBase) -> None:
        """Add one batched step, the result of `env.step`."""
        transition = transition.select("next", "active", strict=False).cpu()
        after = transition["next"]
        # The robots of one environment share its return.
        reward = after[self._robots.reward_key].reshape(self._num_envs, -1).mean(1)
        self._returns += reward * self._open
        self._statistics.update(transition, reward, self._open)
        ended = after["done"].reshape(-1) & self._open
        self._open &= ~ended
        for index in ended.nonzero()[:, 0].tolist():
            self._episodes += 1
            for name, value in self._env.measurements(index).items():
                self._measurements[name] = self._measurements.get(name, 0.0) + value

    def captions(self) -> list[str]:
        """Return the caption of each filmed environment, or else the return of its episode."""
        return [
            self._env.caption(index) or f"return {self._returns[index]:.1f}"
            for index in range(self._count)
        ]

    def evaluation(self) -> Evaluation:
        """Return means over the episodes that ended."""
        return Evaluation.of(self._episodes, read(self._statistics.take()))

    def measurements(self) -> dict[str, float]:
        """Return mean measurements of the last states of the episodes that ended, by name."""
        return {name: total / self._episodes for name, total in self._measurements.items()}

    def play(
        self, policy: TensorDictModuleBase, device: torch.device, steps_per_frame: float
    ) -> Iterator[None]:
        """Play one episode, and yield at each frame, the first and last state included.

        `steps_per_frame` is at least 1. If it is not a whole number, the number of steps between
        two frames varies by one, so that the film keeps time.
        """
        state = self._env.reset()
        self.begin()
        yield
        done, steps, frames = False, 0, 1
        while not done:
            state = step_once(self._env, self._robots, policy, device, state)
            self.add(state)
            done = bool(state["next", "done"].all())
            steps += 1
            if done or steps >= frames * steps_per_frame - 1e-6:
                yield
                frames += 1
            state = step_mdp(state)
