"""The command: measurements, its table and its JSON."""

import json
from collections.abc import Iterator

import pytest
import torch

from tests.stand_in import count_host_reads
from torchrl_gpu.commands import call_with_arguments
from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.doctor import measurements
from torchrl_gpu.doctor.__main__ import examine
from torchrl_gpu.doctor.measurements import calls_per_second, measure

CPU = torch.device("cpu")
KEYS = [
    "matrix_product_gflops",
    "policy_observations_per_second",
    "updates_per_second",
    "updates_by_onednn_per_second",
    "copy_to_device_gb_per_second",
    "copy_from_device_gb_per_second",
]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(measurements, "_MATRIX", 64)
    monkeypatch.setattr(measurements, "_COPY", 2**16)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_the_last_line_is_a_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert call_with_arguments(examine, ["device=cpu", "seconds=0.001", "threads=1"]) == 0
    *text, last = capsys.readouterr().out.splitlines()
    figures = json.loads(last)
    assert list(figures["measured"]) == KEYS
    assert all(speeds["cpu"] > 0 for speeds in figures["measured"].values())
    assert figures["devices"]["cpu"]["float64"] is True
    shown = "\n".join(text)
    for expected in (torch.__version__, "float64", "not available", "GFLOP/s", "updates/s"):
        assert expected in shown


def test_json_alone_without_measurements(capsys: pytest.CaptureFixture[str]) -> None:
    assert call_with_arguments(examine, ["json=true", "measurements=false"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["measured"] == {}
    assert "torch" in figures["system"]


def test_an_absent_device_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert call_with_arguments(examine, ["device=cuda:99"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: device=cuda:99 ")
    assert said.count("\n") == 1


def test_every_figure_is_measured_on_an_accelerator(accelerator: torch.device) -> None:
    for figure in measure([CPU, accelerator], 1e-4):
        assert list(figure.speeds) == ["cpu", accelerator_of(accelerator).choice]
        if figure.key == "updates_by_onednn_per_second":
            assert figure.speeds[accelerator_of(accelerator).choice] == "-"
        else:
            assert figure.ratio is not None
            assert figure.ratio > 0


def test_only_the_ends_of_a_measurement_are_synchronized(accelerator: torch.device) -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        torch.ones(1, device=accelerator).add(1)

    with count_host_reads() as counter:
        assert calls_per_second(call, accelerator_of(accelerator), 0.05) > 0
    assert counter.host_reads < calls / 2


def test_work_that_a_device_cannot_do_is_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: torch.device) -> measurements.Call:
        raise RuntimeError("no kernel\nfor this")

    monkeypatch.setattr(measurements, "_WORK", (("broken", "broken", "GB/s", 1.0, broken),))
    (figure,) = measure([CPU], 1e-4)
    assert figure.speeds == {"cpu": "failed: no kernel for this"}
    assert figure.ratio is None
