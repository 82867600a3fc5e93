import collections
import errno
import json
import math
import os
import pickle
import stat
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import safetensors.torch
import torch

from tests.helpers.files import files_limited_to, names
from tests.helpers.forks import result_of
from tests.helpers.memory import needs_peak, peak_memory
from torchrl_gpu.checkpoints.files import atomic_file
from torchrl_gpu.checkpoints.state_file import _checksum, load_state, open_state, save_state
from torchrl_gpu.errors import ConfigurationError

pytestmark = pytest.mark.directml


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "frames_000000000100.safetensors"


# Round trip


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -(2**80),
        0.1,
        math.inf,
        -math.inf,
        5e-324,
        "",
        'ä "quoted"\n\x00 \ud800',
        [],
        {},
        (),
        [1, [2.0, (3, None)], {"a": [False]}],
        {0: "int", "0": "str", -1: {}},
        {"tensor": "a name", "dict": 1, "tuple": [1]},
    ],
)
def test_plain_values_keep_value_and_type(path: Path, value: object) -> None:
    save_state(path, {"value": value})
    assert repr(load_state(path)) == repr({"value": value})


def test_nan_and_negative_zero_are_preserved(path: Path) -> None:
    save_state(path, {"nan": math.nan, "zero": -0.0})
    state = load_state(path)
    assert math.isnan(state["nan"])
    assert math.copysign(1, state["zero"]) == -1


def test_subclasses_of_plain_types_load_as_the_plain_type(path: Path) -> None:
    pair = collections.namedtuple("pair", "a b")
    state = {"pair": pair(1, 2), "float": np.float64(0.1), "dict": collections.OrderedDict(a=1)}
    save_state(path, state)
    assert load_state(path) == {"pair": (1, 2), "float": 0.1, "dict": {"a": 1}}
    assert type(load_state(path)["float"]) is float


TENSORS = {
    "0-dim": torch.tensor(1.5),
    "empty": torch.empty(0, 3, dtype=torch.int32),
    "bool": torch.tensor([True, False]),
    "uint8": torch.arange(255, dtype=torch.uint8),
    "uint16": torch.tensor([2**16 - 1], dtype=torch.uint16),
    "int64": torch.tensor([-(2**63), 2**63 - 1]),
    "bfloat16": torch.randn(7).bfloat16(),
    "float16": torch.randn(3, 5).half(),
    "float64 nan": torch.tensor([math.nan, math.inf, 5e-324], dtype=torch.float64),
    "transposed": torch.randn(4, 3).t(),
    "every second": torch.arange(10)[1::2],
    "expanded": torch.arange(3).expand(4, 3),
    "parameter": torch.nn.Parameter(torch.randn(2, 2)),
}


def test_tensors_load_bit_by_bit(path: Path) -> None:
    save_state(path, TENSORS)
    loaded = load_state(path)
    assert list(loaded) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert loaded[name].dtype == tensor.dtype, name
        assert loaded[name].shape == tensor.shape, name
        assert loaded[name].is_contiguous()
        saved_bytes, loaded_bytes = (
            t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (tensor, loaded[name])
        )
        assert torch.equal(saved_bytes, loaded_bytes), name


def test_one_element_of_any_stride_is_saved(path: Path) -> None:
    expanded = torch.full((1,), 1.5).expand(4)[:1]
    assert expanded.stride() == (0,)
    save_state(path, {"one": expanded, "nested": expanded.expand(1, 1)})
    loaded = load_state(path)
    assert loaded["one"].tolist() == [1.5]
    assert loaded["nested"].tolist() == [[1.5]]


def test_tensors_that_share_memory_are_each_written_in_full(path: Path) -> None:
    base = torch.arange(6.0)
    save_state(path, {"a": base, "again": base, "part": base[2:4]})
    loaded = load_state(path)
    assert torch.equal(loaded["again"], base)
    assert torch.equal(loaded["part"], base[2:4])
    loaded["a"].zero_()
    assert torch.equal(loaded["again"], base)


def test_keys_with_the_same_path_stay_distinct(path: Path) -> None:
    one, two, three, four = torch.arange(4).unbind()
    state = {1: one, "1": two, "a/b": three, "a": {"b": four}, "__metadata__": one, "": two}
    save_state(path, state)
    assert load_state(path) == state


def test_the_file_is_plain_safetensors(path: Path) -> None:
    save_state(path, {"agent": {"weight": torch.ones(2)}, "flags": torch.tensor([True] * 3)})
    tensors = safetensors.torch.load_file(path)
    assert torch.equal(tensors["/agent/weight"], torch.ones(2))
    assert torch.equal(tensors["/flags"], torch.tensor([True] * 3))


def test_every_tensor_in_the_file_is_aligned_to_its_element_size(path: Path) -> None:
    save_state(path, {"bytes": torch.ones(3, dtype=torch.uint8), **TENSORS})
    whole = path.read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8 : 8 + length])
    assert length % 8 == 0
    for name, tensor in TENSORS.items():
        assert header[f"/{name}"]["data_offsets"][0] % tensor.element_size() == 0, name


def test_loaded_tensors_do_not_depend_on_the_file(path: Path) -> None:
    tensor = torch.arange(10_000.0)
    save_state(path, {"a": tensor})
    loaded = load_state(path)["a"]
    with path.open("r+b") as file:
        file.write(b"x" * path.stat().st_size)
    assert torch.equal(loaded, tensor)


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"a": {"b": [0, object()]}}, "/a/b/1"),
        ({"a": len}, "/a"),
        ({"a": torch.device("cpu")}, "/a"),
        ({"a": np.zeros(3)}, "/a"),
        ({"a": np.int64(3)}, "/a"),
        ({"a": {1, 2}}, "/a"),
        ({"a": b"bytes"}, "/a"),
        ({"a": {(1, 2): 3}}, r"/a/\(1, 2\)"),
        ({"a": {True: 3}}, "/a/True"),
        ({"a": torch.zeros(2, dtype=torch.complex64)}, "/a"),
        ({"a": torch.eye(2).to_sparse()}, "/a"),
        ({"a": torch.zeros(2, device="meta")}, "/a"),
    ],
)
def test_an_unsupported_value_is_rejected_by_its_path(path: Path, state: dict, where: str) -> None:
    save_state(path, {"before": 1})
    with pytest.raises(TypeError, match=f"^{where}: cannot save"):
        save_state(path, state)
    assert load_state(path) == {"before": 1}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tensors_of_a_device_load_on_the_host(path: Path) -> None:
    tensor = torch.randn(3, 5, device="cuda").t()
    save_state(path, {"a": tensor})
    assert torch.equal(load_state(path)["a"], tensor.cpu())


@needs_peak
def test_saving_copies_no_large_tensor_as_a_whole(path: Path) -> None:

    def more_memory() -> int:
        mock.patch.object(os, "fsync").start()
        state = {"replay": torch.ones(200_000_000, dtype=torch.uint8)}
        before = peak_memory()
        save_state(path, state)
        return peak_memory() - before

    assert result_of(more_memory) < 100 * 2**20  # bytes, of 190 MiB
    path.unlink()


def test_a_tensor_is_read_piece_by_piece_into_another(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchrl_gpu.checkpoints.tensors._CHUNK_BYTES", 40)
    save_state(path, {"a": TENSORS, "b": [1]})
    state = open_state(path)
    assert state["b"] == [1]
    for name, tensor in TENSORS.items():
        stored = state["a"][name]
        assert (stored.dtype, stored.shape) == (tensor.dtype, tensor.shape)
        target = torch.zeros_like(tensor, memory_format=torch.contiguous_format)
        stored.copy_to(target)
        expected = tensor.detach().contiguous()
        assert torch.equal(target.view(-1).view(torch.uint8), expected.view(-1).view(torch.uint8))


def test_a_file_that_changes_before_a_tensor_is_read_is_refused(path: Path) -> None:
    save_state(path, {"a": torch.arange(100.0)})
    stored = open_state(path)["a"]
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ConfigurationError, match="ends too early"):
        stored.read()
    path.unlink()
    with pytest.raises(ConfigurationError, match="No such file"):
        stored.read()


# Unusable files

# Beyond the nesting that a file may have; Python 3.11 reads as deep a list in a test, but not more.
DEEP = 900 if sys.version_info < (3, 12) else 990


@pytest.mark.parametrize(
    "change",
    [
        lambda header, tree: tree["dict"].append(["again", {"tensor": "/a"}]),
        lambda header, tree: header.update({"/b": header["/a"]}),
        lambda header, tree: header["/a"].update(data_offsets=[-32, 0]),
        lambda header, tree: header["/a"].update(data_offsets=[0, 1e400]),
        lambda header, tree: header["/a"].update(shape=[-2, -4]),
        lambda header, tree: header["/a"].update(shape=[2**70]),
        lambda header, tree: header["/a"].update(dtype=[]),
        lambda header, tree: header["/a"].update(shape=[2.0, 4]),
        lambda header, tree: header["/a"].update(shape=[1] * 100 + [8]),
        lambda header, tree: header["/b"].update(data_offsets=[0, 8]),
        lambda header, tree: header["/b"].update(shape=[2**62, 2**62, 0]),
        lambda header, tree: tree["dict"].pop(),
        lambda header, tree: tree["dict"].append([None, 1]),
        lambda header, tree: tree["dict"].append(["deep", json.loads("[" * DEEP + "]" * DEEP)]),
        lambda header, tree: tree["dict"].append(["many", [0] * 600_000]),
        lambda header, tree: header["__metadata__"].update(version="two"),
        lambda header, tree: header.update(__metadata__=[]),
    ],
)
def test_a_header_that_names_other_bytes_is_rejected(
    change: Callable[[dict[str, Any], dict[str, Any]], None], path: Path
) -> None:
    save_state(path, {"a": torch.arange(8.0), "b": torch.arange(2.0)})
    whole = path.read_bytes()
    start = 8 + struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8:start])
    tree = json.loads(header["__metadata__"]["state"])
    header["__metadata__"]["state"] = ""
    change(header, tree)
    if isinstance(header["__metadata__"], dict):
        header["__metadata__"]["state"] = json.dumps(tree)
    text = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + whole[start:])
    if isinstance(header["__metadata__"], dict):  # with the checksum that the file ought to have
        header["__metadata__"]["checksum"] = _checksum(path)
        text = json.dumps(header, separators=(",", ":")).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + whole[start:])
    with pytest.raises(ConfigurationError, match="truncated or damaged"):
        load_state(path)


def test_more_values_than_a_file_may_hold_are_not_saved(path: Path) -> None:
    save_state(path, {"before": 1})
    for state in ({"a": [0] * 600_000}, {"a": "a" * 2**24}):
        with pytest.raises(TypeError, match="save long sequences of numbers as tensors"):
            save_state(path, state)
    assert load_state(path) == {"before": 1}


def test_a_path_without_a_file_is_rejected(tmp_path: Path) -> None:
    for missing in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(ConfigurationError, match="file not found"):
            load_state(missing)
    with pytest.raises(ConfigurationError, match=r"cannot read checkpoint .*: File name too long"):
        load_state(tmp_path / ("x" * 300))


def test_a_truncated_file_is_rejected_at_every_length(path: Path, tmp_path: Path) -> None:
    save_state(path, {"a": torch.arange(100.0), "b": 1})
    whole = path.read_bytes()
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    cut = tmp_path / "cut.safetensors"
    for length in (0, 1, 7, 8, 9, 100, header - 1, header, header + 1, len(whole) - 1):
        cut.write_bytes(whole[:length])
        with pytest.raises(ConfigurationError, match="truncated or damaged") as caught:
            load_state(cut)
        assert str(cut) in str(caught.value)


def test_one_changed_bit_is_detected_at_every_position(path: Path) -> None:
    save_state(path, {"a": torch.arange(8.0), "b": 1})
    whole = path.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ConfigurationError):
            load_state(path)


class _Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("kind", ["torch.save", "legacy torch.save", "pickle", "zip"])
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_pickle_is_rejected_without_being_loaded(tmp_path: Path, kind: str, suffix: str) -> None:
    ran = tmp_path / "ran"
    content = {"weights": torch.ones(2), "bomb": _Bomb(ran)}
    path = tmp_path / f"model{suffix}"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(_Bomb(ran)))
    elif kind == "zip":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("data.pkl", pickle.dumps(_Bomb(ran)))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=kind == "torch.save")
    with pytest.raises(ConfigurationError, match=r"pickle.*can run code"):
        load_state(path)
    assert not ran.exists()


def test_a_pickle_without_magic_bytes_is_recognised_by_its_suffix(tmp_path: Path) -> None:
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps([1, 2], protocol=0))
    with pytest.raises(ConfigurationError, match="pickle"):
        load_state(path)


def test_safetensors_of_another_program_are_rejected(path: Path) -> None:
    safetensors.torch.save_file({"a": torch.ones(1)}, path, metadata={"format": "pt"})
    with pytest.raises(ConfigurationError, match="not a checkpoint of torchrl-gpu"):
        load_state(path)


def test_a_newer_format_is_rejected(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("torchrl_gpu.checkpoints.state_file.VERSION", 2)
        save_state(path, {"a": 1})
    with pytest.raises(ConfigurationError, match=r"format 2.*up to 1.*update"):
        load_state(path)


# Writing


def test_overwriting_replaces_the_whole_file(path: Path) -> None:
    save_state(path, {"a": torch.ones(100)})
    save_state(path, {"b": 2})
    assert load_state(path) == {"b": 2}
    assert names(path.parent) == [path.name]


def test_a_full_disk_leaves_the_old_file_intact(path: Path) -> None:
    save_state(path, {"a": 1})
    with (
        files_limited_to(50_000),
        pytest.raises(ConfigurationError, match=r"cannot write .*File too large"),
    ):
        save_state(path, {"a": torch.zeros(100_000)})
    assert load_state(path) == {"a": 1}
    assert names(path.parent) == [path.name]


@pytest.mark.parametrize(
    ("owner", "name", "error", "message"),
    [
        (os, "fsync", OSError(errno.ENOSPC, "no space"), "no space"),
        (Path, "replace", PermissionError(errno.EACCES, "in use"), "in use"),
    ],
)
def test_a_failing_write_leaves_the_old_file_intact(
    owner: object,
    name: str,
    error: OSError,
    message: str,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save_state(path, {"a": 1})

    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(owner, name, fail)
    with pytest.raises(ConfigurationError, match=f"cannot write .*{message}"):
        save_state(path, {"a": 2})
    assert load_state(path) == {"a": 1}
    assert names(path.parent) == [path.name]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_a_file_system_that_cannot_sync_folders_is_written_to(
    code: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def sync_files_only(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, "folder")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", sync_files_only)
    if code == errno.EIO:
        with pytest.raises(ConfigurationError, match=r"cannot write .*folder"):
            save_state(path, {"a": 1})
    else:
        save_state(path, {"a": 1})
    assert load_state(path) == {"a": 1}


def test_an_exception_while_writing_leaves_the_file_unchanged(tmp_path: Path) -> None:
    target = tmp_path / "best.json"
    target.write_bytes(b"old")

    def interrupted() -> None:
        with atomic_file(target) as file:
            file.write(b"half of the ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["best.json"]
