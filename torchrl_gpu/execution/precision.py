"""Precision of the matrix products and convolutions of networks."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, get_args

import torch
from torch import Tensor, nn

from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.adam import Adam
from torchrl_gpu.execution.options import PrecisionName

# https://github.com/pytorch/pytorch/issues/158232
_CACHE_FORGETS = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10)

_AUTOCAST: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Number format of matrix products and convolutions; parameters stay float32.

    * `fp32`: float32.
    * `tf32`: float32 whose products are rounded to TensorFloat-32.
    * `bf16`: autocast to bfloat16, which has the range of float32.
    * `fp16`: autocast to float16. Losses are scaled up, so that small gradients do not vanish; a
      step whose gradients overflow is skipped, and the scale is halved.

    Networks compute in it within the context manager `active`. A gradient step runs within
    `products`, and its loss also within `autocast`; `scale`, `unscale` and `step` treat its
    gradients. A fused Adam reads no value back to the host.

    Raises:
        ConfigurationError: the format is not available on the device.
    """

    def __init__(self, name: PrecisionName, device: torch.device) -> None:
        if name != "fp32" and name not in (possible := precisions_of(device)):
            raise ConfigurationError(
                f"precision={name}: not available on {accelerator_of(device).choice}; choose "
                f"{' or '.join(possible)}"
            )
        self.name = name
        self._device_type = device.type
        self._dtype = _AUTOCAST.get(name)
        # Disabled, it leaves losses and gradients as they are.
        self._scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    @property
    def casts(self) -> bool:
        """Whether inputs and weights are converted for each product, which takes time."""
        return self._dtype is not None

    def active(self) -> AbstractContextManager[object]:
        """Return a context manager within which networks compute in this precision."""
        return self.autocast() if self.casts else self.products()

    def autocast(self) -> AbstractContextManager[object]:
        """Return a context manager that converts operands; none in float32 and TensorFloat-32.

        It is for the loss alone: gradients have the dtypes of the parameters.
        """
        if self._dtype is None:
            return nullcontext()
        # Before torch 2.10 the cache can hand out weights that were cast without gradient.
        return torch.autocast(self._device_type, self._dtype, cache_enabled=not _CACHE_FORGETS)

    def products(self) -> AbstractContextManager[object]:
        """Return a context manager that rounds operands to TensorFloat-32, or does not."""
        return nullcontext() if self.casts else _products(tf32=self.name == "tf32")

    def scale(self, share: float, device: torch.device) -> Tensor:
        """Return the factor `[]` of the losses of a share of a batch: the share, scaled in fp16.

        It requires a gradient, although none is computed. Where a loss breaks the compiled graph,
        the rest of the graph then has a leaf, without which dynamo would leave `backward` out.
        """
        factor: Tensor = self._scaler.scale(torch.full((), share, device=device))
        return factor.requires_grad_()

    def unscale(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Divide the gradients of optimizers by the scale of their losses."""
        for optimizer in optimizers:
            self._scaler.unscale_(optimizer)

    def step(self, optimizers: Iterable[torch.optim.Optimizer], max_norm: float | None) -> None:
        """Step optimizers, each of them unless one of its scaled gradients has overflowed.

        Args:
            optimizers: optimizers with unscaled gradients.
            max_norm: largest norm of the gradients of each parameter group; None for no limit.
        """
        for optimizer in optimizers:
            if max_norm is None:
                self._scaler.step(optimizer)
            elif isinstance(optimizer, Adam):
                self._scaler.step(optimizer, max_norm=max_norm)
            else:
                for group in optimizer.param_groups:
                    nn.utils.clip_grad_norm_(group["params"], max_norm)
                self._scaler.step(optimizer)
        self._scaler.update()

    def state_dict(self) -> dict[str, Any]:
        """Return the scale of the losses and its schedule; empty without one."""
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned; that of another precision has no effect."""
        if state:
            self._scaler.load_state_dict(state)


def precisions_of(device: torch.device) -> list[PrecisionName]:
    """Return the precisions that are available on a device."""
    accelerator = accelerator_of(device)
    has = {"fp32": True, "tf32": accelerator.tf32}
    has |= {name: dtype in accelerator.autocast_dtypes for name, dtype in _AUTOCAST.items()}
    has["fp16"] &= accelerator.float64  # torch divides gradients by the scale in float64
    return [name for name in get_args(PrecisionName) if has[name]]


@contextmanager
def _products(*, tf32: bool) -> Iterator[None]:
    """Let float32 products and convolutions round to TensorFloat-32 within the block, or not."""
    cudnn = torch.backends.cudnn
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32 = before[1]
