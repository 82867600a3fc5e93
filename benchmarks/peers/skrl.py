"""Jobs of skrl."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from benchmarks.peers.jobs import (
    ACTION_DIM,
    BATCH,
    EPOCHS,
    GAMMA,
    HIDDEN,
    NUM_ACTIONS,
    OBSERVATION_DIM,
    ROLLOUT_ENVS,
    ROLLOUT_STEPS,
    STORED,
    TARGET_PERIOD,
    UPDATES_A_ROLLOUT,
    WRITERS,
    Build,
    Builders,
    RandomEnv,
    Run,
)

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
    quiet = {"write_interval": 0, "checkpoint_interval": 0}
    config = pkgutil.resolve_name(f"{package}:{name}_CFG")(
        discount_factor=GAMMA,
        **({"batch_size": BATCH} if name != "PPO" else {}),
        **settings,
    )
    for key, value in quiet.items():
        setattr(config.experiment, key, value)
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
        action = torch.rand(WRITERS, ACTION_DIM) * 2.0 - 1.0
        if is_discrete:
            action = torch.randint(NUM_ACTIONS, (WRITERS, 1))
        memory.add_samples(
            observations=torch.randn(WRITERS, OBSERVATION_DIM),
            states=None,
            actions=action,
            rewards=torch.randn(WRITERS, 1),
            next_observations=torch.randn(WRITERS, OBSERVATION_DIM),
            next_states=None,
            terminated=torch.zeros(WRITERS, 1, dtype=torch.bool),
        )

    def run(updates: int) -> None:
        for _ in range(updates):
            learner.update(**_STEP)

    run(3)
    return run


def ppo_models(spaces: Mapping[str, Any]) -> dict[str, Any]:
    """Return actor and critic of PPO."""
    return {
        "policy": model("gaussian", spaces, "ACTIONS", "OBSERVATIONS"),
        "value": model("deterministic", spaces, "ONE", "OBSERVATIONS"),
    }


def build_ppo() -> Run:
    """Return a run of PPO's updates, all epochs of one rollout at a time."""
    spaces = spaces_of(is_discrete=False)
    learner = agent(
        "PPO",
        ppo_models(spaces),
        memory_of(ROLLOUT_STEPS, ROLLOUT_ENVS),
        spaces,
        rollouts=ROLLOUT_STEPS,
        learning_epochs=EPOCHS,
        mini_batches=ROLLOUT_ENVS * ROLLOUT_STEPS // BATCH,
        value_clip=0.0,
        value_loss_scale=0.5,
    )
    learner.enable_training_mode(True)
    no = torch.zeros(ROLLOUT_ENVS, 1, dtype=torch.bool)
    with torch.no_grad():
        for _ in range(ROLLOUT_STEPS):
            observation = torch.randn(ROLLOUT_ENVS, OBSERVATION_DIM)
            action, _ = learner.act(observation, None, **_STEP)
            learner.record_transition(
                observations=observation,
                states=None,
                actions=action,
                rewards=torch.randn(ROLLOUT_ENVS, 1),
                next_observations=observation,
                next_states=None,
                terminated=no,
                truncated=no,
                infos={},
                **_STEP,
            )

    def run(updates: int) -> None:
        for _ in range(updates // UPDATES_A_ROLLOUT):
            learner.update(**_STEP)

    run(UPDATES_A_ROLLOUT)
    return run


def _off_policy(name: str, is_discrete: bool = False) -> dict[str, Build]:
    return {"": partial(build_off_policy, name, is_discrete)}


BUILDERS: Builders = {
    "updates_sac": _off_policy("SAC"),
    "updates_ddpg": _off_policy("DDPG"),
    "updates_dqn": _off_policy("DQN", is_discrete=True),
    "updates_ppo": {"": build_ppo},
}
