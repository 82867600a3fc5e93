"""Examine this machine: `torchrl-gpu doctor`, or `python -m torchrl_gpu.doctor`. See `--help`."""

import sys
from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field

from torchrl_gpu.commands import call_with_arguments, show
from torchrl_gpu.devices.device import resolve_device
from torchrl_gpu.doctor.findings import find
from torchrl_gpu.doctor.measurements import measure
from torchrl_gpu.doctor.output import as_json, as_text


def examine(
    *,
    device: str = "auto",
    measurements: bool = True,
    seconds: Annotated[float, Field(gt=0.0)] = 0.3,
    threads: Annotated[int, Field(ge=1)] | None = None,
    json: bool = False,
) -> int:
    """Show the devices of this machine, their limits and speed, and the missing installations.

      torchrl-gpu doctor [setting=value ...]
      python -m torchrl_gpu.doctor [setting=value ...]

    The last line of the output is a JSON object with all of it.

    Args:
        device: device to measure against the CPU: auto, cuda, rocm:1, directml, ... (auto).
        measurements: measure the device and the CPU (true).
        seconds: minimum duration of each measurement in seconds, above 0 (0.3).
        threads: number of CPU threads of PyTorch in the measurements, at least 1 (one per core).
        json: print only the JSON object (false).
    """
    chosen = resolve_device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    findings = find()
    measured = measure([torch.device("cpu"), chosen], seconds) if measurements else []
    if not json:
        show(as_text(findings, measured))
    show(as_json(findings, measured))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Call `examine` with arguments as typed, those of this process by default."""
    return call_with_arguments(examine, arguments)


if __name__ == "__main__":
    sys.exit(main())
