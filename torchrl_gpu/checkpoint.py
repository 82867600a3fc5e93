"""Checkpoints: any state_dict in one safetensors file, written whole or not at all.

Tensors lie in the file under their path in the state (`/agent/policy/0.weight`); all the rest is
JSON in the metadata of the file. Nothing is pickled, so loading a checkpoint executes no code. The
files are plain safetensors (https://github.com/huggingface/safetensors), readable by any program.
They are written here, and not by the library, because the library wants every tensor in host
memory at once: here a replay buffer on the device streams to the disk piece by piece.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import torch
from pydantic import Field
from safetensors import SafetensorError, safe_open

from torchrl_gpu.arguments import checked
from torchrl_gpu.errors import ConfigurationError

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
_CHUNK_BYTES = 32 * 2**20
_NO_CHECKSUM = "00000000"
# The checksum is known only after the last tensor, so it stands first, at a place known beforehand.
_CHECKSUM_OFFSET = struct.calcsize("<Q") + len('{"__metadata__":{"checksum":"')
_PICKLE_SUFFIXES = {".pt", ".pth", ".pkl", ".pickle", ".zip", ".ckpt"}
_PICKLE_START = re.compile(rb"PK\x03\x04|\x80[\x02-\x05][^\x00]", re.DOTALL)
_PARTIAL = ".partial"

_log = logging.getLogger(__name__)


def save_state(path: Path, state: Mapping[Any, Any]) -> None:
    """Write `state` to `path`, replacing the file there only once the new one is whole.

    Args:
        path: the file to write, `*.safetensors`; its folder exists.
        state: nested mappings (keys: str or int), lists, tuples, None, bool, int, float, str and
            dense torch tensors of any shape, on any device. Tensors may share memory and need not
            be contiguous: each is written in full.

    Raises:
        TypeError: the state holds something else; the message names its path.
        ConfigurationError: the file cannot be written (disk full, no right); what was there stays.
    """
    tensors: dict[str, torch.Tensor] = {}
    tree = _encode(state, "", tensors)
    # Readers map the file: the widest element first keeps every tensor aligned.
    names = sorted(tensors, key=lambda name: -tensors[name].element_size())
    header = _header(tree, {name: tensors[name] for name in names})
    with atomic_file(path) as file:
        file.write(header)
        checksum = zlib.crc32(header)
        for name in names:
            for chunk in _chunks(tensors[name]):
                file.write(chunk)
                checksum = zlib.crc32(chunk, checksum)
        file.seek(_CHECKSUM_OFFSET)
        file.write(f"{checksum:08x}".encode())


def load_state(path: Path) -> dict[Any, Any]:
    """Read back what `save_state` wrote. No code of the file is executed.

    Args:
        path: the file to read.

    Returns:
        The state, with its tensors on the host.

    Raises:
        ConfigurationError: the file is missing, cut short, damaged, a pickle, no checkpoint of
            this package, or of a newer format.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigurationError(f"checkpoint {path}: there is no such file")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            _check_format(path, metadata)
            if _checksum(path) != metadata["checksum"]:
                raise ValueError("checksum")
            # A copy, because a mapped file cannot be replaced or deleted on Windows.
            return _decode(
                json.loads(metadata["state"]), lambda name: file.get_tensor(name).clone()
            )
    except ConfigurationError:
        raise
    except OSError as error:
        raise ConfigurationError(f"cannot read checkpoint {path}: {_reason(error)}") from error
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigurationError(_why_unreadable(path)) from error


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when the block ends, and only then.

    Args:
        path: the file to replace or create; its folder exists.

    Yields:
        The new file, open for writing bytes.

    Raises:
        ConfigurationError: it cannot be written. After this or any other exception in the block,
            `path` is what it was before and the new file is gone.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}{_PARTIAL}")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {_reason(error)}") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


class CheckpointFolder:
    """The checkpoints of one run: `frames_<frames>.safetensors`, rotated, the best one kept.

    The replay, large and of use only to go on training, lies in a file of its own beside the newest
    checkpoint. A folder that already holds checkpoints is continued. One run writes to a folder,
    and its frames only grow.

    Args:
        folder: where they lie; made by the first `save`.
        keep: how many of the newest stay, at least 1; the best one stays besides.
    """

    @checked
    def __init__(self, folder: Path, keep: Annotated[int, Field(ge=1)] = 3) -> None:
        self.folder = folder
        self.keep = keep

    def save(
        self,
        frames: int,
        state: Mapping[Any, Any],
        replay_state: Mapping[Any, Any] | None = None,
        score: float | None = None,
    ) -> Path:
        """Write the checkpoint of this moment, then delete those no longer kept.

        Args:
            frames: environment steps so far.
            state: what `save_state` takes.
            replay_state: the same, for the replay; written first, so that a checkpoint that is
                there is complete.
            score: of the evaluation, higher is better; of equal scores the later one is best.

        Returns:
            The file of `state`.

        Raises:
            TypeError: see `save_state`.
            ConfigurationError: it cannot be written; all former checkpoints are still there.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"cannot make {self.folder}: {_reason(error)}") from error
        for leftover in self.folder.glob(f".*{_PARTIAL}"):
            _discard(leftover)
        path = self._path(frames)
        if replay_state is not None:
            save_state(replay_path(path), replay_state)
        save_state(path, state)
        if score is not None:
            self._record(frames, score)
        self._rotate(path)
        return path

    def latest(self) -> Path | None:
        """Return the checkpoint with the most frames; None where there is none."""
        return max(self._checkpoints(), default=None)

    def best(self) -> Path | None:
        """Return the checkpoint with the highest score; None where none has one."""
        frames, _ = self._best_record()
        path = self._path(frames)
        return path if path.is_file() else None

    def _path(self, frames: int) -> Path:
        return self.folder / f"frames_{frames:012d}.safetensors"

    def _checkpoints(self) -> list[Path]:
        """Return the checkpoints, oldest first."""
        files = self.folder.glob("frames_*.safetensors")
        return sorted(file for file in files if re.fullmatch(r"frames_\d{12}", file.stem))

    def _best_record(self) -> tuple[int, float]:
        """Return frames and score of the best checkpoint; a score of -inf where none is known."""
        try:
            record = json.loads((self.folder / "best.json").read_text(encoding="utf-8"))
            return int(record["frames"]), float(record["score"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0, -math.inf

    def _record(self, frames: int, score: float) -> None:
        if score >= self._best_record()[1]:
            with atomic_file(self.folder / "best.json") as file:
                file.write(json.dumps({"frames": frames, "score": float(score)}).encode())

    def _rotate(self, saved: Path) -> None:
        checkpoints = self._checkpoints()
        kept = {saved, self.best(), *checkpoints[-self.keep :]}
        with_replay = {replay_path(saved), replay_path(checkpoints[-1])}
        for replay in set(self.folder.glob("frames_*_replay.safetensors")) - with_replay:
            _discard(replay)
        for checkpoint in set(checkpoints) - kept:
            _discard(checkpoint)


def replay_path(checkpoint: Path) -> Path:
    """Return where the replay that belongs to the file `checkpoint` lies, if it was saved."""
    return checkpoint.with_name(f"{checkpoint.stem}_replay.safetensors")


def find_checkpoint(path: Path | str, best: bool = False) -> Path:
    """Return the checkpoint file that a user's `checkpoint=` names.

    Args:
        path: a checkpoint file, a run folder (it has `checkpoints/`), or a folder of checkpoints.
        best: of a folder, take the one with the highest score, if any has one; else the newest.

    Raises:
        ConfigurationError: there is no checkpoint.
    """
    path = Path(path)
    if path.is_file():
        if path.stem.endswith("_replay"):
            main = path.with_name(path.name.replace("_replay", ""))
            raise ConfigurationError(f"checkpoint={path} holds the replay alone; name {main}")
        return path
    if not path.is_dir():
        raise ConfigurationError(f"checkpoint={path}: there is no such file or folder")
    inside = path / "checkpoints"
    folder = CheckpointFolder(inside if inside.is_dir() else path)
    found = (folder.best() if best else None) or folder.latest()
    if found is None:
        raise ConfigurationError(f"checkpoint={path}: no frames_*.safetensors in {folder.folder}")
    return found


def _encode(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return `value` as JSON, its tensors moved to `tensors` and replaced by their names."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        if value.dtype not in _DTYPES or value.layout != torch.strided or value.is_meta:
            kind = f"{value.layout} {value.dtype} tensor on {value.device}"
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
        f"{path}: cannot save a {type(value).__name__}; a state holds tensors, numbers, strings, "
        "None, lists, tuples and dicts"
    )


def _decode(node: Any, read: Callable[[str], torch.Tensor]) -> Any:
    """Undo `_encode`; `read` returns the tensor of a name."""
    if isinstance(node, list):
        return [_decode(entry, read) for entry in node]
    if not isinstance(node, dict):
        return node
    ((kind, content),) = node.items()
    if kind == "tensor":
        return read(content)
    if kind == "tuple":
        return tuple(_decode(entry, read) for entry in content)
    if kind == "dict":
        return {key: _decode(entry, read) for key, entry in content}
    raise ValueError(f"unknown kind {kind}")


def _header(tree: Any, tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Return the start of the file: the length of the JSON, then the JSON, padded to 8 bytes."""
    metadata = {
        "checksum": _NO_CHECKSUM,
        "format": FORMAT,
        "version": str(VERSION),
        "state": json.dumps(tree, separators=(",", ":")),
    }
    entries: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        dtype, shape = _DTYPES[tensor.dtype], list(tensor.shape)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _chunks(tensor: torch.Tensor) -> Iterator[memoryview]:
    """Yield the bytes of `tensor` in row-major order, one copied piece of a device's at a time."""
    flat = tensor.detach().contiguous().reshape(-1)
    for part in flat.split(_CHUNK_BYTES // flat.element_size()):
        if part.numel() > 0:
            yield memoryview(part.cpu().view(torch.uint8).numpy())


def _checksum(path: Path) -> str:
    """Return the CRC-32 of the file as it was before its checksum was filled in."""
    with path.open("rb") as file:
        start = bytearray(file.read(_CHECKSUM_OFFSET + len(_NO_CHECKSUM)))
        start[_CHECKSUM_OFFSET:] = _NO_CHECKSUM.encode()
        checksum = zlib.crc32(start)
        while chunk := file.read(_CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    return f"{checksum:08x}"


def _check_format(path: Path, metadata: Mapping[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise ConfigurationError(f"{path} is no checkpoint of torchrl-gpu, but another safetensors")
    if int(metadata["version"]) > VERSION:
        raise ConfigurationError(
            f"checkpoint {path} has format {metadata['version']}, this torchrl-gpu reads up to "
            f"{VERSION}: update torchrl-gpu"
        )


def _why_unreadable(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(8)
    if path.suffix.lower() in _PICKLE_SUFFIXES or _PICKLE_START.match(start):
        return f"{path} is a pickle: refused, because loading one can run code; name a .safetensors"
    return f"checkpoint {path} is cut short or damaged, or is no checkpoint of torchrl-gpu"


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut, where the system can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _discard(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("cannot delete %s: %s", path, _reason(error))
