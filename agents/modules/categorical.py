"""A categorical distribution over discrete actions, made of tensor operations only.

PyTorch's `Categorical` reads values back to the host to validate and to sample; this one does not.
"""

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


def evaluate(action: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probabilities of actions `[*B]` int64 and entropies in nats, `[*B, 1]` each.

    The logits are `[*B, n]`.
    """
    # In half precision, rounding errors are as large as the steps of a policy.
    log_probs = logits.to(torch.float32).log_softmax(dim=-1)
    # H = -sum_i p_i log p_i
    entropy = -(log_probs.exp() * log_probs).sum(dim=-1, keepdim=True)
    return log_probs.gather(-1, action.unsqueeze(-1)), entropy
