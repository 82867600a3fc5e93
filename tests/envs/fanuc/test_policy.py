"""The policy that ships with the repository, trained in Genesis."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from envs.fanuc import FanucEnv
from trainers.evaluation.evaluation import evaluate
from trainers.runs.policy_files import load_policy

CPU = torch.device("cpu")
SHIPPED = Path(__file__).parents[3] / "pretrained" / "fanuc" / "sac.safetensors"


def test_shipped_policy_reaches_targets_in_the_other_simulator(
    make_env: Callable[..., FanucEnv],
) -> None:
    env = make_env(num_envs=8, mode="eval")
    result = evaluate(env, load_policy(SHIPPED).policy, CPU, episodes=40, seed=1)
    assert (result.success or 0.0) >= 0.9


@pytest.mark.slow
def test_shipped_policy_reaches_targets_in_genesis(genesis: FanucEnv) -> None:
    result = evaluate(genesis, load_policy(SHIPPED).policy, CPU, episodes=40, seed=1)
    assert (result.success or 0.0) >= 0.9
