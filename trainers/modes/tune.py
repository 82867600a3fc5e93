"""Mode tune: search settings by trials, and judge the best ones by fresh seeds."""

import gc
import math
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

from filelock import FileLock

from agents.base import Agent
from torchrl_gpu.checkpoints.files import write_text
from torchrl_gpu.devices.seeding import seed_everything
from torchrl_gpu.environments.environment import reports_success
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.tables import counted
from trainers.command_line.settings import Settings
from trainers.finite_watch import NonfiniteError
from trainers.modes.building import agent_of, evaluator_of, training_env
from trainers.modes.evaluate import evaluation_of
from trainers.modes.outcome import RunOutcome, command_of
from trainers.modes.train import build_trainer
from trainers.signals import Interruption, stops
from trainers.training.progress import ProgressDisplay
from trainers.tuning.judgement import Judged, read_judged, write_judged
from trainers.tuning.preset import write_preset
from trainers.tuning.report import lines_of, page_of
from trainers.tuning.study import Candidate, Study
from trainers.tuning.trainings import output_to, rival_of, trial_settings
from trainers.tuning.watch import TrialWatch

# Added to the seed of the command for the seeds of the judgement, which no trial reaches.
_FRESH = 1_000_000


def tune(settings: Settings) -> RunOutcome:
    """Search settings, or go on with the study; write the best as a preset, and judge it."""
    started = time.perf_counter()
    rival, settings_of_rival = rival_of(settings)
    study = Study(settings, _unused_of(settings))
    try:
        _search(settings, study, started + (study.options.seconds or math.inf))
        study.wait_for_others()
        best = study.best()
        if best is None:
            raise ConfigurationError(
                f"no trial of {study.folder} has ended with a result; see trials/*/output.txt "
                "there, or give more time by tune.seconds"
            )
        preset = write_preset(study, settings, best)
        sides = {"best": trial_settings(settings, best.settings), rival: settings_of_rival}
        judged = _judge(study, best, sides, settings.general.seed + _FRESH)
    except KeyboardInterrupt as stop:
        count = counted(len(study.ended()), "trial")
        message = f"\nStopped after {count}. The same command goes on with {study.folder}."
        raise Interruption.of(stop, message) from None
    command = command_of(settings, *preset)
    page = study.folder / "report.html"
    title = f"Settings of {settings.config['choices']['agent']} for {settings.env_name}"
    write_text(page, page_of(title, study, best, judged, command))
    evaluations = [each.evaluation for each in judged if each.side == "best"]
    evaluation = next(filter(None, evaluations), None)
    if evaluation is None:
        raise ConfigurationError(
            f"no training of the best settings by a fresh seed has ended: {judged[0].error}; see "
            f"judged/*/output.txt and the page {page}"
        )
    seconds = time.perf_counter() - started
    lines = lines_of(study, best, judged, seconds)
    lines += [f"  train it     {command}", f"  report       {page}"]
    return RunOutcome(study.folder, evaluation, "\n".join(["", *lines]), seconds)


def _unused_of(settings: Settings) -> Mapping[str, str]:
    """Return the settings of the agent without effect in this environment, see `Agent`."""
    with closing(training_env(settings)) as env:
        agent = agent_of(settings, env)
    assert isinstance(agent, Agent)
    return agent.unused


def _search(settings: Settings, study: Study, deadline: float) -> None:
    """Run trials until the study has all of them, or the time is over."""
    with ProgressDisplay(study.options.trials, len(study.ended()), unit="trials") as display:
        while trial := study.begin(deadline):
            display.update(len(study.ended()), stage=f"trial {trial.number}")
            changed = {
                "seed": settings.general.seed + trial.number,
                "trainer.evaluation_episodes": study.options.episodes,
                **trial.settings,
            }
            try:
                with output_to(trial.folder / "output.txt"):
                    _train(trial_settings(settings, changed), trial.folder, trial.watch)
            except KeyboardInterrupt:
                study.end(trial, interrupted=True)
                raise
            except Exception as error:
                trial.watch.fail(error)
                study.end(trial)
                is_refused = isinstance(error, ConfigurationError)
                if trial.number == 0 and is_refused and not isinstance(error, NonfiniteError):
                    study.refuse(str(error))
            else:
                study.end(trial)
            line, best = f"{study.title(trial)}: {trial.watch.end}", study.best()
            if trial.watch.reached and best is not None and best.settings == trial.settings:
                line = "  ".join([f"{line}; the best so far:", *best.typed])
            display.message(line)
            display.update(len(study.ended()), stage="")


def _train(settings: Settings, folder: Path, watch: TrialWatch) -> Path | None:
    """Train in a folder until the watch ends it; return the best checkpoint."""
    gc.collect()  # the replay of the trial before, which its exception may have kept
    seed_everything(settings.general.seed)
    with (
        closing(training_env(settings)) as env,
        closing(evaluator_of(settings)) as evaluator,
        closing(build_trainer(settings, env, evaluator, folder, callbacks=[watch])) as trainer,
        stops(trainer) as signals,
    ):
        watch.goal.check(reports_success=reports_success(env))
        trainer.train()
    if signals:
        raise Interruption(next(iter(signals)))
    return trainer.checkpoints.best()


def _judge(
    study: Study, best: Candidate, sides: Mapping[str, Settings], first: int
) -> list[Judged]:
    """Train the best settings and their rival by fresh seeds, in turns.

    A judgement that was stopped goes on; that of another process is waited for.
    """
    path = study.folder / "judged.json"
    seeds = [*range(first, first + study.options.fresh_seeds)]
    of = {"seeds": seeds, "settings": best.typed}
    pairs = [(seed, side) for seed in seeds for side in sides]
    with FileLock(study.folder / ".judging"):
        judged = {(each.seed, each.side): each for each in read_judged(path, of)}
        with ProgressDisplay(len(pairs), len(judged), unit="runs") as display:
            for seed, side in pairs:
                if (seed, side) not in judged:
                    display.update(len(judged), stage=f"{side}, fresh seed {seed}")
                    fresh = trial_settings(sides[side], {"seed": seed})
                    judged[seed, side] = _judged(side, fresh, study)
                    write_judged(path, of, [judged[pair] for pair in pairs if pair in judged])
                    display.update(len(judged), stage="")
    return [judged[pair] for pair in pairs]


def _judged(side: str, settings: Settings, study: Study) -> Judged:
    """Train by a fresh seed, and evaluate the best checkpoint by episodes that chose nothing."""
    seed = settings.general.seed
    folder = study.folder / "judged" / f"{side.replace('/', '_')}_{seed}"
    rmtree(folder, ignore_errors=True)  # of an earlier judgement
    folder.mkdir(parents=True)
    watch, evaluation = TrialWatch(study.goal), None
    try:
        with output_to(folder / "output.txt"):
            checkpoint = _train(settings, folder, watch)
            evaluation = evaluation_of(replace(settings, checkpoint=checkpoint, state=None))
    except Exception as error:
        watch.fail(error)
    spent = watch.seconds, watch.frames
    return Judged(side, seed, watch.value, watch.reached, *spent, evaluation, watch.error)
