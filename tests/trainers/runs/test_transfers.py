"""Transfers between host and accelerator in a whole training, counted on the stand-in."""

from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import pytest
import torch

from agents import DDPG, PPO
from agents.base import Agent
from envs.fanuc import FanucEnv
from envs.gym import GymnasiumEnv
from envs.marinenav import MarineNavEnv
from tests.helpers.agents import AGENTS, build_for
from tests.helpers.training import train_briefly
from tests.stand_in import HostTraffic, count_host_reads
from torchrl_gpu.environments.environment import Environment
from trainers.components.pairing import pair
from trainers.training.trainer import TorchRLTrainer

NUM_ENVS = 4

HOSTS: dict[str, Callable[[], Environment]] = {
    "fanuc": lambda: FanucEnv(num_envs=NUM_ENVS, num_workers=1),
    "gym": lambda: GymnasiumEnv(name="Pendulum-v1", num_envs=NUM_ENVS),
}


@pytest.fixture(autouse=True)
def without_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainers.training.saving.begin_save", lambda trainer: None)


@pytest.fixture(scope="module")
def host_env(request: pytest.FixtureRequest) -> Iterator[Environment]:
    env = HOSTS[request.param]()
    yield env
    env.close(raise_if_closed=False)


def traffic_of_16_steps(
    env: Environment, agent_class: type[Agent], device: torch.device, folder: Path
) -> tuple[HostTraffic, TorchRLTrainer]:
    """Return the traffic of 16 steps with updates and two rows of metrics, after a warm-up."""
    paired = pair(env, agent_class)
    agent = build_for(paired, agent_class, device, rollout_length=4, batch_size=16)
    lengths = {"total_frames": 16 * NUM_ENVS, "random_frames": 4 * NUM_ENVS}
    trainer = train_briefly(paired, agent, folder, log_interval=8 * NUM_ENVS, **lengths)
    updates = trainer.updates
    trainer.total_frames *= 2
    with count_host_reads() as traffic:
        trainer.train()
    assert trainer.updates > updates
    return traffic, trainer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host_env", "agent_class"),
    sorted({*zip(cycle(HOSTS), AGENTS), *((host, PPO) for host in HOSTS)}, key=str),
    indirect=["host_env"],
)
def test_a_host_simulator_costs_one_copy_each_way_per_step_and_a_row_of_metrics_one(
    agent_class: type[Agent], host_env: Environment, accelerator: torch.device, tmp_path: Path
) -> None:
    traffic, trainer = traffic_of_16_steps(host_env, agent_class, accelerator, tmp_path)
    assert (traffic.copies_to_device, traffic.copies_to_host) == (16, 16), traffic.report()
    assert traffic.host_reads == 16 + 2, traffic.report()
    collector = trainer.collector
    assert (collector.steps, collector.to_device.copies, collector.to_host.copies) == (32, 32, 32)


@pytest.mark.slow
def test_a_simulator_on_the_accelerator_costs_no_copy_and_a_row_of_metrics_one(
    accelerator: torch.device, tmp_path: Path
) -> None:
    env = MarineNavEnv(num_envs=NUM_ENVS, num_robots=2, num_obstacles=1, device=accelerator)
    traffic, trainer = traffic_of_16_steps(env, DDPG, accelerator, tmp_path)
    assert traffic.copies_to_device == 0, traffic.report()
    assert traffic.host_reads == 2, traffic.report()
    assert trainer.collector.to_device.copies == trainer.collector.to_host.copies == 0
