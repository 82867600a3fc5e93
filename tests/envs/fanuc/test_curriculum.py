import pytest
import torch

from envs.fanuc.curriculum import PASS_RATE, WINDOW, Curriculum
from tests.helpers.ranks import on_ranks
from tests.stand_in import count_host_reads
from torchrl_gpu.processes import Processes


def _record(curriculum: Curriculum, episodes: int, successes: int) -> None:
    success = torch.arange(episodes)[:, None] < successes
    curriculum.record(success, torch.ones_like(success))


def test_level_rises_above_the_pass_rate() -> None:
    curriculum = Curriculum(ceiling=2)
    _record(curriculum, WINDOW - 1, WINDOW - 1)
    assert curriculum.level == 0
    _record(curriculum, 1, 1)
    assert curriculum.level == 1


def test_level_stays_at_exactly_the_pass_rate() -> None:
    curriculum = Curriculum(ceiling=2)
    _record(curriculum, WINDOW, int(PASS_RATE * WINDOW))
    assert curriculum.level == 0


def test_old_failures_leave_the_window_which_is_emptied_on_a_rise() -> None:
    curriculum = Curriculum(ceiling=2)
    _record(curriculum, WINDOW, 0)
    _record(curriculum, WINDOW, WINDOW)
    assert curriculum.level == 1
    _record(curriculum, WINDOW - 1, WINDOW - 1)
    assert curriculum.level == 1


def test_level_never_exceeds_the_ceiling() -> None:
    curriculum = Curriculum(ceiling=1)
    for _ in range(5):
        _record(curriculum, WINDOW, WINDOW)
    assert curriculum.level == 1
    assert Curriculum(ceiling=0, level=2).level == 0


def test_episodes_at_the_highest_level_are_not_counted() -> None:
    curriculum = Curriculum(ceiling=1, level=1)
    _record(curriculum, WINDOW, WINDOW)
    assert curriculum.state_dict()["recorded"] == 0


def test_only_finished_episodes_count() -> None:
    curriculum = Curriculum(ceiling=2)
    success = torch.ones(WINDOW, 1, dtype=torch.bool)
    curriculum.record(success, torch.zeros_like(success))
    curriculum.record(success[:1], success[:1])
    state = curriculum.state_dict()
    assert (state["level"], state["recorded"], state["outcomes"][:WINDOW].sum()) == (0, 1, 1)


def test_flags_on_an_accelerator_are_not_read(accelerator: torch.device) -> None:
    curriculum = Curriculum(ceiling=1, device=accelerator)
    success = torch.ones(WINDOW, 1, dtype=torch.bool, device=accelerator)
    with count_host_reads() as counter:
        curriculum.record(success, success)
    assert counter.host_reads == 0, counter.report()
    assert curriculum.level == 1


def test_only_the_last_of_more_episodes_than_the_window_count() -> None:
    curriculum = Curriculum(ceiling=2)
    success = torch.arange(3 * WINDOW)[:, None] >= 2 * WINDOW
    curriculum.record(success, torch.ones_like(success))
    assert curriculum.level == 1


def test_state_is_restored() -> None:
    curriculum = Curriculum(ceiling=2)
    _record(curriculum, WINDOW - 1, WINDOW)
    other = Curriculum(ceiling=2)
    other.load_state_dict(curriculum.state_dict())
    _record(other, 1, 1)
    assert other.level == 1
    assert curriculum.level == 0, "a restored curriculum has its own record"


@pytest.mark.parametrize("count", [2, 4])
def test_processes_record_the_episodes_of_all_as_one_does(count: int) -> None:
    torch.manual_seed(0)
    outcomes = (torch.rand(120, 24, 1) < torch.linspace(0, 1, 120)[:, None, None]).chunk(count, 1)
    ends = (torch.rand(120, 24, 1) < 0.4).chunk(count, 1)
    ends[1][10:20] = False  # no episode of this process ends

    def climb(processes: Processes) -> list[dict[str, torch.Tensor]]:
        curriculum = Curriculum(ceiling=2)
        curriculum.processes = processes
        states = []
        for step in zip(outcomes[processes.rank], ends[processes.rank], strict=True):
            curriculum.record(*step)
            states.append(curriculum.state_dict())
        return states

    alone, states = Curriculum(ceiling=2), on_ranks(count, climb)
    for number, step in enumerate(zip(torch.cat(outcomes, 1), torch.cat(ends, 1), strict=True)):
        alone.record(*step)
        for name, value in alone.state_dict().items():
            assert all(torch.equal(each[number][name], value) for each in states)
    assert alone.level == 2
