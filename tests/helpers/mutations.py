"""Seeded damage of files: of their bytes, and of their contents in a form that is valid again."""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

# Spliced into the text, because the encoder of JSON refuses such depths.
_DEEP = "@deep@"

_SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "F16": 2, "BF16": 2, "I32": 4, "F32": 4}
_SIZES |= {"I64": 8, "F64": 8}
_FORMATS = {"F32": "f", "F64": "d", "I32": "i", "I64": "q", "U8": "B", "BOOL": "B", "I8": "b"}

_TEXTS = (
    *("", "x", "A" * 20_000, "\x00", "\ud800", "auto", "???", "nan", "1e999", "-1"),
    *("../../elsewhere", "/etc/passwd", "antigravity.X", "os.system", "this:CartPole-v1"),
    *("agents.base.Agent", "agents..SAC", "agents." + "a" * 5000, "trainers.run.main"),
    *("${oc.env:HOME}", "${agent.gamma}", "${trainer.total_frames}", "${", "x${agent.gamma}"),
    "${agent." * 60 + "gamma" + "}" * 60,
)
_KEYS: tuple[Any, ...] = ("__class__", "_target_", 0, -1, 10**30, None, True, 1.5, [], {})
_NUMBERS = (
    *(0, -1, 1, 2, 1000, 10**6, 10**9, 2**31, 2**63 - 1, 2**63, -(2**63), 10**18, 10**30, 10**300),
    *(0.5, -0.5, 1e-300, 1e30, 1e308, math.nan, math.inf, -math.inf, True, False),
)
_OTHER_TYPES: tuple[Any, ...] = (
    *(None, [], [None], {"dict": []}, {"tuple": []}, {"dict": 1}, {"other": 1}, {}),
)


class Mutation(NamedTuple):
    """A damaged file."""

    kind: str
    content: bytes


@dataclass
class StateFile:
    """Content of a state file, which can be changed and written again with a valid checksum.

    Attributes:
        metadata: metadata but for the checksum and the state.
        tree: the state as JSON.
        tensors: dtype, shape and bytes of each tensor by name.
        header: changes of the header, by the name of a tensor and its entry.
    """

    metadata: dict[str, Any]
    tree: Any
    tensors: dict[str, tuple[str, list[Any], bytes]]
    header: dict[tuple[str, str], Any]
    deep: str = ""

    @classmethod
    def read(cls, content: bytes) -> StateFile:
        """Return the content of a whole file."""
        start = 8 + struct.unpack("<Q", content[:8])[0]
        entries = json.loads(content[8:start])
        metadata = entries.pop("__metadata__")
        tensors = {}
        for name, entry in entries.items():
            begin, end = entry["data_offsets"]
            data = content[start + begin : start + end]
            tensors[name] = (entry["dtype"], entry["shape"], data)
        del metadata["checksum"]
        return cls(metadata, json.loads(metadata.pop("state")), tensors, {})

    def written(self) -> bytes:
        """Return the bytes of the file."""
        tree = json.dumps(self.tree).replace(f'"{_DEEP}"', self.deep)
        entries: dict[str, Any] = {
            "__metadata__": {"checksum": "00000000", **self.metadata, "state": tree}
        }
        end = 0
        for name, (dtype, shape, data) in self.tensors.items():
            begin, end = end, end + len(data)
            entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        for (name, entry), value in self.header.items():
            entries[name][entry] = value
        text = json.dumps(entries, separators=(",", ":")).encode()
        whole = struct.pack("<Q", len(text)) + text
        whole += b"".join(data for *_, data in self.tensors.values())
        return whole.replace(b"00000000", f"{zlib.crc32(whole):08x}".encode(), 1)


class _Slot(NamedTuple):
    """A place in a tree of JSON: an index of a list or dict."""

    holder: Any
    index: Any

    def get(self) -> Any:
        return self.holder[self.index]

    def put(self, value: Any) -> None:
        self.holder[self.index] = value


def mutate_state(content: bytes, other: bytes, random: Random) -> Mutation:
    """Return a damaged state file, parts of which may be those of another one."""
    if random.random() < 0.15:
        return _damage(content, other, random)
    file = StateFile.read(content)
    name, change = random.choice(_CHANGES)
    change(file, random)
    return Mutation(name, file.written())


def mutate_text(content: bytes, other: bytes, random: Random) -> Mutation:
    """Return a damaged text file: JSON, YAML or CSV. The arguments are those of `mutate_state`."""
    pieces = (
        *(b"\x00", b"\xff\xfe", b'"', b"[" * 100_000, b"{" * 5000, b"1e300", b"Infinity", b"NaN"),
        *(b"-1", b"9" * 5000, b",", b"," * 20_000, b"\n", b"\n" * 20_000, b"\r", b"null", b"true"),
        *(b"${oc.env:HOME}", b"a" * 200_000, b"\xed\xa0\x80", b"&a [*a]", b"!!python/name:os.x"),
    )
    if random.random() < 0.3:
        return _damage(content, other, random)
    words = [*_positions(content)]
    begin, end = random.choice(words) if words else (0, 0)
    piece = random.choice(pieces)
    return Mutation("text", content[:begin] + piece + content[end:])


def _positions(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield begin and end of every word of a text."""
    begin = None
    for index, byte in enumerate(content + b" "):
        is_word = chr(byte).isalnum() or byte in b".-_/"
        if is_word and begin is None:
            begin = index
        elif not is_word and begin is not None:
            yield begin, index
            begin = None


def _damage(content: bytes, other: bytes, random: Random) -> Mutation:
    """Damage the bytes of a file, which knows nothing of their meaning."""
    size = max(1, len(content))
    kind = random.choice(("flip", "flip", "cut", "empty", "longer", "splice", "length", "zeros"))
    damaged = bytearray(content)
    position = random.randrange(size)
    if kind == "flip":
        for _ in range(random.choice((1, 8))):
            if damaged:
                damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
    elif kind == "cut":
        del damaged[position:]
    elif kind == "empty":
        damaged.clear()
    elif kind == "longer":
        damaged += random.randbytes(random.choice((1, 1000)))
    elif kind == "splice":
        damaged[position:] = other[position:]
    elif kind == "length":
        damaged[:8] = struct.pack("<Q", random.choice((0, 2**16, 2**40, 2**63, 2**64 - 1)))
    else:
        damaged[position : position + 64] = bytes(64)
    return Mutation(kind, bytes(damaged))


def _slots(node: Any) -> list[_Slot]:
    """Return the places directly in a node."""
    if isinstance(node, list):
        return [_Slot(node, index) for index in range(len(node))]
    if isinstance(node, dict) and "dict" in node and isinstance(node["dict"], list):
        return [_Slot(pair, 1) for pair in node["dict"] if isinstance(pair, list) and pair[1:]]
    if isinstance(node, dict) and isinstance(node.get("tuple"), list):
        return _slots(node["tuple"])
    return []


def _slot(file: StateFile, random: Random) -> _Slot:
    """Return a place of the state, so that a long list counts no more than its neighbours."""
    slot = random.choice(_slots(file.tree))
    while (inner := _slots(slot.get())) and random.random() < 0.8:
        slot = random.choice(inner)
    return slot


def _pairs(file: StateFile, random: Random) -> list[Any]:
    """Return keys and values of one of the mappings of the state."""
    node = file.tree
    while True:
        inner = [slot.get() for slot in _slots(node) if _slots(slot.get())]
        if not inner or random.random() < 0.3:
            break
        node = random.choice(inner)
    return node["dict"] if isinstance(node, dict) and "dict" in node else file.tree["dict"]


def _tensor(file: StateFile, random: Random) -> str:
    """Return the name of a tensor, of each part of the state as often."""
    parts: dict[str, list[str]] = {}
    for name in file.tensors:
        parts.setdefault("/".join(name.split("/")[:3]), []).append(name)
    return random.choice(random.choice([*parts.values()]))


def _set(values: Sequence[Any], *kinds: type) -> Callable[[StateFile, Random], None]:
    """Return a change that puts one of some values in place of a value of a kind."""

    def change(file: StateFile, random: Random) -> None:
        for _ in range(1000):
            slot = _slot(file, random)
            if isinstance(slot.get(), kinds or object):
                break
        slot.put(random.choice(values))

    return change


def _swap(file: StateFile, random: Random) -> None:
    one, other = _slot(file, random), _slot(file, random)
    first, second = json.dumps(one.get()), json.dumps(other.get())
    one.put(json.loads(second))
    other.put(json.loads(first))


def _drop(file: StateFile, random: Random) -> None:
    pairs = _pairs(file, random)
    if pairs:
        del pairs[random.randrange(len(pairs))]


def _rename(file: StateFile, random: Random) -> None:
    pairs = _pairs(file, random)
    if pairs:
        random.choice(pairs)[0] = random.choice((*_TEXTS, *_KEYS))


def _add(file: StateFile, random: Random) -> None:
    keys: tuple[Any, ...] = (*_TEXTS, "_target_", "_args_", "name", "import", "frames", 7)
    value: Any = random.choice((*_TEXTS, *_NUMBERS, [], None, {"dict": []}))
    _pairs(file, random).append([random.choice(keys), value])


def _nest(file: StateFile, random: Random) -> None:
    depth = random.choice((30, 400, 900, 100_000))
    left, right = random.choice((("[", "]"), ('{"dict":[["a",', "]]}"), ('{"tuple":[', "]}")))
    file.deep = left * depth + "1" + right * depth
    _slot(file, random).put(_DEEP)


def _repeat(file: StateFile, random: Random) -> None:
    unit: Any = random.choice(("${trainer.total_frames}", 0, [], {"dict": []}, "a", None))
    count = random.choice((2000, 200_000))
    repeated = [unit] * count
    named = {"dict": [[f"k{index}", unit] for index in range(count)]}
    _slot(file, random).put(random.choice((repeated, named)))


def _long_names(file: StateFile, random: Random) -> None:
    inner = {"dict": [[str(index), index] for index in range(10_000)]}
    _pairs(file, random).append(["n" * 200_000, inner])


def _name_twice(file: StateFile, random: Random) -> None:
    node = {"tensor": _tensor(file, random)}
    _slot(file, random).put(random.choice((node, [node] * 2000)))


def _other_dtype(file: StateFile, random: Random) -> None:
    name = _tensor(file, random)
    dtype, shape, data = file.tensors[name]
    choices = [each for each, size in _SIZES.items() if each != dtype and size == _SIZES[dtype]]
    file.tensors[name] = (random.choice(choices or ["F32"]), shape, data)


def _other_shape(file: StateFile, random: Random) -> None:
    name = _tensor(file, random)
    dtype, shape, data = file.tensors[name]
    size, count = _SIZES[dtype], math.prod(shape)
    kind = random.randrange(6)
    if kind == 0:
        shape = [count]
    elif kind == 1:
        shape = [1] * random.choice((3, 70, 5000)) + shape
    elif kind == 2:
        shape, data = [1], data[:size].ljust(size, b"\0")
    elif kind == 3:
        shape, data = [], data[:size].ljust(size, b"\0")
    elif kind == 4:
        shape, data = random.choice(([0], [0, 2**40], [2**62, 2**62, 0])), b""
    else:
        shape, data = [2 * max(1, shape[0]), *shape[1:]] if shape else [2], data * 2
        data = data.ljust(math.prod(shape) * size, b"\0")
    file.tensors[name] = (dtype, shape, data)


def _lie(file: StateFile, random: Random) -> None:
    name = _tensor(file, random)
    shapes = ([2**32, 2**32], [2**62, 4], [-1, -4], [1.0], ["4"], [True], None, 4, [[1]], [2**70])
    offsets = ([0, 0], [0, 1e400], [-8, 0], [0, 2**70], ["0", "4"], None, [0], [1.5, 2.5], [8, 0])
    dtypes: tuple[Any, ...] = ("F8", "", None, [], "C64", "f32", 4)
    lies: dict[str, tuple[Any, ...]] = {"shape": shapes, "data_offsets": offsets, "dtype": dtypes}
    entry, values = random.choice([*lies.items()])
    file.header[name, entry] = random.choice(values)


def _overlap(file: StateFile, random: Random) -> None:
    """Let one tensor name the bytes of another of the same size."""
    begins, end = {}, 0
    for name, (*_, data) in file.tensors.items():
        begins[name], end = end, end + len(data)
    name = _tensor(file, random)
    size = len(file.tensors[name][2])
    same = [each for each, (*_, data) in file.tensors.items() if len(data) == size and each != name]
    if same:
        begin = begins[random.choice(same)]
        file.header[name, "data_offsets"] = [begin, begin + size]


def _values(file: StateFile, random: Random) -> None:
    """Fill one or all elements of a tensor with extreme numbers."""
    name = _tensor(file, random)
    dtype, shape, data = file.tensors[name]
    if dtype not in _FORMATS or not data:
        return
    floats = (math.nan, math.inf, -math.inf, 1e38, -1.0, 0.0)
    ends = {"I32": 2**31, "I64": 2**63, "I8": 2**7}
    whole = (-1, -ends[dtype], ends[dtype] - 1, 0, 100) if dtype in ends else (0, 255, 2)
    value = random.choice(floats if dtype[0] == "F" else whole)
    piece, size = struct.pack("<" + _FORMATS[dtype], value), _SIZES[dtype]
    index = random.randrange(len(data) // size) * size
    one = data[:index] + piece + data[index + size :]
    everywhere = piece * (len(data) // size)
    file.tensors[name] = (dtype, shape, random.choice((one, everywhere)))


def _foreign_tensor(file: StateFile, random: Random) -> None:
    name = random.choice(("", "/foreign", "../../elsewhere", "A" * 20_000, "\x00"))
    file.tensors[name] = ("F32", [2], bytes(8))
    if random.random() < 0.5:
        _slot(file, random).put({"tensor": name})


def _metadata(file: StateFile, random: Random) -> None:
    name = random.choice(("version", "format", "other"))
    file.metadata[name] = random.choice((*_TEXTS, "0", "9" * 4000, "9" * 10_000, None, 1, [], {}))


_CHANGES: list[tuple[str, Callable[[StateFile, Random], None]]] = [
    ("huge number", _set(_NUMBERS, int, float)),
    ("huge number", _set(_NUMBERS, int, float)),
    ("number anywhere", _set(_NUMBERS)),
    ("text", _set(_TEXTS, str)),
    ("text anywhere", _set(_TEXTS)),
    ("wrong type", _set(_OTHER_TYPES)),
    ("swap", _swap),
    ("drop", _drop),
    ("drop", _drop),
    ("rename", _rename),
    ("add", _add),
    ("deep nesting", _nest),
    ("many values", _repeat),
    ("long names", _long_names),
    ("tensor named again", _name_twice),
    ("dtype", _other_dtype),
    ("shape", _other_shape),
    ("shape", _other_shape),
    ("header of a tensor", _lie),
    ("overlapping tensors", _overlap),
    ("extreme numbers", _values),
    ("extreme numbers", _values),
    ("foreign tensor", _foreign_tensor),
    ("metadata", _metadata),
]
