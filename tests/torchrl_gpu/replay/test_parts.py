"""A replay that is saved as a whole, or in parts, each with the data since the save before."""

import pickle

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Categorical

from tests.torchrl_gpu.replay.test_stacks import CPU, STACKS, StackStream, spec_of
from torchrl_gpu.checkpoints.checkpoint import ReplayPart
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.replay.buffer import ReplayBuffer
from torchrl_gpu.replay.prioritized import PrioritizedReplayBuffer

ENVS, CAPACITY = 3, 120
ACTIONS = Categorical(3, shape=(ENVS,))
KINDS = {
    "uniform": (ReplayBuffer, {}),
    "stacks": (ReplayBuffer, {"frame_stacks": STACKS, "n_step": 2}),
    "prioritized": (PrioritizedReplayBuffer, {"n_step": 3}),
    "prioritized stacks": (PrioritizedReplayBuffer, {"frame_stacks": STACKS}),
}


def make(kind: str, capacity: int = CAPACITY) -> ReplayBuffer:
    """Return an empty buffer."""
    buffer, settings = KINDS[kind]
    return buffer(capacity, spec_of(ENVS), ACTIONS, CPU, gamma=0.9, **settings)  # type: ignore[arg-type]


def learn(buffer: ReplayBuffer, seed: int) -> TensorDict:
    """Sample, and set new priorities."""
    torch.manual_seed(seed)
    batch = buffer.sample(32)
    buffer.update_priorities(batch, torch.rand(32))
    return batch


def check_alike(buffer: ReplayBuffer, other: ReplayBuffer, stream: StackStream) -> None:
    """Check that buffers with the same transitions sample, learn and extend alike."""
    assert len(other) == len(buffer)
    written = buffer.part().written
    for seed in range(20):
        assert (learn(buffer, seed) == learn(other, seed)).all()
        transition = stream.step()
        for replay in (buffer, other):
            replay.extend(transition)
        further = buffer.part(written), other.part(written)
        assert further[0].written == further[1].written
        assert all(map(torch.equal, *(taken(each).values() for each in further)))


def taken(part: ReplayPart) -> dict[str, Tensor]:
    """Return copies of the tensors of a part, as if they were on disk."""
    return {name: value.clone() for name, value in part.state.items()}


def needed(parts: list[ReplayPart]) -> list[ReplayPart]:
    """Return the parts that the newest one does not make superfluous."""
    newest = parts[-1]
    return [
        part
        for part in parts
        if any(end > old for end, old in zip(part.written, newest.oldest, strict=True))
    ]


@pytest.mark.directml
@pytest.mark.parametrize("is_pickled", [False, True])
@pytest.mark.parametrize("steps", [3, 100])  # the last of which overwrite the first
@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_buffer_samples_and_extends_alike(
    kind: str, steps: int, is_pickled: bool
) -> None:
    stream, buffer, restored = StackStream(ENVS), make(kind), make(kind)
    for _ in range(steps):
        buffer.extend(stream.step())
    if is_pickled:
        restored = pickle.loads(pickle.dumps(buffer))
    else:
        restored.load_state_dict(buffer.state_dict())
    check_alike(buffer, restored, stream)


@pytest.mark.slow
@pytest.mark.parametrize("between", [1, 5, 16, 60])  # 60 steps overwrite all
@pytest.mark.parametrize("kind", KINDS)
def test_a_buffer_restored_from_its_parts_samples_and_extends_alike(
    kind: str, between: int
) -> None:
    stream, buffer, restored = StackStream(ENVS), make(kind), make(kind)
    parts: list[ReplayPart] = []
    for _ in range(max(4, 80 // between)):
        for step in range(between):
            buffer.extend(stream.step())
            if step > 4:
                learn(buffer, step)
        part = buffer.part(parts[-1].written if parts else ())
        parts = needed([*parts, part._replace(state=taken(part))])
    restored.load_state_dict(*(part.state for part in parts))
    check_alike(buffer, restored, stream)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [5, 30, 300])
def test_a_part_stays_as_it_is_for_as_many_steps_as_it_says(kind: str, steps: int) -> None:
    stream, buffer = StackStream(ENVS), make(kind, capacity=900)
    for _ in range(steps):
        buffer.extend(stream.step())
    part = buffer.part()
    before = taken(part)
    assert part.steps is not None
    assert part.steps >= 900 // ENVS // 50
    for seed in range(part.steps):
        buffer.extend(stream.step())
        learn(buffer, seed)
    assert all(map(torch.equal, before.values(), taken(part).values()))


def test_a_part_is_as_large_as_its_new_data() -> None:
    stream, buffer = StackStream(ENVS), make("uniform", capacity=6_000)
    sizes = []
    since: tuple[int, ...] = ()
    for steps in (200, 10, 50):
        for _ in range(steps):
            buffer.extend(stream.step())
        part = buffer.part(since)
        since = part.written
        sizes.append(sum(tensor.nbytes for tensor in taken(part).values()))
    counters = sum(tensor.nbytes for tensor in taken(buffer.part(since)).values())
    per_step = (sizes[0] - counters) / 200
    for size, steps in zip(sizes[1:], (10, 50), strict=True):
        assert size - counters == pytest.approx(steps * per_step, rel=0.2)


@pytest.mark.parametrize("since", [(10**6, 10**6, 10**6), (1,)])
def test_a_part_since_a_state_that_never_existed_is_whole(since: tuple[int, ...]) -> None:
    stream, buffer = StackStream(ENVS), make("uniform")
    for _ in range(10):
        buffer.extend(stream.step())
    assert all(map(torch.equal, taken(buffer.part(since)).values(), taken(buffer.part()).values()))
    assert buffer.part(since).since == ()


def test_missing_parts_are_refused() -> None:
    stream, buffer = StackStream(ENVS), make("uniform")
    parts: list[ReplayPart] = []
    for _ in range(4):
        for _ in range(10):
            buffer.extend(stream.step())
        part = buffer.part(parts[-1].written if parts else ())
        parts.append(part._replace(state=taken(part)))
    states = [part.state for part in parts]
    for wrong in (states[1:], [states[0], *states[2:]], states[::-1]):
        with pytest.raises(ConfigurationError, match="damaged: it lacks some of its"):
            make("uniform").load_state_dict(*wrong)
    outside = {**states[0], "places": states[0]["places"] + CAPACITY}
    with pytest.raises(ConfigurationError, match="damaged: places holds numbers beyond"):
        make("uniform").load_state_dict(outside, *states[1:])
