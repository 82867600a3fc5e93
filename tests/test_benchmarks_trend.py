import json
from pathlib import Path

import pytest

from benchmarks.trend import KEPT, RATIOS, lost, measure, read, report
from torchrl_gpu.commands import call_with_arguments


@pytest.mark.parametrize(("ratio", "is_lost"), [(1.69, True), (1.71, False), (3.0, False)])
def test_a_ratio_that_fell_by_more_than_15_percent_is_lost(ratio: float, is_lost: bool) -> None:
    assert lost({"a": ratio}, {"a": 2.0}) == (["a"] if is_lost else [])


def test_a_ratio_without_a_kept_one_is_not_lost() -> None:
    assert lost({"new": 0.1}, {"old": 2.0}) == []


def test_a_lost_ratio_is_marked_and_ends_in_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert report({"a": 1.0, "b": 2.0, "new": 1.0}, {"a": 2.0, "b": 2.0}) == 1
    said = capsys.readouterr().out.splitlines()
    assert ["a", "1.00", "2.00", "-50%", "lost"] in [line.split() for line in said]
    assert json.loads(said[-1])["lost"] == ["a"]
    assert report({"b": 2.0}, {"b": 2.0}) == 0


@pytest.mark.parametrize("text", [None, "{", "[]", '{"ratios": {"a": "fast"}}'])
def test_a_wrong_file_ends_in_a_one_line_error(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kept.json"
    if text is not None:
        path.write_text(text)
    assert call_with_arguments(measure, [f"kept={path}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: kept=")
    assert said.count("\n") == 1


def test_every_measured_ratio_is_kept() -> None:
    assert read(KEPT).keys() == RATIOS.keys()
