import logging
import math
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.envs import EnvBase, RewardScaling, TransformedEnv

from agents import PPO, SAC
from agents.base import Agent
from benchmarks.fixture import stop_after
from envs.gym import GymnasiumEnv
from tests.helpers.agents import build_for
from tests.helpers.clock import Clock
from tests.helpers.environments import IdentityEnv
from tests.helpers.training import before_each, metric_rows, trainer_of
from torchrl_gpu.checkpoints.checkpoint import find_checkpoint, frames_of
from torchrl_gpu.checkpoints.state_file import load_state
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.execution import Execution
from torchrl_gpu.execution.options import PrecisionName
from torchrl_gpu.execution.precision import precisions_of
from trainers.evaluation.evaluation import evaluate
from trainers.training.callbacks import Callback
from trainers.training.trainer import TorchRLTrainer

pytestmark = pytest.mark.directml

CPU = torch.device("cpu")


def make_trainer(
    folder: Path, seed: int = 0, utd_ratio: float = 0.0625, **settings: Any
) -> TorchRLTrainer:
    torch.manual_seed(seed)
    env = IdentityEnv()
    agent = build_for(env, SAC, utd_ratio=utd_ratio)
    defaults = {
        "evaluation_env": IdentityEnv(),
        "total_frames": 960,
        "random_frames": 160,
        "log_interval": 320,
        "evaluation_interval": 480,
        "evaluation_episodes": 16,
        "checkpoint_interval": 480,
    }
    return trainer_of(env, agent, folder, **{**defaults, **settings})


def test_an_environment_plans_for_all_steps_of_a_training_and_the_replay_is_announced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    planned: list[tuple[int, bool]] = []
    monkeypatch.setattr(IdentityEnv, "plan", lambda _, *run: planned.append(run))
    trainer = make_trainer(tmp_path)
    trainer.train()
    trainer.total_frames += 320
    trainer.execution = Execution(compile="off")
    trainer.train()
    assert planned == [(960 // 16, True), (1280 // 16, False)]
    assert caplog.text.count("the replay needs") == 1


def test_run_writes_metrics_and_checkpoints(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, utd_ratio=0.125, loggers=["csv", "tensorboard"])
    trainer.train()
    trainer.close()
    assert trainer.frames == 960
    assert trainer.updates == (960 - 160) // 8
    rows = metric_rows(tmp_path)
    learned = [row for row in rows if row["loss/critic"]]
    evaluated = [row for row in rows if row["evaluation/success"]]
    assert [int(row["frames"]) for row in learned] == [320, 640, 960]
    assert [int(row["frames"]) for row in evaluated] == [480, 960]
    assert float(learned[-1]["episode/return"]) > float(learned[0]["episode/return"])
    assert list(tmp_path.glob("events.out.tfevents.*"))
    assert [p.name for p in sorted((tmp_path / "checkpoints").glob("*0.safetensors"))] == [
        "frames_000000000480.safetensors",
        "frames_000000000960.safetensors",
    ]


def test_intervals_that_no_number_of_steps_divides_are_kept_on_average(tmp_path: Path) -> None:
    intervals = {"log_interval": 150, "evaluation_interval": 250, "checkpoint_interval": 400}
    trainer = make_trainer(tmp_path, **intervals, checkpoints_kept=9)
    trainer.train()
    logged = [int(row["frames"]) for row in metric_rows(tmp_path) if row["loss/critic"]]
    assert logged == [304, 464, 608, 752, 912]
    assert list(trainer.evaluations) == [256, 512, 752, 960]
    saved = [frames_of(path) for path in trainer.checkpoints.paths()]
    assert saved == [256, 400, 512, 752, 800, 960]


class EvaluatesEarly(Callback):
    """Asks for an evaluation after the tenth step, and notes the frames of all steps."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_step(self, trainer: TorchRLTrainer) -> None:
        self.steps.append(trainer.frames)
        trainer.evaluation_requested = len(self.steps) == 10


@pytest.mark.parametrize("overlap", [None, False])
def test_a_callback_asks_for_an_evaluation_and_training_stays_the_same(
    tmp_path: Path, overlap: bool | None
) -> None:
    callback = EvaluatesEarly()
    asked = make_trainer(tmp_path / "asked", callbacks=[callback], overlap=overlap)
    plain = make_trainer(tmp_path / "plain", overlap=overlap)
    for trainer in (asked, plain):
        torch.manual_seed(0)
        trainer.train()
    step = asked.frames_per_step
    assert callback.steps == list(range(step, 960 + step, step))
    assert list(asked.evaluations) == [11 * step, *plain.evaluations]
    assert asked.updates == plain.updates
    assert 0.0 < asked.evaluation_seconds < time.perf_counter() - asked.started


def test_untrained_policy_is_evaluated_on_demand_and_training_stays_the_same(
    tmp_path: Path,
) -> None:
    rows = {}
    for name, settings in {"plain": {}, "early": {"evaluate_untrained": True}}.items():
        trainer = make_trainer(tmp_path / name, **settings)
        trainer.train()
        trainer.train()  # goes on; the policy is no longer untrained
        rows[name] = [
            (int(row["frames"]), row["evaluation/return"], row["episode/return"])
            for row in metric_rows(tmp_path / name)
        ]
    frames, first_return, _ = rows["early"][0]
    assert frames == 0
    assert float(first_return) < -1.0
    assert rows["early"][1:] == rows["plain"]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_resumed_run_equals_an_uninterrupted_run(tmp_path: Path, precision: PrecisionName) -> None:
    if precision not in precisions_of(CPU):
        pytest.skip(f"this torch has no {precision} on a CPU")

    def make(folder: Path, **settings: Any) -> TorchRLTrainer:
        execution = Execution(CPU, precision)
        return make_trainer(folder, utd_ratio=0.125, execution=execution, **settings)

    whole = make(tmp_path / "whole")
    whole.train()
    first = make(tmp_path / "parts", total_frames=480)
    first.train()
    second = make(tmp_path / "parts", seed=99)
    second.load(second.folder)
    assert second.frames == 480
    second.train()
    for name, value in whole.agent.state_dict().items():
        assert torch.equal(value, second.agent.state_dict()[name]), name
    assert second.evaluations[second.frames] == whole.evaluations[whole.frames]
    assert second.execution.state_dict() == whole.execution.state_dict()


def test_a_run_resumes_in_another_precision(tmp_path: Path) -> None:
    make_trainer(tmp_path, execution=Execution(CPU, "bf16"), total_frames=480).train()
    second = make_trainer(tmp_path)
    second.load(second.folder)
    second.train()
    assert second.frames == 960


def test_new_update_ratio_applies_from_the_resumed_frame(tmp_path: Path) -> None:
    first = make_trainer(tmp_path, total_frames=480)
    first.train()
    second = make_trainer(tmp_path, total_frames=960)
    assert isinstance(second.agent, SAC)
    second.agent.utd_ratio = 0.125
    second.load(second.folder)
    second.train()
    assert second.updates == first.updates + 480 // 8


def test_resumed_run_without_its_replay_buffer_fills_a_new_one_before_updates(
    tmp_path: Path,
) -> None:
    first = make_trainer(tmp_path, total_frames=480, save_replay=False)
    first.train()
    second = make_trainer(tmp_path, total_frames=480 + 160)
    second.load(second.folder)
    second.train()
    assert second.updates == first.updates


def test_stop_request_saves_and_ends_the_run(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    stop_after(trainer, 320)
    trainer.train()
    assert load_state(find_checkpoint(trainer.folder))["frames"] == trainer.frames == 320


def test_checkpoint_of_another_agent_or_environment_is_refused(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, total_frames=176)
    trainer.train()
    latest = find_checkpoint(trainer.folder)

    class Other(SAC):
        pass

    env = IdentityEnv(action_dim=3)
    with pytest.raises(ConfigurationError, match="another environment"):
        trainer_of(env, build_for(env, SAC), tmp_path / "b").load(latest)
    env = IdentityEnv()
    with pytest.raises(ConfigurationError, match="contains the agent SAC, not Other"):
        trainer_of(env, build_for(env, Other), tmp_path / "c").load(latest)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"env": IdentityEnv(8)}, r"^env: observation of IdentityEnv has shape \[8, 2\] and "),
        ({"env": IdentityEnv(action_dim=3)}, r"^env: observation .*; build it by observation_spec"),
        ({"evaluation_env": IdentityEnv(action_dim=3)}, "^evaluation_env: observation of Identity"),
    ],
)
def test_an_environment_that_does_not_fit_the_agent_is_refused(
    changed: dict[str, EnvBase], message: str, tmp_path: Path
) -> None:
    env = IdentityEnv()
    with pytest.raises(ConfigurationError, match=message):
        TorchRLTrainer(**{"env": env, "agent": build_for(env, SAC), "folder": tmp_path, **changed})
    assert not any(tmp_path.iterdir())


def test_the_training_environment_is_not_given_for_evaluations(tmp_path: Path) -> None:
    env = IdentityEnv()
    with pytest.raises(ConfigurationError, match=r"^evaluation_env: it is the training environmen"):
        TorchRLTrainer(env, build_for(env, SAC), tmp_path, evaluation_env=TransformedEnv(env))


def test_a_folder_with_another_training_is_left_as_it_is(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, total_frames=176)
    trainer.train()
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    another = make_trainer(tmp_path, seed=1, total_frames=176)
    with pytest.raises(ConfigurationError, match="it has the checkpoints of another training"):
        another.train()
    assert all(path.read_bytes() == content for path, content in files.items())
    another.load(trainer.folder)
    another.total_frames = 336
    another.train()
    assert another.frames == 336


def test_a_training_goes_on_from_a_checkpoint_before_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = make_trainer(tmp_path).save()
    monkeypatch.chdir(tmp_path)
    trainer = make_trainer(tmp_path, total_frames=176)
    with caplog.at_level(logging.INFO):
        trainer.load(checkpoint.relative_to(tmp_path))  # which the trainer knows by another path
    assert "new ones begin" not in caplog.text
    trainer.train()
    assert trainer.frames == 176


class FailingEnv(IdentityEnv):
    """Environment 3 returns an entry that is not finite, from its 40th step until a reset."""

    def __init__(self, entry: str, value: float, *, heals: bool = True) -> None:
        super().__init__(max_episode_steps=1000)
        self.entry, self.value, self.heals = entry, value, heals
        self.count = 0
        self.fails = False

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        self.count += 1
        after = super()._step(tensordict)
        self.fails = self.fails or self.count == 40
        if self.fails:
            after[self.entry][3] = self.value
        return after

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: object) -> TensorDict:
        self.fails = self.fails and not self.heals
        return super()._reset(tensordict, **kwargs)


off_and_on_policy_without_numbers = pytest.mark.parametrize(
    ("agent_class", "entry", "value"),
    [(SAC, "reward", torch.nan), (PPO, "observation", torch.inf)],
)


def failing_trainer(
    env: EnvBase, agent_class: type[Agent], folder: Path, **settings: Any
) -> TorchRLTrainer:
    agent = build_for(env, agent_class, rollout_length=8)
    lengths = {"total_frames": 1600, "random_frames": 160}
    intervals = {"log_interval": 160, "checkpoint_interval": 160}
    return trainer_of(env, agent, folder, **lengths, **intervals, **settings)


@off_and_on_policy_without_numbers
def test_an_environment_that_returns_no_numbers_ends_the_training_in_one_line(
    agent_class: type[Agent], entry: str, value: float, tmp_path: Path
) -> None:
    trainer = failing_trainer(FailingEnv(entry, value), agent_class, tmp_path)
    with pytest.raises(ConfigurationError) as error:
        trainer.train()
    newest = trainer.checkpoints.paths()[-1]
    assert str(error.value) == (
        f"env: {entry} was NaN or infinite in step 40, rows 3 of 16; "
        f"the last good checkpoint is {newest}"
    )
    networks = load_state(newest)["agent"]["networks"]
    assert all(tensor.isfinite().all() for tensor in networks.values())
    assert "nan" not in (tmp_path / "metrics.csv").read_text()


@off_and_on_policy_without_numbers
def test_an_environment_that_returns_no_numbers_begins_a_new_episode(
    agent_class: type[Agent], entry: str, value: float, tmp_path: Path
) -> None:
    env = FailingEnv(entry, value)
    trainer = failing_trainer(env, agent_class, tmp_path, on_nonfinite="restart")
    lengths = []
    while trainer.frames < 50 * 16:
        transition = trainer.collect()
        trainer.experience.store(transition)
        lengths.append(trainer.env.steps[:, 0].tolist())
        batches = list(trainer.experience.batches())
        values = (value for batch in batches for value in batch.values(True, True))
        assert all(value.isfinite().all() for value in values)
        if len(lengths) == 40:
            assert transition["active"].flatten().tolist() == [row != 3 for row in range(16)]
            assert transition["next", "truncated"][3]
            assert transition["next", "reward"][3] == 0.0
    assert lengths[-1] == [50 if row != 3 else 10 for row in range(16)]
    _, counted, *_ = trainer.episodes.state_dict()["running"]
    assert counted.tolist() == lengths[-1]
    trainer.train()
    rows = metric_rows(tmp_path)
    assert sum(float(row["episode/restarts"] or 0) for row in rows) == 1
    assert all(math.isfinite(float(value)) for row in rows for value in row.values() if value)


def test_a_network_and_a_reset_that_return_no_numbers_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = failing_trainer(IdentityEnv(), PPO, tmp_path)
    with torch.no_grad():
        next(trainer.agent.policy.parameters()).fill_(torch.nan)
    with pytest.raises(ConfigurationError, match=r"^agent: action .* in step 1, rows 0, 1, .* 16;"):
        trainer.train()
    env = IdentityEnv()
    monkeypatch.setattr(env, "_draw", lambda: torch.full((16, 2), torch.nan))
    trainer = failing_trainer(env, PPO, tmp_path)
    with pytest.raises(ConfigurationError, match=r"^env: observation .* in step 1, rows 0, 1, "):
        trainer.train()


def test_an_environment_that_no_restart_heals_ends_the_training(tmp_path: Path) -> None:
    env = FailingEnv("observation", torch.nan, heals=False)
    trainer = failing_trainer(env, SAC, tmp_path, on_nonfinite="restart")
    with pytest.raises(ConfigurationError, match=r"^env: observation .* in step 41, rows 3 of 16;"):
        trainer.train()


def test_parameters_that_are_no_numbers_are_neither_saved_nor_loaded(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    good = trainer.save()
    state = load_state(good)
    with torch.no_grad():
        next(trainer.agent.policy.parameters()).fill_(torch.nan)
    trainer.frames = 500
    with pytest.raises(ConfigurationError, match=rf"^agent: .* is NaN or infinite .* is {good}$"):
        trainer.save()
    assert trainer.checkpoints.paths() == [good]
    name = next(name for name in state["agent"]["networks"] if name.endswith("weight"))
    state["agent"]["networks"][name].fill_(torch.inf)
    with pytest.raises(ConfigurationError, match=f"hold NaN or infinity, in 1 of .* {name}"):
        trainer.load(good, state)


@pytest.mark.parametrize(("entry", "value"), [("reward", torch.nan), ("observation", torch.inf)])
def test_an_evaluation_without_numbers_names_their_entry(entry: str, value: float) -> None:
    env = FailingEnv(entry, value, heals=False)
    env.max_episode_steps = 8
    with pytest.raises(ConfigurationError) as error:
        evaluate(env, build_for(env, SAC).policy, CPU, episodes=200)
    where = "in step 40 of an evaluation, rows 3 of 16"
    assert str(error.value) == f"env: {entry} was NaN or infinite {where}"


def test_an_evaluation_of_a_network_without_numbers_names_the_action() -> None:
    env = IdentityEnv(4)
    agent = build_for(env, SAC)
    with torch.no_grad():
        next(agent.policy.parameters()).fill_(torch.nan)
    cause = r"^agent: action was NaN or infinite in step 1 of an evaluation, rows 0, 1, 2, 3 of 4$"
    with pytest.raises(ConfigurationError, match=cause):
        evaluate(env, agent.policy, CPU, episodes=8)


def test_an_evaluation_whose_return_overflows_is_refused() -> None:
    env = TransformedEnv(IdentityEnv(), RewardScaling(loc=0.0, scale=1e38))
    with pytest.raises(ConfigurationError, match=r"^env: the mean episode/return of an evaluation"):
        evaluate(env, build_for(env, SAC).policy, CPU, episodes=16)


def test_frames_per_second_count_only_frames_of_this_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of 16 frames takes a second, at last two; an interval is no whole number of steps."""
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)

    def run(total_frames: int) -> None:
        trainer = make_trainer(tmp_path, total_frames=total_frames, log_interval=100)
        before_each(trainer, "collect", lambda: clock.sleep(1.0 if trainer.frames < 720 else 2.0))
        if latest := trainer.checkpoints.latest():
            trainer.load(latest)
        trainer.train()

    run(total_frames=480)
    run(total_frames=960)
    rows = [row for row in metric_rows(tmp_path) if row["frames_per_second"]]
    rates = {int(row["frames"]): float(row["frames_per_second"]) for row in rows}
    assert {rate for frames, rate in rates.items() if frames <= 720} == {16.0}
    assert rates[912] == 8.0, "of the steps since the row at 800"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"total_frames": 0}, "total_frames=0: input should be greater than or equal to 1"),
        ({"random_frames": -1}, "random_frames=-1: input should be greater than or equal to 0"),
        (
            {"replay_capacity": "big"},
            "replay_capacity=big: input should be a valid integer, unable to parse string as an "
            "integer",
        ),
        ({"stop_at_score": math.nan}, "stop_at_score=nan: input should be a finite number"),
        ({"stop_at_score": math.inf}, "stop_at_score=inf: input should be a finite number"),
        (
            {"stop_at_score": 95},
            "trainer.stop_at_score=95: scores in IdentityEnv are success rates from 0 to 1; use "
            "0.95 for 95 %",
        ),
        (
            {"total_frames": 300, "random_frames": 1000},
            "trainer.total_frames=300: the run would end before its first update, which takes 1016 "
            "frames (trainer.random_frames=1000, agent.utd_ratio=0.0625)",
        ),
        (
            {"replay_capacity": 60},
            "trainer.replay_capacity=60: the replay is smaller than a batch, agent.batch_size=64",
        ),
    ],
)
def test_settings_that_cannot_be_trained_with_are_refused(
    tmp_path: Path, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        make_trainer(tmp_path, **settings)
    assert str(error.value) == reason
    assert not list(tmp_path.iterdir())


def test_a_score_is_a_success_rate_where_there_is_one_and_else_a_return(tmp_path: Path) -> None:
    make_trainer(tmp_path, stop_at_score=1)
    with closing(GymnasiumEnv(name="CartPole-v1", num_envs=2)) as env:  # scored by its returns
        trainer_of(env, build_for(env, PPO), tmp_path, stop_at_score=475)


def test_a_run_that_ends_before_its_first_rollout_is_refused(tmp_path: Path) -> None:
    env = IdentityEnv()
    agent = build_for(env, PPO, rollout_length=8)
    trainer_of(env, agent, tmp_path, total_frames=113)
    with pytest.raises(ConfigurationError, match=r"takes 128 frames \(agent.rollout_length=8\)"):
        trainer_of(env, agent, tmp_path, total_frames=112)
