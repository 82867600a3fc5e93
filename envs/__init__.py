"""Environments: one folder each, all batched `torchrl.envs.EnvBase` classes."""

from typing import TYPE_CHECKING

from torchrl_gpu.lazy import lazy_exports

if TYPE_CHECKING:
    from envs.fanuc import FanucEnv as FanucEnv
    from envs.gym import GymnasiumEnv as GymnasiumEnv
    from envs.lift_cube import LiftCubeEnv as LiftCubeEnv
    from envs.marinenav import MarineNavEnv as MarineNavEnv
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
