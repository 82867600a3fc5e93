"""Jobs of sampling: batches of 256 from a replay of a million transitions."""

from __future__ import annotations

import pkgutil
from functools import partial

import numpy as np
import torch
from torchrl.data import (
    LazyTensorStorage,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from torchrl.data.replay_buffers import samplers

from benchmarks.peers.jobs import (
    ACTION_DIM,
    BATCH,
    OBSERVATION_DIM,
    Builders,
    RandomEnv,
    Run,
)
from benchmarks.peers.plain import random_batch
from benchmarks.peers.plain_agents import Replay
from benchmarks.peers.random_data import random_step, specs
from torchrl_gpu.replay.buffer import ReplayBuffer
from torchrl_gpu.replay.prioritized import PrioritizedReplayBuffer

ENTRIES = 1_000_000
_WRITERS = 1_000


def build_ours(prioritized: bool, updates: bool = False) -> Run:
    """Return a run of batches from this library's replay.

    Args:
        prioritized: sample by priority.
        updates: also write new priorities of each batch.
    """
    build = PrioritizedReplayBuffer if prioritized else ReplayBuffer
    see, act = specs(_WRITERS, is_discrete=False)
    # Random observations never follow one another, so that each transition takes two rows.
    replay = build(2 * ENTRIES, see, act, _WRITERS, torch.device("cpu"))
    for _ in range(ENTRIES // _WRITERS):
        replay.extend(random_step(_WRITERS, act))
    priorities = torch.rand(BATCH)

    def run(batches: int) -> None:
        for _ in range(batches):
            batch = replay.sample(BATCH)
            if updates:
                replay.update_priorities(batch, priorities)

    if prioritized:  # gives priorities to a part of the entries, so that they differ
        for _ in range(100):
            replay.update_priorities(replay.sample(BATCH), priorities)
    return run


def build_torchrl(prioritized: bool, updates: bool = False) -> Run:
    """Return a run of batches from TorchRL's replay, see `build_ours`."""
    storage = LazyTensorStorage(ENTRIES)
    if prioritized:
        replay = TensorDictPrioritizedReplayBuffer(
            alpha=0.5, beta=1.0, storage=storage, batch_size=BATCH
        )
    else:
        replay = TensorDictReplayBuffer(storage=storage, batch_size=BATCH)
    replay.extend(random_step(ENTRIES, specs(ENTRIES, is_discrete=False)[1]))
    priorities = torch.rand(BATCH)

    def run(batches: int) -> None:
        for _ in range(batches):
            batch = replay.sample()
            if updates:
                replay.update_tensordict_priority(batch.set("td_error", priorities))

    return run


def build_sb3() -> Run:
    """Return a run of batches from the replay of Stable-Baselines3, which is uniform."""
    env = RandomEnv(is_discrete=False)
    build = pkgutil.resolve_name("stable_baselines3.common.buffers:ReplayBuffer")
    replay = build(ENTRIES, env.observation_space, env.action_space, device="cpu")
    numbers, full = np.random.default_rng(0), np.float32
    replay.observations = numbers.random((ENTRIES, 1, OBSERVATION_DIM), full)
    replay.next_observations = numbers.random((ENTRIES, 1, OBSERVATION_DIM), full)
    replay.actions = numbers.random((ENTRIES, 1, ACTION_DIM), full)
    replay.full = True

    def run(batches: int) -> None:
        for _ in range(batches):
            replay.sample(BATCH)

    return run


def build_plain() -> Run:
    """Return a run of batches from a ring of tensors, uniformly."""
    replay = Replay(ENTRIES, random_batch(1, is_discrete=False))
    replay.add(random_batch(ENTRIES, is_discrete=False))

    def run(batches: int) -> None:
        for _ in range(batches):
            replay.sample()

    return run


# Without its compiled extension, which is for other releases of torch, TorchRL samples uniformly.
_HAS_TREES = getattr(samplers, "SumSegmentTreeFp32", None) is not None

OURS: Builders = {
    "sampling": {
        "prioritized": partial(build_ours, prioritized=True),
        "uniform": partial(build_ours, prioritized=False),
    },
    "priorities": {"": partial(build_ours, prioritized=True, updates=True)},
}
TORCHRL: Builders = {
    "sampling": {
        **({"prioritized": partial(build_torchrl, prioritized=True)} if _HAS_TREES else {}),
        "uniform": partial(build_torchrl, prioritized=False),
    },
    "priorities": {
        "": partial(build_torchrl, prioritized=True, updates=True),
    }
    if _HAS_TREES
    else {},
}
SB3: Builders = {"sampling": {"uniform": build_sb3}}
PLAIN: Builders = {"sampling": {"uniform": build_plain}}
