"""Jobs of skrl."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.fixture import BATCH, HIDDEN, OBSERVATION_DIM
from benchmarks.measuring import Run, times
from benchmarks.peers.jobs import (
    GAMMA,
    RANDOM_PPO,
    STORED,
    TARGET_PERIOD,
    WRITERS,
    Build,
    Builders,
    PPOTask,
    RandomEnv,
    every,
)
from benchmarks.peers.plain_agents import random_batch

_MODELS = "skrl.utils.model_instantiators.torch"
_STEP = {"timestep": 1, "timesteps": 1}


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
            states=None,
            actions=batch.action,
            rewards=batch.reward,
            next_observations=batch.next_observation,
            next_states=None,
            terminated=batch.terminated.bool(),
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


# The next observations `[N, D]`; rewards, terminations and truncations, each `[N, 1]`.
Step = tuple[Tensor, Tensor, Tensor, Tensor]


def record(learner: Any, observation: Tensor, step: Callable[[Tensor], Step]) -> Tensor:
    """Act in all environments, keep the transitions for PPO, and return the next observations.

    Args:
        learner: PPO.
        observation: observations `[N, D]`.
        step: steps all environments by actions.
    """
    with torch.no_grad():
        action, _ = learner.act(observation, None, **_STEP)
        after, reward, terminated, truncated = step(action)
        learner.record_transition(
            observations=observation,
            states=None,
            actions=action,
            rewards=reward,
            next_observations=after,
            next_states=None,
            terminated=terminated,
            truncated=truncated,
            infos={},
            **_STEP,
        )
    return after


def train_ppo(learner: Any, observation: Tensor, step: Callable[[Tensor], Step]) -> Run:
    """Return a run of frames of PPO, see `record`."""

    def step_and_learn() -> None:
        nonlocal observation
        observation = record(learner, observation, step)
        learner.post_interaction(**_STEP)

    return every(len(observation), step_and_learn)


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
            learner, observation, lambda _: (observe(), torch.randn(shape), no, no)
        )
    return every(RANDOM_PPO.updates, partial(learner.update, **_STEP))


def _off_policy(name: str, is_discrete: bool = False) -> dict[str, Build]:
    return {"": partial(build_off_policy, name, is_discrete)}


BUILDERS: Builders = {
    "updates_sac": _off_policy("SAC"),
    "updates_ddpg": _off_policy("DDPG"),
    "updates_dqn": _off_policy("DQN", is_discrete=True),
    "updates_ppo": {"": build_ppo},
}
