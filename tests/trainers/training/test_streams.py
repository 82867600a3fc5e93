"""Separate episodes for training, selection of the best policy, and the result."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
from tensordict import TensorDictBase
from torch import Tensor

from envs.gym import GymnasiumEnv
from tests.helpers.program import Call


class RecordedGym(GymnasiumEnv):
    """Records the first observation of every episode by the latest seed."""

    first_observations: ClassVar[dict[int, set[tuple[float, ...]]]] = {}

    def _set_seed(self, seed: int | None) -> None:
        super()._set_seed(seed)
        assert seed is not None
        self.begun = self.first_observations.setdefault(seed, set())

    def _reset(self, tensordict: TensorDictBase | None = None, **options: Any) -> TensorDictBase:
        root = super()._reset(tensordict, **options)
        self._record(root["observation"])
        return root

    def step_and_maybe_reset(
        self, tensordict: TensorDictBase
    ) -> tuple[TensorDictBase, TensorDictBase]:
        stepped, root = super().step_and_maybe_reset(tensordict)
        self._record(root["observation"][stepped["next", "done"].squeeze(-1)])
        return stepped, root

    def _record(self, observation: Tensor) -> None:
        self.begun.update(map(tuple, observation.tolist()))


def test_training_selection_and_result_share_no_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Call
) -> None:
    monkeypatch.setattr(RecordedGym, "first_observations", {})
    arguments = [
        *("agent=dqn", f"env._target_={RecordedGym.__module__}.RecordedGym", "seed=1"),
        *("env.name=CartPole-v1", "env.num_envs=8", "device=cpu", "trainer.total_frames=1600"),
        *("trainer.random_frames=1592", "trainer.evaluation_interval=800"),
        *("trainer.evaluation_episodes=24", "evaluation.episodes=24"),
    ]
    assert program(*arguments).code == 0
    uses = list(RecordedGym.first_observations.values())
    assert len(uses) == 3
    assert all(len(begun) >= 24 for begun in uses)
    assert sum(map(len, uses)) == len(set.union(*uses))
    (folder,) = (path.parent for path in tmp_path.glob("runs/**/config.yaml"))
    arguments = ["mode=eval", f"checkpoint={folder}", "evaluation.episodes=24"]
    assert program(*arguments, "trust=tests").code == 0
    assert len(RecordedGym.first_observations) == 3, "mode=eval repeats the closing evaluation"
