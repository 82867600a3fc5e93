"""Pong in Stable-Baselines3: the same network and settings as the preset of DQN."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from agents.modules.pixels import PixelEncoder
from benchmarks.learning.runs import OurJob, PeerJob
from benchmarks.learning.tasks import GATES, Gate
from benchmarks.stable_baselines import SETTINGS, Convolutions
from trainers.run import settings_of

PONG = [gate for gate in GATES if gate.task.name == "pong"]
PEER = SETTINGS["dqn", "pong"]


@pytest.fixture(scope="module")
def preset() -> dict[str, Any]:
    """Return all settings of `experiment=pong_quick_dqn`."""
    pytest.importorskip("ale_py", reason="the extra `atari` is not installed")
    chosen = ("agent=dqn", "env=gym", "env.name=ALE/Pong-v5", "experiment=pong_quick_dqn")
    return settings_of(*chosen).config


def test_the_peer_has_the_settings_of_the_preset(preset: dict[str, Any]) -> None:
    agent, trainer, num_envs = preset["agent"], preset["trainer"], preset["env"]["num_envs"]
    assert {
        "n_envs": num_envs,
        "n_stack": preset["env"]["frame_stack"],
        "batch_size": agent["batch_size"],
        "buffer_size": trainer["replay_capacity"],
        "learning_rate": agent["learning_rate"],
        "learning_starts": trainer["random_frames"],
        "gamma": agent["gamma"],
        "target_update_interval": agent["target_period"] / agent["utd_ratio"],
        "gradient_steps": PEER["train_freq"] * num_envs * agent["utd_ratio"],
        "exploration_frames": trainer["random_frames"] + agent["epsilon_frames"],
        "exploration_final_eps": agent["epsilon_end"],
    }.items() <= PEER.items()


def test_the_peer_has_the_network_of_the_preset(preset: dict[str, Any]) -> None:
    encoder = preset["agent"]["encoder"]
    layers = encoder["convolutions"], encoder["channels"], encoder["pixel_features"]
    ours = PixelEncoder((2, 84, 84), *layers)
    space = gymnasium.spaces.Box(0, 255, (2, 84, 84), np.uint8)
    arguments = PEER["policy_kwargs"]["features_extractor_kwargs"]
    theirs = Convolutions(space, **arguments)
    assert [p.shape for p in theirs.parameters()] == [p.shape for p in ours.parameters()]
    assert theirs(torch.zeros(2, 2, 84, 84)).shape == (2, theirs.features_dim)


@pytest.mark.parametrize("gate", PONG, ids=lambda gate: gate.agent)
def test_every_agent_has_its_preset_and_the_peer_of_the_task(gate: Gate, tmp_path: Path) -> None:
    assert f"experiment=pong_quick_{gate.agent}" in OurJob.of(gate, 0, tmp_path).arguments
    assert "algorithm=dqn" in PeerJob.of(gate, 0, tmp_path).arguments
