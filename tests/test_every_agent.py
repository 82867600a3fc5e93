"""Tests of every agent in the trainer, with replay buffers, environments and checkpoints.

Tests of updates, policies and settings by themselves are in tests/agents/test_every_*.py.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torchrl.data import Binary, Bounded, Composite, Unbounded
from torchrl.envs import EnvBase

from agents import ACIQN, DDPG, SAC
from agents.base import Agent, OffPolicyAgent
from envs.fanuc import FanucEnv
from envs.marinenav import MarineNavEnv
from tests.helpers.agents import (
    CASES,
    OTHER_CHOICES,
    WITH_ALL_OPTIONS,
    Case,
    assert_equal,
    build,
    build_for,
    every_agent,
    every_agent_class,
    parameters,
    with_switches_turned,
)
from tests.helpers.training import FolderAt, assert_resumes, make_trainer, train_briefly
from tests.stand_in import MAKERS, Abilities, count_host_reads
from torchrl_gpu.acting.collector import BatchCollector
from torchrl_gpu.devices.kinds import accelerator_of
from trainers import Callback
from trainers.components.pairing import pair
from trainers.metrics import EpisodeStatistics, MetricAccumulator, read
from trainers.training.experience import experience_of
from trainers.training.trainer import TorchRLTrainer


def solve_the_identity_task(case: Case, folder: Path, **options: Any) -> None:
    # 8 steps with continuous actions return -10.7 for a random policy and -5.3 for the action 0;
    # with discrete actions, a random policy returns 2.
    quick = 2048 if case.agent_class in (DDPG, SAC) else 6144
    frames, solved = (quick, -0.6) if case.actions == "continuous" else (1536, 7.8)
    trainer = make_trainer(
        case,
        folder,
        options=options,
        total_frames=frames,
        evaluation_interval=frames,
        checkpoint_interval=frames,
    )
    trainer.train()
    assert trainer.evaluations[trainer.frames].mean_return > solved


@every_agent
def test_every_agent_solves_the_identity_task(case: Case, tmp_path: Path) -> None:
    solve_the_identity_task(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent_class", "options"),
    [
        (
            SAC,
            {
                **OTHER_CHOICES,
                "actor_layer_norm": True,
                "critic_layer_norm": True,
                "actor_period": 2,
            },
        ),
        (DDPG, {"noise_range": (0.05, 0.8)}),
        (ACIQN, {"critic_layer_norm": True}),
    ],
    ids=["SAC", "DDPG", "ACIQN"],
)
def test_options_for_many_environments_solve_the_identity_task(
    agent_class: type[Agent], options: dict[str, Any], tmp_path: Path
) -> None:
    solve_the_identity_task(Case(agent_class, "continuous"), tmp_path, **options)


@pytest.mark.directml
@every_agent
def test_a_run_resumed_twice_equals_an_uninterrupted_run(case: Case, tmp_path: Path) -> None:
    def make(folder: str, total_frames: int, seed: int = 0) -> TorchRLTrainer:
        trainer = make_trainer(
            case,
            tmp_path / folder,
            seed,
            {**WITH_ALL_OPTIONS, "rollout_length": 6, "gamma": 0.9},
            total_frames=total_frames,
            random_frames=64,
            replay_capacity=150,  # is overwritten again and again
            evaluation_interval=96,
            checkpoint_interval=48,
        )
        if latest := trainer.checkpoints.latest():
            trainer.load(latest)
        trainer.train()
        return trainer

    whole = make("whole", 384)
    # Neither is a whole number of rollouts: the open rollout is resumed as well.
    make("parts", 160)
    make("parts", 272, seed=1)
    part = make("parts", 384, seed=99)
    assert_equal(parameters(whole.agent), parameters(part.agent))
    assert part.updates == whole.updates > 0
    assert part.evaluations[part.frames] == whole.evaluations[whole.frames]
    assert part.checkpoints.latest() == part.checkpoints.path(384)


def _pipelines() -> Iterator[Any]:
    """Yield each case with its switches as they are and turned, on accelerators in turns."""
    default, turned = {"any": Abilities(), "xpu": MAKERS["xpu"]}, ("mps", "directml")
    for number, case in enumerate(CASES):
        name = f"{case.agent_class.__name__}-{case.actions}"
        maker = [*default][number % 2]
        yield pytest.param(case, default[maker], False, id=f"{name}-{maker}")
        maker = turned[number % 2]
        yield pytest.param(case, MAKERS[maker], True, id=f"{name}-{maker}-switches-turned")


@pytest.mark.parametrize(("case", "accelerator", "turned"), _pipelines(), indirect=["accelerator"])
def test_pipeline_reads_nothing_back_to_the_host(
    case: Case, turned: bool, accelerator: torch.device
) -> None:
    num_envs = 8
    env = case.env(num_envs)
    settings = {**WITH_ALL_OPTIONS, "rollout_length": 4, "batch_size": 16}
    if turned:
        settings |= with_switches_turned(case.agent_class) | OTHER_CHOICES
    agent = build_for(env, case.agent_class, accelerator, **settings)
    collector = BatchCollector(env, accelerator, agent.policy.in_keys)
    experience = experience_of(agent, num_envs, 500, random_frames=0)
    episodes, metrics = EpisodeStatistics(num_envs, accelerator), MetricAccumulator()
    updates = 0

    def work(steps: int) -> None:
        nonlocal updates
        for _ in range(steps):
            transition = collector.step(agent.policy)
            episodes.update(transition)
            experience.store(transition)
            for batch in experience.batches():
                update = agent.update(batch)
                experience.update_priorities(batch, update.priorities)
                metrics.add(update.metrics)
                updates += 1

    work(4)  # warms up: the first steps allocate buffers
    updates = 0
    with count_host_reads() as counter:
        work(4)
    assert updates > 0
    # The environment is on the host: each step copies once each way, and one of both is a read.
    # Floats and flags need a copy each where a buffer of bytes cannot hold both.
    copies = 4 if accelerator_of(accelerator).byte_views else 8
    assert counter.copies_to_device == copies, counter.report()
    assert counter.copies_to_host == 4, counter.report()
    assert counter.host_reads == 4, counter.report()
    with count_host_reads() as flushing:
        read(metrics.take())
    assert flushing.host_reads == 1, flushing.report()


@every_agent
def test_agent_accepts_vectors_pixels_and_sets_together(case: Case) -> None:
    torch.manual_seed(0)
    num_envs, rollout_length = 16, 4
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
    settings: dict[str, Any] = {
        "rollout_length": rollout_length,
        "batch_size": 16,
        "epochs": 1,
        "n_step": 3,
    }
    agent = build(case.agent_class, spec, case.env(num_envs).action_spec, **settings)
    experience = experience_of(agent, num_envs, 200, random_frames=0)
    updates = 0
    root = spec.rand()
    for _ in range(rollout_length):
        with torch.no_grad():
            transition = agent.policy(root)
        root = spec.rand()
        flag = torch.zeros(num_envs, 1, dtype=torch.bool)
        outcome = {"reward": torch.rand(num_envs, 1), "terminated": flag, "truncated": flag}
        transition["next"] = root.clone().update({**outcome, "done": flag})
        experience.store(transition)
        for batch in experience.batches():
            losses = agent.update(batch).metrics
            updates += 1
    assert updates > 1
    for key, value in losses.items():
        assert value.shape == (), key
        assert not value.requires_grad, key
        assert value.isfinite(), key


@pytest.fixture(scope="module")
def arms() -> Iterator[EnvBase]:
    env = FanucEnv(num_envs=4, num_workers=1)
    yield env
    env.close(raise_if_closed=False)


@pytest.mark.directml
@every_agent_class
def test_every_agent_trains_on_arms(
    agent_class: type[Agent], arms: EnvBase, tmp_path: Path
) -> None:
    env = pair(arms, agent_class)
    agent = build_for(env, agent_class, rollout_length=8)
    before = parameters(agent)
    trainer = train_briefly(env, agent, tmp_path, total_frames=96, random_frames=32)
    assert trainer.updates > 0
    after = parameters(agent)
    assert all(value.isfinite().all() for value in after.values())
    assert any(not torch.equal(value, before[name]) for name, value in after.items())


@pytest.mark.directml
@every_agent_class
def test_resumed_run_of_several_robots_equals_an_uninterrupted_run(
    agent_class: type[Agent], tmp_path: Path
) -> None:
    def make(folder: str, callbacks: Sequence[Callback] = ()) -> TorchRLTrainer:
        torch.manual_seed(0)
        env = pair(MarineNavEnv(num_envs=4, num_robots=3, num_obstacles=1), agent_class)
        return TorchRLTrainer(
            env,
            build_for(env, agent_class, rollout_length=8),
            tmp_path / folder,
            total_frames=96,
            random_frames=24,
            replay_capacity=500,
            checkpoint_interval=48,  # not a whole number of rollouts
            show_progress=False,
            loggers=["csv"],
            callbacks=callbacks,
        )

    whole = make("whole", [FolderAt(48, tmp_path / "part")])
    whole.train()
    assert all(value.isfinite().all() for value in parameters(whole.agent).values())
    assert whole.updates > 0
    if isinstance(whole.agent, OffPolicyAgent):  # the ratio is that to steps of the environments
        assert whole.updates == (96 - 24) * whole.agent.utd_ratio
    assert_resumes(make("part"), whole)
