"""Adam, by the fastest way that a device has."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchrl_gpu.devices.kinds import accelerator_of


def adam(
    parameters: ParamsT,
    learning_rate: float,
    device: torch.device,
    epsilon: float = 1e-8,
) -> torch.optim.Adam:
    """Build an Adam optimizer whose step takes as few kernels as the device allows.

    On a device without `lerp`, which torch's Adam is made of, the optimizer is a `PlainAdam`.

    The learning rate is a tensor on the device, so that a captured step reads its current value. On
    devices that can capture an optimizer, a step reads nothing back to the host.

    Args:
        parameters: parameters to train, or parameter groups.
        learning_rate: initial learning rate of all groups without their own `lr`, above 0.
        device: device of the parameters.
        epsilon: term added to the denominator, above 0.
    """
    rate = torch.tensor(learning_rate, device=device)
    accelerator = accelerator_of(device)
    kind = torch.optim.Adam if accelerator.lerp else PlainAdam
    optimizer = kind(parameters, lr=rate, eps=epsilon, **accelerator.adam_options)
    for group in optimizer.param_groups:
        group["initial_lr"] = learning_rate if group["lr"] is rate else float(group["lr"])
        group["lr"] = torch.tensor(group["initial_lr"], device=device)
    return optimizer


class PlainAdam(torch.optim.Adam):
    """Adam made of additions, products, quotients and square roots, for devices without `lerp`.

    It has the parameter groups and the state of `torch.optim.Adam`, so that either optimizer loads
    the `state_dict` of the other. Steps agree within rounding. No value is read back to the host.

    Weight decay, AMSGrad and maximization are not supported.

    Source: Kingma and Ba, "Adam: A Method for Stochastic Optimization", arXiv 1412.6980.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient.

        A closure computes the loss, which is returned, and its gradients.
        """
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                states = [self._state_of(parameter) for parameter in parameters]
                _step(group, parameters, states)
        return result

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        """Return step and moments of a parameter, all 0 before its first step."""
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state


def _step(group: dict[str, Any], parameters: list[Tensor], states: list[dict[str, Tensor]]) -> None:
    """Update the parameters of a group, all of which have a gradient."""
    beta1, beta2 = group["betas"]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    means = [state["exp_avg"] for state in states]
    squares = [state["exp_avg_sq"] for state in states]
    steps = [state["step"] for state in states]

    # m_t = beta_1 m_{t-1} + (1 - beta_1) g_t
    torch._foreach_mul_(means, beta1)
    torch._foreach_add_(means, gradients, alpha=1.0 - beta1)
    # v_t = beta_2 v_{t-1} + (1 - beta_2) g_t^2
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, gradients, gradients, 1.0 - beta2)
    # The corrections of all parameters at once: a kernel on one number costs as much as on many.
    torch._foreach_add_(steps, 1.0)
    step = torch.stack(steps)
    rates = (-group["lr"] / (1.0 - beta1**step)).unbind()
    scales = (1.0 - beta2**step).rsqrt().unbind()
    # theta_t = theta_{t-1} - alpha m_t / (1 - beta_1^t) / (sqrt(v_t / (1 - beta_2^t)) + epsilon)
    denominators = torch._foreach_sqrt(squares)
    torch._foreach_mul_(denominators, scales)
    torch._foreach_add_(denominators, group["eps"])
    torch._foreach_addcdiv_(parameters, torch._foreach_mul(means, rates), denominators)
