"""Jobs of collection: SAC's policy acts in `DriftEnv`, without updates."""

from __future__ import annotations

from functools import partial

import torch
from torchrl.collectors import Collector
from torchrl.modules import TanhNormal

from agents.sac import SAC
from benchmarks.fixture import ACTION_DIM, CPU, OBSERVATION_DIM
from benchmarks.measuring import Run
from benchmarks.peers.drift import Drift, DriftEnv
from benchmarks.peers.jobs import Build, every
from benchmarks.peers.plain_agents import mlp
from benchmarks.peers.torchrl_losses import gaussian_actor
from torchrl_gpu.acting.collector import BatchCollector
from torchrl_gpu.environments.specs import action_spec, observation_spec

SIZES = (1, 64, 1_024)
_BATCH_STEPS = 20  # steps of every environment in each batch of TorchRL's collector


def build_ours(num_envs: int) -> Run:
    """Return a run of frames of this library's collector."""
    env = DriftEnv(num_envs)
    agent = SAC(observation_spec(env), action_spec(env), CPU)
    collector = BatchCollector(env, CPU, agent.policy.in_keys)

    return every(num_envs, partial(collector.step, agent.policy))


def build_loop(num_envs: int) -> Run:
    """Return a run of frames of a loop of tensors; it keeps no transition."""
    drift, actor = Drift(num_envs), mlp(OBSERVATION_DIM, 2 * ACTION_DIM)

    @torch.no_grad()
    def step() -> None:
        mean, log_std = actor(drift.state).chunk(2, -1)
        std = log_std.clamp(-20.0, 2.0).exp()
        drift.step((mean + std * torch.randn_like(mean)).tanh())

    return every(num_envs, step)


def build_collector(num_envs: int, track_traj_ids: bool = True) -> Run:
    """Return a run of frames of TorchRL's collector.

    Args:
        num_envs: number of environments.
        track_traj_ids: number the trajectories, as the collector does by default.
    """
    collector = Collector(
        DriftEnv(num_envs),
        gaussian_actor(TanhNormal),
        frames_per_batch=_BATCH_STEPS * num_envs,
        total_frames=-1,
        track_traj_ids=track_traj_ids,
    )
    return every(_BATCH_STEPS * num_envs, partial(next, iter(collector)))


OURS: dict[str, dict[str, Build]] = {
    f"collection_{size}": {"": partial(build_ours, size)} for size in SIZES
}
LOOP: dict[str, dict[str, Build]] = {
    f"collection_{size}": {"": partial(build_loop, size)} for size in SIZES
}
TORCHRL: dict[str, dict[str, Build]] = {
    f"collection_{size}": {
        "": partial(build_collector, size),
        "without trajectory ids": partial(build_collector, size, track_traj_ids=False),
    }
    for size in SIZES
}
