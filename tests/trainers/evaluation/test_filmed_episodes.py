from __future__ import annotations

import pytest
import torch

from tests.helpers.environments import IdentityEnv
from trainers.evaluation.filmed_episodes import FilmedEpisodes


class Measured(IdentityEnv):
    """Measures the number of steps of the episode."""

    def measurements(self, index: int) -> dict[str, float]:
        return {"steps": float(self.steps[index])}


def test_an_environment_without_captions_shows_the_return_so_far() -> None:
    env = IdentityEnv(num_envs=2)
    outcomes = FilmedEpisodes(env, 2)
    root = env.reset()
    expected = torch.zeros(2)
    for _ in range(2):
        root["action"] = torch.ones(2, 2)
        step = env.step(root)
        outcomes.add(step)
        expected += step["next", "reward"][:, 0]
        root = step["next"].exclude("reward")
    assert outcomes.captions() == [f"return {value:.1f}" for value in expected.tolist()]
    outcomes.begin()
    assert outcomes.captions() == ["return 0.0"] * 2


def test_only_the_first_episode_of_each_filmed_environment_counts() -> None:
    """Filmed environments that ended go on stepping until the last one has ended."""
    env = Measured(num_envs=4, max_episode_steps=8, terminates_above=0.3)
    outcomes = FilmedEpisodes(env, 3)
    ends: list[float] = []
    for _ in range(5):
        root, ended = env.reset(), torch.zeros(4, dtype=torch.bool)
        outcomes.begin()
        for step in range(1, 9):
            after = env.step(root.set("action", env.observation.clone()))
            outcomes.add(after)
            done = after["next", "done"][:, 0]
            ends += [step] * int((done & ~ended)[:3].sum())
            ended |= done
            root = after["next"].exclude("reward")
    assert len(set(ends)) > 2, "episodes of different lengths"
    evaluation = outcomes.evaluation()
    assert evaluation.episodes == len(ends) == 15
    assert evaluation.mean_length == pytest.approx(sum(ends) / 15)
    assert evaluation.success == 1.0
    assert outcomes.measurements() == {"steps": pytest.approx(sum(ends) / 15)}
