"""What of a world's specs concerns an agent."""

from __future__ import annotations

from torchrl.data import Composite
from torchrl.envs import EnvBase

# Told by a world about an episode, not seen by the agent.
OUTCOME_KEYS = ("success",)


def observation_spec(env: EnvBase) -> Composite:
    """Return the specs of what an agent observes in a world: all observations but the outcome."""
    spec: Composite = env.observation_spec.clone()
    for key in OUTCOME_KEYS:
        if key in spec.keys():  # noqa: SIM118  (a Composite iterates over its batch)
            del spec[key]
    return spec
