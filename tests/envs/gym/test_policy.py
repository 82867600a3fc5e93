"""The policy of Pong that ships with the repository."""

import importlib.util
from pathlib import Path

import pytest
import torch

from envs.gym import GymnasiumEnv
from torchrl_gpu.acting.collector import BatchCollector
from trainers.runs.policy_files import load_policy

SHIPPED = Path(__file__).parents[3] / "pretrained" / "pong" / "rainbow.safetensors"
NUM_ENVS, STEPS = 4, 400


@pytest.mark.skipif(
    importlib.util.find_spec("ale_py") is None or importlib.util.find_spec("cv2") is None,
    reason="ale-py or OpenCV is not installed: the extra `atari`",
)
def test_shipped_policy_returns_the_ball() -> None:
    cpu = torch.device("cpu")
    pong = GymnasiumEnv(name="ALE/Pong-v5", num_envs=NUM_ENVS, frame_stack=2, mode="eval", seed=1)
    policy = load_policy(SHIPPED).policy
    collector = BatchCollector(pong, cpu, policy.in_keys)
    rewards = [collector.step(policy)["next", "reward"] for _ in range(STEPS)]
    pong.close()
    # A player who misses every ball loses a point every 37 steps.
    lost = -sum(float(reward.clamp(max=0.0).sum()) for reward in rewards)
    assert lost < 0.75 * NUM_ENVS * STEPS / 37
