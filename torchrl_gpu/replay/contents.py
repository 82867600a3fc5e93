"""Contents of a replay buffer, most of them in rings: saved in parts, checked and restored."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from torchrl_gpu.checkpoints.checkpoint import ReplayPart
from torchrl_gpu.checkpoints.tensors import Pieces, StoredTensor, restore, values_of
from torchrl_gpu.devices.memory import named
from torchrl_gpu.errors import ConfigurationError, shortened
from torchrl_gpu.replay.storage import StorageSpec

State = Mapping[str, Tensor | StoredTensor]

# More steps, rows or transitions than any run has.
_MOST = 2**48


@dataclass(frozen=True)
class Ring:
    """Places of numbered entries in a tensor: number `n` is in slot `n % size`."""

    size: int  # number of slots, those at the front of the tensor
    per_step: int  # greatest number of entries that one step of the environments writes

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


class Contents:
    """The tensors of a replay buffer: three rings, and counters of the writes to them.

    Their names are those of `StorageSpec.zeros`; others may be added.
    """

    def __init__(
        self, tensors: dict[str, Tensor], spec: StorageSpec, capacity: int, setting: str
    ) -> None:
        self._tensors, self._spec = tensors, spec
        self._capacity, self._setting = capacity, setting
        self._rings = {
            "rows": Ring(capacity, 2 * spec.num_envs),
            "steps": Ring(capacity // spec.num_envs, 1),
            "places": Ring(spec.places(capacity), spec.num_envs),
        }

    def part(self, since: tuple[int, ...] = ()) -> ReplayPart:
        """Return the contents to save, or those since an earlier part: see `ReplayBuffer.part`."""
        written = self._written(self._tensors)
        if len(since) != len(written) or since > (*written.values(),):
            since = ()
        oldest = {name: ring.oldest(written[name]) for name, ring in self._rings.items()}
        first = dict(zip(self._rings, map(max, since or (0, 0, 0), oldest.values()), strict=True))
        # Steps before one overwrites an entry of the part. If they are few, the entries that the
        # next steps overwrite are copied.
        steps = min(
            (ring.size - (written[name] - first[name])) // ring.per_step
            for name, ring in self._rings.items()
        )
        copied = max(0, self._rings["steps"].size // 50 - steps)
        state: dict[str, Tensor | Pieces] = {}
        for name, tensor in self._tensors.items():
            if (kind := self._kind(name)) is None:
                state[name] = tensor.clone()
                continue
            ring, start, stop = self._rings[kind], first[kind], written[kind]
            live = min(start + copied * ring.per_step, stop)
            copies = (view.clone() for view in ring.entries(tensor, start, live))
            state[name] = Pieces((*copies, *ring.entries(tensor, live, stop)))
        return ReplayPart(state, since, (*written.values(),), (*oldest.values(),), steps + copied)

    def load(self, states: Sequence[State]) -> None:
        """Restore the states of consecutive parts, oldest first, each of which passed `check`.

        Raises:
            ConfigurationError: they do not make up the contents of a buffer; it stays as it was.
        """
        written = [self._written(state) for state in states]
        in_rings = {name: kind for name in self._tensors if (kind := self._kind(name))}
        for name, kind in in_rings.items():
            counts = [state[name].shape[0] for state in states]
            if not self._rings[kind].is_complete(counts, [each[kind] for each in written]):
                raise ConfigurationError(
                    f"the saved replay is damaged: it lacks some of its {name}"
                )
        for name, tensor in self._tensors.items():
            parts = [state[name] for state in states]
            if (kind := in_rings.get(name)) is None:
                restore(tensor, parts[-1])
            else:
                self._rings[kind].restore(tensor, parts, [each[kind] for each in written])

    def check(self, state: State) -> None:
        """Refuse a state of another capacity or other specs, or whose numbers exceed the buffer."""
        for name in sorted(self._tensors.keys() | state.keys(), key=str):
            is_ring = name in self._tensors and self._kind(name) is not None
            saved, own = (_describe(each.get(name), is_ring) for each in (state, self._tensors))
            if saved != own:
                raise ConfigurationError(
                    f"the saved replay has {shortened(str(name))}: {saved}; this one: {own}"
                )
        if (capacity := int(values_of(state["capacity"]))) != self._capacity:
            raise ConfigurationError(
                f"{named(self._setting, self._capacity)}: the saved replay has {capacity}"
            )
        written, num_envs = self._written(state), self._spec.num_envs
        ranges = {
            "current_row": (-num_envs, _MOST),
            "next_step": (0, _MOST),
            "next_transition": (0, _MOST),
            "places": (0, self._rings["places"].size - 1),
            "oldest_steps": (0, written["steps"] + 1),
            "steps.slots": (0, self._capacity - 1),
            "steps.age": (0, self._spec.history),
            "steps.first_transition": (0, written["places"]),
            "steps.first_row": (-num_envs, written["rows"]),
        }
        if not self._spec.stacks:
            del ranges["steps.age"]
        for name, (low, high) in ranges.items():
            values = values_of(state[name])
            if values.numel() and not low <= int(values.min()) <= int(values.max()) <= high:
                raise ConfigurationError(
                    f"the saved replay is damaged: {name} holds numbers beyond {low} to {high}"
                )

    def _kind(self, name: str) -> str | None:
        """Return the ring that a tensor belongs to; None for a counter."""
        kind = name.partition(".")[0]
        return kind if kind in self._rings else None

    def _written(self, state: State) -> dict[str, int]:
        """Return the number of entries written to each ring until a state."""
        names = ("current_row", "next_step", "next_transition")
        newest_row, steps, places = (int(values_of(state[name])[-1]) for name in names)
        return {"rows": newest_row + 1, "steps": steps, "places": places}


def _describe(tensor: Tensor | StoredTensor | None, is_ring: bool) -> str:
    """Return dtype and shape of a tensor, or of the entries of a ring."""
    if not isinstance(tensor, Tensor | StoredTensor) or (is_ring and not tensor.shape):
        return "missing"
    shape = list(tensor.shape[1:] if is_ring else tensor.shape)
    return f"{tensor.dtype} {shortened(str(shape))}"
