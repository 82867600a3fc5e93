"""The environment `fanuc`: LR Mate or other arms in PyBullet or Genesis reach targets.

Names are imported on first access: worker processes import this package too, and must start
without torch.
"""

from typing import TYPE_CHECKING

from torchrl_gpu.lazy import lazy_exports

if TYPE_CHECKING:
    from envs.fanuc.env import FanucEnv as FanucEnv
    from envs.fanuc.observer import ArmObserver as ArmObserver
    from envs.fanuc.robot import load_robot as load_robot
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
