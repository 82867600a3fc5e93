"""The environment `fanuc`: LR Mate arms in PyBullet or Genesis reach targets with their flange.

`FanucEnv` is imported on first access: worker processes import this package too, and must start
without torch.
"""

from typing import TYPE_CHECKING

from torchrl_gpu.lazy import lazy_exports

if TYPE_CHECKING:
    from envs.fanuc.env import FanucEnv as FanucEnv
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
