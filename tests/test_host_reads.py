"""The pipeline on a stand-in accelerator: in steady state nothing is read back from it."""

from __future__ import annotations

import torch

from agents import SAC
from tests.stand_in import count_host_reads
from tests.worlds import IdentityWorld
from torchrl_gpu.collector import BatchCollector
from torchrl_gpu.replay import ReplayBuffer
from torchrl_gpu.specs import observation_spec
from trainers.metrics import EpisodeStatistics, MetricAccumulator

STEPS = 5


def test_a_host_world_costs_one_copy_each_way_and_all_else_none(accelerator: torch.device) -> None:
    world = IdentityWorld(num_envs=8)
    agent = SAC(
        observation_spec(world).to(accelerator),
        world.action_spec.to(accelerator),
        accelerator,
        hidden_sizes=[16],
        batch_size=16,
    )
    collector = BatchCollector(world, accelerator, agent.policy.in_keys)
    replay = ReplayBuffer(500, agent.observation_spec, agent.action_spec, 8, accelerator)
    episodes, metrics = EpisodeStatistics(8, accelerator), MetricAccumulator()

    def collect() -> None:
        transition = collector.step(agent.policy)
        replay.extend(transition)
        after = transition["next"]
        episodes.update(after["reward"], after["done"], after["success"])

    def learn() -> None:
        metrics.add(agent.update(replay.sample(agent.batch_size)))

    for _ in range(STEPS):  # whatever is made once, is made here
        collect()
        learn()
    with count_host_reads() as collecting:
        for _ in range(STEPS):
            collect()
    with count_host_reads() as learning:
        for _ in range(STEPS):
            learn()
    with count_host_reads() as flushing:
        metrics.flush()

    assert collecting.copies_to_device == STEPS, collecting.report()
    assert collecting.copies_to_host == STEPS, collecting.report()
    assert collecting.host_reads == STEPS, collecting.report()  # the copies to the host
    assert learning.host_reads == learning.copies == 0, learning.report()
    assert flushing.host_reads == 1, flushing.report()
