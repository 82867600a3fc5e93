"""Atari games in Stable-Baselines3, with the transitions that this library's preprocessing gives.

Both play a game with the sticky actions of its id, one environment step for four frames of the
game, images of 84 x 84 in shades of grey and stacks of as many. Stable-Baselines3 also presses FIRE
for two steps at the start of an episode.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from typing import Any

import gymnasium
from torch import Tensor, nn

from envs.gym.atari import FRAME_STACK
from envs.gym.vector import registered
from torchrl_gpu.errors import ConfigurationError

_MAKE_ENV = "stable_baselines3.common.env_util:make_atari_env"
_STACK = "stable_baselines3.common.vec_env:VecFrameStack"


def make_atari_env(name: str, num_envs: int, stack: int = FRAME_STACK) -> Any:
    """Return Atari environments with the preprocessing and the stacks of Stable-Baselines3.

    Args:
        name: id of the game, `ALE/...`.
        num_envs: number of environments in one process, at least 1.
        stack: number of images in a stack, at least 1.

    Raises:
        ConfigurationError: the extra `atari` is not installed.
    """
    try:
        registered(name)
    except ValueError as error:
        raise ConfigurationError(f"{name}: {error}") from None
    env = pkgutil.resolve_name(_MAKE_ENV)(
        name,
        n_envs=num_envs,
        wrapper_kwargs={"terminal_on_life_loss": False},
        env_kwargs={"frameskip": 1},
    )
    return pkgutil.resolve_name(_STACK)(env, stack)


class Convolutions(nn.Module):
    """Convolutions of Mnih et al. with any number of channels, for `policy_kwargs`.

    Stable-Baselines3 calls a class for the features with the observation space and asks for
    `features_dim`; its own class has fixed channels.

    Args:
        observation_space: space of the images, `[C, 84, 84]`.
        channels: output channels of the three convolutions, each at least 1.
        features_dim: width of the linear layer, at least 1.
    """

    def __init__(
        self, observation_space: gymnasium.spaces.Box, channels: Sequence[int], features_dim: int
    ) -> None:
        super().__init__()
        self.features_dim = features_dim
        inputs, first, second, third = (observation_space.shape[0], *channels)
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, first, 8, 4),
            nn.ReLU(),
            nn.Conv2d(first, second, 4, 2),
            nn.ReLU(),
            nn.Conv2d(second, third, 3, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(third * 7 * 7, features_dim),
            nn.ReLU(),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return features `[B, features_dim]` of images `[B, C, 84, 84]` of values 0 to 1."""
        features: Tensor = self.layers(images)
        return features
