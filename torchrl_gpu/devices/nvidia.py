"""Utilisation of NVIDIA GPUs, by NVML, the library of the driver."""

import importlib
from functools import cache
from importlib.util import find_spec
from typing import Any


def nvidia_utilization(uuid: str, since: float) -> float | None:
    """Return the share of time in which a GPU computed, in percent; None if it is unknown.

    Args:
        uuid: name of the GPU, as in `nvidia-smi -L`.
        since: beginning of that time, as `time.time` has it; the driver keeps its samples for some
            seconds only. A GPU that keeps none answers for its last moments.
    """
    if find_spec("pynvml") is None:
        return None
    nvml: Any = importlib.import_module("pynvml")
    try:
        gpu = _gpu(uuid)
        try:
            kind = nvml.NVML_GPU_UTILIZATION_SAMPLES
            _, samples = nvml.nvmlDeviceGetSamples(gpu, kind, int(since * 1e6))
            values = [each.sampleValue.uiVal for each in samples if each.timeStamp > since * 1e6]
            return sum(values) / len(values)
        except (nvml.NVMLError, ZeroDivisionError):  # it keeps none, or has no new one
            return float(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)
    except nvml.NVMLError:  # as for a part of a GPU (MIG)
        return None


@cache
def _gpu(uuid: str) -> Any:
    nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()
    return nvml.nvmlDeviceGetHandleByUUID(uuid)
