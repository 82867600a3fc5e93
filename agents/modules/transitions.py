"""Check of the transitions that an agent learns from."""

from collections.abc import Sequence

from tensordict import NestedKey, TensorDictBase
from torchrl.data import TensorSpec

from torchrl_gpu.errors import ConfigurationError


def check_transitions(
    transitions: TensorDictBase,
    action_spec: TensorSpec,
    flags: Sequence[str] = ("terminated",),
) -> None:
    """Refuse transitions without the entries of a loss, or whose entries would broadcast.

    Rewards `[B]` and values `[B, 1]`, for instance, have differences `[B, B]`.

    Args:
        transitions: transitions `[*B]` in TorchRL's layout.
        action_spec: spec of the actions of all environments.
        flags: names of the flags under `next`.

    Raises:
        ConfigurationError: an entry is missing, or has another shape than `[*B, 1]`, or that of the
            action.
    """
    shapes: dict[NestedKey, Sequence[int]] = {"action": action_spec.shape[1:]}
    shapes |= {("next", name): (1,) for name in ("reward", *flags)}
    for key, shape in shapes.items():
        value = transitions.get(key, None)
        expected = [*transitions.batch_size, *shape]
        if value is None or list(value.shape) != expected:
            found = "is missing" if value is None else f"has shape {list(value.shape)}"
            raise ConfigurationError(f"batch: {key!r} {found}; an agent takes {expected}")
