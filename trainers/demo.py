"""Show a trained policy: a film of it, also without a display."""

from __future__ import annotations

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
from torchrl.envs import EnvBase, TransformedEnv
from torchrl.envs.utils import step_mdp

from torchrl_gpu.actors import Actors
from torchrl_gpu.arguments import checked
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.policy import PolicyWrapper

Picture = npt.NDArray[np.uint8]


@checked
def film(
    env: EnvBase,
    policy: PolicyWrapper,
    device: torch.device,
    folder: Path,
    *,
    seed: int = 0,
    episodes: Annotated[int, Field(ge=1)] = 8,
    worlds: Annotated[int, Field(ge=1, le=64)] = 1,
    video: Literal["mp4", "gif"] = "mp4",
    frames_per_second: Annotated[int, Field(ge=1, le=60)] = 20,
    seconds_between: Annotated[float, Field(ge=0.0)] = 0.5,
) -> Path:
    """Film the greedy policy.

    Args:
        env: a batch of worlds that offers `render(index) -> uint8 [H, W, 3]`; for several
            worlds at once, index is a list.
        policy: is put in eval mode.
        device: where the policy lives.
        folder: where the film goes.
        seed: the same seed gives the same film.
        episodes: number of episodes, one after the other.
        worlds: how many are shown side by side; an episode lasts until it is over in all of them.
        video: file format.
        frames_per_second: of the film; every step of the world is one frame of it.
        seconds_between: how long the film rests at the end of each episode.

    Returns:
        The path of the film, a new file.

    Raises:
        ConfigurationError: the world cannot draw itself, or not so many at once, or the film
            cannot be written.
    """
    draw = _artist(env, worlds)
    policy.eval()
    env.set_seed(seed)
    path = folder / f"demo_{time.strftime('%Y%m%d_%H%M%S')}.{video}"
    rest = round(seconds_between * frames_per_second)
    options: dict[str, Any] = {"loop": 0} if video == "gif" else {"macro_block_size": 8}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writer: Any = imageio.get_writer(path, fps=frames_per_second, **options)
        with closing(writer):
            for _ in range(episodes):
                image = None
                for image in _episode(env, policy, device, draw):
                    writer.append_data(image)
                for _ in range(rest):
                    writer.append_data(image)
    except OSError as error:
        raise ConfigurationError(f"the film cannot be written: {error}") from error
    return path


def can_be_filmed(env: EnvBase) -> bool:
    """Return whether an environment can draw itself."""
    return hasattr(env.base_env if isinstance(env, TransformedEnv) else env, "render")


def _artist(env: EnvBase, worlds: int) -> Callable[[], Picture]:
    """Return what draws the worlds as they are."""
    world = env.base_env if isinstance(env, TransformedEnv) else env
    name = type(world).__name__
    if not can_be_filmed(env):
        raise ConfigurationError(f"mode=demo: {name} cannot draw itself")
    if worlds == 1:
        return lambda: world.render(0).numpy()
    if not getattr(world, "draws_several", False):
        raise ConfigurationError(f"demo.worlds={worlds}: {name} draws one world at a time")
    return lambda: world.render(list(range(worlds))).numpy()


@torch.no_grad()
def _episode(
    env: EnvBase, policy: PolicyWrapper, device: torch.device, draw: Callable[[], Picture]
) -> Iterator[Picture]:
    """Play one episode, yielding a picture of each step, the first and the last state included."""
    actors = Actors(env)
    state = env.reset()
    yield draw()
    done = False
    while not done:
        seen = state.select(*actors.keys(policy.in_keys)).to(device)
        policy(actors.view(seen))
        state = env.step(state.update(seen.select(actors.action_key).to(env.device)))
        done = bool(state["next", "done"].all())
        yield draw()
        state = step_mdp(state)
