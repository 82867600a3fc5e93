"""Collectors in processes of Ray; all tests share one cluster on this machine."""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase
from torchrl.envs.utils import RandomPolicy

from agents import DDPG, PPO, SAC
from agents.base import Agent
from envs.marinenav import MarineNavEnv
from tests.helpers.agents import CPU, assert_equal, build_for, parameters
from tests.helpers.environments import IdentityEnv
from tests.helpers.ray_workers import forked_workers
from tests.helpers.training import train_briefly, trainer_of
from tests.trainers.collecting.lost import DyingEarly, Unstartable
from torchrl_gpu.acting.collector import BatchCollector
from torchrl_gpu.checkpoints.checkpoint import find_checkpoint
from torchrl_gpu.devices.seeding import seed_everything
from torchrl_gpu.errors import ConfigurationError, WorkerError
from trainers.collecting import ray_cluster
from trainers.collecting.collectors import RayCollectors
from trainers.collecting.ray_cluster import connect
from trainers.collecting.ray_collector import RayCollector, plan_of
from trainers.collecting.ray_environment import RayEnvironment
from trainers.run import run, settings_of

STEPS = 4
SHARE = 4


def build_identity(num_envs: int, seed: int) -> EnvBase:
    """Return tiny environments; this function is pickled by its name."""
    env = IdentityEnv(num_envs)
    env.set_seed(seed)
    return env


class UnreadableError(Exception):
    """Cannot be pickled and read again, as many classes with arguments of their own."""

    def __init__(self, part: str, number: int) -> None:
        super().__init__(f"{part} {number} has failed")


class FailingEnv(IdentityEnv):
    """Fails in its twelfth step, after whole chunks."""

    calls = 0

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        self.calls += 1
        if self.calls == 12:
            self.fail()
        return super()._step(tensordict)

    def fail(self) -> None:
        raise ArithmeticError("simulator 1 has failed")


class UnreadablyFailingEnv(FailingEnv):
    """Fails with an exception that cannot be read again."""

    def fail(self) -> None:
        raise UnreadableError("simulator", 1)


class HangingEnv(IdentityEnv):
    """Hangs in a reset where the working directory has a file `hang`, which it removes."""

    stall_seconds = 1.5
    counters = frozenset({"workers/resets"})

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDict:
        if Path("hang").exists():
            Path("hang").unlink()
            time.sleep(3600)
        return super()._reset(tensordict, **kwargs)


def build_sea(num_envs: int, seed: int) -> EnvBase:
    """Return seas with several robots each, and a curriculum by frames."""
    return MarineNavEnv(num_envs=num_envs, curriculum=True, device=CPU, seed=seed)


@pytest.fixture(scope="module")
def cluster() -> Iterator[bool]:
    """Ray with four cores; the value is whether the handler of SIGTERM stayed the same."""
    before = signal.getsignal(signal.SIGTERM)
    with forked_workers():
        leave = connect(None, cores=4)
        yield signal.getsignal(signal.SIGTERM) is before
        leave()


@pytest.fixture(scope="module")
def env(cluster: bool) -> Iterator[RayEnvironment]:
    """Two collectors of four environments each."""
    env = RayEnvironment(build_identity, 2 * SHARE, RayCollectors(count=2, steps=STEPS), seed=5)
    yield env
    env.close()


@pytest.fixture(autouse=True)
def _as_new(env: RayEnvironment) -> None:
    env.settings = RayCollectors(count=2, steps=STEPS)
    env.set_seed(5)
    env.metrics()


class Learner:
    """What a trainer tells a collector: its updates; and what that tells it: rows to forget."""

    def __init__(self, env: RayEnvironment, agent: Agent, random_frames: int = 0) -> None:
        self.agent = agent
        self.updates = 0
        self.forgotten: list[Tensor] = []
        collector = env.collector(agent, random_frames, lambda: self.updates, self.forgotten.append)
        assert isinstance(collector, RayCollector)
        self.collector = collector
        collector.restart()
        env.metrics()

    def steps(self, number: int, updates: int = 0) -> list[TensorDictBase]:
        """Return the next steps, with a number of updates after each of them."""
        steps = []
        for _ in range(number):
            steps.append(self.collector.step(self.agent.policy).clone())
            self.updates += updates
        return steps


def kill(env: RayEnvironment, number: int) -> None:
    os.kill(env.members[number].place.pid, signal.SIGKILL)


def test_paths_of_sockets_are_short_where_the_temporary_folder_has_a_long_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: dict[str, Any] = {}
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: started.update(options))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("t" * 60)))
    connect(None, cores=1)()
    assert started["_temp_dir"].startswith("/tmp/ray_")


@pytest.mark.slow
def test_handlers_of_signals_stay_those_of_the_program(cluster: bool) -> None:
    assert cluster
    connect(None, cores=4)()  # does not leave, because it did not join
    assert ray.is_initialized()


def test_each_collector_steps_as_a_local_one_with_its_seed(env: RayEnvironment) -> None:
    agent = build_for(env, SAC)
    random_steps = 3
    learner = Learner(env, agent, random_frames=random_steps * env.num_envs)
    random = RandomPolicy(env.full_action_spec["action"])
    steps = []
    for number in range(10):
        policy = random if number < random_steps else agent.policy
        steps.append(learner.collector.step(policy).clone())
    assert int(agent.policy.frames) == (10 - random_steps) * env.num_envs
    for number, seed in enumerate(env.seeds()):
        local = build_identity(SHARE, seed)
        seed_everything(seed)
        local.set_seed(seed)
        collector = BatchCollector(local, CPU, agent.policy.in_keys)
        random = RandomPolicy(local.full_action_spec["action"])
        rows = slice(number * SHARE, (number + 1) * SHARE)
        for index, step in enumerate(steps):
            expected = collector.step(random if index < random_steps else agent.policy)
            assert (step[rows] == expected.select(*step.keys())).all()


@pytest.mark.parametrize("agent_class", [SAC, PPO])
def test_a_training_learns_from_all_collectors(
    agent_class: type[Agent], env: RayEnvironment, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    trainer = train_briefly(env, build_for(env, agent_class), tmp_path, on_nonfinite="stop")
    assert trainer.frames == 512 == int(trainer.agent.policy.frames)
    assert trainer.updates > 0
    metrics = trainer.folder.joinpath("metrics.csv").read_text().splitlines()
    row = dict(zip(metrics[0].split(","), metrics[-1].split(","), strict=True))
    assert float(row["episode/count"]) > 0
    assert float(row["collectors/replaced"]) == 0
    age = float(row["collectors/weights_age"])
    assert age == 0 if agent_class is PPO else 0 < age <= 2 * STEPS


def test_equal_runs_are_equal_bit_for_bit(env: RayEnvironment, tmp_path: Path) -> None:
    agents = []
    for name in ("one", "other"):
        torch.manual_seed(3)
        agents.append(build_for(env, SAC))
        folder = tmp_path / name
        trainer = trainer_of(env, agents[-1], folder, total_frames=320, random_frames=64)
        trainer.collector.restart()
        trainer.train()
    assert_equal(parameters(agents[0]), parameters(agents[1]))


def test_newer_weights_act_after_the_steps_that_were_ordered(env: RayEnvironment) -> None:
    agent = build_for(env, DDPG)
    learner = Learner(env, agent)
    learner.steps(2 * STEPS - 1)
    with torch.no_grad():
        for parameter in agent.policy.parameters():
            parameter.fill_(100.0)
    learner.updates += 1
    steps = learner.steps(2 * STEPS + 1)
    is_new = [bool(step["action"].mean() > 0.5) for step in steps]
    assert not is_new[0]
    assert is_new[-1]
    assert is_new == sorted(is_new)


@pytest.mark.parametrize("max_age", [None, 0, 1, 5, 24, 1000])
def test_no_step_is_older_than_the_limit(max_age: int | None, env: RayEnvironment) -> None:
    env.settings = RayCollectors(count=2, steps=STEPS, max_age=max_age)
    agent = build_for(env, SAC, utd_ratio=3 / env.num_envs)  # three updates after each step
    learner = Learner(env, agent)
    learner.steps(20, updates=3)
    largest = env.metrics()["collectors/max_weights_age"]
    expected = {None: 24, 0: 0, 1: 0, 5: 3, 24: 24, 1000: 24}
    assert largest == expected[max_age]
    assert plan_of(agent, env.num_envs, STEPS, max_age).is_ahead == (expected[max_age] > 3)


def test_steps_that_became_too_old_are_not_learned_from(env: RayEnvironment) -> None:
    env.settings = RayCollectors(count=2, steps=STEPS, max_age=50)
    learner = Learner(env, build_for(env, SAC))
    learner.steps(STEPS)
    learner.updates += 51
    learner.steps(STEPS)
    assert env.metrics()["collectors/max_weights_age"] == 0
    assert learner.forgotten[0].all()


@pytest.mark.slow
def test_a_killed_collector_of_an_off_policy_agent_is_replaced(env: RayEnvironment) -> None:
    learner = Learner(env, build_for(env, SAC))
    before = [process.place for process in env.members]
    steps = learner.steps(STEPS - 1)
    kill(env, 1)
    steps += learner.steps(3 * STEPS)
    assert env.members[0].place == before[0]
    assert env.members[1].place != before[1]
    # Each step continues the episode of the step before, or that one has ended it.
    for step, following in pairwise(steps):
        goes_on = (step["next", "observation"] == following["observation"]).all(-1)
        assert (goes_on | step["next", "done"].squeeze(-1)).all()
    cut = [step["next", "truncated"].squeeze(-1) for step in steps]
    assert sum(bool(each[SHARE:].all() and not each[:SHARE].any()) for each in cut) >= 1
    metrics = env.metrics()
    assert metrics["collectors/replaced"] == 1
    assert metrics["workers/lost_episodes"] == SHARE
    assert not learner.forgotten


@pytest.mark.slow
def test_a_killed_collector_of_an_on_policy_agent_is_replaced(env: RayEnvironment) -> None:
    agent = build_for(env, PPO, rollout_length=STEPS)
    learner = Learner(env, agent)
    learner.steps(STEPS)
    kill(env, 0)
    learner.steps(STEPS)
    lost = torch.arange(env.num_envs) < SHARE
    assert [rows.tolist() for rows in learner.forgotten] == [lost.tolist()]


@pytest.mark.slow
def test_collectors_share_frames_and_progress() -> None:
    settings = RayCollectors(count=2, steps=STEPS)
    env = RayEnvironment(build_sea, 2, settings)
    learner = Learner(env, build_for(env, PPO, rollout_length=STEPS))
    learner.steps(STEPS)
    state = learner.collector.state_dict()
    assert state["world"].keys() == {"frames"}  # and not that of all episodes
    assert int(state["world"]["frames"]) == STEPS * env.num_envs
    state["world"]["frames"] = state["world"]["frames"] + 1000
    kill(env, 1)
    assert not learner.collector.load_state_dict(state)
    learner.collector.restart()
    for process in env.members:
        assert int(process.call("progress")["frames"]) == 1000 + STEPS * env.num_envs
    transition = learner.steps(1)[0]
    assert transition["next", learner.collector.robots.reward_key].shape[0] == 2
    local = build_sea(2, 0)
    collector = BatchCollector(local, CPU, learner.agent.policy.in_keys)
    assert not collector.load_state_dict(state)
    assert int(local.state_dict()["frames"]) == int(state["world"]["frames"])
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_class", "message"),
    [
        (FailingEnv, r"(?s)^ArithmeticError in collector 0.*simulator 1 has failed"),
        (UnreadablyFailingEnv, r"(?s) in collector 0.*UnreadableError: simulator 1 has failed"),
    ],
)
def test_an_exception_of_an_environment_ends_the_run_with_its_traceback(
    env_class: type[FailingEnv], message: str
) -> None:
    env = RayEnvironment(lambda num_envs, _: env_class(num_envs), 2, RayCollectors(steps=2))
    learner = Learner(env, build_for(env, SAC))
    with pytest.raises(WorkerError, match=message):
        learner.steps(12)
    env.close()


@pytest.mark.slow
def test_a_reset_that_hangs_in_the_folder_of_the_run_ends_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    env = RayEnvironment(lambda num_envs, _: HangingEnv(num_envs), 2, RayCollectors(steps=2))
    before = env.members[0].place
    Path("hang").write_text("")
    learner = Learner(env, build_for(env, SAC))
    assert not Path("hang").exists()
    assert env.members[0].place != before
    learner.steps(3)
    assert env.counters == {"workers/resets", "collectors/replaced", "workers/lost_episodes"}
    env.close()


def test_a_machine_without_the_library_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "CollectorActor", Unstartable)
    with pytest.raises(
        WorkerError, match=r"^collector 0 cannot start \(ModuleNotFoundError: .*\);"
    ):
        RayEnvironment(build_identity, 2, RayCollectors())


@pytest.mark.slow
def test_processes_that_die_again_and_again_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "MAX_LOSSES", 0)
    with pytest.raises(WorkerError, match=r"^collector 0 .* the last of 1 processes in a row"):
        RayEnvironment(lambda *_: os._exit(1), 2, RayCollectors())


def test_a_process_that_dies_before_it_has_a_place_is_told_from_a_missing_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_cluster, "MAX_LOSSES", 0)
    monkeypatch.setattr(ray_cluster, "CollectorActor", DyingEarly)
    with pytest.raises(WorkerError, match=r"^collector 0 \(not started\) died \(.*\), the last of"):
        RayEnvironment(build_identity, 2, RayCollectors())


def test_a_cluster_without_free_cores_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "START_SECONDS", 0.2)
    with pytest.raises(WorkerError, match=r"of 4 cores of the cluster are free, and it needs 9$"):
        RayEnvironment(build_identity, 2, RayCollectors(cores=9))


BASE = ("agent=sac", "env=fanuc", "device=cpu", "collectors=ray")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["collectors.count=3"],
            "collectors.count=3: env.num_envs=128 cannot be divided by it; use",
        ),
        (["collectors.count=0"], "collectors.count=0: input should be greater than or equal to 1"),
        (["collectors.address=here"], "collectors.address=here: string should match pattern"),
        (["collectors.address=127.0.0.1:1"], "collectors.address=127.0.0.1:1: nothing answers"),
        (["trainer.on_nonfinite=restart"], "trainer.on_nonfinite=restart: collectors=ray cannot"),
        (["trainer.overlap=true"], "trainer.overlap=true: the environment of remote collectors"),
        (["collectors=pool"], "unknown collectors pool; choose one of: local, ray"),
    ],
)
def test_unfit_settings_are_refused_in_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match="^" + message):
        settings_of(*BASE, *arguments)


def test_automatic_environments_follow_the_cores_of_all_collectors() -> None:
    ray = ("collectors.count=3", "collectors.cores=5", "env.num_envs=auto")
    assert settings_of(*BASE, *ray).env.settings["num_envs"] == 3 * 5 * 32


SMALL = (
    *("device=cpu", "collectors=ray", "env.num_envs=4"),
    *("agent.batch_size=8", "agent.hidden_sizes=[16]", "trainer.total_frames=160"),
    *(
        "trainer.log_interval=80",
        "trainer.evaluation_interval=160",
        "trainer.evaluation_episodes=2",
    ),
    *("evaluation.episodes=2", "trainer.loggers=[csv]", "trainer.show_progress=false"),
)
OFF_POLICY = ("trainer.random_frames=40", "trainer.replay_capacity=1000", "agent.utd_ratio=0.25")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("agent=sac", "env=fanuc", "env.max_episode_steps=10", "collectors.count=2", *OFF_POLICY),
        ("agent=dqn", "env=gym", "env.name=CartPole-v1", "experiment=null", *OFF_POLICY),
    ],
)
def test_a_run_trains_and_resumes(
    arguments: tuple[str, ...], cluster: bool, tmp_path: Path
) -> None:
    outcome = run(*arguments, *SMALL, f"runs={tmp_path}")
    more = ("trainer.total_frames=240", "collectors=ray", "device=cpu")
    resumed = run(f"checkpoint={outcome.folder}", *more)
    assert find_checkpoint(resumed.folder).name == "frames_000000000240.safetensors"
