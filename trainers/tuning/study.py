"""The study of a search: its trials in SQLite, shared by processes, and the best settings."""

from __future__ import annotations

import json
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any, Final

import optuna
from filelock import FileLock, Timeout
from optuna.trial import FrozenTrial, TrialState

from torchrl_gpu.errors import ConfigurationError
from trainers.tuning.options import Tuning
from trainers.tuning.space import Dimension, as_param, as_text, flat, typed_of
from trainers.tuning.watch import Goal, TrialWatch

_LOCK: Final = ".lock"
# Distinct settings among which the repeated ones are chosen, by the mean of their trials.
_REPEATED: Final = 4
# A trial is pruned that is worse than half of those that have ended. Not before so many have, nor
# at the first moments, at which no trial has learned much and luck would decide.
_UNPRUNED, _FIRST_MOMENTS = 5, 4
# Trials that are drawn at random, before the sampler learns from them.
_RANDOM: Final = 10


@dataclass(frozen=True)
class Candidate:
    """Settings that were tried.

    Attributes:
        trials: their trials that have ended, at least one.
        value: mean value of these.
    """

    trials: Sequence[FrozenTrial]
    value: float

    @property
    def settings(self) -> dict[str, Any]:
        """Value of each searched setting, by dotted name."""
        settings: dict[str, Any] = self.trials[0].user_attrs["settings"]
        return settings

    @property
    def typed(self) -> list[str]:
        """The settings as they are typed."""
        return typed_of(self.settings)

    def noted(self, name: str) -> list[Any]:
        """Return what was noted of each trial, as of `frames`."""
        return [trial.user_attrs[name] for trial in self.trials]


@dataclass
class Trial:
    """A trial that runs.

    Attributes:
        number: its number in the study, from 0.
        folder: its folder.
        settings: values of the searched settings, by dotted name.
        report: see `TrialWatch`.
        best: see `TrialWatch`.
        of_study: the trial of Optuna.
        lock: lock of the folder, which ends with the process.
    """

    number: int
    folder: Path
    settings: dict[str, Any]
    report: Callable[[int, float], bool]
    best: float | None
    of_study: optuna.Trial
    lock: FileLock


class Study:
    """A study in a folder; several processes may hold it at once.

    Args:
        folder: folder of the study, made if it is missing.
        options: settings of the search.
        goal: goal of the trials, without seconds where the study has them.
        space: settings to search.
        identity: everything that has to be equal when a study goes on, by name.
        seed: seed of the drawn settings.

    Attributes:
        goal: goal of the trials.

    Raises:
        ConfigurationError: the folder holds a study of something else, or no study.
    """

    def __init__(
        self,
        folder: Path,
        options: Tuning,
        goal: Goal,
        space: Sequence[Dimension],
        identity: Mapping[str, Any],
        seed: int,
    ) -> None:
        self.folder, self.options, self._space, self._seed = folder, options, space, seed
        folder.mkdir(parents=True, exist_ok=True)
        self._alone = FileLock(folder / _LOCK)  # lets the other processes of the study wait
        path = folder / "study.db"
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.RandomSampler(seed)
        with self._alone:
            try:
                storage = optuna.storages.RDBStorage(
                    f"sqlite:///{path}", engine_kwargs={"connect_args": {"timeout": 60}}
                )
                self._study = optuna.create_study(
                    study_name="tune",
                    storage=storage,
                    sampler=sampler,
                    direction=goal.direction,
                    pruner=optuna.pruners.MedianPruner(_UNPRUNED, _FIRST_MOMENTS),
                    load_if_exists=True,
                )
            except Exception as error:
                reason = str(error).splitlines()[0]
                raise ConfigurationError(f"{path} is not a study: {reason}") from None
            wanted = json.loads(json.dumps(dict(identity), default=str))
            if "identity" not in self._study.user_attrs:
                self._study.set_user_attr("identity", wanted)
                self._study.set_user_attr("trial_seconds", goal.seconds)
                first = {each.name: as_param(each.value) for each in space}
                self._study.enqueue_trial(first)
            self._check(self._study.user_attrs.get("identity"), wanted)
            seconds = self._study.user_attrs["trial_seconds"]
        self.goal = Goal(goal.objective, goal.typed, seconds)

    def begin(self, *, repeats: bool = False) -> Trial | None:
        """Begin a trial; None if the study has all its trials.

        Args:
            repeats: whether to run one of the best settings again, as the last trials do.
        """
        with self._alone:
            self._requeue_lost()
            trials = [t for t in self.trials() if t.state != TrialState.WAITING]
            counted = [trial for trial in trials if not _is_lost(trial)]
            if len(counted) >= self.options.trials:
                return None
            last = len(counted) >= self.options.trials * (1.0 - self.options.repeats)
            waits = len(self.trials()) > len(trials)
            if not waits and (repeats or last):
                self._enqueue_repeat()
            # A seed for each trial: processes that begin at once draw different settings.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                self._study.sampler = optuna.samplers.TPESampler(
                    n_startup_trials=_RANDOM,
                    multivariate=True,
                    constant_liar=True,
                    seed=self._seed + len(trials),
                )
                asked = self._study.ask()
                settings = {each.name: each.draw(asked) for each in self._space}
                asked.set_user_attr("settings", settings)
            folder = self.folder / "trials" / f"{asked.number:04d}"
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / _LOCK)
            lock.acquire(blocking=False)
        prunes = self.options.prune and "repeat" not in asked.user_attrs
        reached = [t.values[0] for t in trials if t.values and t.user_attrs["reached"]]
        best = min(reached, default=None) if prunes and self.goal.objective != "score" else None

        def report(moment: int, value: float) -> bool:
            asked.report(value, moment)
            return prunes and asked.should_prune()

        return Trial(asked.number, folder, settings, report, best, asked, lock)

    def end(self, trial: Trial, watch: TrialWatch | None, error: str = "") -> FrozenTrial:
        """Note how a trial has ended.

        Args:
            trial: the trial.
            watch: what it has reached; another trial repeats one that was cut before its first
                evaluation, or was interrupted (None).
            error: error that ended it.
        """
        state = TrialState.FAIL
        if error:
            trial.of_study.set_user_attr("error", error)
        elif watch is not None and watch.value is not None:
            for name in ("score", "seconds", "frames", "updates", "reached"):
                trial.of_study.set_user_attr(name, getattr(watch, name))
            state = TrialState.PRUNED if watch.pruned or watch.cut else TrialState.COMPLETE
        value = watch.value if state == TrialState.COMPLETE and watch is not None else None
        with self._alone:
            ended = self._study.tell(trial.of_study, value, state=state)
            if _is_lost(ended):
                self._requeue(ended)
        trial.lock.release()
        return ended

    def discard(self) -> None:
        """Delete the study, whose first trial has shown that no trial can run."""
        rmtree(self.folder)

    def trials(self) -> list[FrozenTrial]:
        """Return all trials, those that wait or run included."""
        return self._study.get_trials(deepcopy=False)

    def ended(self) -> list[FrozenTrial]:
        """Return the trials that have ended, without those that others repeat."""
        return [t for t in self.trials() if t.state.is_finished() and not _is_lost(t)]

    def runs_elsewhere(self) -> int:
        """Return the number of trials that run in other processes."""
        with self._alone:
            self._requeue_lost()
            return sum(trial.state == TrialState.RUNNING for trial in self.trials())

    def candidates(self) -> list[Candidate]:
        """Return the settings with trials that have ended, without failures; the best first."""
        ended: dict[str, list[FrozenTrial]] = {}
        failed = set()
        for trial in self.trials():
            key = json.dumps(trial.params, sort_keys=True)
            if trial.state == TrialState.COMPLETE:
                ended.setdefault(key, []).append(trial)
            elif "error" in trial.user_attrs:
                failed.add(key)
        found = [
            Candidate(runs, statistics.fmean(t.values[0] for t in runs))
            for key, runs in ended.items()
            if key not in failed
        ]
        sign = -1.0 if self.goal.direction == "maximize" else 1.0
        return sorted(found, key=lambda candidate: sign * candidate.value)

    def best(self) -> Candidate | None:
        """Return the best settings: of those with several trials, if there are any."""
        found = self.candidates()
        several = [each for each in found if len(each.trials) > 1]
        return next(iter(several or found), None)

    def importances(self) -> dict[str, float]:
        """Return the share of each searched setting in the differences of values (PED-ANOVA)."""
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = optuna.importance.get_param_importances(self._study, evaluator=evaluator)
        except (RuntimeError, ValueError):  # too few trials, or all alike
            return {}
        return {name: share for name, share in found.items() if share == share}

    def _enqueue_repeat(self) -> None:
        """Choose one of the best settings, that with the fewest trials, to run once more."""
        found = [each for each in self.candidates() if any(each.noted("reached"))]
        good = found[:_REPEATED]
        if good:
            chosen = min(good, key=lambda each: len(each.trials))
            self._study.enqueue_trial(chosen.trials[0].params, user_attrs={"repeat": True})

    def _requeue_lost(self) -> None:
        """Repeat the trials of processes that were killed: nobody holds their locks."""
        for trial in self.trials():
            if trial.state != TrialState.RUNNING:
                continue
            lock = FileLock(self.folder / "trials" / f"{trial.number:04d}" / _LOCK)
            try:
                lock.acquire(blocking=False)
            except Timeout:
                continue
            except OSError:  # killed before it had a folder
                pass
            self._requeue(self._study.tell(trial.number, state=TrialState.FAIL))
            lock.release()

    def _requeue(self, lost: FrozenTrial) -> None:
        if len(lost.params) == len(self._space):
            self._study.enqueue_trial(lost.params, user_attrs=lost.user_attrs)

    def _check(self, found: Any, wanted: Mapping[str, Any]) -> None:
        """Refuse to go on with a study of something else."""
        if found == wanted:
            return
        known, new = flat(found or {}), flat(wanted)
        name = next(n for n in (*known, *new) if known.get(n) != new.get(n))
        raise ConfigurationError(
            f"tune.study={self.options.study}: {self.folder} is a study with "
            f"{name}={as_text(known.get(name))}, not {as_text(new.get(name))}; repeat its command, "
            "or choose another name, as in tune.study=second"
        )


def _is_lost(trial: FrozenTrial) -> bool:
    """Return whether the process of a trial was killed or interrupted."""
    return trial.state == TrialState.FAIL and "error" not in trial.user_attrs
