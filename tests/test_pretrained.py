from __future__ import annotations

from pathlib import Path

import pytest
import torch

from envs.marinenav import MarineNavEnv
from envs.marinenav.baselines import StraightToGoal
from envs.marinenav.curriculum import PAPER_STAGES
from envs.marinenav.evaluation import evaluate
from envs.marinenav.scenario import draw_scenarios
from trainers.runs.policy_files import trained_agent

CPU = torch.device("cpu")
SHIPPED = Path(__file__).parents[1] / "pretrained" / "marinenav"


@pytest.mark.parametrize("name", ["ac_iqn", "ddpg", "dqn", "iqn", "ppo", "rainbow", "sac"])
def test_shipped_policy_succeeds_more_often_than_sailing_straight(name: str) -> None:
    scenarios = draw_scenarios(PAPER_STAGES[-1:], 20, 0)
    agent, _ = trained_agent(SHIPPED / f"{name}.safetensors", MarineNavEnv(num_envs=1), CPU)
    skilled = evaluate(agent.policy, scenarios=scenarios, device=CPU)
    straight = evaluate(StraightToGoal(), scenarios=scenarios, device=CPU)
    assert skilled.overall.success.mean > straight.overall.success.mean + 0.3
