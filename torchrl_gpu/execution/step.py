"""One gradient step, from a batch of transitions to new parameters."""

import math
from collections.abc import Sequence
from functools import partial

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from torchrl_gpu.execution.fitting import Fitting, enough_memory
from torchrl_gpu.execution.learner import Learner, Losses, LossFunction, Update
from torchrl_gpu.execution.precision import Precision
from torchrl_gpu.processes import Processes


def prepare(learner: Learner, batch: TensorDictBase) -> TensorDictBase:
    """Return the batch `[B]` that a gradient step learns from, see `Learner.prepare_batch`.

    Raises:
        ConfigurationError: the memory is insufficient.
    """
    work = f"the images of {len(batch)} transitions"
    with enough_memory(learner.device, work, "a smaller agent.batch_size"):
        return learner.prepare_batch(batch)


def gradient_step(
    learner: Learner,
    batch: TensorDictBase,
    loss: LossFunction,
    precision: Precision,
    fitting: Fitting,
) -> Update:
    """Take one gradient step, and return metrics and new priorities of the batch.

    A batch whose gradients do not fit into memory is halved until its parts do; the sum of their
    gradients is that of the batch. The metrics are means over the processes.

    Args:
        learner: agent whose parameters change.
        batch: return value of `prepare`.
        loss: loss function of the learner, or its compiled form.
        precision: precision of losses and gradients.
        fitting: finds the size of the parts, and remembers it for later batches.

    Raises:
        ConfigurationError: the memory is insufficient for a single transition.
    """
    optimizers = list(learner.optimizers().values())
    learner.follow_rate_schedule()
    differentiate = partial(_differentiate, loss, batch, optimizers, precision)
    losses = fitting(differentiate, len(batch), learner.device, learner.processes)
    terms = {name: term.detach() for name, term in losses.terms.items()}
    metrics = _averaged(optimizers, terms | losses.metrics, learner.processes)
    # After the reduction, so that an overflow in one process skips the step in all of them.
    precision.unscale(optimizers)
    if (max_norm := learner.max_gradient_norm) is not None:
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            nn.utils.clip_grad_norm_(group["params"], max_norm)
    precision.step(optimizers)
    learner.after_update(metrics)
    learner.advance()
    return Update(metrics, losses.priorities)


def _differentiate(
    loss: LossFunction,
    batch: TensorDictBase,
    optimizers: Sequence[torch.optim.Optimizer],
    precision: Precision,
    size: int,
) -> Losses:
    """Compute the scaled gradients of a batch `[B]`, in equal parts of at most `size` rows."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    rows = len(batch)
    parts = [batch] if size == rows else batch.split(math.ceil(rows / math.ceil(rows / size)))
    shares = [len(part) / rows for part in parts]
    losses = []
    for part, share in zip(parts, shares, strict=True):
        with precision.active():
            losses.append(loss(part))
        terms = losses[-1].terms.values()
        precision.backward([term if share == 1.0 else share * term for term in terms])
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
