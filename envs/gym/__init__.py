"""The environment `gym`: a batch of copies of any Gymnasium environment, by its name."""

from envs.gym.env import GymnasiumEnv

__all__ = ["GymnasiumEnv"]
