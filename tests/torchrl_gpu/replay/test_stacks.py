"""Transitions over several steps, and stacks of frames that are stored as single frames."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, Unbounded

from tests.helpers.replay import Stream
from tests.stand_in import count_host_reads
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.replay.buffer import ReplayBuffer
from torchrl_gpu.replay.prioritized import PrioritizedReplayBuffer
from torchrl_gpu.replay.storage import StorageSpec

CPU = torch.device("cpu")
FRAMES = 4
FRAME_SHAPE = (2, 3, 3)
STACKS = {"pixels": FRAMES, "corner": 2}
GAMMA = 0.5
BUFFERS = [ReplayBuffer, PrioritizedReplayBuffer]


def spec_of(num_envs: int) -> Composite:
    """Return a spec with two stacks of different lengths and a vector beside them."""
    channels, *size = FRAME_SHAPE
    return Composite(
        pixels=Bounded(0, 255, (num_envs, FRAMES * channels, *size), dtype=torch.uint8),
        corner=Unbounded((num_envs, 2)),
        speed=Unbounded((num_envs, 2)),
        shape=(num_envs,),
    )


def make(
    kind: type[ReplayBuffer],
    num_envs: int,
    capacity: int,
    n_step: int = 1,
    device: torch.device = CPU,
    stacks: Mapping[str, int] | None = STACKS,
) -> ReplayBuffer:
    return kind(
        capacity,
        spec_of(num_envs),
        Categorical(3, shape=(num_envs,)),
        device,
        n_step=n_step,
        gamma=GAMMA,
        frame_stacks=stacks,
    )


class StackStream(Stream):
    """Transitions of environments that stack frames, all of them equal with 0 as `brightest`."""

    def __init__(
        self, num_envs: int, done_probability: float = 0.1, brightest: int = 255, **options: Any
    ) -> None:
        self.brightest = brightest
        super().__init__(spec_of(num_envs), done_probability, **options)

    def first(self) -> TensorDict:
        return self.observation(self.frame().repeat(1, FRAMES, 1, 1))

    def following(self) -> TensorDict:
        kept = self.root["pixels"][:, FRAME_SHAPE[0] :]
        return self.observation(torch.cat((kept, self.frame()), 1))

    def action(self) -> Tensor:
        return torch.randint(3, (self.num_envs,), generator=self.generator)

    def observation(self, pixels: Tensor) -> TensorDict:
        speed = torch.rand(self.num_envs, 2, generator=self.generator)
        corner = pixels[:, -2 * FRAME_SHAPE[0] :: FRAME_SHAPE[0], 0, 0].float()
        entries = {"pixels": pixels, "corner": corner, "speed": speed}
        return TensorDict(entries, [self.num_envs])

    def frame(self) -> Tensor:
        shape = (self.num_envs, *FRAME_SHAPE)
        high = self.brightest + 1
        return torch.randint(high, shape, dtype=torch.uint8, generator=self.generator)

    def last_numbers(self, number: Tensor, n_step: int) -> Tensor:
        """Return the numbers of the last transitions of n-step transitions."""
        goes_on = torch.cat(self.goes_on)
        last = number.clone()
        for _ in range(n_step - 1):
            following = last + self.num_envs
            is_stored = following < len(goes_on)
            last = torch.where(is_stored & goes_on[last], following, last)
        return last


def check_sample(sample: TensorDict, stream: StackStream, n_step: int) -> None:
    """Check that a sample equals the transitions that the agent observed."""
    everything = stream.everything()
    number = sample["number"]
    last = stream.last_numbers(number, n_step)
    assert torch.equal(sample["action"], everything["action"][number])
    for key in ("pixels", "corner", "speed"):
        assert torch.equal(sample[key], everything[key][number]), key
        assert torch.equal(sample["next", key], everything["next", key][last]), key
    for key in ("terminated", "truncated"):
        assert torch.equal(sample["next", key], everything["next", key][last]), key
    if n_step > 1:
        steps = (last - number) // stream.num_envs + 1
        assert torch.equal(sample["steps_to_next_obs"].squeeze(1), steps)


def numbered(buffer: ReplayBuffer, draws: int) -> TensorDict:
    """Return a sample with the numbers of its transitions, recovered from n-step rewards."""
    torch.manual_seed(0)
    sample = buffer.sample(draws)
    steps = sample.get("steps_to_next_obs", torch.ones(draws, 1, dtype=torch.int64))
    weights = sum((GAMMA**k * (steps > k) for k in range(buffer.n_step)), torch.zeros(draws, 1))
    extra = sum((k * GAMMA**k * (steps > k) for k in range(buffer.n_step)), torch.zeros(draws, 1))
    number = (sample["next", "reward"] - extra * buffer.num_envs) / weights
    return sample.set("number", number.round().long().squeeze(1))


@pytest.mark.parametrize("kind", BUFFERS)
@pytest.mark.parametrize("stacks", [STACKS, None], ids=["frames", "whole"])
@pytest.mark.parametrize(
    ("n_step", "done_probability", "num_envs", "capacity"),
    [(1, 0.0, 3, 64), (3, 0.1, 1, 9), (3, 0.1, 5, 103), (1, 1.0, 3, 64)],
)
def test_sampled_stacks_are_those_that_the_agent_observed(
    kind: type[ReplayBuffer],
    stacks: Mapping[str, int] | None,
    n_step: int,
    done_probability: float,
    num_envs: int,
    capacity: int,
) -> None:
    stream = StackStream(num_envs, done_probability, interruption_probability=0.02)
    buffer = make(kind, num_envs, capacity, n_step, stacks=stacks)
    for step in range(1, 113):
        buffer.extend(stream.step())
        if step > 12 and step % 16:
            continue
        stored, seen = len(buffer), step * num_envs
        sample = numbered(buffer, 20 * capacity)
        assert sample["number"].unique().tolist() == list(range(seen - stored, seen))
        check_sample(sample, stream, n_step)


@pytest.mark.parametrize("brightest", [0, 1])
def test_equal_frames_are_no_obstacle(brightest: int) -> None:
    stream = StackStream(3, 0.3, brightest=brightest)
    buffer = make(ReplayBuffer, 3, 100, n_step=3)
    for _ in range(60):
        buffer.extend(stream.step())
    check_sample(numbered(buffer, 2000), stream, 3)


@pytest.mark.parametrize("kind", BUFFERS)
@pytest.mark.parametrize("stacks", [STACKS, None], ids=["frames", "whole"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_steps_that_only_reset_are_not_sampled(
    kind: type[ReplayBuffer], stacks: Mapping[str, int] | None, n_step: int
) -> None:
    stream = StackStream(3, 0.2, reset_steps=True)
    buffer = make(kind, 3, 120, n_step, stacks=stacks)
    for _ in range(80):
        buffer.extend(stream.step())
    sample = numbered(buffer, 2000)
    check_sample(sample, stream, n_step)
    active = stream.everything()["active"].squeeze(1)
    oldest = int(sample["number"].min())
    expected = active[oldest:].nonzero().squeeze(1) + oldest
    assert sample["number"].unique().tolist() == expected.tolist()
    assert len(buffer) == len(expected)


@pytest.mark.parametrize("before", [0, 6])
def test_an_episode_is_sampled_after_steps_that_are_not_stored_once_its_stack_is_complete(
    before: int,
) -> None:
    stream = StackStream(2, done_probability=0.0)
    buffer = make(ReplayBuffer, 2, 100)
    for step in range(before + 18):
        transition = stream.step()
        if not before <= step < before + 10:
            buffer.extend(transition)
    sample = numbered(buffer, 500)
    check_sample(sample, stream, 1)
    # The fourth root is the first whose frames are all stored.
    complete = [*range(before), *range(before + 10 + FRAMES - 1, before + 18)]
    assert sample["number"].unique().tolist() == [2 * n + env for n in complete for env in (0, 1)]


@pytest.mark.parametrize("kind", BUFFERS)
def test_a_million_frames_of_atari_need_a_quarter_of_the_memory_of_stacks(
    kind: type[ReplayBuffer],
) -> None:
    spec = Composite(pixels=Bounded(0, 255, (8, 4, 84, 84), dtype=torch.uint8), shape=(8,))
    specs = (spec, Categorical(6, shape=(8,)))
    frames = kind.bytes_needed(1_000_000, StorageSpec(*specs, {"pixels": 4}))
    assert frames / kind.bytes_needed(1_000_000, StorageSpec(*specs)) < 0.26
    assert 7.05e9 < frames < 7.15e9


def test_invalid_stacks_are_rejected() -> None:
    spec, action = spec_of(2), Categorical(3, shape=(2,))
    with pytest.raises(ConfigurationError, match=r"pixels of shape \[8, 3, 3\] .* 3 frames"):
        ReplayBuffer(100, spec, action, CPU, frame_stacks={"pixels": 3})
    with pytest.raises(ConfigurationError, match=r"2 environments .* least 18"):
        ReplayBuffer(17, spec, action, CPU, frame_stacks=STACKS)
    with pytest.raises(ConfigurationError, match="frame_stacks"):
        ReplayBuffer(100, spec, action, CPU, frame_stacks={"pixels": 0})


@pytest.mark.parametrize("kind", BUFFERS)
def test_extending_and_sampling_need_no_host_reads(
    kind: type[ReplayBuffer], accelerator: torch.device
) -> None:
    stream = StackStream(3)
    buffer = make(kind, 3, 60, n_step=3, device=accelerator)
    steps = [stream.step().to(accelerator) for _ in range(30)]
    buffer.extend(steps.pop(0))
    assert not buffer.is_empty  # read once: the first stacks may not be complete
    with count_host_reads() as counter:
        for step in steps:
            buffer.extend(step)
            buffer.sample(32)
    assert counter.host_reads == counter.copies == 0, counter.report()
