"""A categorical distribution over discrete actions, made of tensor operations only.

PyTorch's `Categorical` reads values back to the host to validate and to sample; this one does not.
"""

from __future__ import annotations

import torch
from torch import Tensor


def draw(logits: Tensor) -> Tensor:
    """Draw actions `[*B]` int64 from logits `[*B, n]`.

    The largest of logits plus Gumbel noise is distributed as softmax(logits). The noise is float32
    for logits of any dtype: bfloat16 often draws a uniform of 1, for which the noise is infinite.
    """
    logits = logits.to(torch.float32)
    # -log(-log u) is Gumbel noise; u stays clear of 0, where the logarithm would be infinite.
    uniform = torch.rand_like(logits).clamp(min=torch.finfo(logits.dtype).tiny)
    return (logits - torch.log(-torch.log(uniform))).argmax(dim=-1)


def log_prob(action: Tensor, logits: Tensor) -> Tensor:
    """Return the log-probabilities `[*B, 1]` of actions `[*B]` under logits `[*B, n]`."""
    return _log_softmax(logits).gather(-1, action.unsqueeze(-1))


def entropy(logits: Tensor) -> Tensor:
    """Return the entropies `[*B, 1]` of logits `[*B, n]`, in nats."""
    log_probs = _log_softmax(logits)
    # H = -sum_i p_i log p_i
    return -(log_probs.exp() * log_probs).sum(dim=-1, keepdim=True)


def _log_softmax(logits: Tensor) -> Tensor:
    # In half precision, rounding errors are as large as the steps of a policy.
    return logits.to(torch.float32).log_softmax(dim=-1)
