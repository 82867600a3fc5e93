"""The comparison of a resumed training with one that never stopped."""

import torch

from agents import DQN, SAC
from benchmarks.resume import CASES, PARTS, Case, compare
from tests.helpers.training import differences


def test_every_value_that_differs_is_named() -> None:
    one = {"a": torch.zeros(2), "b": [1, {"c": float("nan")}], "d": "x"}
    same = {"a": torch.zeros(2), "b": [1, {"c": float("nan")}], "d": "x"}
    other = {"a": -torch.zeros(2), "b": [2, {"c": 0.0}], "e": None}
    assert list(differences(one, same)) == []
    assert sorted(differences(one, other)) == ["/a", "/b/0", "/b/1/c", "/d", "/e"]


def test_a_training_that_resumes_exactly_has_no_differences() -> None:
    assert compare(CASES["Pendulum-v1"], "sac", SAC, stop=33) == {part: [] for part in PARTS}


def test_a_training_that_begins_new_episodes_differs() -> None:
    vectorized = Case(("env=gym", "env.name=CartPole-v1", "env.vectorization=vector_entry_point"))
    found = compare(vectorized, "dqn", DQN, stop=33)
    assert all(found[part] for part in ("weights", "optimizer", "replay", "metrics"))
