"""Learning while the environment simulates: the agents and environments that can."""

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
