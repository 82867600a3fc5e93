"""Random numbers of a run: one seed per use, and the state of all generators."""

import logging
import random
from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import torch

from torchrl_gpu.devices.kinds import accelerator_of

_log = logging.getLogger(__name__)

Stream = Literal["training", "selection", "evaluation", "demo"]
_STREAMS: tuple[Stream, ...] = get_args(Stream)

# Each stream draws its seeds from a separate block. The end of a block stays free for batches that
# seed environment i with seed + i, as Gymnasium does.
_BLOCK = 2**31 // len(_STREAMS)
_MAX_BATCH = 2**20


def seed_everything(seed: int, rank: int = 0) -> None:
    """Seed Python's `random`, NumPy's legacy generator, and torch on the host and all devices.

    The seed is 0 to 2**32 - 1; the process of every rank draws other numbers.
    """
    if rank > 0:
        seed = int(np.random.SeedSequence(seed, spawn_key=(rank,)).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def stream_seed(seed: int, stream: Stream, position: int = 0, rank: int = 0) -> int:
    """Return the seed of the environments of a run for one use.

    Training, the evaluations that select the best checkpoint, the reported evaluation and the film
    run different episodes: the ranges of their seeds are disjoint for all runs, even for batches of
    up to 2**20 environments that seed environment i with the returned seed + i.

    Args:
        seed: seed of the run, at least 0.
        stream: use of the environments.
        position: frames at which the run resumes, at least 0; a run that is resumed without the
            state of its environments thereby draws new episodes.
        rank: rank of the process of the environments, at least 0.

    Returns:
        Seed of the environments, 0 to 2**31 - 1; equal for equal arguments.
    """
    number = _STREAMS.index(stream)
    key = (number, position) if rank == 0 else (number, position, rank)
    sequence = np.random.SeedSequence(seed, spawn_key=key)
    word = int(sequence.generate_state(1, np.uint64)[0])
    return number * _BLOCK + word % (_BLOCK - _MAX_BATCH)


def rng_state(device: torch.device) -> dict[str, Any]:
    """Return the state of all generators, as tensors on the host and plain values.

    That of the device is included if it is readable, which that of DirectML is not.
    """
    numpy: Any = np.random.get_state(legacy=False)
    numpy["state"]["key"] = numpy["state"]["key"].tolist()
    state = {"python": random.getstate(), "numpy": numpy, "torch": torch.get_rng_state()}
    accelerator = accelerator_of(device)
    if accelerator.has_generator:
        state[device.type] = accelerator.call("get_rng_state")
    return state


def check_rng_state(state: Any, device: torch.device) -> None:
    """Refuse a state that `rng_state` cannot have returned; no generator changes.

    Raises:
        ValueError: it is not such a state; an error of another kind says so, too.
    """
    random.Random().setstate(state["python"])
    numpy = state["numpy"]
    key, position = numpy["state"]["key"], numpy["state"]["pos"]
    # NumPy would read beyond the key.
    if not (type(position) is int and 0 <= position <= 624 and isinstance(key, list)):
        raise ValueError("the random state of NumPy is not possible")
    np.random.RandomState().set_state(numpy)
    torch.Generator().set_state(state["torch"])
    kind = device.type
    if accelerator_of(device).has_generator and kind in state:
        saved, own = state[kind], accelerator_of(device).call("get_rng_state")
        if saved.dtype != own.dtype or saved.shape != own.shape:
            raise ValueError(f"the random state of {kind} is not possible")


def set_rng_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Restore a state that `rng_state` returned.

    If it was taken on another kind of device, the generator of this device is left unchanged and a
    warning is logged.
    """
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    accelerator = accelerator_of(device)
    if accelerator.has_generator:
        if device.type in state:
            accelerator.call("set_rng_state", state[device.type])
        else:
            _log.warning("no random state of %s was saved: its generator is unchanged", device.type)
