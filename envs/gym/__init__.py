"""The world `gym`: any Gymnasium environment by name, many copies of it at once."""

from __future__ import annotations

from envs.gym.env import GymWorld

__all__ = ["GymWorld"]
