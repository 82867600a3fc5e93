"""Film a trained policy, with or without a display."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import imageio.v2 as imageio
import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torchrl.envs import EnvBase
from torchrl.envs.utils import step_mdp

from torchrl_gpu.acting.policy import PolicyWrapper
from torchrl_gpu.arguments import checked
from torchrl_gpu.checkpoints.files import unused
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.captions import write_captions
from torchrl_gpu.environments.environment import Environment, name_of
from torchrl_gpu.environments.robots import Robots
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.execution import EAGER, Execution
from trainers.evaluation.evaluation import Evaluation
from trainers.evaluation.filmed_episodes import FilmedEpisodes

Picture = npt.NDArray[np.uint8]
Video = Literal["mp4", "gif"]

# Step duration of an environment that does not declare one.
_USUAL_STEP_SECONDS = 1 / 30
# A picture with a shorter side, in pixels, is enlarged, so that captions cover little of it.
_SHORT_SIDE, _ENLARGEMENT = 240, 4
# Frames per second. Many programs slow down a GIF of a higher rate.
_MAX_FRAME_RATES = {"mp4": 60, "gif": 25}


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
    policy: PolicyWrapper,
    device: torch.device,
    folder: Path,
    *,
    execution: Execution = EAGER,
    seed: int = 0,
    episodes: Annotated[int, Field(ge=1)] = 8,
    num_envs: Annotated[int, Field(ge=1, le=64)] = 1,
    video: Video = "mp4",
    speed: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0,
    seconds_between: Annotated[float, Field(ge=0.0)] = 0.5,
) -> Film:
    """Film the greedy policy.

    The number of the episode and the environment's `caption` are written into the pictures; an
    environment without captions shows the return so far.

    Args:
        env: environment that can render; with `num_envs` above 1, one that renders several of its
            batch together.
        policy: policy to film; it is left in eval mode.
        device: device of the policy.
        folder: folder of the film; it is created if necessary.
        execution: executes the policy steps.
        seed: seed of the environment; equal seeds give equal films.
        episodes: number of consecutive episodes.
        num_envs: number of environments shown side by side; an episode ends when it has ended in
            all of them.
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
    draw = _artist(env, num_envs)
    filmed = FilmedEpisodes(env, num_envs)
    policy.eval()
    env.set_seed(seed)
    path = unused(folder / f"demo_{time.strftime('%Y%m%d_%H%M%S')}.{video}")
    step_seconds = (env.capabilities.step_seconds or _USUAL_STEP_SECONDS) / speed
    frame_seconds = _frame_seconds(step_seconds, video)
    steps_per_frame = frame_seconds / step_seconds
    rest = round(seconds_between / frame_seconds)
    options: dict[str, Any] = {"loop": 0} if video == "gif" else {"macro_block_size": 8}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writer: Any = imageio.get_writer(path, fps=1 / frame_seconds, **options)
        with closing(writer):
            for number in range(1, episodes + 1):
                image = None
                for picture in _episode(
                    env, policy, device, execution, draw, filmed, steps_per_frame
                ):
                    captions = [
                        f"episode {number}/{episodes}, {caption}" for caption in filmed.captions()
                    ]
                    image = write_captions(_enlarged(picture), captions)
                    writer.append_data(image)
                for _ in range(rest):
                    writer.append_data(image)
    except OSError as error:
        raise ConfigurationError(f"the film could not be written: {error}") from error
    return Film(path, filmed.evaluation(), filmed.measurements())


def _artist(env: Environment, num_envs: int) -> Callable[[], Picture]:
    """Return a function that draws the current state of the environments."""
    if not env.capabilities.can_render:
        raise ConfigurationError(f"mode=demo: {name_of(env)} cannot render")
    if num_envs == 1:
        return lambda: env.render(0).numpy()
    if not env.capabilities.renders_several:
        raise ConfigurationError(f"demo.num_envs={num_envs}: {name_of(env)} renders one at a time")
    return lambda: env.render(list(range(num_envs))).numpy()


def _enlarged(picture: Picture) -> Picture:
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
def _episode(
    env: EnvBase,
    policy: PolicyWrapper,
    device: torch.device,
    execution: Execution,
    draw: Callable[[], Picture],
    filmed: FilmedEpisodes,
    steps_per_frame: float,
) -> Iterator[Picture]:
    """Play one episode and yield a picture for each frame, the first and last state included.

    `steps_per_frame` is at least 1. If it is not a whole number, the number of steps between two
    frames varies by one, so that the film keeps time.
    """
    robots = Robots(env)
    state = env.reset()
    filmed.begin()
    yield draw()
    done, steps, frames = False, 0, 1
    while not done:
        seen = state.select(*robots.keys(policy.in_keys)).to(device)
        execution.act(policy, robots.view(seen))
        state = env.step(state.update(seen.select(robots.action_key).to(env.device)))
        filmed.add(state)
        done = bool(state["next", "done"].all())
        steps += 1
        if done or steps >= frames * steps_per_frame - 1e-6:
            yield draw()
            frames += 1
        state = step_mdp(state)
