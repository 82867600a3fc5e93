"""Processes that share their values by gloo: together they learn as one process does."""

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import keystr, tree_flatten_with_path

from agents import DQN, PPO, SAC
from agents.base import Agent
from agents.modules.normalization import RewardNormalizer, RunningMoments
from tests.helpers.agents import BATCH, CASES, WITH_ALL_OPTIONS, Case, make_batch
from tests.helpers.draws import EqualDraws
from tests.helpers.forks import CAN_FORK, result_of
from tests.helpers.gloo import held_port, on_gloo_ranks
from torchrl_gpu.devices.kinds import KINDS, accelerator_of
from torchrl_gpu.distributed import backend_of, joined
from torchrl_gpu.errors import ConfigurationError, ProcessLostError
from torchrl_gpu.execution.execution import Execution
from torchrl_gpu.processes import ONE_PROCESS, Processes

RANKS = 2
HALF = BATCH // RANKS
UPDATES = 10
OPTIONS = {**WITH_ALL_OPTIONS, "rollout_length": 8}
BY_NAME = {f"{case.agent_class.__name__}-{case.actions}": case for case in CASES}

ROWS = 24  # samples of a rank in a call


class InFloat64(TorchFunctionMode):
    """Replace float32 by float64 in the arguments of every function of torch."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:

        def other(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        named = {name: other(value) for name, value in (kwargs or {}).items()}
        return function(*map(other, args), **named)


def state_of(agent: Agent, metrics: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a copy of all that training changes, and the metrics of an update."""
    leaves, _ = tree_flatten_with_path([agent.training_state(), dict(metrics)])
    return {keystr(path): x.clone() for path, x in leaves if isinstance(x, Tensor)}


def seed_draws(update: int, rank: int) -> None:
    torch.manual_seed(RANKS * update + rank)


def learn_in_float64(case: Case, processes: Processes) -> dict[str, Tensor]:
    """Learn from one share of each batch, with equal draws for all rows."""
    agent = case.make(processes.rank, **OPTIONS)
    agent.to(torch.float64)
    batches = [
        batch.apply(lambda x: x.double() if x.is_floating_point() else x)
        for batch in (make_batch(case.make(**OPTIONS), seed) for seed in range(8))
    ]
    share = BATCH // processes.count
    row = torch.arange(BATCH).unsqueeze(1)
    for batch in batches[:2] if case.agent_class is PPO else ():
        batch["active"] = row < HALF  # all rows of the first share of two and none of the second
    agent.join(processes)
    execution = Execution(products="torch")
    with EqualDraws(), InFloat64():
        for number in range(UPDATES):
            rows = slice(processes.rank * share, None)
            update = execution.update(agent, batches[number % len(batches)][rows][:share])
    return state_of(agent, update.metrics)


def samples_of(rank: int, call: int) -> tuple[Tensor, Tensor]:
    """Return samples `[ROWS, 3]` of a rank, all ranks' far from one another, and weights."""
    generator = torch.Generator().manual_seed(RANKS * call + rank)
    samples = torch.randn(ROWS, 3, generator=generator) * (1.0 + rank) + 5.0 * rank
    return samples, (torch.rand(ROWS, 1, generator=generator) < 0.6).float()


def normalize(processes: Processes) -> dict[str, Any]:
    """Return the moments of samples of all ranks, without weights and with them."""
    results: dict[str, Any] = {}
    for is_weighted in (False, True):
        moments = RunningMoments(3)
        for call in range(4):
            samples, weight = samples_of(processes.rank, call)
            moments.update(samples, weight if is_weighted else None, processes)
        merged = state_dict_of(moments)
        moments.update(samples, torch.zeros(ROWS, 1), processes)
        results["weighted" if is_weighted else "plain"] = merged, state_dict_of(moments)
    only_one = RunningMoments(3)
    samples, _ = samples_of(processes.rank, 0)
    only_one.update(samples, torch.full((ROWS, 1), float(processes.rank == 1)), processes)
    rewards = RewardNormalizer(torch.Size([ROWS]), gamma=0.0)
    reward, done = samples[:, :1].reshape(1, ROWS, 1), torch.zeros(1, ROWS, 1, dtype=torch.bool)
    scaled = rewards(reward, done, None, processes)
    return {**results, "only_one": state_dict_of(only_one), "scaled": scaled}


def state_dict_of(moments: RunningMoments) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in moments.state_dict().items()}


def resume(processes: Processes) -> dict[str, Tensor]:
    """Return the numbers of samples of a normalizer: when saved, loaded and after an update."""
    case = Case(DQN, "discrete")
    counts: dict[str, Tensor] = {}
    agents = [case.make(seed, normalize_observations=True) for seed in range(2)]
    batch = make_batch(agents[0])[:HALF]
    for agent in agents:
        agent.join(processes)
    agents[0].update(batch)
    counts["saved"] = count_of(agents[0])
    agents[1].load_training_state(agents[0].training_state())
    counts["loaded"] = count_of(agents[1])
    agents[1].join(processes)
    counts["joined"] = count_of(agents[1])
    agents[1].update(batch)
    counts["updated"] = count_of(agents[1])
    return counts


def count_of(agent: Agent) -> Tensor:
    assert agent.normalizer is not None
    (moments,) = agent.normalizer.moments
    assert isinstance(moments, RunningMoments)
    return moments.count.clone()


def check_learning(processes: Processes) -> dict[str, Any]:
    """Train all agents as one of two ranks."""
    return {name: learn_in_float64(case, processes) for name, case in BY_NAME.items()}


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The agents of two ranks."""
    return on_gloo_ranks(RANKS, check_learning, tmp_path_factory.mktemp("learned"))


def check_pair(processes: Processes) -> dict[str, Any]:
    """Merge moments, resume and sample as one of two ranks."""
    return {
        "moments": normalize(processes),
        "counts": resume(processes),
    }


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The moments, counts and batches of two ranks."""
    return on_gloo_ranks(RANKS, check_pair, tmp_path_factory.mktemp("pair"))


@pytest.mark.parametrize("name", BY_NAME)
def test_two_ranks_learn_like_one_process_from_the_whole_batch(
    name: str, learned: Sequence[dict[str, Any]]
) -> None:
    expected = learn_in_float64(BY_NAME[name], ONE_PROCESS)
    for result in learned:
        found = result[name]
        for key, value in expected.items():
            scale = value.abs().max().clamp(min=1e-30)
            assert (found[key] - value).abs().max() <= 1e-9 * scale, key


@pytest.mark.parametrize("kind", ["plain", "weighted"])
def test_moments_of_two_ranks_are_those_of_all_samples(
    kind: str, pair: Sequence[dict[str, Any]]
) -> None:
    drawn = [samples_of(rank, call) for rank in range(RANKS) for call in range(4)]
    samples = torch.cat([samples for samples, _ in drawn]).double()
    if kind == "weighted":
        samples = samples[torch.cat([weight for _, weight in drawn]).squeeze(1) > 0.0]
    expected = samples.mean(dim=0).float(), samples.var(dim=0, correction=0).float()
    for result in pair:
        merged, unchanged = result["moments"][kind]
        assert merged["count"] == len(samples)
        torch.testing.assert_close(
            (merged["mean"], merged["variance"]), expected, rtol=1e-5, atol=1e-5
        )
        # A merge without samples changes nothing.
        torch.testing.assert_close(unchanged, merged, rtol=0.0, atol=0.0)


def test_samples_of_one_rank_alone_count_on_both(pair: Sequence[dict[str, Any]]) -> None:
    samples, _ = samples_of(1, 0)
    for result in pair:
        found = result["moments"]["only_one"]
        assert found["count"] == ROWS
        torch.testing.assert_close(found["mean"], samples.mean(dim=0))


def test_rewards_are_scaled_by_the_deviation_of_all_ranks(pair: Sequence[dict[str, Any]]) -> None:
    rewards = [samples_of(rank, 0)[0][:, 0] for rank in range(RANKS)]
    deviation = torch.cat(rewards).std(correction=0)
    for result, reward in zip(pair, rewards, strict=True):
        scaled = result["moments"]["scaled"].flatten()
        torch.testing.assert_close(scaled, reward / deviation, rtol=1e-4, atol=1e-5)


def test_loading_on_all_ranks_does_not_multiply_the_samples(pair: Sequence[dict[str, Any]]) -> None:
    for result in pair:
        counts = {name: int(count) for name, count in result["counts"].items()}
        assert counts == {"saved": BATCH, "loaded": BATCH, "joined": BATCH, "updated": 2 * BATCH}


def check_four(processes: Processes) -> dict[str, Any]:
    """Share values and learn as one of four ranks."""
    rank = processes.rank
    other = processes.apart()
    agent = Case(SAC, "continuous").make(rank, normalize_observations=True)
    agent.join(processes)
    batch, share = make_batch(agent), BATCH // processes.count
    for number in range(5):
        seed_draws(number, rank)
        update = agent.update(batch[rank * share : (rank + 1) * share])
    # Not contiguous, and still as it was afterwards.
    table = torch.arange(6.0).view(2, 3).t() + 2.0**20 * rank
    return {
        "sum": processes.sum(table),
        "minimum": processes.minimum(-table),
        "broadcast": other.broadcast(table),
        "gather": processes.gather(table[:1]),
        "table": table,
        "any": [processes.any(rank == 2), other.any(False)],
        "agree": processes.agree(f"rank {rank}"),
        "is_writer": processes.is_writer,
        "state": state_of(agent, update.metrics),
    }


def test_four_ranks_share_values_and_learn_the_same(tmp_path: Path) -> None:
    results = on_gloo_ranks(4, check_four, tmp_path)
    tables = [torch.arange(6.0).view(2, 3).t() + 2.0**20 * rank for rank in range(4)]
    expected = {
        "sum": sum(tables, torch.zeros(3, 2)),
        "minimum": -tables[3],
        "broadcast": tables[0],
        "gather": torch.cat([table[:1] for table in tables]),
        "state": results[0]["state"],
    }
    for rank, result in enumerate(results):
        assert result.pop("is_writer") == (rank == 0)
        torch.testing.assert_close(result.pop("table"), tables[rank], rtol=0.0, atol=0.0)
        assert result.pop("any") == [True, False]
        assert result.pop("agree") == "rank 0"
        torch.testing.assert_close(result, expected, rtol=0.0, atol=0.0)


def check_lost(processes: Processes) -> dict[str, Any]:
    """Share values until one rank ends without a word."""
    for number in range(10):
        if processes.rank == 2 and number == 3:
            os._exit(7)
        try:
            processes.sum(torch.zeros(1000))
        except ProcessLostError as error:
            return {"number": number, "error": str(error)}
    return {}


def test_the_end_of_a_rank_is_an_error_of_the_others(tmp_path: Path) -> None:
    *others, lost = on_gloo_ranks(3, check_lost, tmp_path)
    assert lost == 7
    for result in others:
        assert result["number"] == 3
        assert "process of the run has ended or does not answer: " in result["error"]
        assert "\n" not in result["error"]


def wait_for_others(place: Mapping[str, str]) -> str:
    """Join processes that never come, until a signal arrives."""
    os.environ.update(place)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell may let jobs ignore
    main_thread = threading.get_ident()
    limit = threading.Timer(20.0, os._exit, [1])
    limit.daemon = True
    try:
        limit.start()
        threading.Timer(0.3, signal.pthread_kill, [main_thread, signal.SIGINT]).start()
        with joined():
            return "joined"
    except KeyboardInterrupt:
        return "interrupted"


@pytest.mark.skipif(not CAN_FORK, reason="needs the signals of Unix")
@pytest.mark.parametrize("has_launcher", [True, False])
def test_a_signal_ends_the_wait_for_other_processes(has_launcher: bool) -> None:
    place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    with held_port() as port:
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        if has_launcher:  # which provides the store; without one, rank 0 does
            store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            place |= {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        assert result_of(lambda: wait_for_others(place)) == "interrupted"


@pytest.mark.parametrize("device", ["mps", "hpu"])
def test_devices_without_communication_are_refused(device: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^device=\S+: torch has no communication .*cpu$"):
        backend_of(torch.device(device))


@pytest.mark.parametrize("device", ["cuda", "xpu"])
def test_a_build_of_torch_without_the_backend_is_refused(device: str) -> None:
    name = accelerator_of(torch.device(device)).communication
    assert name is not None
    if dist.is_backend_available(name):
        assert backend_of(torch.device(device)) == name
        return
    with pytest.raises(
        ConfigurationError, match=rf"^device={device}:0: .* lacks the backend {name}"
    ):
        backend_of(torch.device(device))


def test_each_kind_of_device_names_its_backend() -> None:
    assert {kind.kind: kind.communication for kind in KINDS} == {
        **{"cpu": "gloo", "cuda": "nccl", "rocm": "nccl", "xpu": "xccl"},
        **{"mps": None, "directml": None},
    }
