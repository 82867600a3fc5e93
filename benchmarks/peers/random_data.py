"""Random transitions in TorchRL's layout, and their specs."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Categorical, Composite, TensorSpec, Unbounded

from benchmarks.peers.jobs import ACTION_DIM, NUM_ACTIONS, OBSERVATION_DIM


def specs(size: int, is_discrete: bool) -> tuple[Composite, TensorSpec]:
    """Return the specs of observations and actions of `size` environments."""
    see = Composite(observation=Unbounded((size, OBSERVATION_DIM)), shape=(size,))
    act: TensorSpec = Bounded(-1.0, 1.0, (size, ACTION_DIM))
    if is_discrete:
        act = Categorical(NUM_ACTIONS, shape=(size,), dtype=torch.int64)
    return see, act


def random_step(size: int, action_spec: TensorSpec) -> TensorDict:
    """Return random transitions `[size]` of one step; no episode ends."""
    no = torch.zeros(size, 1, dtype=torch.bool)
    return TensorDict(
        {
            "observation": torch.randn(size, OBSERVATION_DIM),
            "action": action_spec.rand(),
            "next": {
                "observation": torch.randn(size, OBSERVATION_DIM),
                "reward": torch.randn(size, 1),
                "terminated": no,
                "truncated": no,
                "done": no,
            },
        },
        [size],
    )
