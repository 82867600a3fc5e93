"""Jobs of skrl."""

import pkgutil
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from benchmarks.fixture import BATCH, HIDDEN, OBSERVATION_DIM
from benchmarks.measuring import Run, times
from benchmarks.peers.jobs import (
    GAMMA,
    RANDOM_PPO,
    SEAS_PPO,
    STORED,
    TARGET_PERIOD,
    WRITERS,
    Build,
    Builders,
    PPOTask,
    RandomEnv,
)
from benchmarks.peers.plain_agents import random_batch
from benchmarks.peers.seas import ACTIONS, Outcome, Vessels

_MODELS = "skrl.utils.model_instantiators.torch"
_STEP = {"timestep": 1, "timesteps": 1}
_NO_STATES = {"states": None, "next_states": None}


def model(kind: str, spaces: Mapping[str, Any], output: str, inputs: str, **settings: Any) -> Any:
    """Return a network with the common hidden layers.

    Args:
        kind: `deterministic` or `gaussian`.
        spaces: spaces of observations and actions.
        output: expression of the output, in skrl's words.
        inputs: expression of the input.
        settings: further arguments of skrl's function.
    """
    network = [{"name": "net", "input": inputs, "layers": list(HIDDEN), "activations": "relu"}]
    build = pkgutil.resolve_name(f"{_MODELS}:{kind}_model")
    made = build(**spaces, device="cpu", network=network, output=output, **settings)
    made.init_state_dict()
    return made


def agent(name: str, models: Any, memory: Any, spaces: Mapping[str, Any], **settings: Any) -> Any:
    """Return an agent that writes neither metrics nor checkpoints."""
    package = f"skrl.agents.torch.{name.lower()}"
    config = pkgutil.resolve_name(f"{package}:{name}_CFG")(
        discount_factor=GAMMA,
        **({"batch_size": BATCH} if name != "PPO" else {}),
        **settings,
    )
    config.experiment.write_interval = config.experiment.checkpoint_interval = 0
    build = pkgutil.resolve_name(f"{package}:{name}")
    made = build(models=models, memory=memory, device="cpu", cfg=config, **spaces)
    made.init()
    made.enable_models_training_mode(True)
    return made


def spaces_of(is_discrete: bool) -> dict[str, Any]:
    """Return the spaces of observations and actions."""
    env = RandomEnv(is_discrete)
    return {"observation_space": env.observation_space, "action_space": env.action_space}


def memory_of(rows: int, num_envs: int) -> Any:
    """Return a memory for `rows` steps of `num_envs` environments."""
    build = pkgutil.resolve_name("skrl.memories.torch:RandomMemory")
    return build(memory_size=rows, num_envs=num_envs, device="cpu", replacement=True)


def build_off_policy(name: str, is_discrete: bool = False) -> Run:
    """Return a run of updates with batches from a filled memory."""
    spaces = spaces_of(is_discrete)
    critic = partial(model, "deterministic", spaces, "ONE", "concatenate([OBSERVATIONS, ACTIONS])")
    actor = partial(model, "deterministic", spaces, "tanh(ACTIONS)", "OBSERVATIONS")
    settings: dict[str, Any] = {}
    if name == "SAC":
        models = {
            "policy": model("gaussian", spaces, "tanh(ACTIONS)", "OBSERVATIONS", clip_actions=True),
            **{
                f"{kind}_{number}": critic()
                for kind in ("critic", "target_critic")
                for number in (1, 2)
            },
        }
    elif name == "DDPG":
        models = {
            **{"policy": actor(), "target_policy": actor()},
            **{"critic": critic(), "target_critic": critic()},
        }
    else:
        values = partial(model, "deterministic", spaces, "ACTIONS", "OBSERVATIONS")
        models = {"q_network": values(), "target_q_network": values()}
        settings = {"target_update_interval": TARGET_PERIOD, "polyak": 1.0}
    memory = memory_of(STORED // WRITERS, WRITERS)
    learner = agent(name, models, memory, spaces, **settings)
    for _ in range(STORED // WRITERS):
        batch = random_batch(WRITERS, is_discrete)
        memory.add_samples(
            observations=batch.observation,
            actions=batch.action,
            rewards=batch.reward,
            next_observations=batch.next_observation,
            terminated=batch.terminated.bool(),
            **_NO_STATES,
        )
    return times(partial(learner.update, **_STEP))


def make_ppo(spaces: Mapping[str, Any], task: PPOTask) -> Any:
    """Return PPO with its memory."""
    models = {
        "policy": model("gaussian", spaces, "ACTIONS", "OBSERVATIONS"),
        "value": model("deterministic", spaces, "ONE", "OBSERVATIONS"),
    }
    learner = agent(
        "PPO",
        models,
        memory_of(task.rollout_length, task.num_envs),
        spaces,
        rollouts=task.rollout_length,
        learning_epochs=task.epochs,
        mini_batches=task.minibatches,
        value_clip=0.0,
        value_loss_scale=0.5,
    )
    learner.enable_training_mode(True)
    return learner


def record(learner: Any, observation: Tensor, step: Callable[[Tensor], Outcome]) -> Tensor:
    """Act in all environments, keep the transitions for PPO, and return the next observations.

    Args:
        learner: PPO.
        observation: observations `[N, D]`.
        step: steps all environments by actions.
    """
    with torch.no_grad():
        action, _ = learner.act(observation, None, **_STEP)
        outcome = step(action)
        learner.record_transition(
            observations=observation,
            actions=action,
            rewards=outcome.reward,
            next_observations=outcome.observation,
            terminated=outcome.terminated,
            truncated=outcome.truncated,
            infos={},
            **_NO_STATES,
            **_STEP,
        )
    return outcome.observation


def build_seas_ppo() -> Run:
    """Return a run of frames of PPO on the seas."""
    vessels = Vessels()
    spaces = {
        "observation_space": gym.spaces.Box(-np.inf, np.inf, vessels.observation.shape[1:]),
        "action_space": gym.spaces.Box(-1.0, 1.0, (ACTIONS,)),
    }
    learner = make_ppo(spaces, SEAS_PPO)

    def step_and_learn() -> None:
        record(learner, vessels.observation, vessels.step)
        learner.post_interaction(**_STEP)

    return times(step_and_learn, SEAS_PPO.num_envs)


def build_ppo() -> Run:
    """Return a run of PPO's updates, all epochs of one rollout at a time."""
    learner = make_ppo(spaces_of(is_discrete=False), RANDOM_PPO)
    shape = (RANDOM_PPO.num_envs, 1)
    no = torch.zeros(shape, dtype=torch.bool)

    def observe() -> Tensor:
        return torch.randn(RANDOM_PPO.num_envs, OBSERVATION_DIM)

    observation = observe()
    for _ in range(RANDOM_PPO.rollout_length):
        observation = record(
            learner, observation, lambda _: Outcome(observe(), torch.randn(shape), no, no)
        )
    return times(partial(learner.update, **_STEP), RANDOM_PPO.updates)


def _off_policy(name: str, is_discrete: bool = False) -> dict[str, Build]:
    return {"": partial(build_off_policy, name, is_discrete)}


BUILDERS: Builders = {
    "updates_sac": _off_policy("SAC"),
    "updates_ddpg": _off_policy("DDPG"),
    "updates_dqn": _off_policy("DQN", is_discrete=True),
    "updates_ppo": {"": build_ppo},
    "seas_ppo": {"": build_seas_ppo},
}
