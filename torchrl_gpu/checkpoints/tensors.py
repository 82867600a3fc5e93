"""Tensors on their way to a state file and back, piece by piece: a replay may fill the memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from torchrl_gpu.checkpoints.files import reason
from torchrl_gpu.errors import ConfigurationError

_CHUNK_BYTES = 32 * 2**20  # between host and device


@dataclass(frozen=True)
class Pieces:
    """One or more tensors `[N_i, ...]` of one dtype, written in a row as one tensor `[N, ...]`."""

    tensors: tuple[Tensor, ...]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of all tensors."""
        return self.tensors[0].dtype

    @property
    def shape(self) -> torch.Size:
        """Shape of the tensor that they make up."""
        rows = sum(len(tensor) for tensor in self.tensors)
        return torch.Size((rows, *self.tensors[0].shape[1:]))

    def clone(self) -> Tensor:
        """Return the tensor that they make up."""
        return torch.cat(self.tensors)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a state file, read piece by piece into a tensor that exists already."""

    path: Path  # the file has to stay as it is until the tensor is read
    begin: int  # position of its first byte in the file
    dtype: torch.dtype
    shape: torch.Size

    def copy_to(self, target: Tensor) -> None:
        """Copy the values to a contiguous tensor of the same dtype and shape, on any device.

        Raises:
            ConfigurationError: the file cannot be read, or has become shorter.
        """
        parts = target.view(-1).split(_CHUNK_BYTES // target.element_size())
        piece = parts[0] if target.is_cpu else torch.empty_like(parts[0], device="cpu")
        try:
            with self.path.open("rb") as file:
                file.seek(self.begin)
                for part in parts:
                    host = part if part.is_cpu else piece[: len(part)]
                    if file.readinto(host.view(torch.uint8).numpy().data) < host.nbytes:
                        raise ValueError("the file ends too early")
                    part.copy_(host)
        except (OSError, ValueError) as error:
            why = reason(error) if isinstance(error, OSError) else str(error)
            raise ConfigurationError(f"cannot read checkpoint {self.path}: {why}") from error

    def __getitem__(self, rows: slice) -> StoredTensor:
        """Return a range of entries of the first dimension."""
        start, stop, _ = rows.indices(self.shape[0])
        rest = self.shape[1:]
        begin = self.begin + start * rest.numel() * self.dtype.itemsize
        return StoredTensor(self.path, begin, self.dtype, torch.Size((stop - start, *rest)))

    def read(self) -> Tensor:
        """Return the values as a new tensor on the host."""
        tensor = torch.empty(self.shape, dtype=self.dtype)
        self.copy_to(tensor)
        return tensor


def restore(target: Tensor, saved: Tensor | StoredTensor) -> None:
    """Copy a saved tensor to a tensor of the same dtype and shape."""
    if isinstance(saved, StoredTensor):
        saved.copy_to(target)
    else:
        target.copy_(saved)


def values_of(saved: Tensor | StoredTensor) -> Tensor:
    """Return a saved tensor as a tensor, on the host if it was in a file."""
    return saved.read() if isinstance(saved, StoredTensor) else saved


def pieces_of(tensor: Tensor | Pieces) -> tuple[Tensor, ...]:
    """Return the tensors that are written one after the other."""
    return tensor.tensors if isinstance(tensor, Pieces) else (tensor,)


def copied(tensor: Tensor | Pieces) -> Tensor | Pieces:
    """Return a copy on the host of a tensor, and of pieces on other devices."""
    if isinstance(tensor, Pieces):
        return Pieces(tuple(piece.cpu() for piece in tensor.tensors))
    return tensor.detach().to("cpu", copy=True)


def chunks(tensor: Tensor | Pieces) -> Iterator[memoryview]:
    """Yield the bytes of `tensor` in row-major order, copied to the host piece by piece."""
    for piece in pieces_of(tensor):
        flat = piece.detach().contiguous().reshape(-1)
        for part in flat.split(_CHUNK_BYTES // flat.element_size()):
            if part.numel() > 0:
                # A single element counts as contiguous with any stride, but `view` needs 1.
                host = part.cpu().as_strided(part.shape, (1,))
                yield memoryview(host.view(torch.uint8).numpy())
