import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import fanuc_learning, precision_learning
from benchmarks.learning import __main__ as learning
from benchmarks.learning.results import Point, Result, Run, Series, read_results, write_result
from benchmarks.learning.runs import OurJob
from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder
from torchrl_gpu.errors import ConfigurationError
from trainers.evaluation.evaluation import Evaluation
from trainers.modes.outcome import RunOutcome
from trainers.run import settings_of


def series(algorithm: str, score: float) -> Series:
    return Series(algorithm, "command", "machine", "2026-01-31", [Run(0, score, 100, 1.0, [])])


def result(agent: str, peer: Series | None) -> Result:
    return Result(agent, "cartpole", "return", 100_000, 475.0, series(agent, 480.0), peer)


def test_results_are_read_as_written_task_by_task(tmp_path: Path) -> None:
    rainbow, ppo = result("rainbow", series("qrdqn", 500.0)), result("ppo", None)
    write_result(rainbow, tmp_path)
    write_result(ppo, tmp_path)
    assert read_results(tmp_path) == [ppo, rainbow]


Act = Callable[[str], None]


@pytest.fixture
def python_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Act:
    """Let the interpreter that benchmarks start be a script instead."""
    pytest.importorskip("matplotlib")

    def replace_by(script: str) -> None:
        program = tmp_path / "program"
        program.write_text(script)
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))

    return replace_by


# Writes the files of a run below the folder of its last argument.
WRITE_RUN = """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[-1].removeprefix("runs=")) / "fanuc" / "sac" / "now"
folder.mkdir(parents=True)
summary = {"frames": 100, "success": 0.9, "episodes": 500, "ended": True}
summary |= {"success_low": 0.87, "success_high": 0.93}
(folder / "summary.json").write_text(json.dumps(summary))
(folder / "config.yaml").write_text("seed: 3\\n")
rows = ["frames,seconds,evaluation/success", "0,1.5,0.0", "50,2.0,", "100,3.0,0.9", ""]
(folder / "metrics.csv").write_text("\\n".join(rows))
"""


def test_run_is_read_from_its_files(tmp_path: Path) -> None:
    home = tmp_path / "home"
    run = OurJob("sac", 3, ("-c", WRITE_RUN, f"runs={home}"), home).run()
    assert (run.seed, run.score, run.frames, run.episodes) == (3, 0.9, 100, 500)
    assert run.curve == [Point(0, 1.5, 0.0), Point(100, 3.0, 0.9)]
    assert (run.reaches(0.9), run.reaches(0.95)) == (run.curve[1], None)


def test_runs_of_the_peer_are_kept(tmp_path: Path, python_does: Act) -> None:
    python_does(f"#!{sys.executable}\n{WRITE_RUN}")
    results = tmp_path / "docs" / "learning"

    def measure() -> None:
        learning.learn(
            agent="ppo", task="cartpole", peer="kept", results=results, runs=tmp_path / "runs"
        )

    with pytest.raises(ConfigurationError, match="choose peer=measured"):
        measure()
    peer = series("ppo", 500.0)
    results.mkdir(parents=True)
    write_result(result("ppo", peer), results)
    measure()
    (measured,) = read_results(results)
    assert measured.peer == peer
    assert [run.score for run in measured.ours.runs] == [0.9] * 3


def test_fanuc_learning_prints_a_table_and_a_json_line(
    tmp_path: Path, python_does: Act, capsys: pytest.CaptureFixture[str]
) -> None:
    python_does(f"#!{sys.executable}\n{WRITE_RUN}")
    picture = tmp_path / "picture.png"
    figures = fanuc_learning.learn(seeds=2, runs=tmp_path / "runs", picture=picture)
    assert picture.stat().st_size > 5_000
    assert "90.0%  87.1% to 92.3%" in capsys.readouterr().out
    assert figures["success"] == [0.9, 0.9]
    assert figures["episodes"] == [500, 500]
    assert figures["seconds_to_90"] == [3.0, 3.0]
    assert figures["seconds_to_95"] == [None, None]


def test_fanuc_learning_says_which_run_failed(tmp_path: Path, python_does: Act) -> None:
    python_does("#!/bin/sh\necho out of memory; exit 3")
    with pytest.raises(ConfigurationError, match="exit code 3: out of memory; full output: "):
        fanuc_learning.learn(seeds=1, runs=tmp_path / "runs")


def outcome_of(folder: Path, evaluations: dict[int, Evaluation]) -> RunOutcome:
    """Return the outcome of a training whose best checkpoint is a shipped policy, the newest."""
    best = CheckpointFolder(folder).path(max(evaluations))
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy("pretrained/marinenav/ddpg.safetensors", best)
    evaluation = Evaluation(300, 5.0, 20.0, 0.8)
    return RunOutcome(folder, evaluation, "", 1.0, evaluations, best, best)


def test_precision_learning_compares_seeds_that_differ_in_precision_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called: list[tuple[str, ...]] = []

    def carry_out(*arguments: str) -> RunOutcome:
        called.append(arguments)
        points = {0: Evaluation(100, 0.0, 20.0, 0.0), 100: Evaluation(100, 5.0, 20.0, 0.9)}
        return outcome_of(tmp_path, points)

    monkeypatch.setattr(precision_learning, "carry_out", carry_out)
    (figures,) = precision_learning.learn(task="fanuc", seeds=(0, 1)).values()
    assert len(called) == 4
    for single, half in zip(called[::2], called[1::2], strict=True):
        assert single[-3:-1] == ("precision=fp32", "compile=off")
        assert half == (*single[:-3], "precision=bf16", "compile=default", single[-1])
    assert all(settings_of(*arguments).general.seed in (0, 1) for arguments in called)
    assert "bf16, mean (deviation)" in capsys.readouterr().out
    for run in (*figures["fp32"], *figures["bf16"]):
        assert (run["0"], run["100"], run["best checkpoint"]) == (0.0, 90.0, 80.0)
        assert 0.0 < run["minutes to it"] == run["minutes"]


def test_checkpoints_on_marinenav_are_judged_on_unseen_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision_learning, "EPISODES", 2)
    outcome = outcome_of(tmp_path, {100: Evaluation(100, 0.0, 20.0, 0.0)})
    comparison = precision_learning.COMPARISONS["marinenav"]
    figures = precision_learning.figures_of(outcome, comparison)
    assert figures["100"] == figures["best checkpoint"] > 50.0


def test_precision_learning_refuses_an_agent_that_is_not_measured() -> None:
    with pytest.raises(ConfigurationError, match="agent=dqn: not measured on marinenav"):
        precision_learning.learn(task="marinenav", agent="dqn")
