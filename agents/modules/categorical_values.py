"""Distributions of the return over a fixed set of atoms.

Source: Bellemare et al., "A Distributional Perspective on Reinforcement Learning" (C51),
arXiv 1707.06887.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchrl_gpu.errors import ConfigurationError


class CategoricalValues(nn.Module):
    """The atoms of return distributions, and operations on these distributions.

    Attributes:
        atoms: possible returns, float32 `[atoms]`, at least 2, evenly spaced from `value_min` to
            `value_max`, in units of reward.

    Raises:
        ConfigurationError: `value_max` is not above `value_min`.
    """

    atoms: Tensor

    def __init__(self, value_min: float, value_max: float, atoms: int) -> None:
        super().__init__()
        self.check_combination({"value_min": value_min, "value_max": value_max})
        self.value_min = value_min
        self.value_max = value_max
        self.spacing = (value_max - value_min) / (atoms - 1)
        self.register_buffer("atoms", torch.linspace(value_min, value_max, atoms))
        self.register_load_state_dict_post_hook(_check_atoms)

    @staticmethod
    def check_combination(settings: Mapping[str, Any]) -> None:
        """Refuse a `value_max` that is not above `value_min`, among the settings of an agent."""
        low, high = settings["value_min"], settings["value_max"]
        if high <= low:
            raise ConfigurationError(
                f"agent.value_max={high:g}: it must be above agent.value_min={low:g}"
            )

    def mean(self, logits: Tensor) -> Tensor:
        """Return the expected values `[*B]` of distributions `[*B, atoms]` given as logits."""
        # No matrix product: autocast would compute it in half precision, and values would tie.
        return (logits.to(torch.float32).softmax(dim=-1) * self.atoms).sum(dim=-1)

    def project(self, probabilities: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Return the distributions of `reward + discount * value`, on the same atoms.

        Args:
            probabilities: probability of each atom, `[*B, atoms]`.
            reward: rewards, or discounted sums of n rewards, `[B, 1]` or `[*B, 1]`.
            discount: gamma^n, and 0 after a termination, shaped as `reward`.

        Returns:
            Probabilities `[*B, atoms]`, float32; the first and the last hold all probability beyond
            them.
        """
        probabilities = probabilities.to(torch.float32)
        # Tz_j = clip(r + gamma z_j),  b_j = (Tz_j - z_min) / dz                  (algorithm 1)
        moved = (reward + discount * self.atoms).clamp(self.value_min, self.value_max)
        place = (moved - self.value_min) / self.spacing
        # m_l += p_j (u - b_j),  m_u += p_j (b_j - l),  with u = l + 1 also where b_j is whole
        lower = place.floor().clamp(max=len(self.atoms) - 2)
        to_upper = probabilities * (place - lower)
        # A NaN reaches the loss by `to_upper`; as an index it would end the process on a GPU.
        lower = lower.to(torch.int64).clamp(0, len(self.atoms) - 2).expand_as(probabilities)
        projected = torch.zeros_like(probabilities)
        projected.scatter_add_(-1, lower, probabilities - to_upper)
        return projected.scatter_add_(-1, lower + 1, to_upper)


def divergence(target: Tensor, logits: Tensor) -> Tensor:
    """Return the divergences D_KL(target || softmax(logits)), `[*B]`.

    The gradient equals that of the cross-entropy. Unlike the cross-entropy, the divergence of equal
    distributions is 0. The target probabilities are `[*B, atoms]` or `[B, atoms]`, the logits
    `[*B, atoms]`.
    """
    log_target = target.clamp(min=torch.finfo(target.dtype).tiny).log()
    log_probabilities = logits.to(torch.float32).log_softmax(dim=-1)
    return (target * (log_target - log_probabilities)).sum(dim=-1)


def _check_atoms(values: CategoricalValues, _: Any) -> None:
    """Refuse a state whose logits were learned for other atoms."""
    low, high = values.atoms[[0, -1]].tolist()
    asked = torch.tensor((values.value_min, values.value_max))
    if not torch.allclose(torch.tensor((low, high)), asked):
        raise ConfigurationError(
            f"the saved atoms range from {low:g} to {high:g}, not from "
            f"value_min={values.value_min:g} to value_max={values.value_max:g}"
        )
