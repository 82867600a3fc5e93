import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Composite, Unbounded

from torchrl_gpu.devices.memory import limited_memory
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.replay.rollout import RolloutBuffer

pytestmark = pytest.mark.directml

CPU = torch.device("cpu")
NUM_ENVS = 3
SPEC = Composite(observation=Unbounded((NUM_ENVS, 2)), shape=(NUM_ENVS,))


def step(number: int, **root: torch.Tensor) -> TensorDict:
    value = torch.full((NUM_ENVS, 2), float(number))
    flag = torch.tensor([[True], [False], [False]])
    return TensorDict(
        {
            "observation": value,
            "unseen": value,
            "action": -value,
            **root,
            "next": {
                "observation": value + 1,
                "reward": value[:, :1],
                "terminated": flag,
                "truncated": ~flag,
                "done": torch.ones_like(flag),
            },
        },
        [NUM_ENVS],
    )


def test_a_rollout_has_time_first() -> None:
    buffer = RolloutBuffer(4, SPEC, CPU)
    for number in range(4):
        assert not buffer.is_full
        buffer.extend(step(number))
    assert buffer.is_full
    rollout = buffer.rollout()
    assert rollout.batch_size == (4, NUM_ENVS)
    assert rollout["observation"][:, 0, 0].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert rollout["next", "observation"][:, 2, 1].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert rollout["next", "terminated"][2].tolist() == [[True], [False], [False]]
    assert "unseen" not in rollout.keys()  # noqa: SIM118


def test_a_full_buffer_starts_over_and_stores_copies() -> None:
    buffer = RolloutBuffer(2, SPEC, CPU)
    transition = step(0)
    for number in range(5):
        transition["observation"].fill_(number)
        buffer.extend(transition)
    assert buffer.rollout()["observation"][:, 0, 0].tolist() == [4.0]
    assert not buffer.is_full


def test_several_steps_at_once_are_refused() -> None:
    steps = torch.stack([step(0), step(1)], 1)
    with pytest.raises(ValueError, match=r"batch size \[3, 2\]; this buffer takes \[3\]"):
        RolloutBuffer(2, SPEC, CPU).extend(steps)


def test_active_flags_are_stored() -> None:
    buffer = RolloutBuffer(1, SPEC, CPU)
    active = torch.tensor([[True], [False], [True]])
    buffer.extend(step(0, active=active))
    assert torch.equal(buffer.rollout()["active"][0], active)


def test_steps_without_active_flags_consist_of_transitions() -> None:
    """A training that restarts a row marks it in this step alone."""
    buffer = RolloutBuffer(3, SPEC, CPU)
    active = torch.tensor([[True], [False], [True]])
    for number, flags in enumerate([{}, {"active": active}, {}]):
        buffer.extend(step(number, **flags))
    everywhere = torch.ones_like(active)
    assert torch.equal(buffer.rollout()["active"], torch.stack([everywhere, active, everywhere]))


def test_a_rollout_is_restored_from_its_state() -> None:
    buffer = RolloutBuffer(3, SPEC, CPU)
    empty = buffer.state_dict()
    for number in range(2):
        buffer.extend(step(number))
    other = RolloutBuffer(3, SPEC, CPU)
    other.load_state_dict(buffer.state_dict())
    for one in (buffer, other):
        one.extend(step(2))
    assert (buffer.rollout() == other.rollout()).all()
    other.load_state_dict(empty)
    other.extend(step(7))
    assert other.rollout()["observation"][:, 0, 0].tolist() == [7.0]


def test_a_saved_rollout_is_restored_on_an_accelerator(accelerator: torch.device) -> None:
    buffer = RolloutBuffer(3, SPEC, CPU)
    buffer.extend(step(0))
    other = RolloutBuffer(3, SPEC, accelerator)
    other.load_state_dict(buffer.state_dict())
    other.extend(step(1).to(accelerator))
    assert other.rollout().device == accelerator
    assert other.rollout()["observation"][:, 0, 0].tolist() == [0.0, 1.0]


def test_a_rollout_beyond_the_memory_is_refused_before_the_first_step() -> None:
    pixels = Composite(pixels=Unbounded((8, 3, 84, 84), dtype=torch.uint8), shape=(8,))
    assert RolloutBuffer.bytes_needed(5, pixels) == 2 * 5 * 8 * 3 * 84 * 84
    with limited_memory(CPU, 2**30), pytest.raises(ConfigurationError) as error:
        RolloutBuffer(10_000, pixels, CPU)
    assert str(error.value).startswith("agent.rollout_length=10000: the rollout needs 3.15 GiB")


def test_a_part_stays_as_it_is_until_the_rollout_is_full() -> None:
    buffer = RolloutBuffer(5, SPEC, CPU)
    assert buffer.part().state == {}
    for number in range(2):
        buffer.extend(step(number))
    part = buffer.part()
    assert part.steps == 2, "updates follow the last step, and may change the stored images"
    before = part.state["action"].clone()
    for number in range(3):
        buffer.extend(step(2 + number))
    assert torch.equal(part.state["action"].clone(), before)
    assert buffer.part().state == {}, "it has been learned from"
