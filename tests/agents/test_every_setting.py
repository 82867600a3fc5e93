"""Settings and specs that every agent refuses, by name and before it builds a network."""

import inspect
import re
from dataclasses import field
from typing import Any, ClassVar

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Bounded, Categorical, TensorSpec, Unbounded

from agents import ACIQN, DDPG, IQN, PPO, SAC, Rainbow
from agents.base import Agent
from agents.modules.networks import ACTIVATIONS, ReLU
from tests.helpers.agents import (
    AGENTS,
    BATCH,
    ENVS,
    build,
    every_agent_class,
    make_batch,
    small_specs,
)
from torchrl_gpu.arguments import parameters_of
from torchrl_gpu.environments.specs import ActionKind
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.adam import adam

KINDS: tuple[ActionKind, ...] = ("continuous", "discrete")

# Covers every setting with a range; tests of single agents cover settings that exclude each other.
OUT_OF_RANGE = [
    ("actor_period", 0),
    ("acting_fractions", 0),
    ("adam_epsilon", 0.0),
    ("atoms", 1),
    ("batch_size", 0),
    ("clip_ratio", 0.0),
    ("cosines", 0),
    ("entropy_coefficient", -0.1),
    ("entropy_coefficient_end", -0.1),
    ("entropy_coefficient_frames", 0),
    ("epochs", 0),
    ("epsilon_end", -0.1),
    ("epsilon_frames", 0),
    ("epsilon_start", 1.5),
    ("fractions", 0),
    ("gae_lambda", -0.1),
    ("gamma", -0.1),
    ("gamma", 1.5),
    ("head_sizes", [0]),
    ("hidden_sizes", [16, 0]),
    ("initial_temperature", 0.0),
    ("kappa", 0.0),
    ("learning_rate", 0.0),
    ("learning_rate_end", -0.1),
    ("learning_rate_frames", 0),
    ("log_std_init", 9.0),
    ("max_gradient_norm", 0.0),
    ("n_step", 0),
    ("noise", 0.0),
    ("noise_end", -0.1),
    ("noise_frames", 0),
    ("noise_range", (-0.1, 0.5)),
    ("noise_start", -0.1),
    ("priority_exponent", 1.5),
    ("risk_level", 0.0),
    ("risk_level", 1.5),
    ("rollout_length", 0),
    ("target_fractions", 0),
    ("target_kl", 0.0),
    ("target_period", 0),
    ("target_rate", 0.0),
    ("target_rate", 1.5),
    ("utd_ratio", 0.0),
    ("value_clip", 0.0),
    ("value_coefficient", 0.0),
    ("weight_exponent_frames", 0),
    ("weight_exponent_start", 1.5),
]


def refuses(agent_class: type[Agent], name: str, value: Any) -> None:
    """Check that an agent refuses a value by an error that opens with the setting."""
    specs = small_specs(min(agent_class.actions))
    with pytest.raises(ConfigurationError, match=f"^{re.escape(f'{name}={value}: ')}"):
        build(agent_class, *specs, **{name: value})


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_settings_out_of_range_are_refused_by_name(name: str, value: Any) -> None:
    takers = [agent for agent in AGENTS if name in parameters_of(agent)]
    assert takers
    for agent_class in takers:
        refuses(agent_class, name, value)


@every_agent_class
@pytest.mark.parametrize("half", [{"learning_rate_end": 1e-4}, {"learning_rate_frames": 100}])
def test_half_a_schedule_is_refused(agent_class: type[Agent], half: dict[str, Any]) -> None:
    specs = small_specs(min(agent_class.actions))
    with pytest.raises(ConfigurationError, match=r"rate_end and agent\.learning_rate_frames: "):
        build(agent_class, *specs, **half)


class Fixed(PPO):
    """Takes two settings of its base class no longer."""

    target_kl: ClassVar[float] = 0.01  # type: ignore[misc]
    learning_rate_frames: int = field(init=False, default=9)


def test_settings_that_a_subclass_fixes_are_checked_together_with_the_others() -> None:
    specs = small_specs("continuous")
    with pytest.raises(ConfigurationError, match="learning_rate_end: set one"):
        build(Fixed, *specs, learning_rate_end=0.0)
    with pytest.raises(ConfigurationError, match=r"agent\.learning_rate_frames: a schedule needs"):
        build(Fixed, *specs)


@every_agent_class
def test_a_hidden_layer_is_needed_only_where_a_network_is_built_on_it(
    agent_class: type[Agent],
) -> None:
    if agent_class in (ACIQN, IQN, Rainbow):
        refuses(agent_class, "hidden_sizes", [])
        return
    agent: Any = build(agent_class, *small_specs(min(agent_class.actions)), hidden_sizes=[])
    layers = [layer for layer in agent.policy.actor.modules() if isinstance(layer, nn.Linear)]
    assert len(layers) == 1


@every_agent_class
@pytest.mark.parametrize("activation", ["tanh", "elu", "leaky_relu", "silu", "gelu"])
def test_the_activation_is_that_of_all_hidden_layers(
    agent_class: type[Agent], activation: str
) -> None:
    if "activation" not in parameters_of(agent_class):
        return
    specs = small_specs(min(agent_class.actions))
    agent: Any = build(agent_class, *specs, hidden_sizes=[4, 4, 4], activation=activation)
    chosen = ACTIVATIONS[activation]  # type: ignore[index]
    kinds = {type(module) for module in agent.modules()}
    assert type(chosen()) in kinds
    assert not kinds & {ReLU, *map(type, (a() for a in ACTIVATIONS.values() if a is not chosen))}


@every_agent_class
def test_no_setting_takes_an_arbitrary_string(agent_class: type[Agent]) -> None:
    for name, parameter in parameters_of(agent_class).items():
        is_path = name == "demonstrations"  # checked where the dataset is read
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not is_path:
            refuses(agent_class, name, "a little")


@every_agent_class
def test_unsupported_actions_are_refused(agent_class: type[Agent]) -> None:
    for actions in set(KINDS) - agent_class.actions:
        with pytest.raises(ConfigurationError, match=rf"^action_spec: .* not {actions}"):
            build(agent_class, *small_specs(actions))
    observation, _ = small_specs("continuous")
    with pytest.raises(ConfigurationError, match=r"^action_spec: Unbounded"):
        build(agent_class, observation, Unbounded((ENVS, 2)))


@every_agent_class
def test_actions_of_another_shape_or_dtype_are_refused(agent_class: type[Agent]) -> None:
    specs: dict[str, list[TensorSpec]] = {
        "continuous": [
            Bounded(-1.0, 1.0, (ENVS,)),
            Bounded(-1.0, 1.0, (ENVS + 1, 2)),
            Bounded(-1.0, 1.0, (ENVS, 2), dtype=torch.float64),
        ],
        "discrete": [Categorical(3, (ENVS, 1)), Categorical(3, (ENVS + 1,))],
    }
    for kind in agent_class.actions:
        observation, _ = small_specs(kind)
        for spec in specs[kind]:
            with pytest.raises(
                ConfigurationError, match=r"^action_spec: it has shape .*_spec\(env"
            ):
                build(agent_class, observation, spec)


@every_agent_class
def test_a_missing_device_is_refused(agent_class: type[Agent]) -> None:
    constructor: Any = agent_class
    with pytest.raises(ConfigurationError, match=r"^device=cuda:99 is not available: .*cpu$"):
        constructor(*small_specs(min(agent_class.actions)), torch.device("cuda", 99))


@every_agent_class
def test_every_entry_that_is_added_to_a_batch_is_declared(agent_class: type[Agent]) -> None:
    agent = build(agent_class, *small_specs(min(agent_class.actions)))
    rows = TensorDict({"active": torch.ones(BATCH, 1, dtype=torch.bool)}, [BATCH])
    given = {"observation", "action", "active", "next"}
    prepared = agent.prepare_batch(make_batch(agent).update(rows))
    assert set(prepared.keys()) - given <= agent_class.added_keys


@every_agent_class
def test_observations_with_the_name_of_another_entry_of_a_batch_are_refused(
    agent_class: type[Agent],
) -> None:
    """Such an observation would be overwritten, or read as importance weights, without an error."""
    observation, action = small_specs(min(agent_class.actions))
    assert agent_class.added_keys
    for name in agent_class.added_keys:
        specs = observation.clone()
        specs[name] = Unbounded((ENVS, 2))
        with pytest.raises(ConfigurationError, match=f"^observation '{name}': .* rename"):
            build(agent_class, specs, action)


@pytest.mark.parametrize(
    ("agent_class", "settings", "line"),
    [
        (SAC, {"atoms": 51}, "agent.atoms=51: no effect with agent.critic=mean"),
        (
            DDPG,
            {"noise_end": 0.0, "noise_range": [0.0, 0.4]},
            "agent.noise_end=0.0: no effect with agent.noise_range=[0.0, 0.4]",
        ),
        (
            Rainbow,
            {"epsilon_end": 0.2},
            "agent.epsilon_end=0.2: no effect with agent.noisy=true",
        ),
        (
            Rainbow,
            {"prioritized": False, "priority_exponent": 0.9},
            "agent.priority_exponent=0.9: no effect with agent.prioritized=false",
        ),
    ],
)
def test_a_setting_without_effect_is_reported(
    agent_class: type[Agent],
    settings: dict[str, Any],
    line: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kind = sorted(agent_class.actions)[0]
    build(agent_class, *small_specs(kind)).warn_of_unused()
    assert line not in caplog.messages
    build(agent_class, *small_specs(kind), **settings).warn_of_unused()
    assert line in caplog.messages


def test_groups_of_parameters_keep_the_ratio_of_their_learning_rates() -> None:
    schedule: dict[str, Any] = {"learning_rate_end": 0.0, "learning_rate_frames": 100}
    agent = build(DDPG, *small_specs("continuous"), **schedule)
    actor, critic = (group["params"] for group in agent.optimizer.param_groups)
    groups: list[dict[str, Any]] = [{"params": actor, "lr": 1e-4}, {"params": critic}]
    agent.optimizer = adam(groups, agent.learning_rate, agent.device)
    agent.policy.frames.fill_(25)
    agent.update(make_batch(agent))
    rates = [float(group["lr"]) for group in agent.optimizer.param_groups]
    assert rates == pytest.approx([0.75e-4, 0.75 * agent.learning_rate])


def test_the_schedule_sets_the_rates_of_an_optimizer_of_the_user() -> None:
    schedule: dict[str, Any] = {"learning_rate_end": 0.0, "learning_rate_frames": 100}
    agent = build(DDPG, *small_specs("continuous"), **schedule)
    agent.optimizer = torch.optim.SGD(agent.parameters(), lr=2.0 * agent.learning_rate)
    for frames, share in ((25, 0.75), (50, 0.5)):
        agent.policy.frames.fill_(frames)
        agent.update(make_batch(agent))
        (group,) = agent.optimizer.param_groups
        assert group["lr"] == pytest.approx(2.0 * share * agent.learning_rate)
