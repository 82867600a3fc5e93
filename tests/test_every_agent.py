"""What holds for every agent, with the trainer, the replay and the policy that all share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Binary, Bounded, Composite, Unbounded
from torchrl.envs import EnvBase

from agents.base import Agent
from envs.fanuc import FanucEnv
from envs.gym import GymWorld
from tests.every_agent import AGENTS, CPU, build, paired
from tests.stand_in import count_host_reads
from tests.worlds import IdentityWorld, MatchWorld
from torchrl_gpu.collector import BatchCollector
from torchrl_gpu.specs import action_kind
from trainers.experience import experience_of
from trainers.metrics import EpisodeStatistics, MetricAccumulator
from trainers.pairing import pair
from trainers.registry import class_of
from trainers.trainer import TorchRLTrainer

every_agent = pytest.mark.parametrize("name", AGENTS)


def world_for(name: str) -> EnvBase:
    return paired(name, IdentityWorld(), MatchWorld())


def make_trainer(name: str, folder: Path, seed: int = 0, **settings: Any) -> TorchRLTrainer:
    torch.manual_seed(seed)
    world = world_for(name)
    defaults = {
        "total_frames": 1024,
        "random_frames": 128,
        "replay_capacity": 2000,
        "log_interval": 256,
        "evaluation_interval": 512,
        "evaluation_episodes": 16,
        "checkpoint_interval": 512,
        "loggers": ["csv"],
        "show_progress": False,
    }
    agent = build(name, world)
    return TorchRLTrainer(
        world, agent, folder, evaluation_env=world_for(name), **{**defaults, **settings}
    )


def parameters(agent: Agent) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in agent.state_dict().items()}


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


@every_agent
def test_it_solves_the_identity_task(name: str, tmp_path: Path) -> None:
    trainer = make_trainer(name, tmp_path, total_frames=10_240, evaluation_interval=10_240)
    trainer.train()
    assert trainer.evaluation is not None
    # At random, 8 steps return -10.7 where actions are continuous and 2 where they are discrete.
    solved = -0.3 if action_kind(trainer.env.action_spec) == "continuous" else 7.8
    assert trainer.evaluation.mean_return > solved


@every_agent
def test_the_same_seed_gives_the_same_parameters(name: str, tmp_path: Path) -> None:
    runs = []
    for run in range(2):
        trainer = make_trainer(name, tmp_path / str(run), seed=7)
        before = parameters(trainer.agent)
        trainer.train()
        runs.append(parameters(trainer.agent))
    assert any(not torch.equal(before[name], value) for name, value in runs[0].items())
    assert_equal(*runs)


@every_agent
def test_an_interrupted_run_goes_on_as_if_it_had_never_stopped(name: str, tmp_path: Path) -> None:
    # 576 frames are no whole number of rollouts: the one under way goes on too.
    settings = {"evaluation_interval": 288, "checkpoint_interval": 576}
    whole = make_trainer(name, tmp_path / "whole", **settings)
    whole.train()
    first = make_trainer(name, tmp_path / "parts", total_frames=576, **settings)
    first.train()
    second = make_trainer(name, tmp_path / "parts", seed=99, **settings)
    latest = second.checkpoints.latest()
    assert latest is not None
    second.load(latest)
    second.train()
    assert_equal(parameters(whole.agent), parameters(second.agent))
    assert second.updates == whole.updates
    assert second.evaluation == whole.evaluation


@every_agent
def test_the_pipeline_reads_nothing_back(name: str, accelerator: torch.device) -> None:
    world = world_for(name)
    num_envs = world.batch_size.numel()
    agent = build(name, world, accelerator, rollout_length=4, batch_size=32)
    collector = BatchCollector(world, accelerator, agent.policy.in_keys)
    experience = experience_of(agent, num_envs, 500, random_frames=0)
    episodes, metrics = EpisodeStatistics(num_envs, accelerator), MetricAccumulator()
    updates = 0

    def work(steps: int) -> None:
        nonlocal updates
        for _ in range(steps):
            transition = collector.step(agent.policy)
            after = transition["next"]
            episodes.update(after["reward"], after["done"], after["success"])
            for batch in experience.batches(transition):
                metrics.add(agent.update(batch))
                updates += 1

    work(8)  # whatever is made once, is made here
    updates = 0
    with count_host_reads() as counter:
        work(8)
    assert updates > 0
    # The world is on the host: one copy each way per step, of which the one to the host is a read.
    assert counter.copies_to_device == 8, counter.report()
    assert counter.copies_to_host == 8, counter.report()
    assert counter.host_reads == 8, counter.report()
    with count_host_reads() as flushing:
        metrics.flush()
    assert flushing.host_reads == 1, flushing.report()


@every_agent
@pytest.mark.parametrize("batch", [(), (5,), (3, 2)])
def test_it_acts_for_any_batch_greedily_or_not(name: str, batch: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    world = world_for(name)
    agent = build(name, world, epsilon_start=1.0, epsilon_end=1.0)
    observation = torch.rand(*batch, *world.observation_spec["observation"].shape[1:])

    def act() -> torch.Tensor:
        return agent.policy(TensorDict({"observation": observation.clone()}, batch))["action"]

    agent.policy.eval()
    greedy = act()
    assert greedy.shape == (*batch, *world.action_spec.shape[1:])
    assert greedy.dtype == world.action_spec.dtype
    assert torch.equal(act(), greedy)
    agent.policy.train()
    assert any(not torch.equal(act(), greedy) for _ in range(20))


@every_agent
def test_it_sees_vectors_pixels_and_sets_together(name: str) -> None:
    torch.manual_seed(0)
    world, num_envs = world_for(name), 16
    spec = Composite(
        observation=Unbounded((num_envs, 3)),
        pixels=Bounded(0, 255, (num_envs, 3, 16, 16), dtype=torch.uint8),
        group=Composite(
            objects=Unbounded((num_envs, 4, 2)),
            objects_mask=Binary(4, (num_envs, 4), dtype=torch.bool),
            shape=(num_envs,),
        ),
        shape=(num_envs,),
    )
    agent: Any = class_of("agent", name)(spec, world.action_spec, CPU)
    experience = experience_of(agent, num_envs, 200, random_frames=0)
    updates = 0
    root = spec.rand()
    for _ in range(getattr(agent, "rollout_length", 4)):
        with torch.no_grad():
            transition = agent.policy(root)
        root = spec.rand()
        flag = torch.zeros(num_envs, 1, dtype=torch.bool)
        outcome = {"reward": torch.rand(num_envs, 1), "terminated": flag, "truncated": flag}
        transition["next"] = root.clone().update({**outcome, "done": flag})
        for batch in experience.batches(transition):
            losses = agent.update(batch)
            updates += 1
            if updates == 3:
                break
    assert updates > 0
    for key, value in losses.items():
        assert value.shape == (), key
        assert not value.requires_grad, key
        assert value.isfinite(), key


@every_agent
@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("task", ["CartPole-v1", "Pendulum-v1"])
def test_it_trains_in_a_gymnasium_environment(
    name: str, task: str, autoreset: str, tmp_path: Path
) -> None:
    world = GymWorld(name=task, num_envs=4, autoreset=autoreset)
    kind: Any = class_of("agent", name)
    if task == "CartPole-v1" and "discrete" not in kind.actions:
        pytest.skip("continuous actions only")
    world = pair(world, kind)
    agent = build(name, world, gamma=0.99)
    trainer = TorchRLTrainer(
        world,
        agent,
        tmp_path,
        total_frames=512,
        random_frames=128,
        replay_capacity=1000,
        log_interval=256,
        loggers=["csv"],
        show_progress=False,
    )
    trainer.train()
    assert trainer.updates > 0
    assert all(value.isfinite().all() for value in agent.state_dict().values())
    world.close()


@pytest.fixture(scope="module")
def arms() -> Any:
    env = FanucEnv(num_envs=4, num_workers=1)
    yield env
    env.close()


@every_agent
def test_it_trains_on_the_arm(name: str, arms: FanucEnv, tmp_path: Path) -> None:
    world = pair(arms, class_of("agent", name))  # type: ignore[arg-type]
    agent = build(name, world, rollout_length=8, gamma=0.97)
    trainer = TorchRLTrainer(
        world,
        agent,
        tmp_path,
        total_frames=96,
        random_frames=32,
        replay_capacity=500,
        log_interval=64,
        show_progress=False,
        loggers=["csv"],
    )
    trainer.train()
    assert trainer.updates > 0
