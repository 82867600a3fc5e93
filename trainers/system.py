"""Utilisation and memory of host and device during a training."""

import contextlib
import math
import time
from typing import Final

import psutil
import torch

from torchrl_gpu.devices.host import num_cores
from torchrl_gpu.devices.kinds import accelerator_of

# On a machine with thousands of processes, the search for the children of one takes a while.
_SECONDS_BETWEEN_SEARCHES: Final = 10.0


class SystemUsage:
    """Reads counters of the operating system and the driver once per row of metrics."""

    def __init__(self, device: torch.device) -> None:
        self._accelerator = accelerator_of(device)
        self._processes = [psutil.Process()]
        self._searched = -math.inf
        self.begin()

    def begin(self) -> None:
        """Let the next row begin here."""
        self._began, self._started = time.perf_counter(), time.time()
        self._spent, _ = self._read()

    def take(self) -> dict[str, float]:
        """Return the metrics since the last call, as named in `docs/metrics.md`.

        Returns:
            `system/cpu_percent` and `system/memory_bytes` of this process and its children;
            `system/device_percent` and `system/device_memory_bytes` of the device and all programs
            on it, where the driver knows them and the device is not the host.
        """
        spent, memory = self._read()
        capacity = max(time.perf_counter() - self._began, 1e-9) * num_cores()
        # Cores are also shared with children that the last search has not found.
        share = min(max(spent - self._spent, 0.0) / capacity, 1.0)
        metrics = {"system/cpu_percent": 100 * share, "system/memory_bytes": float(memory)}
        if (percent := self._accelerator.utilization(self._started)) is not None:
            metrics["system/device_percent"] = percent
        if (occupied := self._accelerator.occupied_memory) is not None:
            metrics["system/device_memory_bytes"] = float(occupied)
        self._began, self._started, self._spent = time.perf_counter(), time.time(), spent
        return metrics

    def _read(self) -> tuple[float, int]:
        """Return processor seconds and resident bytes of the process and its children."""
        now = time.perf_counter()
        if now - self._searched > _SECONDS_BETWEEN_SEARCHES:
            self._searched, own = now, self._processes[0]
            self._processes = [own, *own.children(recursive=True)]
        spent, memory = 0.0, 0
        for process in self._processes:
            with contextlib.suppress(psutil.Error), process.oneshot():  # it may have ended
                times = process.cpu_times()
                spent += times.user + times.system + times.children_user + times.children_system
                memory += process.memory_info().rss
        return spent, memory
