"""The record of a device's capabilities, queried from torch wherever torch knows them."""

import importlib
import inspect
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch.optim.optimizer import _get_capturable_supported_devices
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices


class Presence(NamedTuple):
    """Number of devices of one kind that can compute on this machine, or why there are none."""

    number: int
    reason: str = ""  # short, such as `no GPU or no driver`


# Parts of the messages of allocators, in lower case: CUDA, ROCm, XPU and MPS; the CPU, on Linux and
# on Windows; DirectML; cuBLAS and cuDNN; Level Zero, which is below XPU.
_OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "could not allocate tensor",
    "alloc_failed",
    "out_of_device_memory",
    "out_of_resources",
)


@dataclass(frozen=True)
class Accelerator:
    """Capabilities of a device of any kind, the CPU included.

    This class describes every device of torch that no class in `kinds` describes. Properties that
    need the hardware (name, memory, float64, autocast_dtypes, tf32, compile) query it at every
    access; all other properties work for devices that this machine does not have.
    """

    device: torch.device

    kind: ClassVar[str] = "other"  # cpu, cuda, rocm, xpu, mps, directml or other
    device_type: ClassVar[str] = ""  # torch's name for devices of this kind
    vendors: ClassVar[tuple[str, ...]] = ()  # makers of the hardware: see `torchrl_gpu.doctor`
    # Command that installs the packages of the kind, by operating system (Linux, WSL, Windows,
    # Darwin); a system that cannot have the kind is missing.
    installs: ClassVar[Mapping[str, str]] = {}
    genesis_backend: ClassVar[str] = "cpu"  # of the simulator Genesis; `cpu` without its own
    # Whether the device copies from pinned host memory without blocking the host.
    pinned_transfers: ClassVar[bool] = False
    # Whether the host has to wait for all queued work to read a value, or to learn the shape of a
    # result that depends on values.
    reads_stall: ClassVar[bool] = True
    # Whether the fused kernel of Adam divides the gradients by a scale.
    scaling_adam: ClassVar[bool] = False
    # Whether the device has a kernel of `lerp`, which makes Polyak averages, and of `searchsorted`,
    # by which a sum tree finds its leaves.
    lerp: ClassVar[bool] = True
    searchsorted: ClassVar[bool] = True
    byte_views: ClassVar[bool] = True  # of tensors as another dtype, in the same memory
    # Whether compiled updates, in a run of many, and captured work are known to be faster.
    compiles_long_runs: ClassVar[bool] = False
    captures: ClassVar[bool] = False
    channels_last: ClassVar[bool] = False  # whether many convolutions are faster in this layout
    # Whether compiled convolutions are faster in the layouts of the eager ones than in those that
    # torch's compiler chooses.
    keeps_layouts: ClassVar[bool] = False
    communication: ClassVar[str | None] = None  # backend of `torch.distributed`, if it has one

    @classmethod
    def look(cls) -> Presence:
        """Return the number of devices of this kind on this machine, or the reason for none."""
        return Presence(0, "torch cannot count them")

    @classmethod
    def names(cls, count: int) -> list[str]:
        """Return the names of the first `count` devices of this kind, as in `device=cuda:0`."""
        return [f"{cls.kind}:{index}" for index in range(count)]

    @classmethod
    def at(cls, index: int | None) -> torch.device:
        """Return the torch device of an index from 0 on; None for the device of choice."""
        return torch.device(cls.device_type, index or 0)

    @property
    def choice(self) -> str:
        """Name that chooses the device, as in `device=rocm:0`; torch may have another for it."""
        return self.names((self.device.index or 0) + 1)[-1]

    @property
    def name(self) -> str:
        """Name of the hardware; name of the device if torch does not know the hardware."""
        return str(getattr(self.call("get_device_properties"), "name", self.device))

    @property
    def driver(self) -> str | None:
        """Version of the driver; None if torch does not know it."""
        return getattr(self.call("get_device_properties"), "driver_version", None)

    @property
    def total_memory(self) -> int | None:
        """Total memory of the device in bytes; None if torch does not report it."""
        return getattr(self.call("get_device_properties"), "total_memory", None)

    @property
    def free_memory(self) -> int | None:
        """Free memory of the device in bytes; None if torch does not report it."""
        free_and_total = self.call("mem_get_info")
        return None if free_and_total is None else int(free_and_total[0])

    @property
    def used_memory(self) -> int:
        """Memory of the device in bytes that this process holds; 0 if torch does not know it."""
        return int(self.call("memory_reserved", default=0))

    @property
    def occupied_memory(self) -> int | None:
        """Memory of the device in bytes that all programs hold; None if torch does not know it."""
        total, free = self.total_memory, self.free_memory
        return None if total is None or free is None else total - free

    def utilization(self, since: float) -> float | None:
        """Return the share of time in which the device computed for any program, in percent.

        Args:
            since: beginning of that time, as `time.time` has it. A device that keeps no record
                answers for its last moments instead.

        Returns:
            0 to 100; None if it is unknown, as without the package of the vendor.
        """
        return None

    def limit_memory(self, fraction: float) -> bool:
        """Let this process allocate at most a fraction of `total_memory`, above 0 to 1.

        Returns:
            Whether torch enforces such a limit on this kind of device.
        """
        self.call("set_per_process_memory_fraction", fraction)
        return hasattr(self.module, "set_per_process_memory_fraction")

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Return whether an error of a computation on the device says that memory ran out."""
        if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
            return True
        text = str(error).lower()
        return isinstance(error, RuntimeError) and any(part in text for part in _OUT_OF_MEMORY)

    @property
    def fused_adam(self) -> bool:
        """Whether a single fused kernel does a whole step of Adam."""
        return self.device.type in _get_fused_kernels_supported_devices() and (
            # Torch lists an out-of-tree backend whether or not it registered a fused kernel.
            not self.is_out_of_tree
            or torch._C._dispatch_has_kernel_for_dispatch_key(
                "aten::_fused_adam_.tensor_lr", "PrivateUse1"
            )
        )

    @property
    def capturable_adam(self) -> bool:
        """Whether an optimizer can keep all of its state on the device, without host reads."""
        return self.device.type in _get_capturable_supported_devices()

    @property
    def adam_options(self) -> dict[str, Any]:
        """Flags of the fastest `torch.optim.Adam` whose learning rate is a tensor on the device."""
        return {"fused": self.fused_adam or None, "capturable": self.capturable_adam}

    @property
    def float64(self) -> bool:
        """Whether the device supports float64 tensors."""
        return True

    @property
    def autocast_dtypes(self) -> tuple[torch.dtype, ...]:
        """Dtypes that `torch.autocast` supports on the device, the preferred one first."""
        return tuple(dtype for dtype in (torch.bfloat16, torch.float16) if self._autocasts(dtype))

    @property
    def tf32(self) -> bool:
        """Whether the device multiplies float32 matrices as TensorFloat-32 on request."""
        return False

    @property
    def bfloat16_products(self) -> bool:
        """Whether compiled products of bfloat16 are known to be faster than those of float32."""
        return False

    @property
    def onednn(self) -> bool:
        """Whether torch can compute float32 products of the device by oneDNN on request."""
        return False

    @property
    def graphs(self) -> bool:
        """Whether torch can capture the device's work in a graph and replay it."""
        return getattr(self.module, "graph", None) is not None

    @property
    def is_capturing(self) -> bool:
        """Whether the work queued from here on is recorded in a graph instead of done."""
        return bool(self.call("is_current_stream_capturing"))

    @property
    def compile(self) -> bool:
        """Whether `torch.compile` generates code for the device; imports the compiler."""
        return bool(
            importlib.import_module("torch._dynamo.utils").is_compile_supported(self.device.type)
        )

    @property
    def has_generator(self) -> bool:
        """Whether the device has a readable random number generator besides that of the host."""
        return getattr(self.module, "get_rng_state", None) is not None

    def synchronize(self) -> None:
        """Block the host until all work queued on the device is done; for measurements only."""
        if hasattr(self.module, "synchronize"):
            self.call("synchronize")
        else:
            torch.zeros((), device=self.device).cpu()  # waits for the work queued before it

    def call(self, function: str, *arguments: Any, default: Any = None) -> Any:
        """Call a function of torch's module for the device, such as `torch.cuda`, by name.

        The device is passed if the function takes one. The result is `default` if this version of
        torch does not have the function.
        """
        called = getattr(self.module, function, None)
        if called is None:
            return default
        try:
            takes_device = "device" in inspect.signature(called).parameters
        except ValueError:  # a C function without a signature
            takes_device = False
        return called(*arguments, **({"device": self.device} if takes_device else {}))

    @property
    def module(self) -> Any:
        """Torch's module for the device type, such as `torch.cuda`; None if torch has none.

        With `pinned_transfers` it has streams and events, with `graphs` also graphs.
        """
        return getattr(torch, self.device.type, None)

    @property
    def is_out_of_tree(self) -> bool:
        """Whether torch knows the kind of device only by a package such as torch-directml."""
        return self.device.type == torch._C._get_privateuse1_backend_name()

    def _autocasts(self, dtype: torch.dtype) -> bool:
        """Return whether operations run under autocast, by trying one."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a dtype that autocast refuses
            try:
                one = torch.ones(1, 1, device=self.device)
                with torch.autocast(self.device.type, dtype):
                    one[one.argmax(0)] @ one
                    return torch.is_autocast_enabled(self.device.type)
            except (AssertionError, RuntimeError):
                return False
