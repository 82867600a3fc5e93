"""State files: a nested state in one safetensors file, written atomically.

Tensors are stored under their path in the state (`/agent/policy/0.weight`); all other values are
JSON in the metadata of the file. Nothing is pickled, so loading a checkpoint executes no code. The
files are plain safetensors (https://github.com/huggingface/safetensors), readable by any program.
This module writes and reads them itself, because the safetensors package needs all tensors in host
memory at once, whereas a replay buffer has to be written and read piece by piece.
"""

import json
import re
import struct
import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchrl_gpu.checkpoints.contents import UNEXPECTED
from torchrl_gpu.checkpoints.files import atomic_file, reason
from torchrl_gpu.checkpoints.tensors import Pieces, StoredTensor, chunks, copied, pieces_of
from torchrl_gpu.errors import ConfigurationError, shortened

FORMAT = "torchrl-gpu checkpoint"
VERSION = 1

_DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}
_DTYPE_OF = {name: dtype for dtype, name in _DTYPES.items()}
_READ_BYTES = 2**20  # of a file, which are read and forgotten
# Python's objects take many times the memory of their text.
_MAX_HEADER = 16 * 2**20
_MAX_VALUES = 500_000
_MAX_DIMENSIONS = 64  # of a tensor in torch's own loops
_NO_CHECKSUM = "00000000"
# The checksum is known only after the last tensor, so it is stored first, at a fixed offset.
_CHECKSUM_OFFSET = struct.calcsize("<Q") + len('{"__metadata__":{"checksum":"')
_PICKLE_SUFFIXES = {".pt", ".pth", ".pkl", ".pickle", ".zip", ".ckpt"}
_PICKLE_START = re.compile(rb"PK\x03\x04|\x80[\x02-\x05][^\x00]", re.DOTALL)


class Snapshot:
    """A state at one moment, which can be written to a file while the state goes on changing.

    Args:
        state: nested mappings (keys: str or int), lists, tuples, None, bool, int, float, str and
            dense torch tensors of any shape, on any device. Tensors may share memory and need not
            be contiguous: each is written in full. Those of `Pieces` on the host are not copied:
            they have to stay as they are until `write` returns.
        copies: whether to copy the tensors; without, all have to stay as they are.

    Raises:
        TypeError: the state contains an unsupported value, whose path the message names, or more
            values than a file may hold besides tensors.
    """

    def __init__(self, state: Mapping[Any, Any], copies: bool = True) -> None:
        tensors: dict[str, Tensor | Pieces] = {}
        self._tree = _encode(state, "", tensors)
        # Readers map the file: the widest element first keeps every tensor aligned.
        names = sorted(tensors, key=lambda name: -tensors[name].dtype.itemsize)
        self._tensors = {name: copied(tensors[name]) if copies else tensors[name] for name in names}

    def write(self, path: Path) -> None:
        """Write the state to `*.safetensors`, replacing a file only once the new one is complete.

        Raises:
            ConfigurationError: the file cannot be written (disk full, no permission); an existing
                file is unchanged.
        """
        header = _header(self._tree, self._tensors)
        with atomic_file(path) as file:
            file.write(header)
            checksum = zlib.crc32(header)
            for tensor in self._tensors.values():
                for chunk in chunks(tensor):
                    file.write(chunk)
                    checksum = zlib.crc32(chunk, checksum)
            file.seek(_CHECKSUM_OFFSET)
            file.write(f"{checksum:08x}".encode())


def save_state(path: Path, state: Mapping[Any, Any]) -> None:
    """Write a state to a file at once: see `Snapshot` and its `write`."""
    Snapshot(state, copies=False).write(path)


def load_state(path: Path) -> dict[Any, Any]:
    """Read a file that `save_state` wrote, its tensors to the host, without executing any code.

    Raises:
        ConfigurationError: the file is missing, truncated, damaged, a pickle, not a checkpoint of
            this package, or in a newer format.
    """
    try:
        state: dict[Any, Any] = _read_tensors(open_state(path))
        return state
    except RecursionError as error:
        raise ConfigurationError(_why_unreadable(Path(path))) from error


def open_state(path: Path) -> dict[Any, Any]:
    """Check a file as `load_state` does, and return its state with `StoredTensor`s."""
    path = Path(path)
    try:
        if not path.is_file():
            raise ConfigurationError(f"checkpoint {path}: file not found")
        metadata, tensors = _read_header(path)
        _check_format(path, metadata)
        if _checksum(path) != metadata["checksum"]:
            raise ValueError("checksum")
        state = _decode(json.loads(metadata["state"]), tensors)
        if tensors or not isinstance(state, dict):
            raise ValueError("state")
        return state
    except ConfigurationError:
        raise
    except OSError as error:
        raise ConfigurationError(f"cannot read checkpoint {path}: {reason(error)}") from error
    except UNEXPECTED as error:  # also a RecursionError, where it is nested too deeply
        raise ConfigurationError(_why_unreadable(path)) from error


def _encode(value: Any, path: str, tensors: dict[str, Tensor | Pieces]) -> Any:
    """Return `value` as JSON, with its tensors moved to `tensors` and replaced by their names."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor | Pieces):
        for tensor in pieces_of(value):
            if tensor.dtype not in _DTYPES or tensor.layout != torch.strided or tensor.is_meta:
                kind = f"{tensor.layout} {tensor.dtype} tensor on {tensor.device}"
                raise TypeError(f"{path}: cannot save a {kind}")
        name = path
        while name in tensors:  # the keys 1 and "1", or a key with a slash in it
            name += "'"
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Mapping):
        for key in value:
            if isinstance(key, bool) or not isinstance(key, int | str):
                raise TypeError(f"{path}/{key}: cannot save a key of type {type(key).__name__}")
        items = value.items()
        return {"dict": [[key, _encode(item, f"{path}/{key}", tensors)] for key, item in items]}
    if isinstance(value, list | tuple):
        entries = [_encode(item, f"{path}/{index}", tensors) for index, item in enumerate(value)]
        return {"tuple": entries} if isinstance(value, tuple) else entries
    raise TypeError(
        f"{path}: cannot save a {type(value).__name__}; a state may contain tensors, numbers, "
        "strings, None, lists, tuples and dicts"
    )


def _decode(node: Any, tensors: dict[str, StoredTensor]) -> Any:
    """Invert `_encode`; a tensor is taken out of `tensors`, so that no file names it repeatedly."""
    if isinstance(node, list):
        return [_decode(entry, tensors) for entry in node]
    if not isinstance(node, dict):
        return node
    ((kind, content),) = node.items()
    if kind == "tensor":
        return tensors.pop(content)
    if kind == "tuple":
        return tuple(_decode(entry, tensors) for entry in content)
    if kind == "dict":
        if not all(type(key) in (int, str) for key, _ in content):
            raise ValueError("key")
        return {key: _decode(entry, tensors) for key, entry in content}
    raise ValueError(f"unknown kind {kind}")


def _read_tensors(node: Any) -> Any:
    """Return a state from `open_state`, in place, with its tensors read to the host.

    Torch's trees would take several times the memory of a file of many values.
    """
    if isinstance(node, StoredTensor):
        return node.read()
    if isinstance(node, tuple):
        return tuple(map(_read_tensors, node))
    if isinstance(node, list | dict):
        for key, value in enumerate(node) if isinstance(node, list) else node.items():
            node[key] = _read_tensors(value)
    return node


def _header(tree: Any, tensors: Mapping[str, Tensor | Pieces]) -> bytes:
    """Return the file header: the length of the JSON, then the JSON, padded to 8 bytes."""
    metadata = {
        "checksum": _NO_CHECKSUM,
        "format": FORMAT,
        "version": str(VERSION),
        "state": json.dumps(tree, separators=(",", ":")),
    }
    entries: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.shape.numel() * tensor.dtype.itemsize
        dtype, shape = _DTYPES[tensor.dtype], list(tensor.shape)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if _is_excessive(text):
        raise TypeError(
            f"a state may hold {_MAX_VALUES:,} values and {_MAX_HEADER >> 20} MiB of text besides "
            "its tensors: save long sequences of numbers as tensors"
        )
    return struct.pack("<Q", len(text)) + text


def _read_header(path: Path) -> tuple[dict[str, str], dict[str, StoredTensor]]:
    """Return the metadata and the tensors of a file, all of which lie within it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8).ljust(8))
        start = 8 + length
        if start > size or length > _MAX_HEADER:
            raise ValueError("header")
        text = file.read(length)
    if _is_excessive(text):
        raise ValueError("values")
    entries = json.loads(text)
    metadata = entries.pop("__metadata__", {})
    tensors = {}
    for name, entry in entries.items():
        dtype, shape = _DTYPE_OF[entry["dtype"]], entry["shape"]
        begin, end = entry["data_offsets"]
        if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
            raise ValueError("number")
        # Without its zeros, because torch multiplies the other sizes of an empty tensor as well.
        if prod(filter(None, shape)) >= 2**63 or len(shape) > _MAX_DIMENSIONS:
            raise ValueError("shape")
        if end - begin != prod(shape) * dtype.itemsize:
            raise ValueError("size")
        tensors[name] = StoredTensor(path, start + begin, dtype, torch.Size(shape))
    end = start
    for tensor in sorted(tensors.values(), key=lambda tensor: tensor.begin):
        if tensor.begin != end:  # tensors that overlap, or bytes of none
            raise ValueError("offset")
        end += prod(tensor.shape) * tensor.dtype.itemsize
    if end != size:
        raise ValueError("size")
    return metadata, tensors


def _is_excessive(header: bytes) -> bool:
    """Return whether a header is so large that its values could exceed the memory."""
    values = sum(map(header.count, (b"[", b"{", b",")))
    return len(header) > _MAX_HEADER or values > _MAX_VALUES


def _checksum(path: Path) -> str:
    """Return the CRC-32 of the file with its checksum field reset."""
    with path.open("rb") as file:
        start = bytearray(file.read(_CHECKSUM_OFFSET + len(_NO_CHECKSUM)))
        start[_CHECKSUM_OFFSET:] = _NO_CHECKSUM.encode()
        checksum = zlib.crc32(start)
        while chunk := file.read(_READ_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    return f"{checksum:08x}"


def _check_format(path: Path, metadata: Mapping[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise ConfigurationError(
            f"{path} is a safetensors file, but not a checkpoint of torchrl-gpu"
        )
    if int(metadata["version"]) > VERSION:
        raise ConfigurationError(
            f"checkpoint {path} has format {shortened(metadata['version'])}; this torchrl-gpu "
            f"reads up to {VERSION}: update torchrl-gpu"
        )


def _why_unreadable(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(8)
    if path.suffix.lower() in _PICKLE_SUFFIXES or _PICKLE_START.match(start):
        return f"{path} is a pickle, which can run code when loaded; use a .safetensors file"
    return f"checkpoint {path} is truncated or damaged, or is not a checkpoint of torchrl-gpu"
