import re
from typing import Any

import psutil
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Binary, Bounded, Composite, Unbounded

from tests.helpers.replay import Stream, allocated_bytes
from tests.stand_in import Abilities, count_host_reads
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.execution import Execution
from torchrl_gpu.execution.graphs import EAGER_CALLS
from torchrl_gpu.replay.buffer import ReplayBuffer
from torchrl_gpu.replay.rollout import RolloutBuffer
from torchrl_gpu.replay.storage import StorageSpec

pytestmark = pytest.mark.directml

CPU = torch.device("cpu")
OBSERVATION_DIM = 3


def vector_spec(num_envs: int) -> Composite:
    return Composite(observation=Unbounded((num_envs, OBSERVATION_DIM)), shape=(num_envs,))


def rich_spec(num_envs: int) -> Composite:
    """Return a spec with all kinds of observations, nested keys included."""
    return Composite(
        pixels=Bounded(0, 255, (num_envs, 3, 4, 4), dtype=torch.uint8),
        sensors=Composite(
            objects=Unbounded((num_envs, 5, 2)),
            objects_mask=Binary(5, (num_envs, 5), dtype=torch.bool),
            clock=Unbounded((num_envs,), dtype=torch.int64),
            shape=(num_envs,),
        ),
        shape=(num_envs,),
    )


def action_spec(num_envs: int) -> Bounded:
    return Bounded(-1.0, 1.0, (num_envs, 2))


def vector_buffer(
    capacity: int = 40, num_envs: int = 4, device: torch.device = CPU
) -> ReplayBuffer:
    return ReplayBuffer(capacity, vector_spec(num_envs), action_spec(num_envs), device)


def numbers(batch: TensorDict) -> Tensor:
    return batch["next", "reward"].squeeze(1).long()


def assert_same(batch: TensorDict, expected: TensorDict) -> None:
    keys = set(batch.keys(include_nested=True, leaves_only=True))
    assert keys == set(expected.keys(include_nested=True, leaves_only=True))
    for key in keys:
        assert batch[key].dtype == expected[key].dtype, key
        assert torch.equal(batch[key], expected[key]), key


@pytest.mark.parametrize(
    ("num_envs", "capacity", "done_probability"),
    [(1, 3, 0.1), (4, 13, 0.0), (7, 64, 0.1), (7, 64, 1.0)],
)
def test_the_newest_transitions_are_stored_bit_for_bit(
    num_envs: int, capacity: int, done_probability: float
) -> None:
    torch.manual_seed(0)
    stream = Stream(vector_spec(num_envs), done_probability, interruption_probability=0.02)
    buffer = vector_buffer(capacity, num_envs)
    for step in range(1, 113):
        buffer.extend(stream.step())
        if step > 10 and step % 16:
            continue
        stored, seen = len(buffer), step * num_envs
        sample = buffer.sample(30 * capacity)
        assert numbers(sample).unique().tolist() == list(range(seen - stored, seen))
        assert_same(sample, stream.everything()[numbers(sample)])


@pytest.mark.parametrize(
    ("num_envs", "capacity", "done_probability"), [(1, 30, 0.0), (4, 120, 0.1), (7, 210, 1.0)]
)
def test_the_number_of_transitions_matches_the_capacity(
    num_envs: int, capacity: int, done_probability: float
) -> None:
    torch.manual_seed(0)
    stream = Stream(vector_spec(num_envs), done_probability)
    buffer = vector_buffer(capacity, num_envs)
    for _ in range(80):
        buffer.extend(stream.step())
    rows_per_transition = 1 + done_probability
    assert len(buffer) >= 0.9 * capacity / rows_per_transition - 3 * num_envs
    assert len(buffer) <= 1.1 * capacity / rows_per_transition


def test_a_rollout_with_time_last_is_stored_step_by_step() -> None:
    torch.manual_seed(0)
    stream = Stream(vector_spec(4), done_probability=0.2)
    steps = [stream.step() for _ in range(30)]
    one_by_one, together = vector_buffer(), vector_buffer()
    for step in steps:
        one_by_one.extend(step)
    together.extend(torch.stack(steps[:20], 1))
    together.extend(torch.stack(steps[20:], 1))
    for name, tensor in one_by_one.state_dict().items():
        assert torch.equal(tensor, together.state_dict()[name]), name


def test_stored_values_are_copies() -> None:
    torch.manual_seed(0)
    stream = Stream(vector_spec(4), done_probability=0.2)
    buffer = vector_buffer()
    for _ in range(5):
        transition = stream.step()
        buffer.extend(transition)
        transition.zero_()
    sample = buffer.sample(100)
    assert_same(sample, stream.everything()[numbers(sample)])


def test_stored_actions_do_not_keep_the_graph_of_their_policy() -> None:
    spec = vector_spec(4)
    rollout = RolloutBuffer(5, spec, CPU)
    buffer = vector_buffer()
    stream = Stream(spec, done_probability=0.2)
    for _ in range(5):
        transition = stream.step()
        transition["next", "reward"].requires_grad_()
        buffer.extend(transition)
        rollout.extend(transition)
    assert not buffer.sample(10)["next", "reward"].requires_grad
    assert not rollout.rollout()["next", "reward"].requires_grad


def test_sampling_is_uniform() -> None:
    torch.manual_seed(0)
    stream = Stream(vector_spec(2), done_probability=0.3)
    buffer = vector_buffer(capacity=40, num_envs=2)
    for _ in range(50):
        buffer.extend(stream.step())
    draws = 100_000
    counts = numbers(buffer.sample(draws)).unique(return_counts=True)[1].double()
    expected = draws / len(buffer)
    assert len(counts) == len(buffer)
    # Chi-square of k - 1 degrees of freedom: mean k - 1, variance 2 (k - 1).
    freedom = len(counts) - 1
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - freedom) < 4 * (2 * freedom) ** 0.5


def test_the_size_is_exact() -> None:
    for spec, capacity, stacks in [
        (vector_spec(4), 41, None),
        (rich_spec(4), 1000, None),
        (vector_spec(4), 100, {"observation": 3}),
    ]:
        buffer = ReplayBuffer(capacity, spec, action_spec(4), CPU, frame_stacks=stacks)
        needed = ReplayBuffer.bytes_needed(capacity, StorageSpec(spec, action_spec(4), stacks))
        assert needed == allocated_bytes(buffer)
    assert re.fullmatch(r".*y=100: the replay needs \d+(\.\d+)? KiB on cpu", buffer.memory)


def test_pixels_need_half_the_memory_of_storing_them_twice() -> None:
    spec = Composite(pixels=Bounded(0, 255, (8, 3, 64, 64), dtype=torch.uint8), shape=(8,))
    once = ReplayBuffer.bytes_needed(100_000, StorageSpec(spec, action_spec(8)))
    twice = 100_000 * 2 * 3 * 64 * 64
    assert 0.5 < once / twice < 0.51


def test_a_capacity_that_does_not_fit_is_rejected_with_one_that_fits() -> None:
    with pytest.raises(ConfigurationError, match=r"^capacity=10+: .* fit$") as refusal:
        vector_buffer(capacity=10**13)
    fitting = int(re.findall(r"; capacity=(\d+) would fit", str(refusal.value))[0])
    free = psutil.virtual_memory().available
    needed = StorageSpec(vector_spec(4), action_spec(4)).bytes_needed(fitting)
    assert 0.5 * free < needed < 1.5 * free


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(ConfigurationError, match=r"^capacity=11: .* 4 .* least 12"):
        vector_buffer(capacity=11, num_envs=4)
    with pytest.raises(ConfigurationError, match=r"^11 rows of a file: .* 4 .* least 12"):
        ReplayBuffer(11, vector_spec(4), action_spec(4), CPU, setting="rows of a file")
    with pytest.raises(ConfigurationError, match=r"action .* num_envs=4"):
        ReplayBuffer(40, vector_spec(4), action_spec(5), CPU)
    with pytest.raises(ConfigurationError, match="no observation"):
        ReplayBuffer(40, Composite(shape=(4,)), action_spec(4), CPU)
    with pytest.raises(ConfigurationError, match="capacity"):
        vector_buffer(capacity=0)


def test_sampling_from_an_empty_buffer_and_a_wrong_batch_size_raise_errors() -> None:
    buffer = vector_buffer()
    with pytest.raises(RuntimeError, match="empty"):
        buffer.sample(1)
    with pytest.raises(ValueError, match=r"batch size \[5\].* takes \[4\]"):
        buffer.extend(Stream(vector_spec(5), 0.0).step())


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("next", None, " lacks next"),
        ("action", None, " lacks action"),
        (("next", "truncated"), None, ", next lacks truncated"),
        ("observation", torch.zeros(4, 7), r", observation has shape \[4, 7\] .* not \[4, 3\]"),
        (("next", "observation"), torch.zeros(4, 3).double(), ", next, observation has .*float64"),
    ],
)
@pytest.mark.parametrize("has_time", [False, True])
def test_a_first_step_that_does_not_fit_is_refused(
    has_time: bool, key: Any, value: Tensor | None, problem: str
) -> None:
    buffer, step = vector_buffer(), Stream(vector_spec(4), 0.0).step()
    wrong = step.exclude(key) if value is None else step.copy().set(key, value)
    with pytest.raises(ConfigurationError, match=f"^the transition{problem}"):
        buffer.extend(torch.stack([wrong], 1) if has_time else wrong)
    buffer.extend(step)
    assert len(buffer) == 4


def test_rows_that_are_not_transitions_are_never_sampled() -> None:
    stream, buffer = Stream(vector_spec(4), done_probability=0.0), vector_buffer()
    active = torch.zeros(4, 1, dtype=torch.bool)
    buffer.extend(stream.step().set("active", active))
    assert buffer.is_empty
    with pytest.raises(RuntimeError, match="empty"):
        buffer.sample(8)
    active[2] = True
    buffer.extend(stream.step().set("active", active))
    assert not buffer.is_empty
    assert numbers(buffer.sample(8)).tolist() == [6] * 8


def test_the_state_contains_observations_that_are_zero() -> None:
    stream = Stream(vector_spec(4), done_probability=0.2)
    buffer, used = vector_buffer(), vector_buffer()
    for _ in range(50):
        used.extend(stream.step())
    start = Stream(vector_spec(4), done_probability=0.0)
    start.root.zero_()
    buffer.extend(start.step())
    used.load_state_dict(buffer.state_dict())
    assert (used.sample(64)["observation"] == 0.0).all()


def test_the_state_of_a_nearly_empty_buffer_is_small() -> None:
    stream = Stream(vector_spec(4), done_probability=0.2)
    buffer = vector_buffer(capacity=100_000)
    empty = vector_buffer(capacity=100_000)
    empty.load_state_dict(buffer.state_dict())
    with pytest.raises(RuntimeError, match="empty"):
        empty.sample(1)
    buffer.extend(stream.step())
    assert sum(tensor.nbytes for tensor in buffer.state_dict().values()) < 1000


def test_the_state_of_a_different_buffer_is_rejected() -> None:
    state = vector_buffer(capacity=40).state_dict()
    with pytest.raises(ConfigurationError, match=r"^capacity=41: .* has 40$"):
        vector_buffer(capacity=41).load_state_dict(state)
    with pytest.raises(ConfigurationError, match=r"has current_row: .* \[4\]; .* \[5\]"):
        vector_buffer(num_envs=5).load_state_dict(state)
    with pytest.raises(ConfigurationError, match=r"rows\.observation: .* missing"):
        ReplayBuffer(40, rich_spec(4), action_spec(4), CPU).load_state_dict(state)


def test_extending_and_sampling_need_no_host_reads(accelerator: torch.device) -> None:
    torch.manual_seed(0)
    stream = Stream(rich_spec(4), done_probability=0.2)
    buffer = ReplayBuffer(40, rich_spec(4), action_spec(4), accelerator)
    steps = [stream.step().to(accelerator) for _ in range(30)]
    stacked = torch.stack(steps[:10], 1)
    with count_host_reads() as counter:
        for step in steps:
            buffer.extend(step)
            sample = buffer.sample(32)
        buffer.extend(stacked)
    assert counter.host_reads == counter.copies == 0, counter.report()
    assert sample.device == sample["pixels"].device == accelerator
    sample = sample.cpu()
    assert_same(sample, stream.everything()[numbers(sample)])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps.slots", 40),
        ("steps.slots", -1),
        ("steps.first_row", 10**6),
        ("steps.first_transition", -1),
        ("places", 40),
        ("oldest_steps", 10**9),
        ("current_row", 2**62),
        ("next_step", 3),
        ("next_transition", 3),
    ],
)
def test_numbers_that_lead_beyond_the_buffer_are_rejected(name: str, value: int) -> None:
    stream = Stream(vector_spec(4), done_probability=0.2)
    buffer, other = vector_buffer(), vector_buffer()
    for _ in range(30):
        buffer.extend(stream.step())
    state = {name: tensor.clone() for name, tensor in buffer.state_dict().items()}
    other.load_state_dict(state)
    state[name].flatten()[-1] = value
    with pytest.raises(ConfigurationError, match=r"^the saved replay is damaged: "):
        other.load_state_dict(state)
    assert torch.equal(other.state_dict()[name], buffer.state_dict()[name])


@pytest.mark.parametrize("accelerator", [Abilities(graphs=True)], indirect=True)
def test_captured_draws_equal_eager_ones(
    accelerator: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    sample = ReplayBuffer.sample

    def counted(buffer: ReplayBuffer, batch_size: int) -> TensorDict:
        calls.append(batch_size)
        return sample(buffer, batch_size)

    monkeypatch.setattr(ReplayBuffer, "sample", counted)
    stream = Stream(rich_spec(4), done_probability=0.2)
    steps = [stream.step().to(accelerator) for _ in range(20)]

    def batches(execution: Execution) -> list[TensorDict]:
        buffer = ReplayBuffer(40, rich_spec(4), action_spec(4), accelerator, n_step=3, gamma=0.9)
        torch.manual_seed(0)
        drawn = []
        for step in steps:
            buffer.extend(step)
            drawn += [execution.draw(buffer, 16).clone() for _ in range(2)]
        return drawn

    eager, captured = batches(Execution()), batches(Execution(accelerator, graphs="on"))
    assert all((one == other).all() for one, other in zip(eager, captured, strict=True))
    assert len(calls) == len(eager) + EAGER_CALLS + 1


@pytest.mark.parametrize("accelerator", [Abilities(graphs=True)], indirect=True)
def test_the_draws_of_a_derived_buffer_are_not_captured(accelerator: torch.device) -> None:
    class Reading(ReplayBuffer):
        def sample(self, batch_size: int) -> TensorDict:
            return super().sample(min(batch_size, len(self)))

    buffer = Reading(40, rich_spec(4), action_spec(4), accelerator)
    stream, execution = (
        Stream(rich_spec(4), done_probability=0.2),
        Execution(accelerator, graphs="on"),
    )
    for number in range(1, 7):
        buffer.extend(stream.step().to(accelerator))
        assert len(execution.draw(buffer, 1000)) == 4 * number
