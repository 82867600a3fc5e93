"""The discrete actions of the paper."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

# Fractions of the maximum thrust rate: 0, -500, -1,000, 500 and 1,000 N/s.
DISCRETE_RATES: Final = (0.0, -0.5, -1.0, 0.5, 1.0)


def discrete_actions(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the table of discrete actions `[25, 2]`; row 5 i + j is left rate i, right rate j."""
    rates = torch.tensor(DISCRETE_RATES, dtype=dtype, device=device)
    return torch.cartesian_prod(rates, rates)
