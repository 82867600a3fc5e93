"""ReLU with a gradient that a compiled update on a CPU computes fast."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def relu(inputs: Tensor) -> Tensor:
    """Return max(0, x) elementwise.

    Where only the gradient of the inputs is needed, a compiler keeps a mask of booleans for it. On
    a CPU its code writes and reads such masks so slowly that a compiled update of SAC takes 25 %
    longer than with the outputs kept instead.
    """
    if torch.compiler.is_compiling() and inputs.device.type == "cpu":
        outputs: Tensor = _KeepsOutputs.apply(inputs)
        return outputs
    return inputs.relu()


class ReLU(nn.Module):
    """Layer of `relu`."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return max(0, x) elementwise."""
        return relu(inputs)


class _KeepsOutputs(torch.autograd.Function):
    """ReLU whose gradient is a function of its outputs alone, without comparisons."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        outputs = inputs.relu()
        ctx.save_for_backward(outputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (outputs,) = ctx.saved_tensors
        # Outputs are at least 0, so that their sign is the derivative.
        return gradient * outputs.sign()
