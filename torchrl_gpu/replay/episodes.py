"""Episodes as data: cut from batched steps, and stored in a replay buffer."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from torchrl_gpu.replay.buffer import ReplayBuffer


@dataclass(frozen=True, eq=False)
class Episode:
    """Consecutive transitions of one environment, or one robot, on the host.

    Attributes:
        observations: observations `[T + 1, ...]` by name, nested keys joined by dots; the last one
            is that after the last action.
        action: continuous actions `[T, action_dim]`, or row numbers of an action table `[T]` int64.
        reward: rewards `[T]` float32.
        terminated: whether the episode terminated with the step, bool `[T]`.
        truncated: whether a time limit ended it, bool `[T]`. Neither holds in the last step of a
            stretch that the data breaks off.
        success: whether the task was solved, bool `[T]`; None if that is unknown.
    """

    observations: Mapping[str, Tensor]
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    success: Tensor | None = None

    def __len__(self) -> int:
        """Return the number of transitions."""
        return len(self.action)

    def transitions(self) -> TensorDict:
        """Return the transitions `[T]` in TorchRL's layout, flags and rewards `[T, 1]`."""
        after: dict[Any, Tensor] = {
            "reward": self.reward.unsqueeze(1),
            "terminated": self.terminated.unsqueeze(1),
            "truncated": self.truncated.unsqueeze(1),
            "done": (self.terminated | self.truncated).unsqueeze(1),
        }
        if self.success is not None:
            after["success"] = self.success.unsqueeze(1)
        transitions = TensorDict({"action": self.action, "next": after}, [len(self)])
        for name, observed in self.observations.items():
            key = tuple(name.split("."))
            transitions.set(key, observed[:-1])
            transitions.set(("next", *key), observed[1:])
        return transitions


class EpisodeCutter:
    """Cuts batched steps into the episodes of their rows, with observations of some names."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(names)
        # Steps of the open episode of each row, and for each of them its tensors of all rows.
        self._open: list[list[dict[str, Tensor]]] = []

    def add(self, step: TensorDictBase, counts: Tensor | None = None) -> Iterator[Episode]:
        """Add one step, and yield the episodes that end with it, or ended before it.

        Args:
            step: transitions `[R]` in TorchRL's layout, which are copied. Rows whose `active` is
                false are left out.
            counts: rows to keep, bool `[R]`; None for all.
        """
        tensors = self._tensors(step)
        rows = len(tensors["reward"])
        self._open = self._open or [[] for _ in range(rows)]
        kept = torch.ones(rows, dtype=torch.bool) if counts is None else counts.cpu()
        if (active := step.get("active", None)) is not None:
            kept = kept & active.cpu().reshape(rows)
        done = (tensors["terminated"] | tensors["truncated"]).tolist()
        for row, is_kept in enumerate(kept.tolist()):
            if self._open[row] and not (is_kept and self._follows(tensors, row)):
                yield self._closed(row)
            if is_kept:
                self._open[row].append(tensors)
                if done[row]:
                    yield self._closed(row)

    def rest(self) -> Iterator[Episode]:
        """Yield the open episodes, which end without a flag."""
        for row, steps in enumerate(self._open):
            if steps:
                yield self._closed(row)

    def _tensors(self, step: TensorDictBase) -> dict[str, Tensor]:
        """Return copies of the tensors of a step on the host: flags and rewards `[R]`."""
        after, rows = step.get("next"), step.numel()
        outcome = ("reward", "terminated", "truncated", "success")
        found = {name: after.get(name, None) for name in outcome}
        tensors = {name: x.reshape(rows) for name, x in found.items() if x is not None}
        tensors["action"] = step["action"]
        for name in self._names:
            key = tuple(name.split("."))
            tensors[f"observed.{name}"], tensors[f"next.{name}"] = step[key], after[key]
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}

    def _follows(self, tensors: Mapping[str, Tensor], row: int) -> bool:
        before = self._open[row][-1]
        return all(
            torch.equal(before[f"next.{n}"][row], tensors[f"observed.{n}"][row])
            for n in self._names
        )

    def _closed(self, row: int) -> Episode:
        steps, self._open[row] = self._open[row], []

        def column(name: str) -> Tensor:
            return torch.stack([each[name][row] for each in steps])

        observations = {}
        for name in self._names:
            last = steps[-1][f"next.{name}"][row].unsqueeze(0)
            observations[name] = torch.cat((column(f"observed.{name}"), last))
        names = ("action", "reward", "terminated", "truncated", "success")
        return Episode(observations, **{n: column(n) for n in names if n in steps[0]})


def episodes_of(buffer: ReplayBuffer) -> Iterator[Episode]:
    """Yield the episodes in a replay buffer, and the stretches of those that it holds in part.

    Transitions that cannot be sampled are left out.
    """
    cutter = EpisodeCutter(buffer.observation_names)
    for age in range(buffer.complete_steps, 0, -1):
        yield from cutter.add(buffer.step_of_age(age))
    yield from cutter.rest()


def fill(buffer: ReplayBuffer, episodes: Iterable[Episode]) -> None:
    """Store episodes one after the other in a replay buffer of one environment."""
    for episode in episodes:
        buffer.extend(episode.transitions().to(buffer.device).unsqueeze(0))


def rows_needed(episodes: Iterable[Episode], frames: int = 1) -> int:
    """Return the capacity of a replay buffer of one environment that keeps all of some episodes.

    The longest stack among the observations has `frames` frames.
    """
    return max(sum(len(each) + 1 for each in episodes) + frames, 2 * frames + 1)
