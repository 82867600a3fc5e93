"""The environment `fanuc`: LR Mate arms in PyBullet reach targets with their flange.

`FanucEnv` is imported on first access: worker processes import this package too, and must start
without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envs.fanuc.env import FanucEnv

__all__ = ["FanucEnv"]


def __getattr__(name: str) -> Any:
    """Import the environment, and torch with it, on first access (PEP 562)."""
    if name == "FanucEnv":
        from envs.fanuc.env import FanucEnv

        return FanucEnv
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
