"""The discrete actions of the paper."""

from __future__ import annotations

from itertools import product
from typing import Final

# Fractions of the maximum thrust rate: 0, -500, -1,000, 500 and 1,000 N/s.
DISCRETE_RATES: Final = (0.0, -0.5, -1.0, 0.5, 1.0)

# Row 5 i + j is left rate i, right rate j.
DISCRETE_ACTIONS: Final = tuple(product(DISCRETE_RATES, repeat=2))
