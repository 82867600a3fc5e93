"""Show a trained policy: a film of it, also without a display."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Literal

import imageio.v2 as imageio
import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torchrl.envs import EnvBase
from torchrl.envs.utils import step_mdp

from torchrl_gpu.acting.policy import PolicyWrapper
from torchrl_gpu.acting.robots import Robots
from torchrl_gpu.arguments import checked
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.environment import Environment, name_of
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution import EAGER, Execution

Picture = npt.NDArray[np.uint8]
Video = Literal["mp4", "gif"]

# Of an environment that knows no time.
_USUAL_STEP_SECONDS = 1 / 30
# Frames per second. A GIF stores whole pictures, and many programs slow down a faster one.
_MOST_FRAMES = {"mp4": 60, "gif": 25}


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
    worlds: Annotated[int, Field(ge=1, le=64)] = 1,
    video: Video = "mp4",
    speed: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0,
    seconds_between: Annotated[float, Field(ge=0.0)] = 0.5,
) -> Path:
    """Film the greedy policy.

    Args:
        env: an environment that can render; for several worlds at once, one that renders several.
        policy: is put in eval mode.
        device: where the policy lives.
        folder: where the film goes.
        execution: carries out acting.
        seed: the same seed gives the same film.
        episodes: number of episodes, one after the other.
        worlds: how many are shown side by side; an episode lasts until it is over in all of them.
        video: file format.
        speed: multiple of real time, above 0; a step without a time of its own takes 1/30 s.
            Steps that would make more than 60 frames per second (GIF: 25) are left out.
        seconds_between: rest at the end of each episode, in seconds of film.

    Returns:
        The path of the film, a new file.

    Raises:
        ConfigurationError: the world cannot draw itself, or not so many at once, or the film
            cannot be written.
    """
    env = as_environment(env)
    draw = _artist(env, worlds)
    policy.eval()
    env.set_seed(seed)
    path = folder / f"demo_{time.strftime('%Y%m%d_%H%M%S')}.{video}"
    step_seconds = (env.step_seconds or _USUAL_STEP_SECONDS) / speed
    frame_seconds = _frame_seconds(step_seconds, video)
    steps_per_frame = frame_seconds / step_seconds
    rest = round(seconds_between / frame_seconds)
    options: dict[str, Any] = {"loop": 0} if video == "gif" else {"macro_block_size": 8}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writer: Any = imageio.get_writer(path, fps=1 / frame_seconds, **options)
        with closing(writer):
            for _ in range(episodes):
                image = None
                for image in _episode(env, policy, device, execution, draw, steps_per_frame):
                    writer.append_data(image)
                for _ in range(rest):
                    writer.append_data(image)
    except OSError as error:
        raise ConfigurationError(f"the film cannot be written: {error}") from error
    return path


def _artist(env: Environment, worlds: int) -> Callable[[], Picture]:
    """Return the function that draws the environments as they are."""
    if not env.can_render:
        raise ConfigurationError(f"mode=demo: {name_of(env)} cannot draw itself")
    if worlds == 1:
        return lambda: env.render(0).numpy()
    if not env.renders_several:
        raise ConfigurationError(f"demo.worlds={worlds}: {name_of(env)} draws one world at a time")
    return lambda: env.render(list(range(worlds))).numpy()


def _frame_seconds(step_seconds: float, video: Video) -> float:
    """Return the time from one frame to the next: that of one step, or of several.

    That of a GIF is a whole number of hundredths of a second.
    """
    steps = max(1, math.ceil(1 / (_MOST_FRAMES[video] * step_seconds) - 1e-6))
    seconds = steps * step_seconds
    return seconds if video == "mp4" else math.ceil(100 * seconds - 1e-6) / 100


@torch.no_grad()
def _episode(
    env: EnvBase,
    policy: PolicyWrapper,
    device: torch.device,
    execution: Execution,
    draw: Callable[[], Picture],
    steps_per_frame: float,
) -> Iterator[Picture]:
    """Play one episode, yielding a picture at each frame, the first and last state included.

    Where `steps_per_frame`, at least 1, is no whole number, some frames lie a step further apart
    than others, so that the film keeps time.
    """
    robots = Robots(env)
    state = env.reset()
    yield draw()
    done, steps, frames = False, 0, 1
    while not done:
        seen = state.select(*robots.keys(policy.in_keys)).to(device)
        execution.act(policy, robots.view(seen))
        state = env.step(state.update(seen.select(robots.action_key).to(env.device)))
        done = bool(state["next", "done"].all())
        steps += 1
        if done or steps >= frames * steps_per_frame - 1e-6:
            yield draw()
            frames += 1
        state = step_mdp(state)
