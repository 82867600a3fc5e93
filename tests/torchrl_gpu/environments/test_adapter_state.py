"""States of adapted TorchRL environments: episodes that go on to the same bytes."""

from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from torchrl.envs import (
    CatFrames,
    Compose,
    EnvBase,
    GymEnv,
    GymWrapper,
    ParallelEnv,
    PendulumEnv,
    RewardSum,
    SerialEnv,
    StepCounter,
    TrajCounter,
    Transform,
    TransformedEnv,
    UnsqueezeTransform,
    VecNormV2,
)

from agents import DQN, PPO, SAC
from agents.base import Agent
from benchmarks.fixture import stop_after
from tests.helpers.agents import build_for
from tests.helpers.training import assert_same, assert_same_checkpoints
from torchrl_gpu.acting.collector import BatchCollector
from torchrl_gpu.checkpoints.state_file import load_state, save_state
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.bookkeeping import frozen_statistics
from trainers.training.trainer import TorchRLTrainer

EPISODE = 9
NAME = "Pendulum-v1"


def pendulum() -> EnvBase:
    return PendulumEnv()


def pendulums() -> EnvBase:
    return SerialEnv(3, PendulumEnv)


def limited_pendulums() -> EnvBase:
    return SerialEnv(3, lambda: TransformedEnv(PendulumEnv(), StepCounter(EPISODE)))


def normalized_pendulums() -> EnvBase:
    """Every transform with a state, inside and outside of the batch."""

    def one() -> EnvBase:
        return TransformedEnv(PendulumEnv(), Compose(RewardSum(), StepCounter(EPISODE)))

    return transformed(
        SerialEnv(3, one),
        UnsqueezeTransform(-1, in_keys=["th", "thdot"], out_keys=["angle", "speed"]),
        CatFrames(2, -1, in_keys=["angle"], out_keys=["angles"]),
        VecNormV2(in_keys=["speed", "reward"]),
        TrajCounter(),
    )


def gymnasium() -> EnvBase:
    """One of Gymnasium's pendulums."""
    return transformed(GymEnv(NAME, max_episode_steps=EPISODE), StepCounter(), RewardSum())


def gymnasiums() -> EnvBase:
    """Gymnasium's environments with discrete actions, and transforms within and around them."""

    def one() -> EnvBase:
        env = GymEnv("CartPole-v1", categorical_action_encoding=True)
        return TransformedEnv(env, StepCounter(EPISODE))

    return transformed(SerialEnv(3, one), VecNormV2(in_keys=["observation"]))


def transformed(env: EnvBase, *transforms: Transform) -> EnvBase:
    return TransformedEnv(env, Compose(*transforms))


def limited_pendulum() -> EnvBase:
    return transformed(PendulumEnv(), StepCounter(EPISODE), RewardSum())


STATEFUL = [
    *(pendulum, pendulums, limited_pendulum, limited_pendulums, normalized_pendulums),
    *(gymnasium, gymnasiums),
]
every_kind = pytest.mark.parametrize("make", STATEFUL, ids=[make.__name__ for make in STATEFUL])


def collector_of(env: EnvBase) -> BatchCollector:
    adapted = as_environment(env)
    return BatchCollector(adapted, torch.device("cpu"), list(adapted.observation_spec.keys()))


def collect(collector: BatchCollector, steps: int) -> list[dict[str, Any]]:
    spec: Any = collector.env.full_action_spec["action"]
    return [
        collector.step(lambda root: root.set("action", spec.rand())).clone().to_dict()
        for _ in range(steps)
    ]


@every_kind
def test_episodes_go_on_exactly(make: Callable[[], EnvBase], tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = collector_of(make())
    assert whole.env.capabilities.has_state
    collect(whole, EPISODE + 4)
    save_state(tmp_path / "state.safetensors", whole.state_dict())
    random = torch.get_rng_state()
    expected = collect(whole, 2 * EPISODE)

    torch.manual_seed(7)
    other = collector_of(make())
    assert other.load_state_dict(load_state(tmp_path / "state.safetensors"))
    torch.set_rng_state(random)
    assert_same(expected, collect(other, 2 * EPISODE))


def make_trainer(make: Callable[[], EnvBase], agent: type[Agent], folder: Path) -> TorchRLTrainer:
    torch.manual_seed(0)
    env = as_environment(make())
    env.set_seed(0)
    return TorchRLTrainer(
        env,
        build_for(env, agent, hidden_sizes=[8], batch_size=16, rollout_length=8),
        folder,
        total_frames=40 * env.num_envs,
        random_frames=8 * env.num_envs,
        replay_capacity=100,
        loggers=[],
        show_progress=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "agent"),
    [
        *zip(STATEFUL, cycle((PPO, SAC)), strict=False),
        *((normalized_pendulums, SAC), (gymnasiums, DQN)),
    ],
)
def test_a_run_resumes_to_the_same_bytes(
    make: Callable[[], EnvBase], agent: type[Agent], tmp_path: Path
) -> None:
    whole = make_trainer(make, agent, tmp_path / "whole")
    whole.train()
    for steps in (13, 22, 100):
        part = make_trainer(make, agent, tmp_path / "parts")
        if (latest := part.checkpoints.latest()) is not None:
            part.load(latest)
        stop_after(part, steps * part.num_envs)
        part.train()
    assert_same_checkpoints(whole, part)


@pytest.mark.parametrize("make", [PendulumEnv, lambda: GymEnv(NAME)])
def test_another_number_of_environments_begins_new_episodes(make: Callable[[], EnvBase]) -> None:
    whole, other = (collector_of(SerialEnv(number, make)) for number in (3, 2))
    collect(whole, 2)
    assert not other.load_state_dict(whole.state_dict())
    other.restart()
    collect(other, 2)


@pytest.mark.parametrize("is_pooled", [True, False])
@pytest.mark.parametrize("state", ["state_dict", "progress"])
def test_another_number_of_environments_keeps_statistics_of_all_of_them(
    is_pooled: bool, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    def make(number: int) -> BatchCollector:
        norm = VecNormV2(in_keys=["observation"], reduce_batch_dims=is_pooled)
        return collector_of(transformed(SerialEnv(number, lambda: GymEnv(NAME)), norm))

    def statistics(collector: BatchCollector) -> Any:
        return collector.env.state_dict()["transforms"][0]["_extra_state"]

    whole, other = make(3), make(2)
    collect(whole, 5)
    saved = getattr(whole.env, state)()
    other.env.load_progress(saved)
    with frozen_statistics(other.env):
        other.restart()
    if is_pooled:
        assert_same(statistics(other), saved["transforms"][0]["_extra_state"])
    assert ("VecNormV2 has a state of each environment" in caplog.text) is not is_pooled
    collect(other, 2)


def test_attributes_of_a_gymnasium_environment_stay_within_reach() -> None:
    env = GymWrapper(CartPoleEnv(), categorical_action_encoding=True)
    as_environment(env).reset()
    assert env.gravity == 9.8
    env.set_wrapper_attr("gravity", 1.6)
    assert env.gravity == env.unwrapped.gravity == 1.6


def test_a_step_that_only_some_environments_have_taken_leaves_no_episodes() -> None:
    def make() -> BatchCollector:
        return collector_of(SerialEnv(2, lambda: transformed(GymEnv(NAME), StepCounter())))

    one, other = make(), make()
    collect(one, 2)
    second: Any = one.env._episodes._recorders[1]
    second.step = None
    with pytest.raises(TypeError):
        collect(one, 1)
    assert not other.load_state_dict(one.state_dict())
    del second.step
    one.restart()
    collect(one, 2)
    assert other.load_state_dict(one.state_dict())


def test_processes_claim_no_state() -> None:
    assert not as_environment(ParallelEnv(2, PendulumEnv)).capabilities.has_state
