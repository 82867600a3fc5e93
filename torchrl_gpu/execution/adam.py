"""Adam, by the fastest way that a device has."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.errors import ConfigurationError


def adam(
    parameters: ParamsT,
    learning_rate: float,
    device: torch.device,
    epsilon: float = 1e-8,
) -> "Adam":
    """Build an Adam optimizer whose step takes as few kernels as the device allows.

    The learning rate is a tensor on the device, so that a captured step reads its current value.
    Steps call no hooks.

    Args:
        parameters: parameters to train, or parameter groups.
        learning_rate: initial learning rate of all groups without their own `lr`, above 0.
        device: device of the parameters.
        epsilon: term added to the denominator, above 0.
    """
    options = accelerator_of(device).adam_options
    return Adam(parameters, lr=learning_rate, eps=epsilon, **options)


def starting_rate(group: dict[str, Any]) -> float:
    """Return the learning rate of a parameter group at the start of training, and keep it there.

    It is kept under another name than the `initial_lr` of torch's schedulers, which would begin
    with it. Older checkpoints have that name.
    """
    if "starting_lr" not in group:
        group["starting_lr"] = float(group.get("initial_lr", group["lr"]))
    return group["starting_lr"]


class Adam(torch.optim.Adam):
    """Adam whose step clips the gradients, and reads nothing back to the host.

    With `fused=True` it is one kernel, which also clips where the device allows it. Otherwise it is
    additions, products, quotients and square roots of lists of tensors: not every device has
    `lerp`, of which torch's Adam is made. Both ways keep the groups and the state of
    `torch.optim.Adam`, so that each optimizer loads the `state_dict` of the other. Steps agree
    within rounding.

    The parameters of a group have one dtype and one device, and the learning rate of each group is
    a separate tensor `[]` there; see `starting_rate`. The step calls no hooks.

    Source: Kingma and Ba, "Adam: A Method for Stochastic Optimization", arXiv 1412.6980.

    Raises:
        ConfigurationError: a group, or a loaded one, has weight decay, AMSGrad or maximization.
    """

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; see `torch.optim.Optimizer`."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        _check_options(group)
        starting_rate(group)
        _separate_rate(group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load moments and hyperparameters; the way of the step stays as it is here."""
        groups = []
        for own, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            _check_options(saved)
            groups.append(saved | {name: own[name] for name in ("fused", "foreach", "capturable")})
        super().load_state_dict({**state_dict, "param_groups": groups})
        for group in self.param_groups:
            _separate_rate(group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients; see `torch.optim.Optimizer`, whose own method takes far longer."""
        if not set_to_none:
            super().zero_grad(set_to_none=False)
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(
        self, closure: Callable[[], Any] | None = None, *, max_norm: float | None = None
    ) -> Any:
        """Update all parameters that have a gradient.

        Args:
            closure: computes the loss, which is returned, and its gradients.
            max_norm: largest norm of all gradients of a group, above 0; gradients of a larger norm
                are divided by norm / max_norm. None to take them as they are.
        """
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            gradients = [p.grad for p in parameters if p.grad is not None]
            states = [self._state_of(parameter) for parameter in parameters]
            # A scaler of fp16 sets it where nobody has unscaled the gradients.
            scale = getattr(self, "grad_scale", None)
            if scale is not None:
                torch._foreach_div_(gradients, scale)
            divisor = None if max_norm is None else _excess(gradients, max_norm)
            is_fused = bool(group["fused"])
            if divisor is not None and not (
                is_fused and accelerator_of(divisor.device).scaling_adam
            ):
                torch._foreach_div_(gradients, divisor)
                divisor = None
            if is_fused:
                # A scaler of fp16 sets it to 1 if a gradient has overflowed.
                overflow = getattr(self, "found_inf", None)
                _fused_step(group, parameters, gradients, states, divisor, overflow)
            else:
                _plain_step(group, parameters, gradients, states)
        return result

    # Tells torch not to wrap `step`: hooks and a label for torch's profiler take as long as the
    # kernel.
    step.hooked = True  # type: ignore[attr-defined]

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        """Return step and moments of a parameter, all 0 before its first step."""
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state


def _check_options(group: dict[str, Any]) -> None:
    """Refuse a group of parameters with options that the step lacks."""
    if unknown := [name for name in ("weight_decay", "amsgrad", "maximize") if group.get(name)]:
        raise ConfigurationError(f"Adam: {unknown[0]} is not supported; torch.optim.Adam has it")


def _separate_rate(group: dict[str, Any]) -> None:
    """Give a group its own learning rate, a tensor `[]` on the device of its parameters."""
    device = group["params"][0].device
    group["lr"] = torch.tensor(float(group["lr"]), device=device)


def _excess(gradients: list[Tensor], max_norm: float) -> Tensor:
    """Return the norm of all gradients as a multiple of the largest one allowed, at least 1.

    It is float32, as the fused kernel expects.
    """
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    return (norm / max_norm).clamp_(min=1.0).float()


@cache
def _one(device: torch.device) -> Tensor:
    """Return 1, float32 `[]`."""
    return torch.ones((), dtype=torch.float32, device=device)


def _fused_step(
    group: dict[str, Any],
    parameters: list[Tensor],
    gradients: list[Tensor],
    states: list[dict[str, Tensor]],
    divisor: Tensor | None,
    overflow: Tensor | None,
) -> None:
    """Update the parameters of a group by their gradients / divisor, unless `overflow` is 1.

    Both are float32 `[]`; without one of them, the step is that of 1 or 0.
    """
    beta1, beta2 = group["betas"]
    steps = [state["step"] for state in states]
    # A number takes three times as long on a CPU, where torch makes a tensor of it per parameter.
    torch._foreach_add_(steps, [_one(parameters[0].device)] * len(steps))
    torch._fused_adam_(
        parameters,
        gradients,
        [state["exp_avg"] for state in states],
        [state["exp_avg_sq"] for state in states],
        [],
        steps,
        lr=group["lr"],
        beta1=beta1,
        beta2=beta2,
        weight_decay=0.0,
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
        grad_scale=divisor,
        found_inf=overflow,
    )
    if overflow is not None:
        torch._foreach_sub_(steps, [overflow] * len(steps))


def _plain_step(
    group: dict[str, Any],
    parameters: list[Tensor],
    gradients: list[Tensor],
    states: list[dict[str, Tensor]],
) -> None:
    """Update the parameters of a group by their gradients."""
    beta1, beta2 = group["betas"]
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
