"""The environment `marinenav`: surface vehicles sail to goals in seas with currents and buoys."""

from envs.marinenav.env import MarineNavEnv

__all__ = ["MarineNavEnv"]
