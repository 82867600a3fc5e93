"""An accelerator for tests that run where there is none.

Its tensors live on the CPU, but behave as those of an accelerator do: they do not mix with CPU
tensors, do not turn into NumPy arrays, and each time the host has to wait for one of them this is
counted, with the file and line that caused it:

    with stand_in_accelerator() as device:
        agent.policy.to(device)
        with count_host_reads() as counter:
            agent.update(batch)
        assert counter.host_reads == 0, counter.report()

What counts is what would stall a CUDA device: reading a value, an operation whose result has a
shape that depends on values, a copy to the host, `synchronize()`. Not seen are branches on
`device.type == "cuda"` and code under torch.compile. On a real GPU the truth is
`torch.cuda.set_sync_debug_mode("error")`.

Tests take the device from the fixture `accelerator`, which skips them where torch is too old.
"""

from tests.stand_in.backend import missing, stand_in_accelerator
from tests.stand_in.traffic import HostTraffic, count_host_reads

__all__ = ["HostTraffic", "count_host_reads", "missing", "stand_in_accelerator"]
