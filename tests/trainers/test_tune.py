"""`mode=tune`: trials, a study that goes on, the preset of the best settings and its judgement."""

import gc
import json
import math
import re
import shlex
import shutil
import signal
import sqlite3
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from omegaconf import OmegaConf
from optuna.trial import create_trial
from tensordict import TensorDictBase

from tests.helpers.forks import CAN_FORK
from tests.helpers.program import Call, changed
from tests.helpers.programs import Start
from torchrl_gpu.devices.seeding import stream_seed
from torchrl_gpu.errors import ConfigurationError
from trainers.evaluation.evaluator import Evaluator
from trainers.finite_watch import NonfiniteError
from trainers.modes.outcome import RunOutcome
from trainers.run import main, run, settings_of
from trainers.training.trainer import TorchRLTrainer
from trainers.tuning.judgement import Judged, read_judged
from trainers.tuning.options import Objective
from trainers.tuning.report import lines_of
from trainers.tuning.study import Candidate, Study, Trial
from trainers.tuning.watch import Goal

# The mean return 5 is reached at the first evaluation.
COMMAND = (
    *("mode=tune", "agent=dqn", "env=gym", "env.name=CartPole-v1", "device=cpu"),
    *("experiment=null", "trainer.random_frames=64", "trainer.total_frames=512"),
    *("trainer.evaluation_episodes=2", "evaluation.episodes=2", "evaluation.num_envs=2"),
    *("tune.objective=frames", "tune.success=5", "tune.trials=4"),
    "tune.names=[agent.learning_rate,agent.batch_size]",
    *("tune.fresh_seeds=1", "tune.trial_seconds=60", "tune.episodes=2"),
)


@pytest.fixture(autouse=True)
def _in_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


Tuned = tuple[RunOutcome, list[int]]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """Return the outcome of a search, and the seeds of its evaluations in their order."""
    wrapped, runs = Evaluator.evaluate, f"runs={tmp_path_factory.mktemp('tuned, well')}"
    with mock.patch.object(Evaluator, "evaluate", autospec=True, side_effect=wrapped) as evaluate:
        outcome = run(*COMMAND, runs)
    return outcome, [call.kwargs["seed"] for call in evaluate.call_args_list]


def rows(folder: Path, query: str) -> list[tuple[Any, ...]]:
    return sqlite3.connect(folder / "study.db").execute(query).fetchall()


def states(folder: Path) -> list[str]:
    return [state for (state,) in rows(folder, "SELECT state FROM trials ORDER BY number")]


@pytest.mark.slow
def test_a_search_ends_with_a_preset_that_runs(tuned: Tuned) -> None:
    outcome, _ = tuned
    assert states(outcome.folder) == 4 * ["COMPLETE"]
    (command,) = re.findall(r"train it +python -m trainers.run (.*)", outcome.report)
    arguments = shlex.split(command)
    settings = settings_of(*arguments)
    assert settings.env.settings["name"] == "CartPole-v1"
    assert settings.trainer.settings["random_frames"] == 64
    best = dict(re.findall(r"agent\.(\w+)=(\S+)", outcome.report))
    assert settings.agent.settings["learning_rate"] == float(best["learning_rate"])
    assert settings.agent.settings["batch_size"] == int(best["batch_size"])
    trained = run(*arguments, "device=cpu", "evaluation.episodes=2", f"runs={outcome.folder}")
    assert trained.evaluation.episodes == 2
    assert max(trained.evaluations) < 512, "ends at the success"


@pytest.mark.slow
def test_the_preset_has_the_schedules_that_were_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped preset of PPO refers to the number of frames of the run."""
    monkeypatch.setattr("trainers.tuning.watch.MOMENTS", (0.001, 1.0))
    left_out = ("agent=", "experiment=", "trainer.", "tune.trial_seconds", "evaluation.num_envs")
    command = [each for each in COMMAND if not each.startswith(left_out)]
    brief = ("tune.objective=seconds", "tune.seconds=60", "tune.trials=1")
    command = [*command, "agent=ppo", "trainer.evaluation_episodes=2", *brief]
    outcome = run(*command)
    preset = OmegaConf.load(outcome.folder / "presets/experiment/tuned.yaml")
    judged = OmegaConf.load(outcome.folder / "judged/best_1000000/config.yaml")
    assert preset.agent.learning_rate_frames == judged.trainer.total_frames
    unlimited = run(*command, "tune.seconds=null")
    assert unlimited.evaluation == outcome.evaluation, "goes on with the seconds of the study"
    query = "SELECT value_json FROM study_user_attributes WHERE key = 'identity'"
    ((identity,),) = rows(outcome.folder, query)
    assert json.loads(identity)["device"] == "cpu", "seconds of another device are refused"


def test_trials_are_measured_by_the_episodes_of_selection_alone(tuned: Tuned) -> None:
    _, seeds = tuned
    fresh = 1_000_000
    assert seeds[:4] == [stream_seed(number, "selection") for number in range(4)]
    one_run = [stream_seed(fresh, "selection"), stream_seed(fresh, "evaluation")]
    assert seeds[4:] == 2 * one_run, "best, preset"


def test_the_best_settings_and_the_preset_are_judged_by_fresh_seeds(tuned: Tuned) -> None:
    outcome, _ = tuned
    judged = json.loads((outcome.folder / "judged.json").read_text())
    assert [each["side"] for each in judged["runs"]] == ["best", "CartPole-v1/dqn"]
    seeds = {each["seed"] for each in judged["runs"]}
    assert not seeds & set(range(4)), "seeds of trials"
    assert outcome.evaluation.episodes == 2


def test_a_judgement_that_was_stopped_goes_on(tuned: Tuned) -> None:
    outcome, _ = tuned
    path = outcome.folder / "judged.json"
    judged = json.loads(path.read_text())
    kept, cut = judged["runs"]
    path.write_text(json.dumps({**judged, "runs": [{**kept, "seconds": 1234.5}]}))
    run(*COMMAND, f"runs={outcome.folder.parents[4]}")
    first, second = json.loads(path.read_text())["runs"]
    assert first["seconds"] == 1234.5, "not trained again"
    assert (second["side"], second["evaluation"]) == (cut["side"], cut["evaluation"])


def test_the_page_needs_no_network(tuned: Tuned) -> None:
    page = (tuned[0].folder / "report.html").read_text()
    assert not re.search(r"(src|href)=|https?://", page)
    assert "<svg" in page
    assert "agent.learning_rate" in page


@pytest.mark.slow
def test_the_same_command_goes_on_with_the_study(tuned: Tuned, tmp_path: Path) -> None:
    outcome, _ = tuned
    runs = outcome.folder.parents[4]
    own = shutil.copytree(runs, tmp_path / "own")
    again = run(*COMMAND, f"runs={own}")
    assert again.folder == own / outcome.folder.relative_to(runs)
    assert again.evaluation == outcome.evaluation
    assert len(states(again.folder)) == 4
    run(*COMMAND, f"runs={own}", "tune.trials=5")
    assert states(again.folder) == 5 * ["COMPLETE"]


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("agent.gamma=0.9", "is a study with agent.gamma=0.99, not 0.9"),
        ("tune.objective=score", "is a study with objective=frames, not score"),
        ("tune.names=[agent.learning_rate]", "is a study with tune.agent.batch_size="),
    ],
)
def test_a_study_of_something_else_is_refused(tuned: Tuned, argument: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as refused:
        run(*COMMAND, f"runs={tuned[0].folder.parents[4]}", argument)
    assert "tune.study=second" in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tune.trials=3",), "tune.trials: mode=train does not use it (only mode=tune)"),
        (
            ("mode=tune", "tune.names=[agent.gama]"),
            "no setting agent.gama; did you mean agent.gamma",
        ),
        (("mode=tune", "tune.trial=3"), "tune.trial: Tuning has no such setting; did you mean tri"),
        (
            ("mode=tune", "experiment=null", "agent.learning_rate_frames=null"),
            "experiment=fanuc/sac, which judges the search: agent.learning_rate_end and ",
        ),
        (("mode=tune", "tune.fresh_seeds=0"), "tune.fresh_seeds=0: input should be greater"),
        (("mode=tune", "tune.seconds=null"), "tune.trial_seconds is missing"),
        (("mode=tune", "tune.seconds=inf"), "tune.seconds=inf: input should be a finite number"),
        (("mode=tune", "checkpoint=pretrained:fanuc/sac"), "leave out checkpoint="),
        (("mode=tune", "resume=auto"), "mode=tune goes on with its study"),
        (("mode=tune", "devices=2"), "only mode=train uses several devices"),
    ],
)
def test_bad_input_ends_in_one_line(
    arguments: tuple[str, ...], words: str, tmp_path: Path, program: Call
) -> None:
    choices = () if any("checkpoint" in each for each in arguments) else ("agent=sac", "env=fanuc")
    assert words in program(*choices, *arguments, "device=cpu").refusal()
    assert not (tmp_path / "runs").exists()


def test_a_study_goes_on_with_a_setting_that_a_newer_version_has_added() -> None:
    """A study of the version before does not have the setting, which is null by default."""
    folder = Study(settings_of(*COMMAND)).folder
    query = "SELECT value_json FROM study_user_attributes WHERE key = 'identity'"
    ((text,),) = rows(folder, query)
    identity = json.loads(text)
    assert identity["env"].pop("options") is None
    with sqlite3.connect(folder / "study.db") as database:
        query = "UPDATE study_user_attributes SET value_json = ? WHERE key = 'identity'"
        database.execute(query, (json.dumps(identity),))
    assert Study(settings_of(*COMMAND)).begin(math.inf) is not None


def test_a_file_that_is_not_a_study_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "runs/gym/CartPole-v1/dqn/tune/study"
    folder.mkdir(parents=True)
    (folder / "study.db").write_text("mine")
    said = r"study.db cannot be opened as a study: .*file is not a database"
    with pytest.raises(ConfigurationError, match=said):
        run(*COMMAND)
    assert (folder / "study.db").read_text() == "mine"


@pytest.mark.parametrize("name", ["trials", "judged"])
def test_a_folder_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "runs/gym/CartPole-v1/dqn/tune/study"
    folder.mkdir(parents=True)
    (folder / name).touch()
    with pytest.raises(ConfigurationError, match=f"cannot write to .*/study/{name}: "):
        run(*COMMAND)
    assert [each.name for each in folder.iterdir()] == [name]


def test_a_return_to_reach_has_to_be_given_where_there_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TorchRLTrainer, "train", None)  # refused before
    command = [each for each in COMMAND if not each.startswith("tune.success")]
    with pytest.raises(ConfigurationError, match=r"tune.success is missing"):
        run(*command)
    assert not list(tmp_path.rglob("study.db")), "the mended command begins a study"


def test_a_setting_without_effect_in_the_environment_is_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TorchRLTrainer, "train", None)
    left_out = ("agent=", "trainer.random_frames", "tune.names", "tune.trials")
    command = [each for each in COMMAND if not each.startswith(left_out)]
    with pytest.raises(ConfigurationError, match="no trial"):
        run(*command, "agent=ppo", "agent.rollout_length=4", "tune.trials=1")
    (path,) = tmp_path.rglob("study.db")
    names = {name for (name,) in rows(path.parent, "SELECT param_name FROM trial_params")}
    assert "agent.clip_ratio" in names
    assert "agent.log_std_init" not in names, "the actions are discrete"


def test_a_trial_says_which_one_it_repeats() -> None:
    study = Study(settings_of(*COMMAND))
    for title in ("trial 0", "trial 1, which repeats trial 0"):
        trial = study.begin(math.inf)
        assert trial is not None
        assert study.title(trial) == title
        study.end(trial, interrupted=True)


def during(name: str, action: Callable[[], object]) -> Callable[[Any], TensorDictBase]:
    """Return a `collect` that does something before the first step of a training, by its folder."""
    collect = TorchRLTrainer.collect

    def collecting(trainer: TorchRLTrainer) -> TensorDictBase:
        if trainer.folder.name == name and trainer.frames == 0:
            action()
        return collect(trainer)

    return collecting


def test_a_trial_that_raises_fails_alone_and_leaves_no_memory_to_the_next_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    collect = TorchRLTrainer.collect
    errors = [
        NonfiniteError("agent: loss/value is NaN or infinite after 3 updates"),
        RuntimeError("out of memory\nsecond line"),
    ]
    trainers: list[weakref.ref[TorchRLTrainer]] = []

    def fail_twice(trainer: TorchRLTrainer) -> TensorDictBase:
        assert not any(failed() for failed in trainers)
        if errors:
            trainers.append(weakref.ref(trainer))
            sys.stdout.write("step of a robot\n")
            raise errors.pop(0)
        return collect(trainer)

    monkeypatch.setattr(TorchRLTrainer, "collect", fail_twice)
    gc.disable()
    try:
        outcome = run(*COMMAND, "tune.trials=3", "tune.repeats=0")
    finally:
        gc.enable()
    assert states(outcome.folder) == ["FAIL", "FAIL", "COMPLETE"]
    shown = capsys.readouterr()
    assert "trial 0: failed, NonfiniteError: agent: loss/value is NaN" in shown.err
    assert "trial 1: failed, RuntimeError: out of memory" in shown.err
    assert "step of a robot" not in shown.out
    output = (outcome.folder / "trials/0001/output.txt").read_text()
    assert "Traceback" in output
    assert "second line" in output
    assert "step of a robot" in output


def test_a_refused_command_ends_the_search_of_every_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = [each for each in COMMAND if not each.startswith("tune.success")]
    others: list[tuple[Study, Trial, Study]] = []

    check = Goal.check

    def begin_another(goal: Goal, *, reports_success: bool) -> None:
        study, waiting = (Study(settings_of(*command)) for _ in range(2))
        trial = study.begin(math.inf)
        assert trial is not None
        others.append((study, trial, waiting))
        check(goal, reports_success=reports_success)

    monkeypatch.setattr(Goal, "check", begin_another)
    with pytest.raises(ConfigurationError, match=r"tune.success is missing"):
        run(*command)
    assert list(tmp_path.rglob("study.db")), "the other process has a trial"
    ((study, trial, waiting),) = others
    study.end(trial, interrupted=True)
    with pytest.raises(ConfigurationError, match=r"tune.success is missing"):
        study.begin(-math.inf)
    assert not list(tmp_path.rglob("study.db"))
    with pytest.raises(ConfigurationError, match=r"tune.success is missing"):
        waiting.wait_for_others()


def test_a_judged_training_that_raises_stands_in_the_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fail = mock.Mock(side_effect=RuntimeError("out of memory"))
    command = (*COMMAND, "tune.trials=1", "tune.fresh_seeds=2")
    with monkeypatch.context() as patched:
        patched.setattr(TorchRLTrainer, "collect", during("best_1000000", fail))
        outcome = run(*command)
    failed = (
        r"best: failed, RuntimeError: out of memory, [\d,]+ frames to 5; closing evaluations \d"
    )
    assert re.search(failed, outcome.report)
    assert "failed, RuntimeError" in (outcome.folder / "report.html").read_text()
    assert "Traceback" in (outcome.folder / "judged/best_1000000/output.txt").read_text()
    outcome = run(*command)
    assert re.search(r"best: [\d,]+ frames to 5, [\d,]+ frames to 5; closing", outcome.report)
    runs = json.loads((outcome.folder / "judged.json").read_text())["runs"]
    assert [each["side"] for each in runs] == 2 * ["best", "CartPole-v1/dqn"], "in their order"
    with monkeypatch.context() as patched:
        patched.setattr(TorchRLTrainer, "collect", during("best_1000000", fail))
        one = (*COMMAND, "tune.trials=1", "tune.fresh_seeds=1", "tune.study=second")
        with pytest.raises(ConfigurationError, match=r"RuntimeError: out of memory; see .*report"):
            run(*one)


def test_a_judgement_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "judged.json"
    for text in ("{", "[]", '{"of": {}, "runs": [{"seed": 1}]}'):
        path.write_text(text)
        with pytest.raises(ConfigurationError, match="delete it to judge anew") as refused:
            read_judged(path, {})
        assert str(path) in str(refused.value)


@pytest.mark.slow
def test_an_interrupted_trial_is_repeated_by_the_same_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = (*COMMAND, "tune.trials=2", "tune.repeats=0")
    interrupt = during("0001", lambda: signal.raise_signal(signal.SIGTERM))
    with monkeypatch.context() as patched:
        patched.setattr(TorchRLTrainer, "collect", interrupt)
        with pytest.raises(KeyboardInterrupt, match="The same command goes on"):
            run(*command)
    outcome = run(*command)
    assert states(outcome.folder) == ["COMPLETE", "FAIL", "COMPLETE"]
    assert "Tuned by 2 trials, 0 pruned, 0 failed" in outcome.report
    values = rows(outcome.folder, "SELECT param_value FROM trial_params WHERE trial_id IN (2, 3)")
    assert values[:2] == values[2:], "the same settings"


def test_the_last_trials_repeat_the_best_settings_by_other_seeds(tuned: Tuned) -> None:
    folder = tuned[0].folder
    query = "SELECT param_name, param_value FROM trial_params WHERE trial_id = ?"
    database = sqlite3.connect(folder / "study.db")
    last, *others = (sorted(database.execute(query, (n,)).fetchall()) for n in (4, 1, 2, 3))
    assert last in others
    configs = [(folder / "trials" / f"{n:04d}" / "config.yaml").read_text() for n in range(4)]
    assert len({re.findall(r"^seed: (\d+)", config, flags=re.M)[0] for config in configs}) == 4


def test_the_best_settings_without_success_are_not_said_to_have_it() -> None:
    goal = Goal("seconds", 0.95, 60.0)
    noted: list[dict[str, Any]] = [
        {"reached": True, "score": 1.0},
        {"reached": False, "score": 0.5},
    ]
    trials = [create_trial(value=10.0, user_attrs=each) for each in noted]
    assert Candidate({}, trials[:1], 10.0).text(goal) == "10.0 s to 0.95, mean of 1"
    assert "reached in 1 of 1 trial, mean" in Candidate({}, trials[1:], 10.0).text(goal)
    text = "0.95 not reached in 1 of 2 trials, mean score 0.75"
    assert Candidate({}, trials, 40.0).text(goal) == text


@pytest.mark.parametrize(
    ("objective", "best", "preset", "error", "is_better"),
    [
        ("seconds", 20.0, 10.0, "", True),
        ("seconds", 10.0, 20.0, "", False),
        ("seconds", 10.0, 10.0, "", False),
        ("seconds", 20.0, 10.0, "RuntimeError", False),
        ("score", 0.5, 0.9, "", True),
    ],
)
def test_a_preset_that_did_better_by_fresh_seeds_is_said_to_have_done_so(
    objective: Objective, best: float, preset: float, error: str, is_better: bool
) -> None:
    goal = Goal(objective, 0.95, 60.0)
    judged = [
        Judged("best", 1, best, True, best, 9, None),
        Judged("fanuc/sac", 1, preset, True, preset, 9, None, error),
    ]
    trial = create_trial(value=best, user_attrs={"reached": True, "score": 1.0})
    study = mock.Mock(goal=goal, **{"ended.return_value": [trial]})
    lines = lines_of(study, Candidate({}, [trial], best), judged, 60.0)
    said = "  verdict      fanuc/sac did better by fresh seeds; more trials may help"
    assert (lines[-1] == said) == is_better


@pytest.mark.slow
@pytest.mark.skipif(not CAN_FORK, reason="needs fork, by which a search starts soon")
def test_processes_share_a_study_and_a_killed_one_loses_its_trial_alone(
    start: Start, tmp_path: Path
) -> None:
    def killed() -> int:
        collect = during("0001", lambda: signal.raise_signal(signal.SIGKILL))
        with mock.patch.object(TorchRLTrainer, "collect", collect):
            return main()

    command = changed(COMMAND, "tune.trials=3", "tune.repeats=0")
    process = start(*command, program=killed).process
    process.join()
    assert process.exitcode == -signal.SIGKILL
    folder = tmp_path / "runs/gym/CartPole-v1/dqn/tune/study"
    assert states(folder) == ["COMPLETE", "RUNNING"]
    other = start(*command)
    report = run(*command).report
    assert other.end(seconds=300.0) == 0
    assert states(folder) == ["COMPLETE", "FAIL", *2 * ["COMPLETE"]]
    fresh = [re.findall(r"fresh seeds.*", text) for text in (report, other.output)]
    assert fresh[0] == fresh[1], "judged once"
