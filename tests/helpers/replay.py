"""Replay buffers."""

from torchrl_gpu.checkpoints.tensors import Pieces
from torchrl_gpu.replay.buffer import ReplayBuffer


def allocated_bytes(buffer: ReplayBuffer) -> int:
    """Return the size of all storage that the state of a buffer is a view of, or a copy."""
    values = buffer.part().state.values()
    views = (value.tensors[-1] if isinstance(value, Pieces) else value for value in values)
    return sum(view.untyped_storage().nbytes() for view in views)
