"""The policies that ship with the repository."""

from pathlib import Path

import pytest
import torch

from envs.lift_cube import LiftCubeEnv
from envs.lift_cube.camera import WristCamera
from envs.lift_cube.task import Task
from trainers.evaluation.evaluation import evaluate
from trainers.runs.policy_files import load_policy

SHIPPED = Path(__file__).parents[3] / "pretrained" / "lift_cube"


def test_shipped_policy_lifts_the_cube(lift: LiftCubeEnv) -> None:
    lift.set_mode("eval")
    cpu = torch.device("cpu")
    policy = load_policy(SHIPPED / "sac.safetensors").policy
    result = evaluate(lift, policy, cpu, episodes=20, seed=1)
    assert (result.success or 0.0) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "task", "keys", "max_episode_steps"),
    [
        ("reach_pixels", "reach", {"pixels"}, 50),
        ("lift_pixels", "lift", {"pixels", "observation"}, 100),
    ],
)
def test_shipped_policy_succeeds_by_images(
    name: str, task: Task, keys: set[str], max_episode_steps: int
) -> None:
    cpu = torch.device("cpu")
    env = LiftCubeEnv(
        num_envs=10,
        task=task,
        pixels=True,
        camera=WristCamera(size=48, geometry="collision"),
        max_episode_steps=max_episode_steps,
        mode="eval",
    )
    policy = load_policy(SHIPPED / f"{name}.safetensors").policy
    assert set(policy.in_keys) == keys
    result = evaluate(env, policy, cpu, episodes=10, seed=1)
    env.close()
    assert (result.success or 0.0) >= 0.8
