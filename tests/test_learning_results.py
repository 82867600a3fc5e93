from __future__ import annotations

from pathlib import Path

from benchmarks.learning.results import Result, Run, Series, read_results, write_result


def series(algorithm: str, score: float) -> Series:
    return Series(algorithm, "command", "machine", "2026-01-31", [Run(0, score, 100, 1.0, [])])


def result(agent: str, frames: int, peer: Series | None) -> Result:
    return Result(agent, "cartpole", "return", frames, 475.0, series(agent, 480.0), peer)


def test_agents_with_the_same_peer_share_its_runs(tmp_path: Path) -> None:
    beside = series("qrdqn", 500.0)
    write_result(result("iqn", 100_000, beside), tmp_path)
    write_result(result("rainbow", 100_000, None), tmp_path)
    write_result(result("ppo", 100_000, None), tmp_path)
    assert {r.agent: r.peer for r in read_results(tmp_path)} == {
        "ppo": None,
        "iqn": beside,
        "rainbow": beside,
    }


def test_peer_with_another_budget_is_excluded(tmp_path: Path) -> None:
    write_result(result("iqn", 50_000, series("qrdqn", 500.0)), tmp_path)
    write_result(result("rainbow", 100_000, None), tmp_path)
    assert [r.peer is None for r in read_results(tmp_path)] == [False, True]
