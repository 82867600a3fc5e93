"""Jobs of rsl_rl, which has PPO."""

import pkgutil
from typing import Any

import torch
from tensordict import TensorDict

from benchmarks.fixture import ACTION_DIM, HIDDEN, OBSERVATION_DIM
from benchmarks.measuring import Run, times
from benchmarks.peers.jobs import RANDOM_PPO, SEAS_PPO, Builders, PPOTask
from benchmarks.peers.seas import ACTIONS, Vessels

_GROUPS = {"actor": ["policy"], "critic": ["policy"]}
_DISTRIBUTION = {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "log"}


def make_ppo(observation: TensorDict, actions: int, task: PPOTask) -> Any:
    """Return PPO with its storage.

    Args:
        observation: example of the observations `[num_envs]`, with the entry `policy`.
        actions: number of dimensions of the action.
        task: settings.
    """
    network = pkgutil.resolve_name("rsl_rl.models:MLPModel")
    common: dict[str, Any] = {"hidden_dims": list(HIDDEN), "activation": "relu"}
    actor = network(
        observation, _GROUPS, "actor", actions, distribution_cfg=dict(_DISTRIBUTION), **common
    )
    critic = network(observation, _GROUPS, "critic", 1, **common)
    storage = pkgutil.resolve_name("rsl_rl.storage:RolloutStorage")(
        "rl", task.num_envs, task.rollout_length, observation, [actions]
    )
    return pkgutil.resolve_name("rsl_rl.algorithms:PPO")(
        actor,
        critic,
        storage,
        num_learning_epochs=task.epochs,
        num_mini_batches=task.minibatches,
        gamma=task.gamma,
        lam=task.gae_lambda,
        value_loss_coef=0.5,
        entropy_coef=0.0,
        learning_rate=task.learning_rate,
        max_grad_norm=0.5,
        use_clipped_value_loss=False,
        schedule="fixed",
        normalize_advantage_per_mini_batch=True,
    )


def build_ppo() -> Run:
    """Return a run of PPO's updates, all epochs of one rollout at a time."""
    num_envs = RANDOM_PPO.num_envs

    def observe() -> TensorDict:
        return TensorDict({"policy": torch.randn(num_envs, OBSERVATION_DIM)}, [num_envs])

    ppo = make_ppo(observe(), ACTION_DIM, RANDOM_PPO)
    no = torch.zeros(num_envs)
    with torch.inference_mode():
        for _ in range(RANDOM_PPO.rollout_length):
            ppo.act(observe())
            ppo.process_env_step(observe(), torch.randn(num_envs), no, {})
    last = observe()

    def learn_from_the_rollout() -> None:
        with torch.inference_mode():
            ppo.compute_returns(last)
        ppo.update()

    return times(learn_from_the_rollout, RANDOM_PPO.updates)


def build_seas_ppo() -> Run:
    """Return a run of frames of PPO on the seas."""
    vessels = Vessels()

    def observe() -> TensorDict:
        return TensorDict({"policy": vessels.observation}, [SEAS_PPO.num_envs])

    ppo = make_ppo(observe(), ACTIONS, SEAS_PPO)

    def collect_and_learn() -> None:
        with torch.inference_mode():
            for _ in range(SEAS_PPO.rollout_length):
                _, reward, terminated, truncated = vessels.step(ppo.act(observe()))
                done = (terminated | truncated).squeeze(1).long()
                time_outs = {"time_outs": truncated.squeeze(1).float()}
                ppo.process_env_step(observe(), reward.squeeze(1), done, time_outs)
            ppo.compute_returns(observe())
        ppo.update()

    return times(collect_and_learn, SEAS_PPO.frames)


BUILDERS: Builders = {"updates_ppo": {"": build_ppo}, "seas_ppo": {"": build_seas_ppo}}
