"""Ring buffers whose contents are saved in parts and restored from them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from torchrl_gpu.checkpoints.tensors import StoredTensor, restore


@dataclass(frozen=True)
class Ring:
    """Places of numbered entries in a tensor: number `n` is in slot `n % size`.

    Attributes:
        size: number of slots, those at the front of the tensor.
        per_step: greatest number of entries that one step of the environments writes.
    """

    size: int
    per_step: int

    def oldest(self, written: int) -> int:
        """Return the number of the oldest entry after `written` entries."""
        return max(0, written - self.size)

    def entries(self, tensor: Tensor, first: int, stop: int) -> Iterator[Tensor]:
        """Yield views of the entries `first` to `stop - 1`, in order; at least one view."""
        begin, count = first % self.size, stop - first
        yield tensor[begin : min(begin + count, self.size)]
        if begin + count > self.size:
            yield tensor[: begin + count - self.size]

    def is_complete(self, counts: Sequence[int], written: Sequence[int]) -> bool:
        """Return whether parts that follow one another hold all entries that the ring held.

        `counts` are the numbers of entries in each part, and `written` those until the end of each
        part.
        """
        before = self.oldest(written[-1])
        for count, end in zip(counts, written, strict=True):
            if not 0 <= end - count <= before or end > written[-1]:
                return False
            before = max(before, end)
        return True

    def restore(
        self, tensor: Tensor, parts: Sequence[Tensor | StoredTensor], written: Sequence[int]
    ) -> None:
        """Copy the entries of complete parts to their slots in the tensor of the ring.

        `written` holds the number of entries written until the end of each part.
        """
        for part, end in zip(parts, written, strict=True):
            begin = end - part.shape[0]
            first = min(max(begin, self.oldest(written[-1])), end)
            for view in self.entries(tensor, first, end):
                rows = slice(first - begin, first - begin + len(view))
                restore(view, part[rows])
                first += len(view)
