"""Learning and acting while the environment simulates: the agents and environments that can."""

from __future__ import annotations

from agents.base import OnPolicyAgent
from torchrl_gpu.errors import ConfigurationError


def overlap_of(wanted: bool | None, agent: type, env_name: str, *, env_can: bool) -> bool:
    """Return whether an agent learns while its environment simulates.

    Args:
        wanted: setting `trainer.overlap`; None for every pair that can.
        agent: class of the agent.
        env_name: name of the environment, for the error.
        env_can: `can_overlap` of the environment.

    Raises:
        ConfigurationError: it is wanted, and agent or environment cannot.
    """
    if issubclass(agent, OnPolicyAgent):
        obstacle = f"{agent.__name__} learns on-policy and acts with its newest policy only"
    elif not env_can:
        obstacle = f"{env_name} with these settings cannot simulate while the agent learns"
    else:
        return wanted is not False
    if wanted:
        raise ConfigurationError(
            f"trainer.overlap=true: {obstacle}; trainer.overlap=null overlaps where possible"
        )
    return False


def halves_of(wanted: bool, env_name: str, *, env_can: bool) -> bool:
    """Return whether a policy acts in one half of the environments while the other one simulates.

    Args:
        wanted: setting `trainer.halves`.
        env_name: name of the environment, for the error.
        env_can: whether the environment has halves.

    Raises:
        ConfigurationError: it is wanted, and the environment cannot.
    """
    if wanted and not env_can:
        raise ConfigurationError(
            f"trainer.halves=true: {env_name} with these settings cannot simulate one half while "
            "the policy acts for the other; trainer.halves=false"
        )
    return wanted
