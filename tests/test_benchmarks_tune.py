"""The benchmark of searches."""

from pathlib import Path

import pytest

from benchmarks import tune

TINY = (
    *("agent=dqn", "env=gym", "env.name=CartPole-v1", "trainer.random_frames=64"),
    *("trainer.total_frames=256", "trainer.evaluation_episodes=2", "evaluation.episodes=2"),
    *("tune.names=[agent.learning_rate]", "tune.success=5", "tune.episodes=2"),
)


@pytest.mark.slow
def test_a_search_is_judged_beside_the_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(tune.TASKS, "cartpole", (TINY, 1.0))
    runs = tmp_path / "runs"
    judged = tune.search(task="cartpole", trials=1, minutes=0.5, fresh_seeds=1, runs=runs)
    assert "cartpole, CartPole-v1/dqn" in capsys.readouterr().out
    figures = judged["cartpole"]
    assert figures["reached"] == {"best": [True], "CartPole-v1/dqn": [True]}
    assert figures["ratios"]["mean seconds"] == pytest.approx(
        figures["best"][0] / figures["CartPole-v1/dqn"][0], rel=0.5
    )
