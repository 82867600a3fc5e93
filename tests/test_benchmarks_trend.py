import json
import sys
from pathlib import Path

import pytest

from benchmarks.report import Figures, main
from benchmarks.trend import KEPT, RATIOS, lost, measure, read, report
from torchrl_gpu.errors import ConfigurationError


@pytest.mark.parametrize(("ratio", "is_lost"), [(1.69, True), (1.71, False), (3.0, False)])
def test_a_ratio_that_fell_by_more_than_15_percent_is_lost(ratio: float, is_lost: bool) -> None:
    assert lost({"a": ratio}, {"a": 2.0}) == (["a"] if is_lost else [])


def test_a_ratio_without_a_kept_one_is_not_lost() -> None:
    assert lost({"new": 0.1}, {"old": 2.0}) == []


def test_a_lost_ratio_is_marked_and_ends_in_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure() -> Figures:
        return report({"a": 1.0, "b": 2.0, "new": 1.0}, {"a": 2.0, "b": 2.0})

    monkeypatch.setattr(sys, "argv", ["trend"])
    with pytest.raises(SystemExit, match="1"):
        main(measure)
    said = capsys.readouterr().out.splitlines()
    assert ["a", "1.00", "2.00", "-50%", "lost"] in [line.split() for line in said]
    assert json.loads(said[-1])["lost"] == ["a"]
    assert report({"b": 2.0}, {"b": 2.0})["lost"] == []


@pytest.mark.parametrize("text", [None, "{", "[]", '{"ratios": {"a": "fast"}}'])
def test_a_wrong_file_is_refused(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match="kept="):
        measure(kept=path)


def test_every_measured_ratio_is_kept() -> None:
    assert read(KEPT).keys() == RATIOS.keys()
