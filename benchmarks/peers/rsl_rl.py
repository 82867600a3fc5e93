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

_GROUPS = {"actor": ["policy"], "critic": ["policy"]}
_DISTRIBUTION = {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "log"}


def make_ppo(observation: TensorDict, actions: int, steps: int, **settings: Any) -> Any:
    """Return PPO with its storage.

    Args:
        observation: example of the observations `[num_envs]`, with the entry `policy`.
        actions: number of dimensions of the action.
        steps: number of steps of a rollout.
        settings: further arguments of PPO.
    """
    network = pkgutil.resolve_name("rsl_rl.models:MLPModel")
    common: dict[str, Any] = {"hidden_dims": list(HIDDEN), "activation": "relu"}
    actor = network(
        observation, _GROUPS, "actor", actions, distribution_cfg=dict(_DISTRIBUTION), **common
    )
    critic = network(observation, _GROUPS, "critic", 1, **common)
    storage = pkgutil.resolve_name("rsl_rl.storage:RolloutStorage")(
        "rl", len(observation), steps, observation, [actions]
    )
    return pkgutil.resolve_name("rsl_rl.algorithms:PPO")(
        actor,
        critic,
        storage,
        gamma=GAMMA,
        value_loss_coef=0.5,
        entropy_coef=0.0,
        learning_rate=3e-4,
        max_grad_norm=0.5,
        use_clipped_value_loss=False,
        schedule="fixed",
        normalize_advantage_per_mini_batch=True,
        **settings,
    )


def build_ppo() -> Run:
    """Return a run of PPO's updates, all epochs of one rollout at a time."""

    def observe() -> TensorDict:
        return TensorDict({"policy": torch.randn(ROLLOUT_ENVS, OBSERVATION_DIM)}, [ROLLOUT_ENVS])

    ppo = make_ppo(
        observe(),
        ACTION_DIM,
        ROLLOUT_STEPS,
        num_learning_epochs=EPOCHS,
        num_mini_batches=ROLLOUT_ENVS * ROLLOUT_STEPS // BATCH,
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
