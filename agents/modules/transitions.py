"""Check of the transitions that an agent learns from."""

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Composite, TensorSpec

from torchrl_gpu.errors import ConfigurationError


def check_transitions(
    transitions: TensorDictBase,
    observation_spec: Composite,
    action_spec: TensorSpec,
    flags: Sequence[str] = ("terminated",),
) -> None:
    """Refuse transitions without the entries of a loss, or with entries of another shape or dtype.

    Rewards `[B]` and values `[B, 1]`, for instance, have differences `[B, B]`.

    Args:
        transitions: transitions `[*B]` in TorchRL's layout.
        observation_spec: spec of the observations of all environments.
        action_spec: spec of the actions of all environments.
        flags: names of the flags under `next`.

    Raises:
        ConfigurationError: an entry is missing, or differs from the specs; reward and flags are
            float32 and bool, `[*B, 1]`.
    """
    specs = dict(observation_spec.items(include_nested=True, leaves_only=True))
    observed = {
        (key,) if isinstance(key, str) else key: (spec.shape[1:], spec.dtype)
        for key, spec in specs.items()
    }
    layout = observed | {("action",): (action_spec.shape[1:], action_spec.dtype)}
    layout |= {("next", *key): each for key, each in observed.items()}
    layout |= {("next", name): (torch.Size([1]), torch.bool) for name in flags}
    layout["next", "reward"] = torch.Size([1]), torch.float32
    for key, (shape, dtype) in layout.items():
        value: Tensor | None = transitions.get(key, None)
        expected = _text((*transitions.batch_size, *shape), dtype)
        found = None if value is None else _text(value.shape, value.dtype)
        if found != expected:
            problem = "is missing" if found is None else f"has {found}"
            raise ConfigurationError(f"batch: {'.'.join(key)} {problem}; an agent takes {expected}")


def _text(shape: Sequence[int], dtype: torch.dtype | None) -> str:
    return f"shape {list(shape)} and {dtype}"
