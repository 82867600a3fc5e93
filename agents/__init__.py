"""Agents: one file per algorithm, built from specs and hyperparameters alone."""

from agents.ac_iqn import ACIQN
from agents.base import Agent, OffPolicyAgent, OnPolicyAgent
from agents.ddpg import DDPG
from agents.dqn import DQN
from agents.iqn import IQN
from agents.ppo import PPO
from agents.rainbow import Rainbow
from agents.sac import SAC
from agents.untrained import RandomAgent, UntrainedAgent, ZeroAgent
from torchrl_gpu.execution.learner import Losses, Update

__all__ = [
    "ACIQN",
    "DDPG",
    "DQN",
    "IQN",
    "PPO",
    "SAC",
    "Agent",
    "Losses",
    "OffPolicyAgent",
    "OnPolicyAgent",
    "Rainbow",
    "RandomAgent",
    "UntrainedAgent",
    "Update",
    "ZeroAgent",
]
