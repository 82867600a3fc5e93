"""Mode tune: search settings by trials, and judge the best ones by fresh seeds."""

import gc
import json
import logging
import math
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, redirect_stderr
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Any

from filelock import FileLock
from optuna.trial import TrialState

from torchrl_gpu.checkpoints.files import write_text
from torchrl_gpu.devices.seeding import seed_everything
from torchrl_gpu.errors import ConfigurationError, one_line
from torchrl_gpu.tables import human_time
from trainers.command_line.checking import check
from trainers.command_line.composition import compose
from trainers.command_line.failures import print_exception
from trainers.command_line.settings import Settings
from trainers.components.pairing import capabilities_of
from trainers.evaluation.evaluation import Evaluation
from trainers.modes.building import evaluator_of, training_env
from trainers.modes.evaluate import evaluation_of
from trainers.modes.outcome import RunOutcome, command_of
from trainers.modes.train import build_trainer
from trainers.nonfinite import NonfiniteError
from trainers.runs.folders import check_writable
from trainers.signals import Interruption, stops
from trainers.training.progress import ProgressDisplay
from trainers.tuning.options import Tuning
from trainers.tuning.page import page_of
from trainers.tuning.preset import write_preset
from trainers.tuning.space import space_of
from trainers.tuning.study import Candidate, Study
from trainers.tuning.watch import Goal, TrialWatch

logger = logging.getLogger(__name__)

# Added to the seed of the command for the seeds of the judgement, which no trial reaches.
_FRESH = 1_000_000
_NEVER = 10**15

# What makes a training a trial: the watch of the trial evaluates, and no run resumes from it.
_OF_TRIAL: dict[str, Any] = {
    "trainer.evaluation_interval": _NEVER,
    "trainer.checkpoint_interval": _NEVER,
    "trainer.checkpoints_kept": 1,
    "trainer.save_replay": False,
    "trainer.evaluate_untrained": False,
    "trainer.stop_at_score": None,
    "trainer.loggers": ["csv"],
    "trainer.show_progress": False,
}


@dataclass(frozen=True)
class Judged:
    """A training by a fresh seed, and the closing evaluation of its best checkpoint.

    Attributes:
        side: `best`, or the settings that it is compared with.
        seed: seed of the run.
        value: value of the run, as of a trial.
        reached: whether it has reached the success.
        seconds: seconds of training, without the evaluations.
        frames: environment steps.
        evaluation: closing evaluation.
    """

    side: str
    seed: int
    value: float
    reached: bool
    seconds: float
    frames: int
    evaluation: Evaluation


def tune(settings: Settings) -> RunOutcome:
    """Search settings, or go on with the study; write the best as a preset, and judge it."""
    started = time.perf_counter()
    options = Tuning(**settings.tune)
    space = space_of(settings, options.names, options.space or {})
    seconds = options.trial_seconds
    if seconds is None and options.seconds is not None:
        seconds = options.seconds / options.trials
    folder = settings.folder / "tune" / options.study
    is_new = not (folder / "study.db").exists()
    if seconds is None and options.objective == "seconds" and is_new:
        raise ConfigurationError("tune.trial_seconds is missing, because tune.seconds is null")
    rival = _rival_of(settings)
    check_writable(folder)
    identity = {
        **{n: settings.tune[n] for n in ("objective", "success", "trial_seconds", "episodes")},
        **settings.config,
        **({"device": settings.device.type} if options.objective == "seconds" else {}),
        "tune": {each.name: str(each) for each in space},
    }
    goal = Goal(options.objective, options.success, seconds)
    study = Study(folder, options, goal, space, identity, settings.general.seed)
    deadline = started + (options.seconds or math.inf)
    try:
        _search(settings, study, deadline)
        best = study.best()
        if best is None:
            raise ConfigurationError(
                f"no trial of {folder} has ended with a result; see trials/*/output.txt there, or "
                "give more time by tune.seconds"
            )
        if running := study.runs_elsewhere():
            logger.info("waiting for other processes of the study, which run %d trials", running)
        while study.runs_elsewhere():
            time.sleep(1.0)
        best = study.best() or best
        preset = _write_preset(settings, study, best)
        judged = _judge(settings, rival, study, best)
    except KeyboardInterrupt as stop:
        message = (
            f"\nStopped after {len(study.ended())} trials. The same command goes on with {folder}."
        )
        raise Interruption.of(stop, message) from None
    command = command_of(settings, *preset)
    lines = [_headline(study, time.perf_counter() - started), *_told(study, best, judged)]
    page = folder / "report.html"
    rows = [
        [
            each.side,
            str(each.seed),
            _end_of_judged(each, study.goal),
            f"{each.frames:,}",
            str(each.evaluation),
        ]
        for each in judged
    ]
    title = f"Settings of {settings.config['choices']['agent']} for {settings.env_name}"
    write_text(page, page_of(title, study, space, best, rows, command))
    report = "\n".join([*lines, f"  train it     {command}", f"  report       {page}"])
    evaluation = next(each.evaluation for each in judged if each.side == "best")
    return RunOutcome(folder, time.perf_counter() - started, evaluation, report)


def _search(settings: Settings, study: Study, deadline: float) -> None:
    """Run trials until the study has all of them, or the time is over."""
    total = study.options.trials
    done = len(study.ended())
    with ProgressDisplay(total, done, unit="trials") as display:
        while (left := deadline - time.perf_counter()) > 0:
            repeats = left < study.options.repeats * (study.options.seconds or 0.0)
            if (trial := study.begin(repeats=repeats)) is None:
                break
            display.update(done, stage=f"trial {trial.number}")
            watch = TrialWatch(study.goal, trial.report, deadline, trial.best)
            changed = {
                "seed": settings.general.seed + trial.number,
                "trainer.evaluation_episodes": study.options.episodes,
                **trial.settings,
            }
            error = ""
            try:
                with _output_to(trial.folder / "output.txt"):
                    _train(_settings_of(settings, changed), trial.folder, watch)
            except KeyboardInterrupt:
                study.end(trial, None)
                raise
            except Exception as problem:
                error = f"{type(problem).__name__}: {one_line(problem)}"
                is_refused = isinstance(problem, ConfigurationError)
                if trial.number == 0 and is_refused and not isinstance(problem, NonfiniteError):
                    study.discard()  # every other trial would fail alike
                    raise
            state = study.end(trial, watch, error).state
            done = len(study.ended())
            told = f"trial {trial.number}: {_end_of(state, watch, error, study.goal)}"
            now = study.best()
            if watch.reached and now is not None and now.settings == trial.settings:
                told = "  ".join([f"{told}; the best so far:", *now.typed])
            display.message(told)
            display.update(done, stage="")


def _end_of(state: TrialState, watch: TrialWatch, error: str, goal: Goal) -> str:
    """Return in words how a trial has ended."""
    if state == TrialState.FAIL:
        return (
            f"failed, {error}"
            if error
            else "cut before its first evaluation; a later one repeats it"
        )
    if state == TrialState.COMPLETE and watch.reached:
        assert watch.value is not None
        return goal.told(watch.value)
    how = "pruned" if watch.pruned else "cut" if watch.cut else "ended"
    return f"{how} after {watch.seconds:.1f} s and {watch.frames:,} frames at {watch.score:.3g}"


def _settings_of(settings: Settings, changed: Mapping[str, Any]) -> Settings:
    """Return the settings of a trial, checked as those of any command.

    Args:
        settings: settings of the search.
        changed: settings that differ, by dotted name.
    """
    # All trials play the same number of evaluation environments, whatever `env.num_envs` is.
    limit = capabilities_of(settings.env, settings.device).max_evaluation_envs
    num_envs = settings.evaluation["num_envs"] or min(256, limit or 256)
    fixed = {**_OF_TRIAL, "evaluation.num_envs": num_envs}
    return _checked(settings, {**fixed, **changed})


def _checked(settings: Settings, changed: Mapping[str, Any]) -> Settings:
    """Return the settings of a training, those of the command with some changed.

    The update is not compiled unless the command says so: that takes longer than a trial has.
    """
    typed = {n: value for n, value in settings.typed.items() if n.partition(".")[0] != "tune"}
    device = str(settings.device)
    typed = {"compile": "off", **typed, "mode": "train", "device": device, **changed}
    return check(typed, compose(typed))


def _train(settings: Settings, folder: Path, watch: TrialWatch) -> Path | None:
    """Train in a folder until the watch ends it; return the best checkpoint.

    Raises:
        Interruption: a signal has ended it.
    """
    seed_everything(settings.general.seed)
    try:
        with (
            closing(training_env(settings)) as env,
            closing(evaluator_of(settings)) as evaluator,
            closing(build_trainer(settings, env, evaluator, folder, callbacks=[watch])) as trainer,
            stops(trainer) as signals,
        ):
            trainer.train()
        if signals:
            raise Interruption(next(iter(signals)))
        return trainer.checkpoints.best()
    finally:
        gc.collect()  # the replay, before the next trial has its own


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Append what a training tells, its exception too, to a file instead of the terminal."""
    handlers = [h for h in logging.root.handlers if isinstance(h, logging.StreamHandler)]
    with path.open("a", encoding="utf-8") as output, redirect_stderr(output):
        before = [(handler, handler.setStream(output)) for handler in handlers]
        try:
            yield
        except Exception as error:
            print_exception(error)
            raise
        finally:
            for handler, stream in before:
                handler.setStream(stream)


def _write_preset(settings: Settings, study: Study, best: Candidate) -> list[str]:
    """Write the preset of the best settings, and return the arguments that train with it.

    It ends at the success. Fewer frames would change schedules that refer to their number.
    """
    changed: dict[str, Any] = {}
    if study.goal.objective != "score":
        frames = round(statistics.fmean(best.noted("frames")))
        of_run = {
            "trainer.evaluation_interval": max(1, frames // 4),
            "trainer.stop_at_score": study.goal.success,
        }
        changed = {name: value for name, value in of_run.items() if name not in settings.typed}
    numbers = ", ".join(str(trial.number) for trial in best.trials)
    comment = f"Found by mode=tune, trials {numbers}: {study.goal.told(best.value)}"
    found = _checked(settings, {**best.settings, **changed})
    return write_preset(study.folder, found, comment)


def _rival_of(settings: Settings) -> tuple[str, Settings, dict[str, Any]]:
    """Return what the best settings are compared with: a name, settings, and what differs.

    It is the preset of the library, or without one the command.

    Raises:
        ConfigurationError: the preset does not fit the command.
    """
    typed = {name: value for name, value in settings.typed.items() if name != "experiment"}
    preset = compose({n: v for n, v in typed.items() if n.partition(".")[0] != "tune"})
    if (name := preset.choices["experiment"]) is None:
        return "command", settings, {}
    changed = {
        "trainer.evaluation_episodes": settings.trainer.settings["evaluation_episodes"],
    }
    rival = name, replace(settings, typed=typed), changed
    try:
        _settings_of(*rival[1:])
    except ConfigurationError as error:
        raise ConfigurationError(f"experiment={name}, which judges the search: {error}") from None
    return rival


def _judge(
    settings: Settings, rival: tuple[str, Settings, dict[str, Any]], study: Study, best: Candidate
) -> list[Judged]:
    """Train by fresh seeds: the best settings and their rival."""
    path = study.folder / "judged.json"
    first = settings.general.seed + _FRESH
    seeds = list(range(first, first + study.options.fresh_seeds))
    judges = {"seeds": seeds, "settings": best.typed}
    judged: list[Judged] = []
    with FileLock(study.folder / ".judging"):
        if path.exists():
            known = json.loads(path.read_text(encoding="utf-8"))
            if known["of"] == judges:  # a judgement that was stopped goes on
                runs = known["runs"]
                judged = [
                    Judged(**{**r, "evaluation": Evaluation(**r["evaluation"])}) for r in runs
                ]
        done = {(each.side, each.seed) for each in judged}
        sides = {"best": (settings, best.settings), rival[0]: rival[1:]}
        with ProgressDisplay(len(seeds) * len(sides), unit="runs") as display:
            for seed in seeds:
                for side, (base, changed) in sides.items():
                    if (side, seed) in done:
                        continue
                    display.update(len(judged), stage=f"{side}, fresh seed {seed}")
                    judged.append(_judged(side, seed, base, changed, study))
                    content = {"of": judges, "runs": [asdict(each) for each in judged]}
                    write_text(path, json.dumps(content, indent=2))
                    display.update(len(judged), stage="")
    return judged


def _judged(
    side: str, seed: int, base: Settings, changed: Mapping[str, Any], study: Study
) -> Judged:
    """Train by a fresh seed, and evaluate the best checkpoint by episodes that chose nothing."""
    folder = study.folder / "judged" / f"{side.replace('/', '_')}_{seed}"
    rmtree(folder, ignore_errors=True)  # of an earlier judgement
    folder.mkdir(parents=True)
    watch = TrialWatch(study.goal)
    with _output_to(folder / "output.txt"):
        settings = _settings_of(base, {**changed, "seed": seed})
        checkpoint = _train(settings, folder, watch)
        assert checkpoint is not None
        assert watch.value is not None
        evaluation = evaluation_of(replace(settings, checkpoint=checkpoint, state=None))
    return Judged(side, seed, watch.value, watch.reached, watch.seconds, watch.frames, evaluation)


def _headline(study: Study, seconds: float) -> str:
    states = [trial.state for trial in study.ended()]
    pruned, failed = (states.count(state) for state in (TrialState.PRUNED, TrialState.FAIL))
    duration = human_time(seconds)
    return f"\nTuned by {len(states)} trials, {pruned} pruned, {failed} failed, in {duration}."


def _told(study: Study, best: Candidate, judged: list[Judged]) -> list[str]:
    """Return the best settings and how they were judged as lines of text."""
    lines = [
        f"  best         {study.goal.told(best.value)}, mean of {len(best.trials)}",
        f"  settings     {' '.join(best.typed)}",
    ]
    for side in dict.fromkeys(each.side for each in judged):
        runs = [each for each in judged if each.side == side]
        told = ", ".join(_end_of_judged(each, study.goal) for each in runs)
        score = statistics.fmean(each.evaluation.score for each in runs)
        lines.append(f"  fresh seeds  {side}: {told}; closing evaluations {score:.3g}")
    return lines


def _end_of_judged(run: Judged, goal: Goal) -> str:
    if run.reached:
        return goal.told(run.value)
    spent = f"{run.frames:,} frames" if goal.objective == "frames" else f"{run.seconds:.1f} s"
    return f"not reached in {spent}"
