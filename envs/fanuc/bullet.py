"""PyBullet without the message that it prints on import."""

from __future__ import annotations

import os

_terminal = os.dup(2)
_nowhere = os.open(os.devnull, os.O_WRONLY)
os.dup2(_nowhere, 2)
try:
    import pybullet
finally:
    os.dup2(_terminal, 2)
    os.close(_terminal)
    os.close(_nowhere)

__all__ = ["pybullet"]
