from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Composite, Unbounded

from benchmarks.fixture import random_transitions
from tests.helpers.ranks import on_ranks
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.processes import Processes
from torchrl_gpu.replay.prioritized import PrioritizedReplayBuffer
from torchrl_gpu.replay.storage import StorageSpec

pytestmark = pytest.mark.directml

CPU = torch.device("cpu")
NUM_ENVS = 2
SPEC = Composite(observation=Unbounded((NUM_ENVS, 1)), shape=(NUM_ENVS,))
ACTION_SPEC = Bounded(-1.0, 1.0, (NUM_ENVS, 1))


def make(
    capacity: int = 64, device: torch.device = CPU, **settings: Any
) -> PrioritizedReplayBuffer:
    return PrioritizedReplayBuffer(capacity, SPEC, ACTION_SPEC, device, **settings)


def step(number: int, device: torch.device = CPU) -> TensorDict:
    """Return step `number` of two environments; observations count up from 0 and from 1000."""
    root = torch.tensor([[float(number)], [1000.0 + number]])
    transition = random_transitions(SPEC, ACTION_SPEC).set("observation", root)
    transition["next", "observation"] = root + 1.0
    transition["next", "reward"].zero_()
    return transition.to(device)


def set_priorities(replay: PrioritizedReplayBuffer, priorities: dict[float, float]) -> None:
    """Set the priorities of transitions, by their root observation."""
    for _ in range(20):
        batch = replay.sample(64)
        roots = batch["observation"].flatten().tolist()
        replay.update_priorities(batch, torch.tensor([priorities[root] for root in roots]))


def test_transitions_are_sampled_in_proportion_to_powers_of_their_priorities() -> None:
    torch.manual_seed(0)
    replay = make(priority_exponent=0.5)
    for number in range(3):
        replay.extend(step(number))
    priorities = {0.0: 1.0, 1.0: 4.0, 2.0: 9.0, 1000.0: 16.0, 1001.0: 25.0, 1002.0: 0.25}
    set_priorities(replay, priorities)
    drawn = replay.sample(50_000)["observation"].flatten()
    total = sum(p**0.5 for p in priorities.values())
    for root, priority in priorities.items():
        share = (drawn == root).float().mean().item()
        assert share == pytest.approx(priority**0.5 / total, abs=1e-3), root


def test_importance_weights_match_values_by_hand() -> None:
    torch.manual_seed(0)
    exponent = torch.tensor(0.0)
    replay = make(priority_exponent=1.0, weight_exponent=lambda: exponent)
    replay.extend(step(0))
    set_priorities(replay, {0.0: 3.0, 1000.0: 1.0})
    for value in (0.1, 0.5, 1.0):  # it may change from batch to batch
        exponent.fill_(value)
        batch = replay.sample(100)
        # P = 3/4 and 1/4, N = 2: w = (3/2)^-beta and (1/2)^-beta, divided by the larger one.
        expected = torch.where(batch["observation"] == 0.0, (1.0 / 3.0) ** value, 1.0)
        torch.testing.assert_close(batch["weight"], expected)


def test_weights_are_those_of_one_batch_from_the_buffers_of_all_processes() -> None:
    torch.manual_seed(0)
    # P = 3/8, 1/8 | 1/4, 1/4: each process draws half of the batch. N = 4: 1 / (N P) = 2/3, 2 |
    # 1, 1, divided by the largest.
    priorities = [{0.0: 3.0, 1000.0: 1.0}, {0.0: 7.0, 1000.0: 7.0}]
    expected = [{0.0: 1.0 / 3.0, 1000.0: 1.0}, {0.0: 0.5, 1000.0: 0.5}]

    def sample(processes: Processes) -> TensorDict:
        replay = make(priority_exponent=1.0, processes=processes)
        replay.extend(step(0))
        set_priorities(replay, priorities[processes.rank])
        return replay.sample(64)

    for batch, by_root in zip(on_ranks(2, sample), expected, strict=True):
        roots = batch["observation"].flatten().tolist()
        weight = torch.tensor([by_root[root] for root in roots]).unsqueeze(1)
        torch.testing.assert_close(batch["weight"], weight)


@pytest.mark.parametrize(
    ("priorities", "problem"),
    [
        (None, "prioritized replay needs priorities"),
        (torch.ones(4, 1), r"have to be \[4\], not \[4, 1\]"),
        (torch.ones(()), r"have to be \[4\], not \[\]"),
        (torch.tensor([1.0, 0.5, -0.5, 1.0]), "are negative; return absolute errors"),
    ],
)
def test_wrong_priorities_are_rejected(priorities: torch.Tensor | None, problem: str) -> None:
    replay = make()
    replay.extend(step(0))
    with pytest.raises(ConfigurationError, match=problem):
        replay.update_priorities(replay.sample(4), priorities)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_priorities_may_have_another_precision_and_a_gradient(dtype: torch.dtype) -> None:
    replay = make()
    replay.extend(step(0))
    batch = replay.sample(4)
    replay.update_priorities(batch, torch.full((4,), 4.0, dtype=dtype, requires_grad=True))
    leaves = replay.sampling_state()["leaves"][batch["place"]]
    torch.testing.assert_close(leaves, torch.full((4,), 2.0))


@pytest.mark.parametrize("exponent", [0.5, 1.0])
def test_new_transitions_get_the_largest_priority_so_far(exponent: float) -> None:
    torch.manual_seed(0)
    replay = make(priority_exponent=exponent)
    replay.extend(step(0))
    set_priorities(replay, {0.0: 7.0, 1000.0: 7.0})
    set_priorities(replay, {0.0: 5.0, 1000.0: 3.0})
    replay.extend(step(1))
    drawn = replay.sample(24_000)["observation"].flatten()
    shares = [(drawn == root).float().mean().item() for root in (0.0, 1000.0, 1.0, 1001.0)]
    powers = [priority**exponent for priority in (5.0, 3.0, 7.0, 7.0)]
    assert shares == pytest.approx([power / sum(powers) for power in powers], abs=2e-3)


def test_transitions_of_priority_0_are_sampled_too() -> None:
    torch.manual_seed(0)
    replay = make()
    replay.extend(step(0))
    set_priorities(replay, {0.0: 0.0, 1000.0: 0.0})
    assert replay.sample(64)["observation"].unique().tolist() == [0.0, 1000.0]


def test_overwritten_transitions_are_never_sampled() -> None:
    torch.manual_seed(0)
    replay = make(capacity=16)
    for number in range(6):
        replay.extend(step(number))
    early = replay.sample(64)
    for number in range(6, 10):
        replay.extend(step(number))
    replay.update_priorities(early, torch.full((64,), 1000.0))
    drawn = replay.sample(2000)["observation"].flatten() % 1000
    assert drawn.min() == 10 - len(replay) / NUM_ENVS
    assert drawn.max() == 9.0


def test_a_restored_buffer_of_many_groups_of_leaves_gives_the_same_samples() -> None:
    torch.manual_seed(0)
    envs, capacity = 50, 5000
    see = Composite(observation=Unbounded((envs, 1)), shape=(envs,))
    act = Bounded(-1.0, 1.0, (envs, 1))
    replay, other = (PrioritizedReplayBuffer(capacity, see, act, CPU, n_step=2) for _ in range(2))
    for _ in range(120):  # the ring begins anew
        replay.extend(random_transitions(see, act))
        batch = replay.sample(32)
        replay.update_priorities(batch, torch.rand(32))
    other.load_state_dict({name: tensor.clone() for name, tensor in replay.state_dict().items()})
    torch.manual_seed(1)
    expected = replay.sample(1000)
    torch.manual_seed(1)
    assert (other.sample(1000) == expected).all()


def test_bytes_needed_covers_the_allocated_size() -> None:
    replay = make(capacity=1000)
    needed = PrioritizedReplayBuffer.bytes_needed(1000, StorageSpec(SPEC, ACTION_SPEC))
    tensors = {id(t): t for t in replay._tensors.values()}
    held = sum(t.numel() * t.element_size() for t in tensors.values())
    assert needed >= held
    assert needed - held <= 4 * 1000  # the sums of the tree


def test_an_exponent_out_of_range_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="priority_exponent"):
        make(priority_exponent=1.5)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_a_priority_that_is_not_finite_counts_as_the_largest_so_far(wrong: float) -> None:
    replay = make(priority_exponent=1.0)
    replay.extend(step(0))
    set_priorities(replay, {0.0: 7.0, 1000.0: wrong})
    set_priorities(replay, {0.0: 7.0, 1000.0: 7.0})
    replay.extend(step(1))
    assert replay.sample(64)["weight"].allclose(torch.ones(64, 1))
