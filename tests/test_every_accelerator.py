"""The whole pipeline on an accelerator: every agent in every environment, by the command line."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from agents.base import Agent
from tests.helpers.program import call
from torchrl_gpu.arguments import parameters_of
from trainers.registry import learning_agents

AGENTS = learning_agents()

# Settings of small agents; each agent takes those that it has.
SMALL: dict[str, Any] = {
    "hidden_sizes": "[8,8]",
    "head_sizes": "[8]",
    "batch_size": 8,
    "rollout_length": 4,
    "epochs": 1,
    "utd_ratio": 0.125,
    "acting_fractions": 4,
    "atoms": 5,
}
SHORT = [
    *("device=npu", "experiment=null", "trainer.random_frames=8", "trainer.replay_capacity=100"),
    *("trainer.log_interval=8", "trainer.evaluation_interval=16", "trainer.evaluation_episodes=4"),
    *("trainer.checkpoint_interval=16", "trainer.show_progress=false", "evaluation.episodes=4"),
]
FRAMES, MORE_FRAMES = 24, 40

ENVIRONMENTS: dict[str, list[str]] = {
    "fanuc": ["env=fanuc", "env.num_workers=1"],
    "marinenav": ["env=marinenav", "env.num_robots=2", "env.num_obstacles=1"],
    "CartPole-v1": ["env=gym", "env.name=CartPole-v1"],
    "Pendulum-v1": ["env=gym", "env.name=Pendulum-v1"],
}


def run(*arguments) -> int:
    ...


@pytest.mark.parametrize("env", ENVIRONMENTS)
@pytest.mark.parametrize("agent", AGENTS)
def test_agent_trains_resumes_and_is_evaluated(agent, env, tmp_path, monkeypatch, accelerator, capfd):
    import time
    t=time.perf_counter()
    known = parameters_of(AGENTS[agent])
    small = [f"agent.{k}={v}" for k, v in SMALL.items() if k in known]
    steps = "env.options.max_episode_steps=6" if "gym" in ENVIRONMENTS[env][0] else "env.max_episode_steps=6"
    args = [f"agent={agent}", *ENVIRONMENTS[env], "env.num_envs=4", steps, *small, *SHORT]
    assert call(monkeypatch, tmp_path, *args, f"trainer.total_frames={FRAMES}") == 0
    t1=time.perf_counter()
    (run,) = tmp_path.glob("runs/*/*/*/")
    assert call(monkeypatch, tmp_path, "device=npu", f"checkpoint={run}", f"trainer.total_frames={MORE_FRAMES}") == 0
    t2=time.perf_counter()
    assert json.loads((run / "summary.json").read_text())["frames"] == MORE_FRAMES
    assert call(monkeypatch, tmp_path, "device=npu", "mode=eval", f"checkpoint={run}") == 0
    t3=time.perf_counter()
    with capfd.disabled():
        print(agent, env, f"{t1-t:.2f} {t2-t1:.2f} {t3-t2:.2f}")
