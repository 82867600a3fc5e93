"""The study of a search: its trials in SQLite, shared by processes, and the best settings."""

import json
import logging
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from statistics import fmean
from typing import Any, Final, NoReturn

import optuna
from filelock import FileLock, Timeout
from optuna.trial import FrozenTrial, TrialState

from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.tables import counted
from trainers.command_line.settings import Settings
from trainers.components.sections import flat
from trainers.runs.folders import check_writable
from trainers.tuning.options import Tuning
from trainers.tuning.space import as_param, as_text, space_of
from trainers.tuning.watch import Goal, TrialWatch

logger = logging.getLogger(__name__)

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
    """Settings by dotted name, their trials that have ended, and the mean value of these trials."""

    settings: Mapping[str, Any]
    trials: Sequence[FrozenTrial]
    value: float

    @property
    def typed(self) -> list[str]:
        """The settings as they are typed."""
        return [f"{name}={as_text(value)}" for name, value in self.settings.items()]

    def text(self, goal: Goal) -> str:
        """Return the value in words, or how many trials have not reached the success."""
        count, reached = len(self.trials), [t.user_attrs["reached"] for t in self.trials]
        if all(reached):
            return f"{goal.text(self.value)}, mean of {count}"
        score = fmean(trial.user_attrs["score"] for trial in self.trials)
        missed = f"{goal.success:g} not reached in {reached.count(False)} of "
        missed += counted(count, "trial")
        return f"{missed}, mean score {score:.3g}"


@dataclass
class Trial:
    """A trial that runs, in a folder whose lock ends with the process."""

    number: int
    folder: Path
    settings: dict[str, Any]
    watch: TrialWatch
    of_study: optuna.Trial
    lock: FileLock


class Study:
    """The study of a command, in its folder; several processes may hold it at once.

    A study that exists goes on. The settings in `unused`, see `Agent`, are left out.
    """

    def __init__(self, settings: Settings, unused: Mapping[str, str] | None = None) -> None:
        self.options = options = Tuning(**settings.tune)
        self.space = space_of(settings, options.names, options.space or {}, unused or {})
        self.folder = settings.folder / "tune" / options.study
        self._seed = settings.general.seed
        seconds = options.trial_seconds
        if seconds is None and options.seconds is not None:
            seconds = options.seconds / options.trials
        path = self.folder / "study.db"
        if seconds is None and options.objective == "seconds" and not path.exists():
            raise ConfigurationError("tune.trial_seconds is missing, because tune.seconds is null")
        for folder in ("", "trials", "judged"):
            check_writable(self.folder / folder, "runs")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._alone = FileLock(self.folder / _LOCK)  # lets the other processes of the study wait
        goal = Goal(options.objective, options.success, seconds)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with self._alone:
            try:
                storage = optuna.storages.RDBStorage(
                    f"sqlite:///{path}", engine_kwargs={"connect_args": {"timeout": 60}}
                )
                self._study = optuna.create_study(
                    study_name="tune",
                    storage=storage,
                    direction=goal.direction,
                    pruner=optuna.pruners.MedianPruner(_UNPRUNED, _FIRST_MOMENTS),
                    load_if_exists=True,
                )
            except Exception as error:
                reason = str(error.__cause__ or error).splitlines()[0]
                raise ConfigurationError(f"{path} cannot be opened as a study: {reason}") from None
            identity = self._identity(settings)
            if "identity" not in self._study.user_attrs:
                self._study.set_user_attr("identity", identity)
                self._study.set_user_attr("trial_seconds", seconds)
                self._study.enqueue_trial({each.name: as_param(each.value) for each in self.space})
            self._check(self._study.user_attrs["identity"], identity)
            self.goal = replace(goal, seconds=self._study.user_attrs["trial_seconds"])

    def _identity(self, settings: Settings) -> Any:
        """Return everything that has to be equal when a study goes on, as plain values."""
        options = ("objective", "success", "trial_seconds", "episodes")
        identity = {
            **{name: settings.tune[name] for name in options},
            **settings.config,
            **({"device": settings.device.type} if self.options.objective == "seconds" else {}),
            "tune": {each.name: str(each) for each in self.space},
        }
        return json.loads(json.dumps(identity, default=str))

    def _check(self, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        """Refuse to go on with a study of something else."""
        known, new = flat(found), flat(wanted)
        # A setting that is null may be missing: a newer version of the library has added it.
        name = next((n for n in (*known, *new) if known.get(n) != new.get(n)), None)
        if name is not None:
            raise ConfigurationError(
                f"tune.study={self.options.study}: {self.folder} is a study with {name}="
                f"{as_text(known.get(name))}, not {as_text(new.get(name))}; repeat its command, "
                "or choose another name, as in tune.study=second"
            )

    def begin(self, deadline: float) -> Trial | None:
        """Begin a trial; None if the study has all its trials, or the time is over.

        The last trials, or those in the last seconds of the call, repeat the best settings. Refuse
        settings that another process has refused.

        Args:
            deadline: time of `time.perf_counter` at which this call ends its trial.
        """
        options, left = self.options, deadline - time.perf_counter()
        with self._alone:
            if problem := self._study.user_attrs.get("refused"):
                self.refuse(problem)
            if left <= 0:
                return None
            self._requeue_lost()
            trials = [t for t in self._trials() if t.state != TrialState.WAITING]
            count = sum(not _is_lost(trial) for trial in trials)
            if count >= options.trials:
                return None
            repeats = count >= options.trials * (1.0 - options.repeats)
            repeats |= left < options.repeats * (options.seconds or 0.0)
            if repeats and not self._trials(TrialState.WAITING):
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
                settings = {each.name: each.draw(asked) for each in self.space}
                asked.set_user_attr("settings", settings)
            folder = self.folder / "trials" / f"{asked.number:04d}"
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / _LOCK)
            lock.acquire(blocking=False)
        prunes = options.prune and "repeat" not in asked.user_attrs
        reached = [t.value for t in trials if t.value is not None and t.user_attrs["reached"]]
        best = min(reached, default=None) if prunes and self.goal.objective != "score" else None

        def report(moment: int, value: float) -> bool:
            asked.report(value, moment)
            return prunes and asked.should_prune()

        watch = TrialWatch(self.goal, report, deadline, best)
        return Trial(asked.number, folder, settings, watch, asked, lock)

    def end(self, trial: Trial, *, interrupted: bool = False) -> None:
        """Note how a trial has ended.

        Another one repeats a trial that was interrupted, or cut before its first evaluation.
        """
        watch, state = trial.watch, TrialState.FAIL
        if watch.error:
            trial.of_study.set_user_attr("error", watch.error)
        elif watch.value is not None and not interrupted:
            for name in ("score", "seconds", "frames", "reached"):
                trial.of_study.set_user_attr(name, getattr(watch, name))
            state = TrialState.PRUNED if watch.pruned or watch.cut else TrialState.COMPLETE
        value = watch.value if state == TrialState.COMPLETE else None
        with self._alone:
            self._requeue_if_lost(self._study.tell(trial.of_study, value, state=state))
        trial.lock.release()

    def title(self, trial: Trial) -> str:
        """Return the number of a trial, and that of the first one with the same settings."""
        same = [t.number for t in self._trials() if t.user_attrs.get("settings") == trial.settings]
        repeats = f", which repeats trial {same[0]}" if same[0] < trial.number else ""
        return f"trial {trial.number}{repeats}"

    def refuse(self, problem: str) -> NoReturn:
        """End the search in all its processes with a problem; the last one deletes the study."""
        with self._alone:
            if "refused" not in self._study.user_attrs:
                self._study.set_user_attr("refused", problem)
            if not self._runs_elsewhere():
                # Not the lock, for which another process may wait that begins the study anew.
                rmtree(self.folder / "trials", ignore_errors=True)
                (self.folder / "study.db").unlink(missing_ok=True)
        raise ConfigurationError(problem)

    def wait_for_others(self) -> None:
        """Wait until no trial runs in another process; refuse settings that one has refused."""
        if running := self._runs_elsewhere():
            logger.info("waiting for the trials of other processes of the study: %d", running)
        while self._runs_elsewhere():
            time.sleep(1.0)
        if problem := self._study.user_attrs.get("refused"):
            raise ConfigurationError(problem)

    def _runs_elsewhere(self) -> int:
        """Return the number of trials that run in other processes."""
        with self._alone:
            self._requeue_lost()
            return len(self._trials(TrialState.RUNNING))

    def _trials(self, *states: TrialState) -> list[FrozenTrial]:
        """Return the trials in some states, or all of them."""
        return self._study.get_trials(deepcopy=False, states=states or None)

    def ended(self) -> list[FrozenTrial]:
        """Return the trials that have ended, without those that others repeat."""
        return [t for t in self._trials() if t.state.is_finished() and not _is_lost(t)]

    def best(self) -> Candidate | None:
        """Return the best settings: of those with several trials, if there are any."""
        found = self._candidates()
        several = [each for each in found if len(each.trials) > 1]
        return next(iter(several or found), None)

    def _candidates(self) -> list[Candidate]:
        """Return the settings with trials that have ended, without failures; the best first."""
        ended: dict[frozenset[tuple[str, Any]], list[FrozenTrial]] = {}
        for trial in self._trials(TrialState.COMPLETE):
            ended.setdefault(frozenset(trial.params.items()), []).append(trial)
        for trial in self._trials(TrialState.FAIL):
            if not _is_lost(trial):
                ended.pop(frozenset(trial.params.items()), None)
        found = [
            Candidate(runs[0].user_attrs["settings"], runs, fmean(run.values[0] for run in runs))
            for runs in ended.values()
        ]
        is_higher_better = self.goal.direction == "maximize"
        return sorted(found, key=lambda each: each.value, reverse=is_higher_better)

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
        found = self._candidates()
        reached = [c for c in found if any(trial.user_attrs["reached"] for trial in c.trials)]
        if reached:
            chosen = min(reached[:_REPEATED], key=lambda each: len(each.trials))
            self._study.enqueue_trial(chosen.trials[0].params, user_attrs={"repeat": True})

    def _requeue_lost(self) -> None:
        """Repeat the trials of processes that were killed: their locks are free."""
        for trial in self._trials(TrialState.RUNNING):
            lock = FileLock(self.folder / "trials" / f"{trial.number:04d}" / _LOCK)
            try:
                lock.acquire(blocking=False)
            except Timeout:
                continue
            except OSError:  # killed before it had a folder
                pass
            self._requeue_if_lost(self._study.tell(trial.number, state=TrialState.FAIL))
            lock.release()

    def _requeue_if_lost(self, ended: FrozenTrial) -> None:
        if _is_lost(ended) and len(ended.params) == len(self.space):
            self._study.enqueue_trial(ended.params, user_attrs=ended.user_attrs)


def _is_lost(trial: FrozenTrial) -> bool:
    """Return whether the process of a trial was killed or interrupted."""
    return trial.state == TrialState.FAIL and "error" not in trial.user_attrs
