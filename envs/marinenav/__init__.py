"""The world `marinenav`: surface vehicles cross seas with currents and buoys, each to its goal."""

from __future__ import annotations

from envs.marinenav.env import MarineNavEnv

__all__ = ["MarineNavEnv"]
