"""All agents of configs/agent that learn, in small versions that learn within seconds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, TensorSpec, Unbounded
from torchrl.envs import EnvBase

from agents.base import Agent, OnPolicyAgent
from tests.helpers.environments import IdentityEnv, MatchEnv
from torchrl_gpu.arguments import parameters_of
from torchrl_gpu.environments.specs import ActionKind, action_spec, observation_spec
from trainers.components.choices import learning_agents

AnyAgent = TypeVar("AnyAgent", bound=Agent)

AGENTS: list[type[Agent]] = list(learning_agents().values())
CPU = torch.device("cpu")

# Settings for tasks in which only the immediate reward counts; `build` drops unknown ones.
QUICK: dict[str, Any] = {
    "hidden_sizes": [32, 32],
    "gamma": 0.0,
    "n_step": 1,
    "learning_rate": 3e-3,
    "initial_temperature": 0.05,
    "noise_frames": 2000,
    "epsilon_frames": 2000,
    "value_min": -8.0,
    "value_max": 2.0,
    "batch_size": 64,
    "utd_ratio": 0.125,
    "rollout_length": 16,
    "epochs": 4,
}

# Optional parts of an update, off by default.
WITH_ALL_OPTIONS: dict[str, Any] = {
    "target_period": 3,
    "max_gradient_norm": 1.0,
    "value_clip": 1.0,
    "target_kl": 0.01,
    "normalize_observations": True,
    "normalize_rewards": True,
    "actor_period": 2,
    "noise_range": (0.05, 0.8),
}

# Hyperparameters that follow a linear schedule, constant by default.
WITH_SCHEDULES: dict[str, Any] = {
    "learning_rate": 1e-2,
    "learning_rate_end": 2e-3,
    "learning_rate_frames": 400,
    "entropy_coefficient": 0.1,
    "entropy_coefficient_end": 0.0,
    "entropy_coefficient_frames": 400,
}

# Choices other than the defaults.
OTHER_CHOICES: dict[str, Any] = {"critic": "categorical", "twins": "average"}

STEPS, ENVS, OBSERVATION, ACTION_DIM, CHOICES = 8, 4, 5, 2, 3
BATCH = STEPS * ENVS


def build(
    agent_class: type[Agent],
    observation: Composite,
    action: TensorSpec,
    device: torch.device = CPU,
    **settings: Any,
) -> Agent:
    """Build an agent from specs; settings that only other agents have are ignored."""
    constructor: Any = agent_class
    known = parameters_of(agent_class)
    everywhere = set(known).union(*map(parameters_of, AGENTS))
    assert settings.keys() <= everywhere, settings.keys() - everywhere
    fitting = {name: value for name, value in {**QUICK, **settings}.items() if name in known}
    agent: Agent = constructor(observation.to(device), action.to(device), device, **fitting)
    return agent


def build_for(
    env: EnvBase, agent_class: type[Agent], device: torch.device = CPU, **settings: Any
) -> Agent:
    """Build an agent for an environment; settings that it does not have are ignored."""
    return build(agent_class, observation_spec(env), action_spec(env), device, **settings)


def small_specs(
    actions: ActionKind, bounds: tuple[float, float] = (-1.0, 1.0)
) -> tuple[Composite, TensorSpec]:
    """Return observation and action specs of `ENVS` environments."""
    observation = Composite(observation=Unbounded((ENVS, OBSERVATION)), shape=(ENVS,))
    if actions == "continuous":
        return observation, Bounded(*bounds, (ENVS, ACTION_DIM))
    return observation, Categorical(CHOICES, shape=(ENVS,))


def small(agent_class: type[AnyAgent], **settings: Any) -> AnyAgent:
    """Return an agent of one kind of action, with small networks and else its own defaults."""
    torch.manual_seed(0)
    constructor: Any = agent_class
    settings = {"hidden_sizes": [16, 16], **settings}
    agent: AnyAgent = constructor(*small_specs(min(agent_class.actions)), CPU, **settings)
    return agent


@dataclass(frozen=True)
class Case:
    """An agent class with one of the action kinds that it supports."""

    agent_class: type[Agent]
    actions: ActionKind

    def env(self, num_envs: int = 16) -> EnvBase:
        """Return an environment for this kind of action that agents solve in seconds."""
        if self.actions == "continuous":
            return IdentityEnv(num_envs)
        return MatchEnv(num_envs)

    def make(
        self, seed: int = 0, bounds: tuple[float, float] = (-1.0, 1.0), **settings: Any
    ) -> Agent:
        """Build a tiny agent that fits `make_batch`."""
        torch.manual_seed(seed)
        settings = {"hidden_sizes": [16, 16], "gamma": 0.9, **settings}
        return build(self.agent_class, *small_specs(self.actions, bounds), **settings)


CASES = [Case(agent, actions) for agent in AGENTS for actions in sorted(agent.actions)]


def every_agent_that(fits: Callable[[Case], bool]) -> pytest.MarkDecorator:
    """Parametrise a test over each `case` that fits."""
    cases = {f"{case.agent_class.__name__}-{case.actions}": case for case in CASES if fits(case)}
    return pytest.mark.parametrize("case", cases.values(), ids=cases.keys())


def every_agent_with(setting: str) -> pytest.MarkDecorator:
    """Parametrise a test over each `case` of agents with a given setting."""
    return every_agent_that(lambda case: setting in parameters_of(case.agent_class))


every_agent = every_agent_that(lambda case: True)
every_agent_class = pytest.mark.parametrize(
    "agent_class", AGENTS, ids=[agent.__name__ for agent in AGENTS]
)


def make_batch(agent: Agent, seed: int = 0, terminated: bool = False) -> TensorDictBase:
    """Return `BATCH` random transitions for `update`, prepared by the agent if it is on-policy."""
    rollout = make_rollout(agent, seed, terminated)
    return (agent.prepare(rollout) if isinstance(agent, OnPolicyAgent) else rollout).reshape(-1)


def make_rollout(agent: Agent, seed: int = 0, terminated: bool = False) -> TensorDictBase:
    """Return random transitions `[STEPS, ENVS]`."""
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(STEPS, *agent.action_spec.shape, generator=generator)

    def observe() -> dict[str, Tensor]:
        return {
            key: torch.randn(STEPS, *leaf.shape, generator=generator)
            if leaf.dtype.is_floating_point
            else torch.randint(256, (STEPS, *leaf.shape), dtype=leaf.dtype, generator=generator)
            for key, leaf in agent.observation_spec.items()
        }

    rollout = TensorDict(
        {
            **observe(),
            "action": uniform,
            "next": {
                **observe(),
                "reward": torch.randn(STEPS, ENVS, 1, generator=generator),
                "terminated": torch.full((STEPS, ENVS, 1), terminated),
                "truncated": torch.zeros(STEPS, ENVS, 1, dtype=torch.bool),
            },
        },
        [STEPS, ENVS],
    ).to(agent.device)
    action = rollout["action"]
    rollout["action"] = (
        agent.policy.to_bounds(2.0 * action - 1.0)
        if agent.policy.is_continuous
        else (action * CHOICES).long()
    )
    return rollout


def losses_of(agent: Agent, batch: TensorDictBase) -> dict[str, Tensor]:
    """Return the losses of a batch, with the same random draws at every call."""
    torch.manual_seed(3)
    return agent.loss(agent.prepare_batch(batch)).terms


def with_switches_turned(agent_class: type[Agent]) -> dict[str, bool]:
    """Return all boolean settings of an agent, each inverted."""
    defaults = {name: parameter.default for name, parameter in parameters_of(agent_class).items()}
    return {name: not value for name, value in defaults.items() if isinstance(value, bool)}


def parameters(agent: Agent) -> dict[str, Tensor]:
    """Return a copy of the state of an agent, by name."""
    return {name: value.clone() for name, value in agent.state_dict().items()}


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Assert equality of all values; a failure names the first that differs."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def online_of(target: str) -> str:
    """Return the name of the online parameter that a parameter of a target network follows."""
    return target.removeprefix("target_").removeprefix("networks.").replace("network.", "", 1)
