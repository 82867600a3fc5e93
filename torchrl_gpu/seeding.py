"""Every random number generator that a run uses: seeded, saved and restored together."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from torchrl_gpu.arguments import checked

_log = logging.getLogger(__name__)


@checked
def seed_everything(seed: Annotated[int, Field(ge=0, lt=2**32)]) -> None:
    """Seed Python's `random`, NumPy's legacy generator, and torch on the host and all devices.

    Args:
        seed: 0 to 2**32 - 1, the range of NumPy.

    Raises:
        ConfigurationError: the seed lies outside its range.
    """
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def rng_state(device: torch.device) -> dict[str, Any]:
    """Return the state of all generators, as tensors on the host and plain values.

    Args:
        device: the accelerator whose generator is included; nothing is added for the host or for a
            device without a generator that can be read (DirectML).
    """
    version, words, gauss = random.getstate()
    numpy_state: Any = np.random.get_state(legacy=False)
    state = {
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy": {
            "words": torch.from_numpy(numpy_state["state"]["key"].astype(np.int64)),
            "position": int(numpy_state["state"]["pos"]),
            "has_gauss": int(numpy_state["has_gauss"]),
            "gauss": float(numpy_state["gauss"]),
        },
        "torch": torch.get_rng_state(),
    }
    if _has_generator(device):
        state[device.type] = _module(device).get_rng_state(*_index(device))
    return state


def set_rng_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Restore what `rng_state` returned.

    Args:
        state: of `rng_state`. Where it was taken on another kind of device, the generator of this
            one is left as it is, and a warning says so.
        device: the accelerator whose generator is restored.
    """
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    numpy = state["numpy"]
    np.random.set_state(
        {
            "bit_generator": "MT19937",
            "state": {"key": numpy["words"].numpy().astype(np.uint32), "pos": numpy["position"]},
            "has_gauss": numpy["has_gauss"],
            "gauss": numpy["gauss"],
        }
    )
    torch.set_rng_state(state["torch"])
    if _has_generator(device):
        if device.type in state:
            _module(device).set_rng_state(state[device.type], *_index(device))
        else:
            _log.warning("no random state of %s was saved: its generator goes on anew", device.type)


def _module(device: torch.device) -> Any:
    """Return `torch.cuda`, `torch.xpu` or `torch.mps`; None for a device without such a module."""
    return getattr(torch, device.type, None)


def _has_generator(device: torch.device) -> bool:
    return device.type != "cpu" and hasattr(_module(device), "get_rng_state")


def _index(device: torch.device) -> tuple[torch.device, ...]:
    """Return the device as an argument where there can be several; there is only one `mps`."""
    return () if device.type == "mps" else (device,)
