"""Transfer of a TensorDict between host and device in one copy, or in one for each dtype."""

import math

import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_gpu.devices.kinds import accelerator_of

Key = str | tuple[str, ...]
Layout = dict[Key, tuple[torch.Size, torch.dtype]]

# Alignment of leaves in bytes: sufficient for every dtype and for vectorised kernels.
_ALIGNMENT = 64

_HOST = torch.device("cpu")


class PackedTransfer:
    """Copies TensorDicts of one layout to a device, all leaves in a single copy.

    The leaves are packed into one byte buffer on their device, the buffer is copied, and the leaves
    of the result are views of the receiving buffer. Buffers are allocated at the first call and
    reused. A device without `byte_views` needs one buffer, and one copy, for each dtype.
    Two pairs of buffers alternate: a result stays valid during the next call and is overwritten by
    the call after that, so callers that need it longer must copy it.

    Copies to a device with `pinned_transfers` do not block the host: it packs into pinned memory,
    which is reused only once the device has read it.

    Args:
        destination: device of the results. A TensorDict on this device is returned unchanged,
            without a copy.

    Attributes:
        copies: number of copies so far.
        bytes: number of bytes copied so far, with the padding between leaves.
    """

    def __init__(self, destination: torch.device) -> None:
        # With the index that tensors report: cuda:0, not cuda.
        self.destination = torch.empty(0, device=destination).device
        self.copies = self.bytes = 0
        self._layout: Layout = {}
        self._buffers: list[_BufferPair] = []
        self._calls = 0

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Copy a TensorDict to the destination.

        Args:
            tensordict: TensorDict with all leaves on one device; keys, shapes and dtypes as at the
                first call.

        Returns:
            TensorDict of the same keys, values and batch size. Its leaves do not require gradients
            and are overwritten by the call after the next one.

        Raises:
            ValueError: keys, shapes or dtypes differ from those of the first call.
        """
        leaves: dict[Key, Tensor] = dict(tensordict.items(include_nested=True, leaves_only=True))
        source = next((leaf.device for leaf in leaves.values()), self.destination)
        if source == self.destination:
            return tensordict
        layout = {key: (leaf.shape, leaf.dtype) for key, leaf in leaves.items()}
        if not self._buffers:
            self._layout = layout
            self._buffers = [
                _BufferPair(tensordict, layout, source, self.destination) for _ in range(2)
            ]
        elif layout != self._layout:
            raise ValueError(_difference(self._layout, layout))
        self._calls += 1
        buffers = self._buffers[self._calls % 2]
        self.copies += buffers.copies
        self.bytes += buffers.bytes
        return buffers.send(leaves)


class _BufferPair:
    """A buffer on each device, with views of both in the shapes of the leaves.

    Its `copies` and `bytes` are those of one transfer.
    """

    def __init__(
        self,
        example: TensorDictBase,
        layout: Layout,
        source: torch.device,
        destination: torch.device,
    ) -> None:
        self._receiver = accelerator_of(destination)
        sender = accelerator_of(source)
        is_pinned = source == _HOST and self._receiver.pinned_transfers
        is_received_pinned = destination == _HOST and sender.pinned_transfers
        self._buffers: list[tuple[Tensor, Tensor]] = []
        self._outgoing_leaves: dict[Key, Tensor] = {}
        incoming_leaves: dict[Key, Tensor] = {}
        for dtype, part in _parts(layout, sender.byte_views and self._receiver.byte_views):
            outgoing, views = _buffer(part, dtype, source, is_pinned)
            self._outgoing_leaves |= views
            incoming, views = _buffer(part, dtype, destination, is_received_pinned)
            incoming_leaves |= views
            self._buffers.append((outgoing, incoming))
        self.copies = len(self._buffers)
        self.bytes = sum(outgoing.nbytes for outgoing, _ in self._buffers)
        self._result = example.named_apply(
            lambda key, leaf: incoming_leaves[key], nested_keys=True, device=destination
        )
        # Only copies from pinned memory are asynchronous; the event marks when one is done.
        self._was_read = self._receiver.module.Event() if is_pinned else None

    @torch.no_grad()
    def send(self, leaves: dict[Key, Tensor]) -> TensorDictBase:
        if self._was_read is not None:
            self._was_read.synchronize()
        for key, leaf in leaves.items():
            self._outgoing_leaves[key].copy_(leaf)
        for outgoing, incoming in self._buffers:
            incoming.copy_(outgoing, non_blocking=self._was_read is not None)
        if self._was_read is not None:
            # The copy runs on a stream of the receiving device, not of the current device.
            self._was_read.record(self._receiver.module.current_stream(self._receiver.device))
        # A shallow copy, so that keys that the caller adds stay out of the next result.
        return self._result.clone(recurse=False)


def _parts(layout: Layout, in_bytes: bool) -> list[tuple[torch.dtype, Layout]]:
    """Return the dtype of each buffer and its leaves: one buffer of bytes, or one per dtype."""
    if in_bytes:
        return [(torch.uint8, layout)]
    parts: dict[torch.dtype, Layout] = {}
    for key, (shape, dtype) in layout.items():
        parts.setdefault(dtype, {})[key] = (shape, dtype)
    return list(parts.items())


def _buffer(
    layout: Layout, dtype: torch.dtype, device: torch.device, pin_memory: bool
) -> tuple[Tensor, dict[Key, Tensor]]:
    """Return a buffer of a dtype for all leaves of a layout, and views of it in their shapes."""
    ranges: dict[Key, slice] = {}
    end = 0
    for key, (shape, leaf_dtype) in layout.items():
        start = math.ceil(end / _ALIGNMENT) * _ALIGNMENT
        end = start + shape.numel() * leaf_dtype.itemsize
        ranges[key] = slice(start // dtype.itemsize, end // dtype.itemsize)
    size = end // dtype.itemsize
    buffer = torch.empty(size, dtype=dtype, device=device, pin_memory=pin_memory)
    views: dict[Key, Tensor] = {}
    for key, (shape, leaf_dtype) in layout.items():
        leaf = buffer[ranges[key]]
        # A device without `byte_views` cannot even view a tensor as its own dtype.
        views[key] = (leaf if leaf_dtype == dtype else leaf.view(leaf_dtype)).view(shape)
    return buffer, views


def _difference(expected: Layout, given: Layout) -> str:
    """Return the error message for a layout that differs from that of the first call."""
    key = min((key for key, _ in expected.items() ^ given.items()), key=str)
    before, now = _describe(expected.get(key)), _describe(given.get(key))
    return f"{key} differs from the first call of this transfer: {before} then, {now} now"


def _describe(leaf: tuple[torch.Size, torch.dtype] | None) -> str:
    return "missing" if leaf is None else f"{leaf[1]} {list(leaf[0])}"
