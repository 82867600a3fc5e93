"""The cause of a training that ends in numbers that are not finite."""

from collections.abc import Mapping
from typing import Any

from tensordict import TensorDict
from torch import Tensor

from agents.modules.training_state import nonfinite


def cause_of_nonfinite(held: Mapping[str, Any]) -> str:
    """Return which entries of the stored transitions hold NaN or infinity, or advice if none does.

    Args:
        held: tensors of a replay buffer or rollout by name, perhaps nested.
    """
    tensors = dict(TensorDict(dict(held), []).flatten_keys(".").items())
    found = [
        f"{name.removeprefix('rows.')} (rows: {_rows_of_nonfinite(tensors[name])})"
        for name in nonfinite(tensors)
    ]
    if found:
        return f"so are stored transitions, in {', '.join(found)}: the cause is the environment"
    return (
        "the stored transitions are finite: a smaller agent.learning_rate or "
        "agent.max_gradient_norm may help"
    )


def _rows_of_nonfinite(values: Tensor) -> int:
    """Return the number of rows `[N, ...]` that hold NaN or infinity."""
    return int((~values.isfinite()).reshape(len(values), -1).any(1).sum())
