"""PyBullet without the message that it prints on import."""

import functools
import os
from collections.abc import Callable
from typing import Any

_terminal = os.dup(2)
_nowhere = os.open(os.devnull, os.O_WRONLY)
os.dup2(_nowhere, 2)
try:
    import pybullet
finally:
    os.dup2(_terminal, 2)
    os.close(_terminal)
    os.close(_nowhere)

__all__ = ["Client", "pybullet"]


class Client:
    """A simulation in PyBullet; the functions of `pybullet` are its methods.

    PyBullet's own class of this kind, `BulletClient`, prints a line for each new client.
    """

    def __init__(self, mode: int = pybullet.DIRECT) -> None:
        self._number = pybullet.connect(mode)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a function of `pybullet` that acts on this simulation."""
        return functools.partial(getattr(pybullet, name), physicsClientId=self._number)
