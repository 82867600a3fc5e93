"""Metrics: summed on the device, read back together, written to files that a resume continues."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter
from torchrl.record.loggers.wandb import WandbLogger

from torchrl_gpu.checkpoints.files import atomic_file
from torchrl_gpu.errors import ConfigurationError


class MetricAccumulator:
    """Means of the metrics of many updates, summed on the device and read back in one transfer."""

    def __init__(self) -> None:
        # One running sum per set of names: an algorithm may report some only every few updates.
        self._sums: dict[tuple[str, ...], Tensor] = {}
        self._counts: dict[tuple[str, ...], int] = {}

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        """Add the metrics of one update. Reads nothing back.

        Args:
            metrics: detached scalars `[]` by name, all on one device; copied, so that the next
                update may overwrite them.
        """
        names = tuple(metrics)
        values = torch.stack(tuple(metrics.values())).to(torch.float32)
        if names in self._sums:
            self._sums[names].add_(values)
            self._counts[names] += 1
        else:
            self._sums[names] = values
            self._counts[names] = 1

    def flush(self) -> dict[str, float]:
        """Return the mean of each metric over the updates that reported it, and start anew."""
        if not self._sums:
            return {}
        totals: dict[str, float] = {}
        counts: dict[str, int] = {}
        keys = [(name, names) for names in self._sums for name in names]
        sums = torch.cat(tuple(self._sums.values())).tolist()
        for (name, names), total in zip(keys, sums, strict=True):
            totals[name] = totals.get(name, 0.0) + total
            counts[name] = counts.get(name, 0) + self._counts[names]
        self._sums.clear()
        self._counts.clear()
        return {name: total / counts[name] for name, total in totals.items()}


class EpisodeStatistics:
    """Return, length and success of the episodes of a batch of environments, kept on the device.

    Args:
        num_envs: N, at least 1.
        device: where rewards and dones come from.
    """

    def __init__(self, num_envs: int, device: torch.device | str) -> None:
        # Rows: return and length of the open episodes, success of the last step, 1 to count with.
        self._running = torch.zeros(4, num_envs, device=device)
        self._running[3].fill_(1)
        self._return, self._length, self._success, _ = self._running.unbind()
        self._open = self._running[:2]
        self._totals = torch.zeros_like(self._running)  # the same, summed over ended episodes
        self._zero = torch.zeros((), device=device)
        self._has_success = False

    def update(
        self,
        reward: Tensor,
        done: Tensor,
        success: Tensor | None = None,
        active: Tensor | None = None,
        counted: Tensor | None = None,
    ) -> None:
        """Add one batched step. Reads nothing back.

        Args:
            reward: float `[N, 1]`.
            done: bool `[N, 1]`, terminated or truncated.
            success: bool `[N, 1]`; an episode succeeds if it holds at its last step. None for a
                world that knows no success.
            active: bool `[N, 1]`, false where the row is no step of an episode (its reward is 0);
                None where each one is.
            counted: bool `[N]`, false where an episode that ends with this step is left out of
                the means; None to count each one.
        """
        ended = done.reshape(-1)
        if active is not None:
            ended = ended & active.reshape(-1)
        self._return.add_(reward.reshape(-1))
        self._length.add_(1 if active is None else active.reshape(-1))
        if success is not None:
            self._has_success = True
            self._success.copy_(success.reshape(-1))
        # Not a product with `ended`: a return of nan or inf elsewhere must not leak in.
        taken = ended if counted is None else ended & counted
        self._totals.add_(torch.where(taken, self._running, self._zero))
        self._open.masked_fill_(ended, 0)

    def flush(self) -> dict[str, float]:
        """Return means over the episodes that ended since the last flush, in one transfer.

        Returns:
            `episode/return`, `episode/length` (frames), `episode/success` (0 to 1, if known) and
            `episode/count`; nothing when no episode ended. Open episodes go on.
        """
        total_return, total_length, successes, count = self._totals.sum(dim=1).tolist()
        self._totals.zero_()
        if count == 0:
            return {}
        means = {"episode/return": total_return / count, "episode/length": total_length / count}
        if self._has_success:
            means["episode/success"] = successes / count
        return means | {"episode/count": count}

    def forget_open(self) -> None:
        """Leave the open episodes out: each environment begins a new one."""
        self._open.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Return what determines all later results, tensors on the device."""
        return {
            "running": self._running.clone(),
            "totals": self._totals.clone(),
            "has_success": self._has_success,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Args:
            state: what `state_dict` returned, on any device.

        Raises:
            ConfigurationError: it is of another number of environments.
        """
        saved, own = state["running"].shape[1], self._running.shape[1]
        if saved != own:
            raise ConfigurationError(f"the saved run has num_envs={saved}, this one num_envs={own}")
        self._running.copy_(state["running"])
        self._totals.copy_(state["totals"])
        self._has_success = state["has_success"]


class MetricLogger:
    """Write metrics to the run folder, by frames.

    Args:
        folder: of the run; made if it is not there. What was logged there before is continued.
        sinks: any of `csv` (`metrics.csv`), `tensorboard` (event files) and `wandb`.

    Raises:
        ConfigurationError: the folder cannot be written, holds a `metrics.csv` of another program,
            or a sink is unknown or not installed.
    """

    def __init__(self, folder: Path, sinks: Sequence[str] = ("csv", "tensorboard")) -> None:
        for name in sinks:
            if name not in _SINKS:
                raise ConfigurationError(f"no sink {name}; there are: {', '.join(_SINKS)}")
        if "wandb" in sinks and importlib.util.find_spec("wandb") is None:
            raise ConfigurationError(
                'the sink wandb is not installed: pip install "torchrl-gpu[wandb]"'
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"cannot make {folder}: {error.strerror}") from error
        self._folder = folder
        self._sinks = [_SINKS[name](folder) for name in dict.fromkeys(sinks)]

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Write one row.

        Args:
            frames: environment steps so far.
            metrics: values by name; the names may differ from one call to the next.

        Raises:
            ConfigurationError: the disk is full or the right to write is gone.
        """
        try:
            for sink in self._sinks:
                sink.log(frames, metrics)
        except OSError as error:
            raise ConfigurationError(
                f"cannot write metrics to {self._folder}: {error.strerror or error}"
            ) from error

    def resume_from(self, frames: int) -> None:
        """Drop what was logged after `frames`, because the run goes on from there.

        W&B cannot take back what was sent: there, a resumed run is a new one of the same name.

        Args:
            frames: environment steps of the checkpoint that the run goes on from.

        Raises:
            ConfigurationError: `metrics.csv` cannot be read or written.
        """
        for sink in self._sinks:
            sink.resume_from(frames)

    def close(self) -> None:
        """Write out what is still buffered."""
        for sink in self._sinks:
            sink.close()


class _Sink(Protocol):
    def __init__(self, folder: Path) -> None: ...
    def log(self, frames: int, metrics: Mapping[str, float]) -> None: ...
    def resume_from(self, frames: int) -> None: ...
    def close(self) -> None: ...


class _CsvSink:
    """Keeps no file open, so that the file can be replaced, moved and read at any time."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "metrics.csv"
        self._columns = ["frames"]
        if self._path.exists():
            header, rows, whole = self._read()
            if header[:1] != ["frames"]:
                raise ConfigurationError(f"{self._path} is no metrics file: move it away")
            self._columns = header
            if not whole:
                self._rewrite(rows)

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        row = {name: repr(float(value)) for name, value in metrics.items()}
        row["frames"] = str(frames)
        new_columns = [name for name in row if name not in self._columns]
        if new_columns or not self._path.exists():
            rows = self._read()[1] if self._path.exists() else []
            self._columns += new_columns
            self._rewrite([*rows, row])
            return
        with self._path.open("ab") as file:
            file.write(self._format([row]))

    def resume_from(self, frames: int) -> None:
        if self._path.exists():
            rows = self._read()[1]
            try:
                kept = [row for row in rows if int(row["frames"]) <= frames]
            except ValueError:
                raise ConfigurationError(
                    f"{self._path} has a row without a number of frames: delete the row"
                ) from None
            if len(kept) < len(rows):
                self._rewrite(kept)

    def close(self) -> None:
        pass

    def _read(self) -> tuple[list[str], list[dict[str, str]], bool]:
        """Return header, rows, and whether all is whole: a kill can cut the last row short."""
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        complete = [line for line in lines if line.endswith("\n")]
        reader = csv.DictReader(complete, restval="")
        return list(reader.fieldnames or []), list(reader), len(complete) == len(lines)

    def _rewrite(self, rows: Iterable[Mapping[str, str]]) -> None:
        header = {name: name for name in self._columns}
        with atomic_file(self._path) as file:
            file.write(self._format([header, *rows]))

    def _format(self, rows: Iterable[Mapping[str, str]]) -> bytes:
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, restval="", lineterminator="\n")
        writer.writerows(rows)
        return text.getvalue().encode()


class _TensorBoardSink:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._purge_step: int | None = None
        self._writer: SummaryWriter | None = None

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        if self._writer is None:
            self._writer = SummaryWriter(str(self._folder), purge_step=self._purge_step)
        for name, value in metrics.items():
            self._writer.add_scalar(name, float(value), frames)
        self._writer.flush()

    def resume_from(self, frames: int) -> None:
        # TensorBoard hides what older files hold at this step and after.
        self.close()
        self._purge_step = frames + 1

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class _WandbSink:
    def __init__(self, folder: Path) -> None:
        self._logger = WandbLogger(
            exp_name=folder.name, project="torchrl-gpu", save_dir=folder, log_env_packages=False
        )

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        self._logger.log_metrics(dict(metrics), step=frames)

    def resume_from(self, frames: int) -> None:
        pass

    def close(self) -> None:
        self._logger.experiment.finish()


_SINKS: dict[str, type[_Sink]] = {
    "csv": _CsvSink,
    "tensorboard": _TensorBoardSink,
    "wandb": _WandbSink,
}
