import errno
import json
import os
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest
from omegaconf import OmegaConf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.helpers.files import files_limited_to
from tests.helpers.forks import result_of
from tests.helpers.training import metric_rows
from torchrl_gpu import extras
from torchrl_gpu.errors import ConfigurationError
from trainers.runs.loggers import LoggerName, MetricLogger


def csv_logger(folder: Path) -> MetricLogger:
    return MetricLogger(folder, ["csv"])


def test_csv_has_a_header_and_a_row_per_call(tmp_path: Path) -> None:
    logger = csv_logger(tmp_path / "runs" / "new")
    logger.log(100, {"loss/critic": 0.1, "episode/return": -3})
    logger.log(200, {"loss/critic": 1e-30, "episode/return": float("nan")})
    assert (tmp_path / "runs" / "new" / "metrics.csv").read_bytes() == (
        b"frames,loss/critic,episode/return\n100,0.1,-3.0\n200,1e-30,nan\n"
    )


def test_csv_columns_grow_and_absent_values_are_empty(tmp_path: Path) -> None:
    logger = csv_logger(tmp_path)
    logger.log(100, {"a": 1})
    logger.log(200, {"b, quoted": 2})
    logger.log(300, {})
    logger.log(400, {"a": 4, "c": 3})
    assert metric_rows(tmp_path) == [
        {"frames": "100", "a": "1.0", "b, quoted": "", "c": ""},
        {"frames": "200", "a": "", "b, quoted": "2.0", "c": ""},
        {"frames": "300", "a": "", "b, quoted": "", "c": ""},
        {"frames": "400", "a": "4.0", "b, quoted": "", "c": "3.0"},
    ]


def test_csv_of_an_earlier_run_is_continued(tmp_path: Path) -> None:
    csv_logger(tmp_path).log(100, {"a": 1})
    resumed = csv_logger(tmp_path)
    resumed.log(200, {"b": 2})
    resumed.log(300, {"a": 3})
    assert [row["frames"] for row in metric_rows(tmp_path)] == ["100", "200", "300"]
    assert metric_rows(tmp_path)[0] == {"frames": "100", "a": "1.0", "b": ""}


def test_csv_drops_only_rows_after_the_frames_resumed_from(tmp_path: Path) -> None:
    logger = csv_logger(tmp_path)
    for frames in (100, 200, 200, 300, 1000):
        logger.log(frames, {"a": frames})
    before = (tmp_path / "metrics.csv").read_text().splitlines()
    resumed = csv_logger(tmp_path)
    resumed.resume_from(200)
    assert (tmp_path / "metrics.csv").read_text().splitlines() == before[:4]
    resumed.log(250, {"a": 0, "b": 1})
    assert [row["frames"] for row in metric_rows(tmp_path)] == ["100", "200", "200", "250"]
    resumed.resume_from(0)
    assert metric_rows(tmp_path) == []
    resumed.log(1, {"b": 1})
    assert metric_rows(tmp_path) == [{"frames": "1", "a": "", "b": "1.0"}]


def test_csv_row_truncated_by_a_kill_is_dropped(tmp_path: Path) -> None:
    csv_logger(tmp_path).log(100, {"a": 1})
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("200,2.")
    csv_logger(tmp_path).log(300, {"a": 3})
    assert [(row["frames"], row["a"]) for row in metric_rows(tmp_path)] == [
        ("100", "1.0"),
        ("300", "3.0"),
    ]


def test_csv_deleted_during_the_run_is_created_again(tmp_path: Path) -> None:
    logger = csv_logger(tmp_path)
    logger.log(100, {"a": 1})
    (tmp_path / "metrics.csv").unlink()
    logger.log(200, {"a": 2})
    assert metric_rows(tmp_path) == [{"frames": "200", "a": "2.0"}]


@pytest.mark.parametrize(
    "content",
    [
        b"step,loss\n1,2\n",  # of another program
        *(b"frames,a\n1,2\n\xff\n", b"frames,a\n1,2,3\n", b"frames,a\n1\n"),
        b"frames,frames\n",
        *(b"", b"frames,a\n1," + b"9" * 200_000 + b"\n", b'frames,a\n"1,2\n'),
        b"frames," + b"a," * 50_000 + b"b\n" + b"1\n" * 50_000,
    ],
)
def test_another_file_is_kept_and_named_in_the_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"metrics\.csv is not a metrics file"):
        csv_logger(tmp_path)
    assert (tmp_path / "metrics.csv").read_bytes() == content


def test_csv_on_a_full_disk_keeps_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = csv_logger(tmp_path)
    logger.log(100, {"a": 1})
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=error))
    with pytest.raises(ConfigurationError, match=r"cannot write .*metrics.csv.*No space left"):
        logger.log(200, {"b": 1})
    assert [row["frames"] for row in metric_rows(tmp_path)] == ["100"]


def test_unwritable_csv_is_named_in_the_error(tmp_path: Path) -> None:
    logger = csv_logger(tmp_path)
    logger.log(100, {"a": 1})
    (tmp_path / "metrics.csv").rename(tmp_path / "moved.csv")
    (tmp_path / "metrics.csv").mkdir()
    with pytest.raises(ConfigurationError, match=f"cannot write metrics to {tmp_path}: "):
        logger.log(200, {"a": 1})


def test_csv_with_an_invalid_row_is_kept_and_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("frames,a\n100,1\nnotes,2\n")
    with pytest.raises(ConfigurationError, match=r"metrics\.csv has a row without a number"):
        csv_logger(tmp_path).resume_from(50)
    assert len(metric_rows(tmp_path)) == 2


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_tensorboard_hides_rows_after_the_resumed_frame(tmp_path: Path) -> None:
    logger = MetricLogger(tmp_path, ["tensorboard"])
    for frames in (100, 200, 300):
        logger.log(frames, {"loss/critic": frames / 100})
    assert scalars(tmp_path, "loss/critic") == [(100, 1.0), (200, 2.0), (300, 3.0)]
    logger.close()
    resumed = MetricLogger(tmp_path, ["tensorboard"])
    resumed.resume_from(200)
    resumed.log(250, {"loss/critic": 9.0})
    resumed.close()
    assert scalars(tmp_path, "loss/critic") == [(100, 1.0), (200, 2.0), (250, 9.0)]


def test_tensorboard_hides_them_where_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    MetricLogger(tmp_path, ["tensorboard"]).log(200, {"a": 1.0})
    monkeypatch.setattr(time, "time", lambda: 1e9)
    resumed = MetricLogger(tmp_path, ["tensorboard"])
    resumed.resume_from(100)
    resumed.log(150, {"a": 2.0})
    assert scalars(tmp_path, "a") == [(150, 2.0)]


def test_tensorboard_on_a_full_disk_is_one_error(tmp_path: Path) -> None:
    before, report = set(threading.enumerate()), threading.excepthook
    logger = MetricLogger(tmp_path, ["tensorboard"])
    logger.log(100, {"a": 1})
    assert set(threading.enumerate()) <= before
    reason = f"^cannot write metrics to {tmp_path}: File too large"
    with files_limited_to(100), pytest.raises(ConfigurationError, match=reason):
        logger.log(200, {"a": 1})
    logger.log(300, {"a": 2})
    logger.close()
    assert scalars(tmp_path, "a") == [(100, 1.0), (300, 2.0)]
    assert threading.excepthook is report


def test_csv_and_tensorboard_are_the_default_sinks(tmp_path: Path) -> None:
    logger = MetricLogger(tmp_path)
    logger.log(100, {"a": 1})
    logger.close()
    assert scalars(tmp_path, "a") == [(100, 1.0)]
    assert len(metric_rows(tmp_path)) == 1


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_error_about_a_missing_sink_names_the_extra(
    name: LoggerName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=rf'pip install "torchrl-gpu\[{name}\]"'):
        MetricLogger(tmp_path / "run", ["csv", name])
    assert not (tmp_path / "run").exists()


SETTINGS = {"seed": 3, "agent": {"_target_": "agents.DQN", "frames": "${trainer.total_frames}"}}


def test_tensorboard_receives_the_settings(tmp_path: Path) -> None:
    logger = MetricLogger(tmp_path, ["tensorboard"], SETTINGS)
    logger.log(100, {"a": 1})
    logger.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    (event,) = events.Tensors("settings/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    assert OmegaConf.create(text.removeprefix("```yaml").removesuffix("```")) == SETTINGS


def test_wandb_without_an_account_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("HOME", str(tmp_path))  # without a key of the user
    wandb.teardown()  # it keeps these settings for the whole process
    with pytest.raises(ConfigurationError, match="wandb cannot begin: No API key configured"):
        MetricLogger(tmp_path / "run", ["wandb"])
    wandb.teardown()


@pytest.mark.slow
def test_wandb_receives_metrics_and_settings_of_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for run, project in (("one", None), ("two", "mine")):
        if project:
            monkeypatch.setenv("WANDB_PROJECT", project)
        logger = MetricLogger(tmp_path / run, ["wandb"], SETTINGS)
        logger.log(100, {"loss/critic": 1.0})
        assert wandb.run.project == (project or "torchrl-gpu")
        assert wandb.run.name == run
        assert dict(wandb.run.config) == SETTINGS
        logger.close()
        assert wandb.run is None
        assert len(list((tmp_path / run).glob("wandb/offline-run-*"))) == 1


def test_trackio_keeps_metrics_and_settings_on_this_machine(tmp_path: Path) -> None:
    pytest.importorskip("trackio")

    def log() -> None:
        for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_PROJECT"):
            os.environ.pop(name, None)
        os.environ |= {"TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HUB_OFFLINE": "1"}
        for agent, frames in (("sac", 100), ("ppo", 100), ("sac", 200)):  # the last one resumes
            folder = tmp_path / "runs/fanuc" / agent / "20260101_000000"
            logger = MetricLogger(folder, ["trackio"], SETTINGS)
            logger.log(frames, {"loss/critic": float(frames)})
            logger.close()

    result_of(log)  # it reads the variables when it is imported
    with closing(sqlite3.connect(tmp_path / "trackio" / "torchrl-gpu.db")) as database:
        logged = database.execute("SELECT run_name, step, metrics FROM metrics").fetchall()
        (config,), _ = database.execute("SELECT config FROM configs").fetchall()
    assert [(run, step, json.loads(metrics)) for run, step, metrics in logged] == [
        ("runs/fanuc/sac/20260101_000000", 100, {"loss/critic": 100.0}),
        ("runs/fanuc/ppo/20260101_000000", 100, {"loss/critic": 100.0}),
        ("runs/fanuc/sac/20260101_000000", 200, {"loss/critic": 200.0}),
    ]
    assert json.loads(config).items() >= SETTINGS.items()


def test_unknown_sink_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"sinks=.*tensorbord.*: input should be 'csv', "):
        MetricLogger(tmp_path / "run", ["csv", "tensorbord"])  # type: ignore[list-item]
    assert not (tmp_path / "run").exists()


def test_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigurationError, match="cannot create"):
        MetricLogger(tmp_path / "file" / "run")
