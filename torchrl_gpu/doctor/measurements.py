"""Speed of a device: matrix products, policy steps, updates and copies."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.modules import MLP

from torchrl_gpu.acting.policy import Observations, PolicyWrapper
from torchrl_gpu.devices.accelerator import Accelerator
from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.errors import one_line
from torchrl_gpu.execution.adam import adam
from torchrl_gpu.execution.options import Library
from torchrl_gpu.execution.products import Linear, ProductLayer

_MATRIX: Final = 2048  # rows and columns
_OBSERVATION_DIM, _ACTION_DIM, _WIDTH = 36, 6, 256  # those of the environment fanuc
_OBSERVATIONS: Final = 1024  # of a policy step
_BATCH: Final = 256  # of an update
_COPY: Final = 2**26  # bytes

Call = Callable[[], object]
Work = Callable[[torch.device], Call | None]


class Measured(NamedTuple):
    """Speed of several devices at one kind of work; higher is faster."""

    key: str  # in the JSON object, with the unit
    title: str  # in the table
    unit: str
    # By name of the device for `device=`; an error message if the work failed, `-` if the device
    # does not have it.
    speeds: dict[str, float | str]

    @property
    def ratio(self) -> float | None:
        """Speed of the last of several devices over that of the first; None if one is missing."""
        first, *others = self.speeds.values()
        last = others[-1] if others else None
        return last / first if isinstance(first, float) and isinstance(last, float) else None


def measure(devices: Sequence[torch.device], seconds: float) -> list[Measured]:
    """Return the speeds of devices, each measured once for at least `seconds`, above 0."""
    different = {accelerator_of(device).choice: device for device in devices}
    measured = []
    for key, title, unit, amount, work in _WORK:
        speeds = {name: _speed(work, amount, device, seconds) for name, device in different.items()}
        measured.append(Measured(key, title, unit, speeds))
    return measured


def calls_per_second(call: Call, accelerator: Accelerator, seconds: float) -> float:
    """Return how often a function runs per second, its queued work included.

    The accelerator is synchronized at both ends of the measurement, which takes at least `seconds`,
    above 0.
    """
    call()  # the first call allocates memory and loads kernels
    accelerator.synchronize()
    calls = 1
    while True:
        start = time.perf_counter()
        for _ in range(calls):
            call()
        accelerator.synchronize()
        elapsed = time.perf_counter() - start
        if elapsed >= seconds:
            return calls / elapsed
        calls *= 2


def _speed(work: Work, amount: float, device: torch.device, seconds: float) -> float | str:
    """Return the amount of work per second, or the error of a device that cannot do it."""
    try:
        call = work(device)
        if call is None:
            return "-"
        return amount * calls_per_second(call, accelerator_of(device), seconds)
    except RuntimeError as error:  # of torch: no kernel, no memory, a lost device
        return f"failed: {one_line(error)}"


def _matrix_product(device: torch.device) -> Call:
    left, right = (torch.rand(_MATRIX, _MATRIX).to(device) for _ in range(2))
    return lambda: left @ right


def _policy_step(device: torch.device) -> Call:
    observed = Composite(observation=Unbounded((1, _OBSERVATION_DIM)), shape=(1,))
    policy = PolicyWrapper(_Actor(), observed, Bounded(-1.0, 1.0, (1, _ACTION_DIM)))
    policy.eval().to(device)
    observation = torch.rand(_OBSERVATIONS, _OBSERVATION_DIM).to(device)

    @torch.no_grad()
    def step() -> TensorDictBase:
        return policy(TensorDict({"observation": observation}, [_OBSERVATIONS]))

    return step


def _onednn_update(device: torch.device) -> Call | None:
    return _update(device, "onednn") if accelerator_of(device).onednn else None


def _update(device: torch.device, library: Library = "torch") -> Call:
    network = _network().to(device)
    for layer in network.modules():
        if isinstance(layer, ProductLayer):
            layer.library = library
    optimizer = adam(network.parameters(), 1e-3, device)
    observation = torch.rand(_BATCH, _OBSERVATION_DIM).to(device)
    target = torch.rand(_BATCH, _ACTION_DIM).to(device)

    def update() -> None:
        optimizer.zero_grad()
        (network(observation) - target).square().mean().backward()
        optimizer.step()

    return update


def _copy(device: torch.device, to_device: bool) -> Call:
    # Pinned, if the device reads such memory faster.
    host = torch.zeros(_COPY // 4, pin_memory=accelerator_of(device).pinned_transfers)
    remote = torch.zeros(_COPY // 4, device=device)
    source, destination = (host, remote) if to_device else (remote, host)
    return lambda: destination.copy_(source, non_blocking=host.is_pinned())


def _network() -> MLP:
    return MLP(
        _OBSERVATION_DIM,
        _ACTION_DIM,
        num_cells=[_WIDTH] * 2,
        activation_class=nn.ReLU,
        layer_class=Linear,
    )


class _Actor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = _network()

    def act(self, observation: Observations, deterministic: bool) -> Tensor:
        return self.network(observation["observation"]).tanh()


# Key, title and unit; amount of work in one call; function that prepares the work.
_WORK: Final[tuple[tuple[str, str, str, float, Work], ...]] = (
    (
        "matrix_product_gflops",
        f"matrix product, {_MATRIX} x {_MATRIX}",
        "GFLOP/s",
        2 * _MATRIX**3 / 1e9,
        _matrix_product,
    ),
    (
        "policy_observations_per_second",
        f"policy step, {_OBSERVATIONS:,} observations",
        "observations/s",
        _OBSERVATIONS,
        _policy_step,
    ),
    ("updates_per_second", f"update, batch of {_BATCH}", "updates/s", 1, _update),
    ("updates_by_onednn_per_second", "update, products by oneDNN", "updates/s", 1, _onednn_update),
    *(
        (
            f"copy_{way}_device_gb_per_second",
            f"copy {way} the device, 64 MiB",
            "GB/s",
            _COPY / 1e9,
            partial(_copy, to_device=way == "to"),
        )
        for way in ("to", "from")
    ),
)
