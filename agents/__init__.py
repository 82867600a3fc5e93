"""Agents: one file per algorithm, built from specs and hyperparameters alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchrl_gpu.lazy import lazy_exports

if TYPE_CHECKING:
    from agents.ac_iqn import ACIQN as ACIQN
    from agents.base import Agent as Agent
    from agents.base import OffPolicyAgent as OffPolicyAgent
    from agents.base import OnPolicyAgent as OnPolicyAgent
    from agents.ddpg import DDPG as DDPG
    from agents.dqn import DQN as DQN
    from agents.iqn import IQN as IQN
    from agents.ppo import PPO as PPO
    from agents.rainbow import Rainbow as Rainbow
    from agents.sac import SAC as SAC
    from agents.untrained import RandomAgent as RandomAgent
    from agents.untrained import UntrainedAgent as UntrainedAgent
    from agents.untrained import ZeroAgent as ZeroAgent
    from torchrl_gpu.execution.learner import Losses as Losses
    from torchrl_gpu.execution.learner import Update as Update
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
