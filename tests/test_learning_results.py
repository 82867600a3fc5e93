from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import fanuc_learning, marinenav_learning, precision_learning
from benchmarks.learning.results import Point, Result, Run, Series, read_results, write_result
from benchmarks.learning.runs import OurJob
from torchrl_gpu.errors import ConfigurationError


def series(algorithm: str, score: float) -> Series:
    return Series(algorithm, "command", "machine", "2026-01-31", [Run(0, score, 100, 1.0, [])])


def result(agent: str, peer: Series | None) -> Result:
    return Result(agent, "cartpole", "return", 100_000, 475.0, series(agent, 480.0), peer)


def test_results_are_read_as_written_task_by_task(tmp_path: Path) -> None:
    rainbow, ppo = result("rainbow", series("qrdqn", 500.0)), result("ppo", None)
    write_result(rainbow, tmp_path)
    write_result(ppo, tmp_path)
    assert read_results(tmp_path) == [ppo, rainbow]


# Writes the files of a run below the folder of its last argument.
WRITE_RUN = """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[-1].removeprefix("runs=")) / "fanuc" / "sac" / "now"
folder.mkdir(parents=True)
summary = {"frames": 100, "success": 0.9, "episodes": 500}
(folder / "summary.json").write_text(json.dumps(summary))
rows = ["frames,seconds,evaluation/success", "0,1.5,0.0", "50,2.0,", "100,3.0,0.9"]
(folder / "metrics.csv").write_text("\\n".join(rows))
"""


def test_run_is_read_from_its_files(tmp_path: Path) -> None:
    home = tmp_path / "home"
    run = OurJob("sac", 3, ("-c", WRITE_RUN, f"runs={home}"), home).run()
    assert (run.seed, run.score, run.frames, run.episodes) == (3, 0.9, 100, 500)
    assert run.curve == [Point(0, 1.5, 0.0), Point(100, 3.0, 0.9)]


def test_fanuc_learning_prints_a_table_and_a_json_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    program = tmp_path / "program"
    program.write_text(f"#!{sys.executable}\n{WRITE_RUN}")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    picture = tmp_path / "picture.png"
    assert fanuc_learning.learn(seeds=2, runs=tmp_path / "runs", picture=picture) == 0
    assert picture.stat().st_size > 5_000
    lines = capsys.readouterr().out.splitlines()
    assert "90.0%  87.1% to 92.3%" in "\n".join(lines)
    figures = json.loads(lines[-1])
    assert figures["success"] == [0.9, 0.9]
    assert figures["episodes"] == [500, 500]
    assert figures["seconds_to_90"] == [3.0, 3.0]
    assert figures["seconds_to_95"] == [None, None]


def test_fanuc_learning_says_which_run_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho out of memory; exit 3")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(ConfigurationError, match="exit code 3: out of memory; full output: "):
        fanuc_learning.learn(seeds=1, runs=tmp_path / "runs")


def test_precision_learning_compares_seeds_that_differ_in_precision_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, commands = tmp_path / "program", tmp_path / "commands"
    record = f"open({str(commands)!r}, 'a').write(repr(sys.argv[1:-1]) + '\\n')"
    program.write_text(f"#!{sys.executable}\n{WRITE_RUN}\n{record}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    assert precision_learning.learn(seeds=2, runs=tmp_path / "runs") == 0
    said = commands.read_text().splitlines()
    assert len(said) == len(precision_learning.GATES) * 2 * 2
    for single, half in zip(said[::2], said[1::2], strict=True):
        assert half == single.replace("precision=fp32", "precision=bf16") != single
    printed = capsys.readouterr().out
    assert "bf16, mean (deviation)" in printed
    figures = json.loads(printed.splitlines()[-1])
    assert figures["sac_fanuc"] == {name: [[0.0, 90.0, 90.0]] * 2 for name in ("fp32", "bf16")}


def test_marinenav_learning_judges_the_checkpoints_of_both_executions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = Path("pretrained/marinenav/ddpg.safetensors").resolve()
    program = tmp_path / "program"
    keep = f"shutil.copy({str(policy)!r}, saved / 'frames_000000000100.safetensors')"
    record = "(saved / 'best.json').write_text(json.dumps({'frames': 100, 'score': 0.9}))"
    saving = f"import shutil\nsaved = folder / 'checkpoints'\nsaved.mkdir()\n{keep}\n{record}\n"
    program.write_text(f"#!{sys.executable}\n{WRITE_RUN}\n{saving}")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(marinenav_learning, "EPISODES", 2)
    assert marinenav_learning.learn(agent="ddpg", runs=tmp_path / "runs") == 0
    printed = capsys.readouterr().out
    figures = json.loads(printed.splitlines()[-1])["runs"]
    assert [run["execution"] for run in figures] == ["fp32", "bf16 compiled"]
    assert all(run["success"][0] > 0.5 and run["frames"] == [600_064] for run in figures)
    assert all(run["kept"] == 600_064 for run in figures)  # the shipped policy's own frames
