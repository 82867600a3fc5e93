"""Agents: one file per algorithm, built from specs and hyperparameters alone."""

from agents.base import Agent, OffPolicyAgent, OnPolicyAgent
from agents.sac import SAC

__all__ = ["SAC", "Agent", "OffPolicyAgent", "OnPolicyAgent"]
