import random
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from tests.helpers.environments import IdentityEnv
from tests.helpers.ranks import on_ranks
from tests.stand_in import count_host_reads
from torchrl_gpu.checkpoints.state_file import load_state, save_state
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.processes import ONE_PROCESS, Processes
from trainers.metrics import EpisodeStatistics, MetricAccumulator, metrics_of, read, reading_of


def losses(**values: float) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(value) for name, value in values.items()}


# Metrics of updates


def test_metrics_are_averaged_over_updates() -> None:
    accumulator = MetricAccumulator()
    assert read(accumulator.take()) == {}
    accumulator.add(losses(critic=1.0, actor=-2.0))
    accumulator.add(losses(critic=3.0, actor=-4.0))
    assert read(accumulator.take()) == {"critic": 2.0, "actor": -3.0}
    assert read(accumulator.take()) == {}
    accumulator.add(losses(critic=5.0))
    accumulator.add(losses(critic=6.0, actor=10.0))  # as of an update of the actor in a period
    assert read(accumulator.take()) == {"critic": 5.5, "actor": 10.0}


def test_metrics_of_other_dtypes_are_summed_as_float32() -> None:
    accumulator = MetricAccumulator()
    for _ in range(1000):
        accumulator.add({"loss": torch.tensor(1.0).bfloat16(), "n": torch.tensor(3)})
    assert read(accumulator.take()) == {"loss": 1.0, "n": 3.0}


def test_next_update_may_overwrite_its_metrics() -> None:
    accumulator = MetricAccumulator()
    metrics = losses(critic=1.0)
    for value in (1.0, 3.0):
        metrics["critic"].fill_(value)
        accumulator.add(metrics)
    metrics["critic"].fill_(100.0)
    assert read(accumulator.take()) == {"critic": 2.0}


def test_several_readings_are_read_at_once(accelerator: torch.device) -> None:
    with accelerator:
        accumulator, statistics = MetricAccumulator(), EpisodeStatistics(1, accelerator)
        accumulator.add(losses(critic=1.0, actor=2.0))
        step(statistics, [3], [1], None)
        stage = torch.tensor(4)
    of_environment: dict[str, float | torch.Tensor] = {"stage": stage, "grade": 5.0}
    with count_host_reads() as counter:
        metrics = read(statistics.take(), accumulator.take(), reading_of(of_environment))
    assert counter.host_reads == 1
    episodes = {"episode/return": 3.0, "episode/length": 1.0, "episode/count": 1.0}
    assert metrics == {**episodes, "critic": 1.0, "actor": 2.0, "stage": 4.0, "grade": 5.0}
    assert read(statistics.take(), accumulator.take(), reading_of({})) == {}


# Episodes


def step(statistics: EpisodeStatistics, reward: list, done: list, success: list | None) -> None:
    after = {
        "reward": torch.tensor(reward, dtype=torch.float32).unsqueeze(-1),
        "done": torch.tensor(done, dtype=torch.bool).unsqueeze(-1),
    }
    if success is not None:
        after["success"] = torch.tensor(success, dtype=torch.bool).unsqueeze(-1)
    statistics.update(TensorDict({"next": after}, [len(reward)]))


def test_episodes_are_counted_when_they_end() -> None:
    statistics = EpisodeStatistics(2, "cpu")
    step(statistics, [1, 10], [0, 0], [1, 0])
    assert read(statistics.take()) == {}
    step(statistics, [2, 20], [1, 0], [0, 1])
    assert read(statistics.take()) == {
        "episode/return": 3.0,
        "episode/length": 2.0,
        "episode/success": 0.0,
        "episode/count": 1,
    }
    step(statistics, [4, 40], [1, 1], [1, 1])
    assert read(statistics.take()) == {
        "episode/return": (4 + 70) / 2,
        "episode/length": (1 + 3) / 2,
        "episode/success": 1.0,
        "episode/count": 2,
    }
    assert read(statistics.take()) == {}


def test_the_open_episodes_of_some_rows_are_forgotten() -> None:
    statistics = EpisodeStatistics(2, "cpu")
    step(statistics, [1, 10], [0, 0], None)
    statistics.forget_open(torch.tensor([True, False]))
    step(statistics, [2, 20], [1, 1], None)
    found = read(statistics.take())
    assert (found["episode/return"], found["episode/length"]) == ((2 + 30) / 2, (1 + 2) / 2)


def test_means_agree_with_a_plain_count() -> None:
    generator = random.Random(0)
    num_envs = 5
    statistics = EpisodeStatistics(num_envs, "cpu")
    running: list[list[int]] = [[] for _ in range(num_envs)]
    finished: list[tuple[int, int, bool]] = []
    for _ in range(200):
        reward = [generator.randint(-3, 3) for _ in range(num_envs)]
        done = [generator.random() < 0.1 for _ in range(num_envs)]
        success = [generator.random() < 0.5 for _ in range(num_envs)]
        step(statistics, reward, done, success)
        for index in range(num_envs):
            running[index].append(reward[index])
            if done[index]:
                finished.append((sum(running[index]), len(running[index]), success[index]))
                running[index] = []
    count = len(finished)
    assert count > 50
    assert read(statistics.take()) == pytest.approx(
        {
            "episode/return": sum(entry[0] for entry in finished) / count,
            "episode/length": sum(entry[1] for entry in finished) / count,
            "episode/success": sum(entry[2] for entry in finished) / count,
            "episode/count": count,
        }
    )


def test_nan_return_stays_within_its_own_episode() -> None:
    statistics = EpisodeStatistics(2, "cpu")
    step(statistics, [float("nan"), 1], [0, 1], None)
    assert read(statistics.take())["episode/return"] == 1.0
    step(statistics, [1, 1], [1, 0], None)
    assert read(statistics.take())["episode/return"] != 1.0
    step(statistics, [1, 1], [1, 1], None)
    assert read(statistics.take())["episode/return"] == 1.5


def test_open_episodes_continue_from_a_saved_state(tmp_path: Path) -> None:
    statistics = EpisodeStatistics(2, "cpu")
    step(statistics, [1, 10], [0, 1], [0, 1])
    save_state(tmp_path / "state.safetensors", statistics.state_dict())
    resumed = EpisodeStatistics(2, "cpu")
    resumed.load_state_dict(load_state(tmp_path / "state.safetensors"))
    for each in (statistics, resumed):
        step(each, [2, 20], [1, 0], [0, 0])
    assert read(resumed.take()) == read(statistics.take())
    with pytest.raises(ConfigurationError, match=r"^env\.num_envs=3: the saved run has 2$"):
        EpisodeStatistics(3, "cpu").load_state_dict(statistics.state_dict())


class Measured(IdentityEnv):
    """Has counters and other metrics, not all of them in every process."""

    counters = frozenset({"lost"})

    def __init__(self, rank: int) -> None:
        super().__init__(1)
        self.rank = rank

    def metrics(self) -> dict[str, float | torch.Tensor]:
        """Return a counter, a mean, a metric of rank 0 alone, and one of the others."""
        names = ["lost", "mean", "own"] if self.rank == 0 else ["other", "mean", "lost"]
        return {
            name: 1 + 2 * self.rank if name == "lost" else torch.tensor(1.0 + 2 * self.rank)
            for name in names
        }


def test_a_metric_of_several_numbers_is_refused() -> None:
    env = IdentityEnv()
    env.metrics = lambda: {"mean": torch.ones(()), "all": torch.ones(16, 1)}  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match=r"all of IdentityEnv.metrics .*not \[16, 1\]"):
        metrics_of(env, ONE_PROCESS)


def test_metrics_of_an_environment_are_those_of_all_processes() -> None:
    def metrics(processes: Processes) -> dict[str, float]:
        return read(metrics_of(Measured(processes.rank), processes))

    expected = {"lost": 4.0, "mean": 2.0, "own": 1.0}
    assert on_ranks(2, metrics) == [expected, expected]
    assert read(metrics_of(Measured(0), ONE_PROCESS)) == {"lost": 1, "mean": 1.0, "own": 1.0}
