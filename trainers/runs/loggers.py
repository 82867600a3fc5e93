"""Metric logging to CSV files, TensorBoard, W&B and Trackio, which a resumed run continues."""

import csv
import importlib
import io
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf
from PIL import Image
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.summary import scalar, text
from torchrl.record.loggers.wandb import WandbLogger

from torchrl_gpu.arguments import checked
from torchrl_gpu.checkpoints.files import reason, write_text
from torchrl_gpu.errors import ConfigurationError, one_line
from torchrl_gpu.extras import check_extra

LoggerName = Literal["csv", "tensorboard", "wandb", "trackio"]


def check_installed(sinks: Sequence[str]) -> None:
    """Refuse sinks whose package is missing."""
    for name in ("wandb", "trackio"):
        if name in sinks:
            check_extra("trainer.loggers", name, name)


class MetricLogger:
    """Logs metrics by frames to the sinks of a run.

    Args:
        folder: run folder; it is created if necessary, and existing logs in it are continued.
        sinks: any of `csv` (`metrics.csv`), `tensorboard` (event files), `wandb` and `trackio`, in
            the project that the environment variable WANDB_PROJECT or TRACKIO_PROJECT names,
            `torchrl-gpu` by default.
        settings: settings of the run (JSON values), for all sinks but `csv`.
    """

    @checked
    def __init__(
        self,
        folder: Path,
        sinks: Sequence[LoggerName] = ("csv", "tensorboard"),
        settings: dict[str, Any] | None = None,
    ) -> None:
        check_installed(sinks)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"cannot create {folder}: {reason(error)}") from error
        self._folder = folder
        self._sinks = [_SINKS[name](folder, settings or {}) for name in dict.fromkeys(sinks)]

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Log one row of metrics by name; the names may differ from call to call."""
        with self._named_errors():
            for sink in self._sinks:
                sink.log(frames, metrics)

    def resume_from(self, frames: int) -> None:
        """Drop all rows after `frames`, the environment steps from which the run resumes.

        W&B and Trackio cannot delete rows: in W&B, a resumed run is a new run of the same name; in
        Trackio, the run goes on, with these rows twice.
        """
        for sink in self._sinks:
            sink.resume_from(frames)

    def close(self) -> None:
        """Write out buffered rows and close the sinks."""
        with self._named_errors():
            for sink in self._sinks:
                sink.close()

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = f"cannot write metrics to {self._folder}"
            raise ConfigurationError(f"{where}: {reason(error)}") from error


class _CsvSink:
    """Keeps no file open, so that other programs can replace, move and read it at any time."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._path = folder / "metrics.csv"
        self._columns = ["frames"]
        if self._path.exists():
            self._columns, rows = self._read()
            self._rewrite(rows)

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        row = {name: repr(float(value)) for name, value in metrics.items()}
        row["frames"] = str(frames)
        new_columns = [name for name in row if name not in self._columns]
        is_whole = self._path.exists() and not new_columns
        before = self._read()[1] if self._path.exists() and new_columns else []
        self._columns += new_columns
        values = [row.get(name, "") for name in self._columns]
        if not is_whole:
            self._rewrite([*before, values])
            return
        with self._path.open("a", encoding="utf-8", newline="") as file:
            file.write(self._format([values]))

    def resume_from(self, frames: int) -> None:
        if self._path.exists():
            rows = self._read()[1]
            try:
                kept = [row for row in rows if int(row[0]) <= frames]
            except (ValueError, IndexError):
                raise ConfigurationError(
                    f"{self._path} has a row without a number of frames; delete the row"
                ) from None
            if len(kept) < len(rows):
                self._rewrite(kept)

    def close(self) -> None:
        pass

    def _read(self) -> tuple[list[str], list[list[str]]]:
        """Return header and rows, without a last row that a kill has truncated."""
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
            # Lists: a dict for each row would take the memory of the header again.
            whole = (line for line in lines if line.endswith("\n"))
            rows = [row for row in csv.reader(whole) if row]
        except OSError as error:
            raise ConfigurationError(f"cannot read {self._path}: {reason(error)}") from error
        except (ValueError, csv.Error):
            rows = []
        columns, *others = rows or [[]]
        is_ours = columns[:1] == ["frames"] and len({*columns}) == len(columns)
        if not is_ours or {*map(len, others)} - {len(columns)}:
            raise ConfigurationError(f"{self._path} is not a metrics file; move it away")
        return columns, others

    def _rewrite(self, rows: Iterable[Sequence[str]]) -> None:
        write_text(self._path, self._format([self._columns, *rows]))

    def _format(self, rows: Iterable[Sequence[str]]) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        width = len(self._columns)
        writer.writerows([*row, *[""] * (width - len(row))] for row in rows)
        return text.getvalue()


class _TensorBoardSink:
    """Writes event files without the thread of TensorBoard's writer, which prints its errors."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._folder = folder
        self._settings = f"```yaml\n{OmegaConf.to_yaml(settings)}```"  # Markdown
        self._purge_step: int | None = None
        self._path: Path | None = None

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        summaries = [scalar(name, float(value)) for name, value in metrics.items()]
        try:
            if self._path is None:
                self._path = _new_event_file(self._folder, self._purge_step)
                summaries.insert(0, text("settings", self._settings))
            _add_events(self._path, *(Event(step=frames, summary=each) for each in summaries))
        except OSError:
            self._path = None  # no row follows one that is cut
            raise

    def resume_from(self, frames: int) -> None:
        # TensorBoard hides the rows of older files from this step on.
        self._path, self._purge_step = None, frames + 1

    def close(self) -> None:
        pass


def _new_event_file(folder: Path, purge_step: int | None = None) -> Path:
    """Begin an event file, and return its path; TensorBoard reads files in the order of names."""
    known = (path.name.split(".")[3] for path in folder.glob("events.out.tfevents.*"))
    # The clock may have been set back since.
    newest = max((int(seconds) for seconds in known if seconds.isdecimal()), default=0)
    moment = max(time.time(), newest + 1)
    path = folder / f"events.out.tfevents.{moment:.6f}.{socket.gethostname()}"
    _add_events(path, Event(file_version="brain.Event:2"))
    if purge_step is not None:
        start = SessionLog(status=SessionLog.SessionStatus.START)
        _add_events(path, Event(step=purge_step, session_log=start))
    return path


def _add_events(path: Path, *events: Event) -> None:
    with path.open("ab") as file:
        records = RecordWriter(file)
        for event in events:
            event.wall_time = time.time()
            records.write(event.SerializeToString())


def log_film(film: Path, frames: int) -> None:
    """Show a GIF in TensorBoard, as a run in the folder of the film: under *Images*, `demo`.

    Event files of a run that still trains would hide each other in one folder.
    """
    with Image.open(film) as gif:
        width, height = gif.size
    image = Summary.Image(
        height=height, width=width, colorspace=3, encoded_image_string=film.read_bytes()
    )
    summary = Summary(value=[Summary.Value(tag="demo", image=image)])
    _add_events(_new_event_file(film.parent), Event(step=frames, summary=summary))


class _WandbSink:
    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        try:
            self._logger = WandbLogger(
                exp_name=folder.name,
                project=os.environ.get("WANDB_PROJECT", "torchrl-gpu"),
                save_dir=folder,
                config=settings,
                log_env_packages=False,
            )
        except Exception as error:  # no account, no network: each has its own class
            raise ConfigurationError(
                f"trainer.loggers: wandb cannot begin: {one_line(error)} (WANDB_MODE=offline needs "
                "neither account nor network)"
            ) from error

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        self._logger.log_metrics(dict(metrics), step=frames)

    def resume_from(self, frames: int) -> None:
        pass

    def close(self) -> None:
        self._logger.experiment.finish()


class _TrackioSink:
    """Writes to a database of this machine, unless TRACKIO_SPACE_ID or a server is named."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        # An optional package, imported where it is needed.
        self._run: Any = importlib.import_module("trackio").init(
            os.environ.get("TRACKIO_PROJECT", "torchrl-gpu"),
            # Runs of two agents can begin in the same second; one of the same name is resumed.
            name="/".join(folder.absolute().parts[-4:]),
            config=dict(settings),
            resume="allow",
            embed=False,
            auto_log_cpu=False,  # `system/*` has it
            auto_log_gpu=False,
        )

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=frames)

    def resume_from(self, frames: int) -> None:
        pass

    def close(self) -> None:
        self._run.finish()


_SINKS: dict[LoggerName, type[_CsvSink | _TensorBoardSink | _WandbSink | _TrackioSink]] = {
    "csv": _CsvSink,
    "tensorboard": _TensorBoardSink,
    "wandb": _WandbSink,
    "trackio": _TrackioSink,
}
