"""Parts that the modes build from settings: environment, agent, policy, evaluator."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase

from agents.base import Agent
from agents.untrained import UntrainedAgent
from torchrl_gpu.acting.interface import PolicyInterface
from torchrl_gpu.devices.seeding import Stream, seed_everything, stream_seed
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.environment import Environment
from torchrl_gpu.environments.environment import Mode as EnvMode
from torchrl_gpu.environments.specs import action_spec, observation_spec
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.execution import EAGER
from torchrl_gpu.processes import ONE_PROCESS, Processes
from trainers.collecting.collectors import Collectors
from trainers.command_line.settings import Settings
from trainers.components.pairing import capabilities_of, pair
from trainers.evaluation.evaluator import Evaluator
from trainers.exporting.session import ExportedPolicy, open_session
from trainers.runs.folders import check_writable, results_folder
from trainers.runs.policy_files import build_agent, restore_policy

_STREAMS: dict[EnvMode, Stream] = {"train": "training", "eval": "evaluation", "demo": "demo"}


def training_env(settings: Settings, processes: Processes = ONE_PROCESS) -> Environment:
    """Return the environment of a process that trains, or the facade of those of its collectors."""
    collectors: Collectors = settings.collectors.build()
    seed = stream_seed(settings.general.seed, "training", rank=processes.rank)
    if collectors.remote_cores is not None:
        settings = replace(settings, devices=[torch.device("cpu")], execution=EAGER, state=None)
    build = partial(build_env, settings, "train")
    return collectors.environment(build, settings.env.settings.get("num_envs"), seed, processes)


def build_env(
    settings: Settings, mode: EnvMode, num_envs: int | None, seed: int | None = None, **others: int
) -> Environment:
    """Build the environment for a mode, with settings replaced that its class has.

    `num_envs` is None for a class without this setting, `seed` for the seed of the mode.
    """
    if seed is None:
        seed = stream_seed(settings.general.seed, _STREAMS[mode])
    component = settings.env.replaced(num_envs=num_envs, **others)
    env: EnvBase = component.build(mode=mode, device=settings.device, seed=seed)
    try:
        paired = pair(env, settings.agent.target)
        observation_spec(paired, settings.general.observation_keys)
    except ConfigurationError:
        env.close()
        raise
    paired.set_seed(seed)
    return paired


def evaluator_of(settings: Settings, **replaced: int) -> Evaluator:
    """Return the evaluator, which builds its environments when it needs them.

    Its settings are those of the call, but for those that are replaced.
    """
    limit = capabilities_of(settings.env, settings.device).max_evaluation_envs
    build = partial(build_env, settings, "eval")
    return Evaluator(build, limit=limit, **{**settings.evaluation, **replaced})


def agent_of(settings: Settings, env: EnvBase) -> Agent | UntrainedAgent:
    """Build the agent for an environment, without the content of the checkpoint."""
    observations = observation_spec(env, settings.general.observation_keys)
    path = settings.checkpoint
    return build_agent(settings.agent, observations, action_spec(env), settings.device, path)


def policy_of(settings: Settings, env: EnvBase) -> TensorDictModuleBase:
    """Build the policy of the agent; load the checkpoint if the agent learns.

    An exported policy is run by ONNX Runtime, if it fits the environment.
    """
    if settings.contract is not None:
        observations = observation_spec(env, settings.general.observation_keys)
        capabilities = as_environment(env).capabilities
        interface = PolicyInterface.of(observations, action_spec(env), capabilities)
        assert settings.checkpoint is not None
        settings.contract.check_fits(interface, settings.checkpoint)
        session = open_session(settings.checkpoint, settings.contract)
        return ExportedPolicy(session, interface).to(settings.device)
    agent = agent_of(settings, env)
    if isinstance(agent, Agent):
        assert settings.checkpoint is not None
        restore_policy(settings.checkpoint, agent, settings.state, as_environment(env))
    return agent.policy


def title_of(settings: Settings) -> str:
    """Return the checkpoint, or without one the names of agent and environment."""
    choices = settings.config["choices"]
    return str(settings.checkpoint or f"agent={choices['agent']} env={choices['env']}")


def prepared_folder(settings: Settings, name: str) -> Path:
    """Seed all random numbers, and return a folder for results that is writable."""
    folder = results_folder(settings.folder, settings.checkpoint) / name
    is_below = folder.is_relative_to(settings.general.runs)
    check_writable(folder, "runs" if is_below else "checkpoint")
    seed_everything(settings.general.seed)
    return folder
