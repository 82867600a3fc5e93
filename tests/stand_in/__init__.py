"""Stand-in accelerator for tests on machines without one.

Its tensors live on the CPU but behave like tensors of an accelerator: operations that mix them with
CPU tensors fail, conversion to NumPy fails, and every read that blocks the host is counted, with
the file and line that caused it:

    with stand_in_accelerator() as device:
        agent.policy.to(device)
        with count_host_reads() as counter:
            agent.update(batch)
        assert counter.host_reads == 0, counter.report()

Counted are the operations that would block on a CUDA device: reading a value, an operation whose
result shape depends on values, a copy to the host, and `synchronize()`. Not covered are branches on
`device.type == "cuda"` and code under torch.compile; on a real GPU,
`torch.cuda.set_sync_debug_mode("error")` detects all blocking operations.

A simulator that has no backend for the stand-in simulates on the CPU, and
`count_reads_of_cpu_tensors` counts what it would read from an accelerator.

An accelerator can lack abilities, as those of some makers do: `MAKERS["mps"]` has no float64.
Within the block the command line knows the device too, as `device=npu`.

Tests get the device from the fixture `accelerator`, which skips them if torch is too old; its
parameter, if a test gives one, is the `Abilities` of the device.
"""

from tests.stand_in.abilities import MAKERS, Abilities
from tests.stand_in.backend import missing, stand_in_accelerator
from tests.stand_in.cpu import count_reads_of_cpu_tensors
from tests.stand_in.traffic import HostTraffic, count_host_reads

__all__ = [
    "MAKERS",
    "Abilities",
    "HostTraffic",
    "count_host_reads",
    "count_reads_of_cpu_tensors",
    "missing",
    "stand_in_accelerator",
]
