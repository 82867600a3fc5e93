from pathlib import Path

import pytest
import torch

from envs.marinenav.baselines import StraightToGoal
from envs.marinenav.curriculum import PAPER_STAGES
from envs.marinenav.evaluation import evaluate
from envs.marinenav.scenario import Scenario, draw_scenarios
from tests.helpers.program import Call
from trainers.runs.policy_files import load_policy

CPU = torch.device("cpu")
SHIPPED = Path(__file__).parents[1] / "pretrained" / "marinenav"


@pytest.fixture(scope="module")
def scenarios() -> list[Scenario]:
    return draw_scenarios(PAPER_STAGES[-1:], 20, 0)


@pytest.fixture(scope="module")
def straight(scenarios: list[Scenario]) -> float:
    """Share of the vessels that arrive by sailing straight."""
    return evaluate(StraightToGoal(), scenarios=scenarios, device=CPU).overall.success.mean


@pytest.mark.parametrize("name", ["ac_iqn", "ddpg", "dqn", "iqn", "ppo", "rainbow", "sac"])
def test_shipped_policy_succeeds_more_often_than_sailing_straight(
    name: str, scenarios: list[Scenario], straight: float
) -> None:
    policy = load_policy(SHIPPED / f"{name}.safetensors").policy
    skilled = evaluate(policy, scenarios=scenarios, device=CPU)
    assert skilled.overall.success.mean > straight + 0.3


def test_a_shipped_policy_is_found_by_its_name_from_anywhere(tmp_path: Path, program: Call) -> None:
    short = ("mode=eval", "evaluation.episodes=2", "env.max_episode_steps=2")
    assert program(*short, "checkpoint=pretrained:marinenav/sac").code == 0
    assert list(tmp_path.glob("runs/marinenav/sac/sac/evaluations/*.json"))
    assert load_policy("pretrained:marinenav/dqn").interface.action_table is not None
    line = program(*short, "checkpoint=pretrained:marinenav/td3").refusal()
    assert line.startswith("checkpoint=pretrained:marinenav/td3: choose one of: fanuc/sac, ")
    assert line.endswith(", pong/rainbow")
