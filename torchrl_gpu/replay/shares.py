"""Division of saved replay buffers among another number of processes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchrl_gpu.checkpoints.tensors import values_of
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.replay.buffer import ReplayBuffer


def load_share(
    buffer: ReplayBuffer, saved: Sequence[Sequence[Mapping[str, Any]]], rank: int, count: int
) -> None:
    """Fill a buffer with the transitions of its environments, which other buffers have saved.

    All processes of a run have the same number of environments, in the order of the ranks. The
    oldest steps are left out where they are not complete in all of these buffers.

    Several buffers are restored on the host, because the device has room for their shares alone.

    Args:
        buffer: empty buffer.
        saved: states of every buffer, see `ReplayBuffer.load_state_dict`.
        rank: number of the process of `buffer`.
        count: number of processes of the run.

    Raises:
        ConfigurationError: the run had another number of environments, or the states do not fit.
    """
    newest = saved[0][-1]
    size, capacity = newest["current_row"].shape[0], int(values_of(newest["capacity"]))
    if count * buffer.num_envs != size * len(saved):
        raise ConfigurationError(
            f"env.num_envs: the saved run has {size * len(saved)} environments, this one "
            f"{count * buffer.num_envs}"
        )
    first = rank * buffer.num_envs
    sources = []
    numbers = range(first // size, (first + buffer.num_envs - 1) // size + 1)
    for number in numbers:
        source = replace(
            buffer,
            capacity=capacity,
            device=buffer.device if len(numbers) == 1 else torch.device("cpu"),
            observation_spec=buffer.observation_spec[0].expand(size),
            action_spec=buffer.action_spec[0].expand(size, *buffer.action_spec.shape[1:]),
        )
        source.load_state_dict(*saved[number])
        offset = number * size
        columns = slice(max(first - offset, 0), min(first + buffer.num_envs - offset, size))
        sources.append((source, columns))
    for age in range(min(source.complete_steps for source, _ in sources), 0, -1):
        steps = [source.step_of_age(age)[columns] for source, columns in sources]
        buffer.append(torch.cat(steps).to(buffer.device))
