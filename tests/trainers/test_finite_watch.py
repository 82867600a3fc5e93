"""Numbers of a step that are NaN or infinite, and finite ones of any size."""

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from trainers.finite_watch import FiniteWatch

ROWS = 3
LARGEST = torch.finfo(torch.float32).max


def watch_of(observation: Tensor) -> FiniteWatch:
    """Return a watch that has seen one step with the next observation `[R, ...]`."""
    after = {"observation": observation, "reward": torch.zeros(ROWS, 1)}
    action = torch.zeros(ROWS, dtype=torch.int64)
    watch = FiniteWatch(["observation"], ROWS, observation.device)
    watch.update(TensorDict({"action": action, "next": after}, [ROWS]))
    return watch


@pytest.mark.parametrize("shape", [(1,), (7,), (40, 50)])
def test_finite_numbers_whose_sum_overflows_are_finite(shape: tuple[int, ...]) -> None:
    for observation in (torch.full((ROWS, *shape), LARGEST), torch.full((ROWS, *shape), -LARGEST)):
        watch = watch_of(observation)
        assert watch.is_finite()
        assert not watch.failed.any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("size", [1, 2, 7, 16, 33, 400])
def test_a_single_number_that_is_not_finite_marks_its_row(bad: float, size: int) -> None:
    for usual in (0.0, LARGEST):
        for place in {0, size // 3, size - 1}:
            observation = torch.full((ROWS, size), usual)
            observation[1, place] = bad
            watch = watch_of(observation)
            assert watch.failed.tolist() == [False, True, False]
            assert watch.cause(1) == "env: observation was NaN or infinite in step 1, rows 1 of 3"


def test_infinities_of_both_signs_do_not_cancel() -> None:
    observation = torch.zeros(ROWS, 4)
    observation[2, 1], observation[2, 3] = torch.inf, -torch.inf
    assert watch_of(observation).failed.tolist() == [False, False, True]
