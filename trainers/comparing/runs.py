"""Runs as their folders record them: settings, metrics and result, read without torch."""

import csv
import json
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import yaml

from torchrl_gpu.checkpoints.files import reason
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.intervals import Scores
from trainers.components.sections import flat, full_name
from trainers.components.trust import resolved

logger = logging.getLogger(__name__)

Axis = Literal["frames", "seconds"]

FILMS: Final = {".gif": "image/gif", ".mp4": "video/mp4"}  # media types
_METRICS: Final = "metrics.csv"
_SECTIONS: Final = ("choices", "env", "agent")  # of a run, mappings


@dataclass(frozen=True)
class Run:
    """A run folder that has been read.

    Attributes:
        folder: run folder.
        settings: settings by dotted name, as text; `seed` and `versions.*` included.
        env: name of the environment, as in `gym/CartPole-v1`.
        agent: name of the agent.
        metrics: columns of `metrics.csv`, each `[rows]`; NaN where a row lacks the metric.
        summary: content of `summary.json`; empty without one.
    """

    folder: Path
    settings: Mapping[str, str]
    env: str
    agent: str
    metrics: Mapping[str, Scores]
    summary: Mapping[str, Any]

    @property
    def seed(self) -> str:
        """Seed as text; `-` where a script has recorded none."""
        return self.settings.get("seed", "-")

    @property
    def measure(self) -> Literal["success", "return"]:
        """Kind of the scores: success rates from 0 to 1, or mean returns without them."""
        return "success" if np.isfinite(self.metric("evaluation/success")).any() else "return"

    def metric(self, name: str) -> Scores:
        """Return the values of a metric, `[rows]`; NaN where a row lacks it."""
        none = np.full_like(self.metrics["frames"], np.nan)
        return self.metrics.get(name, none)

    @cached_property
    def curve(self) -> Mapping[str, Scores]:
        """Evaluations during the training: `frames`, `seconds` and `score`, each `[T]`."""
        scores = self.metric(f"evaluation/{self.measure}")
        axes = {name: self.metrics[name] for name in ("frames", "seconds")}
        rows = np.isfinite([scores, *axes.values()]).all(0)
        found = {name: column[rows] for name, column in axes.items()}
        return {**found, "score": scores[rows]}

    @property
    def ended(self) -> bool:
        """Whether the run has a closing evaluation; one that was stopped has none."""
        return self.summary.get("ended") is True

    @property
    def score(self) -> float:
        """Score of the closing evaluation; the best one so far of a run that has not ended."""
        name = "success" if self.measure == "success" else "mean_return"
        return float(self.summary[name] if self.ended else self.curve["score"].max())

    @cached_property
    def end(self) -> tuple[float, float]:
        """Frames and seconds of the last row that has both."""
        frames, seconds = self.metrics["frames"], self.metrics["seconds"]
        last = np.flatnonzero(np.isfinite(frames + seconds))[-1]
        return float(frames[last]), float(seconds[last])

    def reaches(self, level: float, axis: Axis) -> float:
        """Return frames or seconds until the first evaluation at a level; infinity if none is."""
        there = np.flatnonzero(self.curve["score"] >= level)
        return float(self.curve[axis][there[0]]) if len(there) else math.inf

    def film(self) -> Path | None:
        """Return the newest film in the run folder; None if there is none.

        One that is being made is an empty file, and a hidden one with the pictures so far.
        """
        visible = self.folder.glob("videos/[!.]*")
        found = (path for path in visible if path.suffix in FILMS and path.stat().st_size)
        return max(found, default=None)


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Return the runs of run folders, and of folders that hold them at any depth.

    A run without an evaluation is refused if it is named itself; one in a folder that is named is
    left out, with a warning.
    """
    runs: dict[Path, Run] = {}
    for path in paths:
        if not path.is_dir():
            problem = "is not a folder" if path.exists() else "does not exist"
            raise ConfigurationError(f"{path}: {problem}; name a run folder, or a folder of runs")
        folders = sorted(_run_folders(path))
        if not folders:
            raise ConfigurationError(
                f"{path}: no run is in this folder; a run folder has a config.yaml and a "
                f"{_METRICS}, as runs/ENV/AGENT/TIME has"
            )
        found = 0
        for folder in folders:
            try:
                runs[folder.resolve()] = runs.get(folder.resolve()) or read_run(folder)
                found += 1
            except ConfigurationError as error:
                if folder == path:
                    raise
                logger.warning("left out: %s", error)
        if not found:
            raise ConfigurationError(f"{path}: no run in this folder has been evaluated yet")
    return list(runs.values())


def read_run(folder: Path) -> Run:
    """Return the run of a run folder."""
    config = _read_config(folder / "config.yaml")
    metrics = read_metrics(folder / _METRICS)
    path = folder / "summary.json"
    summary: Any = {}
    if path.exists():
        try:
            summary = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{path} cannot be read: {error}") from None
        summary = summary if isinstance(summary, dict) else {}
    choices, env, agent = (config.get(name) or {} for name in _SECTIONS)
    chosen = choices.get("env") or str(env.get("_target_", "")).rpartition(".")[2]
    named = choices.get("agent") or agent.get("_target_") or summary.get("agent", "?")
    run = Run(
        folder=folder,
        settings={n: _as_text(v) for n, v in flat(resolved(config, config)).items()},
        env=full_name(str(chosen), env.get("name")) if chosen else str(summary.get("env", "?")),
        agent=str(named).rpartition(".")[2],
        metrics=metrics,
        summary=summary,
    )
    if not len(run.curve["score"]):
        raise ConfigurationError(f"{folder}: the run has no evaluation yet")
    is_rate = run.measure == "success"
    closing = ("success", "success_low", "success_high") if is_rate else ("mean_return",)
    try:
        is_known = all(math.isfinite(summary[name]) for name in ("episodes", *closing))
    except (KeyError, TypeError):
        is_known = False
    if run.ended and not is_known:
        raise ConfigurationError(f"{path} has no finite score of the closing evaluation")
    return run


def _run_folders(path: Path) -> Iterator[Path]:
    """Yield the run folders at and below a path; those in a run, and trials, do not count."""
    for folder, below, files in os.walk(path):
        below[:] = [name for name in below if not name.startswith(".")]
        if "config.yaml" in files:
            below.clear()
            yield Path(folder)
        elif "study.db" in files:  # of mode=tune
            below.clear()


def _read_config(path: Path) -> Mapping[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        config = yaml.load(path.read_text(encoding="utf-8"), loader)
    except (OSError, ValueError, yaml.YAMLError):
        config = None
    is_of_run = isinstance(config, dict) and (
        not config or not config.keys().isdisjoint(("seed", *_SECTIONS))
    )
    if not is_of_run or not all(isinstance(config.get(name) or {}, dict) for name in _SECTIONS):
        raise ConfigurationError(f"{path} cannot be read: it does not hold the settings of a run")
    return config


def read_metrics(path: Path) -> dict[str, Scores]:
    """Return the columns of the metrics, without a last row that a kill has truncated."""
    if not path.exists():
        raise ConfigurationError(
            f"{path.parent}: the run has no {path.name} yet, or no csv among trainer.loggers"
        )
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        columns, *rows = csv.reader(line for line in lines if line.endswith("\n"))
        table = np.array([[float(cell or "nan") for cell in row] for row in rows])
        table = table.reshape(len(rows), len(columns))
        if not {"frames", "seconds"} <= {*columns}:
            raise ValueError("columns")
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {reason(error)}") from None
    except (ValueError, csv.Error):
        raise ConfigurationError(f"{path} is not the metrics file of a run") from None
    return dict(zip(columns, table.T, strict=True))


def _as_text(value: Any) -> str:
    """Return the value of a setting as one line."""
    return "null" if value is None else " ".join(str(value).split())
