"""The world `fanuc`: LR Mate arms in PyBullet reach targets with their flange.

`FanucEnv` is loaded on first use: the worker processes import this package too, and they must
start without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envs.fanuc.env import FanucEnv

__all__ = ["FanucEnv"]


def __getattr__(name: str) -> Any:
    """Import the environment, and torch with it, when it is asked for (PEP 562)."""
    if name == "FanucEnv":
        from envs.fanuc.env import FanucEnv

        return FanucEnv
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
