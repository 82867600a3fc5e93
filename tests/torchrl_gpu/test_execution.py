"""An execution runs every action and every update of every agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase

from agents.base import Agent, Update
from tests.helpers.agents import AGENTS, build_for
from tests.helpers.environments import IdentityEnv
from tests.test_extending import example
from torchrl_gpu.acting.collector import BatchCollector
from torchrl_gpu.execution import Execution
from trainers.pairing import pair
from trainers.trainer import TorchRLTrainer


class Recording(Execution):
    """Counts calls, and computes losses in half precision as an example of an override."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def act(
        self, policy: Callable[[TensorDictBase], TensorDictBase], observation: TensorDictBase
    ) -> TensorDictBase:
        self.calls["act"] += 1
        return super().act(policy, observation)

    def update(self, agent: Agent, batch: TensorDictBase) -> Update:
        self.calls["update"] += 1
        result = super().update(agent, batch)
        assert isinstance(result, Update)
        return result

    def gradients(
        self,
        loss: Callable[[TensorDictBase], Any],
        batch: TensorDictBase,
        optimizers: Iterable[torch.optim.Optimizer],
    ) -> Any:
        self.calls["gradients"] += 1

        def in_half_precision(batch: TensorDictBase) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return loss(batch)

        return super().gradients(in_half_precision, batch, optimizers)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        self.calls["step"] += 1
        super().step(optimizer)


@pytest.mark.parametrize(
    "agent_class", [*AGENTS, example("my_robots/td3.py", "TD3")], ids=lambda c: c.__name__
)
def test_an_execution_runs_every_step_of_a_training(
    agent_class: type[Agent], tmp_path: Path
) -> None:
    env = pair(IdentityEnv(num_envs=8), agent_class)
    agent = build_for(env, agent_class, rollout_length=8)
    execution = Recording()
    settings: dict[str, Any] = {"total_frames": 512, "random_frames": 0, "replay_capacity": 1000}
    trainer = TorchRLTrainer(
        env, agent, tmp_path, execution=execution, show_progress=False, loggers=["csv"], **settings
    )
    trainer.train()
    assert trainer.updates > 0
    parts = dict.fromkeys(("update", "gradients", "step"), trainer.updates)
    assert execution.calls == {"act": 512 // 8, **parts}
    assert all(value.isfinite().all() for value in agent.state_dict().values())


def test_a_collector_acts_through_its_execution() -> None:
    env = IdentityEnv(num_envs=4)
    agent = build_for(env, AGENTS[0])
    execution = Recording()
    collector = BatchCollector(env, agent.device, agent.policy.in_keys, execution)
    for _ in range(3):
        collector.step(agent.policy)
    assert execution.calls == {"act": 3}
