"""One gradient step, from a batch of transitions to new parameters."""

import math
from collections.abc import Sequence
from functools import partial, reduce
from operator import add
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.fitting import Fitting, enough_memory
from torchrl_gpu.execution.learner import Differentiation, Learner, Losses, Update
from torchrl_gpu.execution.precision import Precision
from torchrl_gpu.processes import Processes


def prepare(learner: Learner, batch: TensorDictBase) -> TensorDictBase:
    """Return the batch `[B]` that a gradient step learns from, see `Learner.prepare_batch`."""
    work = f"the images of {len(batch)} transitions"
    with enough_memory(learner.device, work, "a smaller agent.batch_size"):
        return checked_batch(learner, "prepare_batch", learner.prepare_batch(batch))


def checked_batch(learner: object, method: str, result: Any) -> TensorDictBase:
    """Return the result of a method of a learner; refuse one that is not a TensorDict."""
    if isinstance(result, TensorDictBase):
        return result
    name, kind = type(learner).__name__, type(result).__name__
    raise ConfigurationError(f"agent: {name}.{method} has to return a TensorDict, not {kind}")


def _checked_loss(learner: Learner, batch: TensorDictBase) -> Losses:
    """Return the losses of a learner; refuse those that a gradient step does not take."""
    losses: Any = learner.loss(batch)
    if problem := _problem(losses):
        raise ConfigurationError(f"agent: {type(learner).__name__}.loss: {problem}")
    checked: Losses = losses
    return checked


def _problem(losses: Any) -> str | None:
    """Return the fault in the result of a loss function; None without one.

    Types and shapes decide, which a compiler knows: compiled code has no trace of the check.
    """
    if not isinstance(losses, Losses):
        return f"it has to return Losses, not {type(losses).__name__}"
    if not isinstance(losses.terms, dict) or not isinstance(losses.metrics, dict):
        return "terms and metrics have to be dictionaries of tensors by name"
    if not losses.terms:
        return "terms is empty; a gradient step needs at least one loss"
    for name, value in (losses.terms | losses.metrics).items():
        if not isinstance(value, Tensor):
            return f"{name} has to be a tensor [], not {type(value).__name__}"
        if value.ndim:
            return f"{name} has to be a mean over the rows, of shape [], not {list(value.shape)}"
    if not any(term.requires_grad for term in losses.terms.values()):
        verb = "depends" if len(losses.terms) == 1 else "depend"
        return f"{', '.join(losses.terms)} {verb} on no trained parameter"
    return None


def differentiation(learner: Learner, precision: Precision) -> Differentiation:
    """Return the function that computes losses and gradients of a learner, to be compiled."""

    def differentiate(batch: TensorDictBase, factor: Tensor) -> Losses:
        with precision.autocast():
            losses = _checked_loss(learner, batch)
        reduce(add, losses.terms.values()).backward(factor)
        return losses.detached()

    return differentiate


def gradient_step(
    learner: Learner,
    batch: TensorDictBase,
    differentiate: Differentiation,
    precision: Precision,
    fitting: Fitting,
) -> Update:
    """Take one gradient step, and return metrics and new priorities of the batch.

    A batch whose gradients do not fit into memory is halved until its parts do; the sum of their
    gradients is that of the batch. The metrics are means over the processes.

    Args:
        learner: agent whose parameters change.
        batch: return value of `prepare`.
        differentiate: return value of `differentiation`, or its compiled form.
        precision: precision of losses and gradients.
        fitting: finds the size of the parts, and remembers it for later batches.

    Raises:
        ConfigurationError: the memory is insufficient for a single transition, or the losses depend
            on no parameter of an optimizer.
    """
    learner.follow_rate_schedule()
    in_parts = partial(_in_parts, learner, batch, differentiate, precision)
    with precision.products():
        losses = fitting(in_parts, len(batch), learner.device)
    # In some phases of an agent, the losses may depend on no parameter of an optimizer.
    optimizers = [each for each in learner.optimizers().values() if _has_gradient(each)]
    if not optimizers:
        raise ConfigurationError(
            f"agent: {type(learner).__name__}.loss: it depends on no parameter of an optimizer"
        )
    metrics = _averaged(optimizers, losses.terms | losses.metrics, learner.processes)
    # After the reduction, so that an overflow in one process skips the step in all of them.
    precision.unscale(optimizers)
    precision.step(optimizers, learner.max_gradient_norm)
    learner.after_update(metrics)
    learner.advance()
    return Update(metrics, losses.priorities)


def _has_gradient(optimizer: torch.optim.Optimizer) -> bool:
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])


def _in_parts(
    learner: Learner,
    batch: TensorDictBase,
    differentiate: Differentiation,
    precision: Precision,
    size: int,
) -> Losses:
    """Compute the scaled gradients of a batch `[B]`, in equal parts of at most `size` rows."""
    for optimizer in learner.optimizers().values():
        optimizer.zero_grad()
    rows = len(batch)
    parts = [batch] if size == rows else batch.split(math.ceil(rows / math.ceil(rows / size)))
    shares = [len(part) / rows for part in parts]
    losses = [
        differentiate(part, precision.scale(share, learner.device))
        for part, share in zip(parts, shares, strict=True)
    ]
    return losses[0] if len(losses) == 1 else Losses.joined(losses, shares)


def _averaged(
    optimizers: Sequence[torch.optim.Optimizer], metrics: dict[str, Tensor], processes: Processes
) -> dict[str, Tensor]:
    """Replace all gradients by their means over the processes, and return the means of metrics.

    They travel as one vector, so that an update costs one reduction.
    """
    if processes.count == 1:
        return metrics
    parameters = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    gradients = [p.grad for p in parameters if p.grad is not None]
    tensors = [*gradients, *metrics.values()]
    total = processes.sum(torch.cat([tensor.flatten() for tensor in tensors]))
    parts = total.div_(processes.count).split([tensor.numel() for tensor in tensors])
    means = [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
    torch._foreach_copy_(gradients, means[: len(gradients)])
    return dict(zip(metrics, means[len(gradients) :], strict=True))
