"""Jobs of sampling: batches of 256 from a replay of a million transitions."""

from __future__ import annotations

import pkgutil
from functools import partial

import numpy as np
import torch
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from benchmarks.fixture import (
    ACTION_DIM,
    BATCH,
    CPU,
    OBSERVATION_DIM,
    random_transitions,
    specs,
)
from benchmarks.measuring import Run, times
from benchmarks.peers.jobs import Builders, RandomEnv
from benchmarks.peers.plain_agents import Replay, random_batch
from torchrl_gpu.replay.buffer import ReplayBuffer
from torchrl_gpu.replay.prioritized import PrioritizedReplayBuffer

ENTRIES = 1_000_000
_WRITERS = 1_000


def build_ours(prioritized: bool) -> Run:
    """Return a run of batches from this library's replay, drawn uniformly or by priority."""
    build = PrioritizedReplayBuffer if prioritized else ReplayBuffer
    see, act = specs(_WRITERS)
    # Random observations never follow one another, so that each transition takes two rows.
    replay = build(2 * ENTRIES, see, act, CPU)
    for _ in range(ENTRIES // _WRITERS):
        replay.extend(random_transitions(see, act))
    if prioritized:  # gives priorities to a part of the entries, so that they differ
        for _ in range(100):
            replay.update_priorities(replay.sample(BATCH), torch.rand(BATCH))
    return times(partial(replay.sample, BATCH))


def build_torchrl() -> Run:
    """Return a run of batches from TorchRL's replay, drawn uniformly.

    Its prioritized sampler needs a compiled extension, which is for other releases of torch.
    """
    replay = TensorDictReplayBuffer(storage=LazyTensorStorage(ENTRIES), batch_size=BATCH)
    replay.extend(random_transitions(*specs(ENTRIES)))
    return times(replay.sample)


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
    return times(partial(replay.sample, BATCH))


def build_plain() -> Run:
    """Return a run of batches from a ring of tensors, uniformly."""
    replay = Replay(ENTRIES, random_batch(1, is_discrete=False))
    replay.add(random_batch(ENTRIES, is_discrete=False))
    return times(replay.sample)


OURS: Builders = {
    "sampling": {
        "prioritized": partial(build_ours, prioritized=True),
        "uniform": partial(build_ours, prioritized=False),
    },
}
TORCHRL: Builders = {"sampling": {"uniform": build_torchrl}}
SB3: Builders = {"sampling": {"uniform": build_sb3}}
PLAIN: Builders = {"sampling": {"uniform": build_plain}}
