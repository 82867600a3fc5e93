"""Jobs of rsl_rl, which has PPO."""

from __future__ import annotations

import pkgutil
from typing import Any

import torch
from tensordict import TensorDict

from benchmarks.peers.jobs import (
    ACTION_DIM,
    BATCH,
    EPOCHS,
    GAMMA,
    HIDDEN,
    OBSERVATION_DIM,
    ROLLOUT_ENVS,
    ROLLOUT_STEPS,
    UPDATES_A_ROLLOUT,
    Builders,
    Run,
)

GROUPS = {"actor": ["policy"], "critic": ["policy"]}
DISTRIBUTION = {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "log"}


def build_ppo() -> Run:
    """Return a run of PPO's updates, all epochs of one rollout at a time."""

    def observe() -> TensorDict:
        return TensorDict({"policy": torch.randn(ROLLOUT_ENVS, OBSERVATION_DIM)}, [ROLLOUT_ENVS])

    network = pkgutil.resolve_name("rsl_rl.models:MLPModel")
    settings: dict[str, Any] = {"hidden_dims": list(HIDDEN), "activation": "tanh"}
    actor = network(
        observe(), GROUPS, "actor", ACTION_DIM, distribution_cfg=dict(DISTRIBUTION), **settings
    )
    critic = network(observe(), GROUPS, "critic", 1, **settings)
    storage = pkgutil.resolve_name("rsl_rl.storage:RolloutStorage")(
        "rl", ROLLOUT_ENVS, ROLLOUT_STEPS, observe(), [ACTION_DIM]
    )
    ppo = pkgutil.resolve_name("rsl_rl.algorithms:PPO")(
        actor,
        critic,
        storage,
        num_learning_epochs=EPOCHS,
        num_mini_batches=ROLLOUT_ENVS * ROLLOUT_STEPS // BATCH,
        gamma=GAMMA,
        value_loss_coef=0.5,
        entropy_coef=0.0,
        learning_rate=3e-4,
        max_grad_norm=0.5,
        use_clipped_value_loss=False,
        schedule="fixed",
        normalize_advantage_per_mini_batch=True,
    )
    with torch.inference_mode():
        for _ in range(ROLLOUT_STEPS):
            ppo.act(observe())
            no = torch.zeros(ROLLOUT_ENVS)
            ppo.process_env_step(observe(), torch.randn(ROLLOUT_ENVS), no, {})
    last = observe()

    def run(updates: int) -> None:
        for _ in range(updates // UPDATES_A_ROLLOUT):
            with torch.inference_mode():
                ppo.compute_returns(last)
            ppo.update()

    run(UPDATES_A_ROLLOUT)
    return run


BUILDERS: Builders = {"updates_ppo": {"": build_ppo}}
