"""Replays of a run that goes on with another number of processes."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tests.torchrl_gpu.replay.test_stacks import (
    BUFFERS,
    CPU,
    StackStream,
    check_sample,
    make,
    numbered,
)
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.replay.buffer import ReplayBuffer
from torchrl_gpu.replay.prioritized import PrioritizedReplayBuffer
from torchrl_gpu.replay.shares import load_share

ENVS, CAPACITY, STEPS = 4, 240, 40


def filled(
    kind: type[ReplayBuffer],
    count: int,
    n_step: int,
    capacity: int = CAPACITY,
    reset_steps: bool = True,
) -> list[ReplayBuffer]:
    """Return the buffers of a number of processes that have shared the environments of a stream."""
    buffers = [make(kind, ENVS // count, capacity // count, n_step) for _ in range(count)]
    stream = StackStream(ENVS, interruption_probability=0.05, reset_steps=reset_steps)
    for step in range(STEPS):
        transition = stream.step()
        for buffer, share in zip(buffers, transition.chunk(count), strict=True):
            buffer.extend(share)
            if step % 4 == 3 and not buffer.is_empty:
                batch = buffer.sample(8)
                buffer.update_priorities(batch, batch["next", "reward"].flatten())
    return buffers


def steps_of(buffers: list[ReplayBuffer], age: int) -> TensorDict:
    """Return a step of all environments; the greatest priority is that of a buffer."""
    steps = [buffer.step_of_age(age).exclude("greatest") for buffer in buffers]
    return TensorDict.cat(steps)


@pytest.mark.slow
@pytest.mark.parametrize("kind", BUFFERS)
@pytest.mark.parametrize(
    ("saved", "loaded", "n_step"), [(2, 1, 1), (2, 4, 3), (1, 2, 3), (4, 2, 1)]
)
def test_shares_hold_the_transitions_of_the_run(
    kind: type[ReplayBuffer], saved: int, loaded: int, n_step: int
) -> None:
    before = filled(kind, saved, n_step)
    after = [make(kind, ENVS // loaded, CAPACITY // loaded, n_step) for _ in range(loaded)]
    states = [[buffer.state_dict()] for buffer in before]
    for rank, buffer in enumerate(after):
        load_share(buffer, states, rank, loaded)
    complete = min(buffer.complete_steps for buffer in (*before, *after))
    assert complete >= 15
    for age in range(1, complete + 1):
        expected, found = steps_of(before, age), steps_of(after, age)
        active = expected["active"].flatten()
        assert torch.equal(found["active"].flatten(), active)
        assert active.any()
        assert (expected == found)[active].all()


@pytest.mark.parametrize("kind", BUFFERS)
@pytest.mark.parametrize(("saved", "loaded", "on_host"), [(2, 1, True), (1, 2, False)])
def test_several_shares_are_joined_on_the_host(
    kind: type[ReplayBuffer],
    saved: int,
    loaded: int,
    on_host: bool,
    accelerator: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = filled(kind, saved, 1)
    states = [[buffer.state_dict()] for buffer in before]
    device, host = (
        make(kind, ENVS // loaded, CAPACITY // loaded, device=each) for each in (accelerator, CPU)
    )
    load_share(host, states, 0, loaded)
    devices = []
    load = kind.load_state_dict

    def load_and_note(buffer: ReplayBuffer, *parts: Any) -> None:
        devices.append(buffer.device)
        load(buffer, *parts)

    monkeypatch.setattr(kind, "load_state_dict", load_and_note)
    load_share(device, states, 0, loaded)
    assert devices == [CPU if on_host else accelerator] * saved
    for age in (1, host.complete_steps // 2, host.complete_steps):
        assert (device.step_of_age(age).to(CPU) == host.step_of_age(age)).all()
    if kind is PrioritizedReplayBuffer:  # new transitions get the greatest priority of the run
        greatest = max(buffer.step_of_age(1)["greatest"].max() for buffer in before)
        assert host.step_of_age(1)["greatest"].eq(greatest).all()


@pytest.mark.parametrize("kind", BUFFERS)
def test_steps_that_one_of_the_shares_has_lost_are_left_out(kind: type[ReplayBuffer]) -> None:
    before = filled(kind, 2, 1, capacity=CAPACITY // 2, reset_steps=False)
    complete = [buffer.complete_steps for buffer in before]
    assert complete[0] != complete[1]
    after = make(kind, ENVS, CAPACITY)
    load_share(after, [[buffer.state_dict()] for buffer in before], 0, 1)
    assert after.complete_steps == min(complete)


@pytest.mark.parametrize("kind", BUFFERS)
def test_stacks_that_begin_before_the_oldest_step_are_not_sampled(
    kind: type[ReplayBuffer],
) -> None:
    stream = StackStream(ENVS, done_probability=0.0)
    before, after = make(kind, ENVS, CAPACITY), make(kind, 1, CAPACITY)
    for _ in range(2 * CAPACITY // ENVS):
        before.extend(stream.step())
    load_share(after, [[before.state_dict()]], 0, ENVS)
    check_sample(numbered(after, 2_000), stream, 1)


@pytest.mark.parametrize(("envs", "count"), [(8, 1), (2, 1), (1, 2)])
def test_another_number_of_environments_than_the_run_had_is_refused(envs: int, count: int) -> None:
    states = [[buffer.state_dict()] for buffer in filled(ReplayBuffer, 2, 1)]
    refusal = rf"^env\.num_envs: the saved run has 4 environments, this one {envs * count}$"
    with pytest.raises(ConfigurationError, match=refusal):
        load_share(make(ReplayBuffer, envs, 2 * CAPACITY), states, 0, count)
