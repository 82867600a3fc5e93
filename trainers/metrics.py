"""Metrics of updates and episodes, summed on the device and read back in one transfer."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_gpu.checkpoints.contents import check_count, check_like
from torchrl_gpu.environments.environment import Environment, name_of
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.processes import ONE_PROCESS, Processes


class Reading(NamedTuple):
    """Metrics whose values are still on a device.

    Attributes:
        values: values on the device, float32 `[K]`.
        metrics: returns the metrics by name, given the values as numbers.
    """

    values: Tensor
    metrics: Callable[[Sequence[float]], dict[str, float]]


def read(*readings: Reading) -> dict[str, float]:
    """Return the metrics of all readings, in one transfer from each device."""
    streams: dict[torch.device, Iterator[float]] = {}
    for device in {reading.values.device for reading in readings if len(reading.values)}:
        together = [reading.values for reading in readings if reading.values.device == device]
        streams[device] = iter(torch.cat(together).tolist())
    metrics: dict[str, float] = {}
    for values, function in readings:
        metrics |= function(list(islice(streams.get(values.device, iter(())), len(values))))
    return metrics


def reading_of(metrics: Mapping[str, float | Tensor]) -> Reading:
    """Return the reading of scalars by name, numbers or tensors `[]` on one device."""
    tensors = {name: value for name, value in metrics.items() if isinstance(value, Tensor)}
    numbers = {name: value for name, value in metrics.items() if not isinstance(value, Tensor)}
    values = torch.stack(tuple(tensors.values())).to(torch.float32) if tensors else torch.empty(0)
    return Reading(values, lambda read: {**numbers, **dict(zip(tensors, read, strict=True))})


def metrics_of(env: Environment, processes: Processes) -> Reading:
    """Return the reading of the metrics of an environment in all processes.

    Its counters are added. Each other metric is averaged over the processes that have it; those
    that the process of rank 0 lacks are left out.

    Raises:
        ConfigurationError: a metric has a shape.
    """
    metrics = env.metrics()
    for name, value in metrics.items():
        if isinstance(value, Tensor) and value.ndim:
            raise ConfigurationError(
                f"env: {name} of {name_of(env)}.metrics has to be a number or a tensor [], not "
                f"{list(value.shape)}"
            )
    if processes.count == 1:
        return reading_of(metrics)
    # Not every process has the same ones, but all have to exchange as many numbers.
    names: list[str] = processes.agree(list(metrics))
    if not names:
        return reading_of({})
    rows = torch.zeros(2, len(names), device=env.device)
    for number, name in enumerate(names):
        if name in metrics:
            rows[0, number], rows[1, number] = metrics[name], 1
    sums, counts = processes.sum(rows)
    values = zip(names, sums, counts, strict=True)
    return reading_of({n: x if n in env.counters else x / count for n, x, count in values})


class MetricAccumulator:
    """Averages the metrics of many updates on the device."""

    def __init__(self) -> None:
        # One running sum per set of names: an agent may report some metrics only every few updates.
        self._sums: dict[tuple[str, ...], Tensor] = {}
        self._counts: Counter[tuple[str, ...]] = Counter()

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        """Add the metrics of one update, without a transfer to the host.

        Args:
            metrics: detached scalars `[]` by name, all on one device; they are copied, so that the
                next update may overwrite them.
        """
        names = tuple(metrics)
        values = torch.stack(tuple(metrics.values())).to(torch.float32)
        self._counts[names] += 1
        if names in self._sums:
            self._sums[names].add_(values)
        else:
            self._sums[names] = values

    def take(self) -> Reading:
        """Return the mean of each metric over the updates that reported it; reset all sums."""
        keys = [(name, names) for names in self._sums for name in names]
        counts, self._counts = self._counts, Counter()
        sums, self._sums = self._sums, {}

        def means(values: Sequence[float]) -> dict[str, float]:
            totals: dict[str, float] = defaultdict(float)
            updates: dict[str, int] = defaultdict(int)
            for (name, names), total in zip(keys, values, strict=True):
                totals[name] += total
                updates[name] += counts[names]
            return {name: total / updates[name] for name, total in totals.items()}

        return Reading(torch.cat(tuple(sums.values())) if sums else torch.empty(0), means)

    def state_dict(self) -> list[dict[str, Any]]:
        """Return names, sums and count of each set of metrics, as copies of the tensors."""
        return [
            {"names": list(names), "sums": sums.clone(), "count": self._counts[names]}
            for names, sums in self._sums.items()
        ]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]], device: torch.device) -> None:
        """Continue from `state_dict()` on the device of the metrics to come."""
        self.check_state(state)
        self._sums = {tuple(each["names"]): each["sums"].to(device) for each in state}
        self._counts = Counter({tuple(each["names"]): each["count"] for each in state})

    @staticmethod
    def check_state(state: Any) -> None:
        """Refuse a state that `state_dict` cannot have returned."""
        check_like(state, [None] * len(state), "update_metrics")
        for each in state:
            names = each["names"]
            check_like(names, [""] * len(names), "update_metrics, names")
            check_like(each["sums"], torch.zeros(len(names)), "update_metrics, sums")
            check_count(each["count"], "update_metrics, count")


class EpisodeStatistics:
    """Averages return, length and success of the episodes of a batch, on the device.

    Args:
        num_envs: number N of environments (or robots) in the batch, at least 1.
        device: device of rewards and done flags.
        processes: processes whose episodes count too, each with as many environments.
    """

    def __init__(
        self,
        num_envs: int,
        device: torch.device | str,
        processes: Processes = ONE_PROCESS,
    ) -> None:
        self._processes = processes
        # Rows: return and length of the open episodes, success of the last step, and 1 as counter.
        self._running = torch.zeros(4, num_envs, device=device)
        self._running[3].fill_(1)
        self._return, self._length, self._success, _ = self._running.unbind()
        self._open = self._running[:2]
        self._totals = torch.zeros_like(self._running)  # sums over ended episodes
        self._zero = torch.zeros((), device=device)
        self._has_success = False

    def update(
        self,
        transition: TensorDictBase,
        reward: Tensor | None = None,
        counted: Tensor | None = None,
    ) -> None:
        """Add one batched step, without a transfer to the host.

        Args:
            transition: step `[N]` in TorchRL's layout, on the device. Rows in which `active` is
                false are not a step of an episode (their reward is 0), and the last `success`
                decides whether an episode is successful; an environment can lack both.
            reward: float `[N]`; None for the reward of the transition.
            counted: bool `[N]`, false where an episode that ends with this step is excluded from
                the means; None to count every episode.
        """
        after, active = transition.get("next"), transition.get("active", None)
        reward = after.get("reward") if reward is None else reward
        success = after.get("success", None)
        ended = after.get("done").reshape(-1)
        if active is not None:
            ended = ended & active.reshape(-1)
        self._return.add_(reward.reshape(-1))
        self._length.add_(1 if active is None else active.reshape(-1))
        if success is not None:
            self._has_success = True
            self._success.copy_(success.reshape(-1))
        # A product with `taken` would spread the nan or inf of other rows: nan * 0 is nan.
        taken = ended if counted is None else ended & counted
        self._totals.add_(torch.where(taken, self._running, self._zero))
        self._open.masked_fill_(ended, 0)

    def take(self) -> Reading:
        """Return means over the episodes that ended since the last call; open episodes continue.

        Returns:
            `episode/return`, `episode/length` (environment steps), `episode/success` (0 to 1, if
            the environment reports it) and `episode/count`; no metrics if no episode ended.
        """
        totals = self._totals.sum(dim=1)
        # A process that has not stepped yet does not know whether there is success.
        knows = torch.full_like(totals[:1], self._has_success)
        totals = self._processes.sum(torch.cat((totals, knows)))
        self._totals.zero_()

        def means(values: Sequence[float]) -> dict[str, float]:
            total_return, total_length, successes, count, has_success = values
            if count == 0:
                return {}
            means = {"episode/return": total_return / count, "episode/length": total_length / count}
            if has_success:
                means["episode/success"] = successes / count
            return means | {"episode/count": count}

        return Reading(totals, means)

    def forget_open(self, rows: Tensor | None = None) -> None:
        """Discard the open episodes of some rows, bool `[N]`, or of all: new ones begin there."""
        self._open.masked_fill_(self._running[3].bool() if rows is None else rows, 0)

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state, as copies of tensors on the device."""
        return {
            "running": self._running.clone(),
            "totals": self._totals.clone(),
            "has_success": self._has_success,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a result of `state_dict`, on any device."""
        self.check_state(state)
        self._running.copy_(state["running"])
        self._totals.copy_(state["totals"])
        self._has_success = state["has_success"]

    def check_state(self, state: Any) -> None:
        """Compare a state with that of these statistics; nothing is restored."""
        own = {"running": self._running, "totals": self._totals, "has_success": False}
        check_like(state, dict.fromkeys(own), "the saved episodes")
        shape: Sequence[int] = getattr(state["running"], "shape", ())
        if len(shape) == 2 and shape[1] != self._running.shape[1]:
            raise ConfigurationError(
                f"env.num_envs={self._running.shape[1]}: the saved run has {shape[1]}"
            )
        check_like(state, own, "the saved episodes")
