"""The policy that ships with the repository."""

from __future__ import annotations

from pathlib import Path

import torch

from envs.lift_cube import LiftCubeEnv
from trainers.evaluation import evaluate
from trainers.policy_files import trained_agent

SHIPPED = Path(__file__).parents[3] / "pretrained" / "lift_cube" / "sac.safetensors"


def test_shipped_policy_lifts_the_cube(lift: LiftCubeEnv) -> None:
    lift.set_mode("eval")
    cpu = torch.device("cpu")
    agent, env = trained_agent(SHIPPED, lift, cpu)
    result = evaluate(env, agent.policy, cpu, episodes=20, seed=1)
    assert (result.success or 0.0) >= 0.9
