"""The environment `marinenav`: surface vehicles sail to goals in seas with currents and buoys."""

from __future__ import annotations

from envs.marinenav.env import MarineNavEnv

__all__ = ["MarineNavEnv"]
