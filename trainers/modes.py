"""Modes of the program: train, evaluate, demonstrate."""

from __future__ import annotations

import json
import logging
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from omegaconf import OmegaConf
from torchrl.envs import EnvBase

from agents.base import Agent
from agents.untrained import UntrainedAgent
from torchrl_gpu.acting.policy import PolicyWrapper
from torchrl_gpu.checkpoints.files import unused
from torchrl_gpu.devices.device import describe_device
from torchrl_gpu.devices.seeding import Stream, seed_everything, stream_seed
from torchrl_gpu.environments.environment import Environment
from torchrl_gpu.environments.specs import action_spec, observation_spec
from torchrl_gpu.errors import ConfigurationError
from trainers.command_line.settings import Mode, Settings
from trainers.components.pairing import capabilities_of, pair
from trainers.evaluation.evaluator import Evaluator
from trainers.evaluation.film import film
from trainers.runs.folders import check_writable, results_folder, run_folder, write
from trainers.runs.policy_files import load_policy
from trainers.runs.summary import profile_lines, transfers, transfers_line
from trainers.training.progress import ProgressDisplay, human_time
from trainers.training.trainer import TorchRLTrainer

logger = logging.getLogger(__name__)
COMMAND = "python -m trainers.run"


def train(settings: Settings) -> None:
    """Train from scratch or resume; evaluate the best checkpoint and print a summary.

    Raises:
        ConfigurationError: a setting or a checkpoint does not fit.
        KeyboardInterrupt: Ctrl-C or SIGTERM ended the run; its checkpoint is saved.
    """
    started = time.perf_counter()
    folder = run_folder(settings)
    check_writable(folder)
    seed_everything(settings.seed)
    with (
        closing(_build_env(settings, "train")) as env,
        closing(_evaluator(settings)) as evaluator,
    ):
        agent = _build_agent(settings, env)
        assert isinstance(agent, Agent)
        trainer: TorchRLTrainer = settings.trainer.build(
            env,
            agent,
            folder,
            evaluation_env=evaluator,
            config=settings.config,
            execution=settings.execution,
            seed=settings.seed,
        )
        if settings.checkpoint is not None:
            trainer.load(settings.checkpoint)
        logger.info(
            "%s on %s, into %s", type(agent).__name__, describe_device(settings.device), folder
        )
        write(folder / "config.yaml", OmegaConf.to_yaml(settings.config))
        with _stop_on_signal(trainer):
            trainer.train()
        if trainer.stop_requested:
            print(f"\nStopped at {trainer.frames:,} frames; saved. To resume:")
            print(f"  {_command(f'checkpoint={folder}')}")
            raise KeyboardInterrupt
        best = trainer.checkpoints.best() or trainer.save()
        load_policy(best, agent)
        try:
            with ProgressDisplay(evaluator.episodes, unit="episodes") as display:
                result = trainer.evaluate(evaluator.episodes, progress=display.update)
        except KeyboardInterrupt:
            print(f"\nTrained for {trainer.frames:,} frames; saved. To evaluate:")
            print(f"  {_command('mode=eval', f'checkpoint={folder}')}")
            raise
        filmed = env.capabilities.can_render
    seconds = time.perf_counter() - started
    summary = {
        "frames": trainer.frames,
        "seconds": seconds,
        **result.as_dict(),
        "transfers": transfers(trainer.collector),
    }
    if trainer.profile is not None:
        summary["profile"] = trainer.profile.as_dict()
    write(folder / "summary.json", json.dumps(summary, indent=2))
    print(f"\nTrained for {trainer.frames:,} frames in {human_time(seconds)}.")
    print(f"  reached      {result}")
    print(f"  lies in      {best}")
    if filmed:
        print(f"  watch it     {_command('mode=demo', f'checkpoint={folder}')}")
    if "tensorboard" in settings.trainer.settings["loggers"]:
        print(f"  curves       {shlex.join(['tensorboard', '--logdir', str(folder)])}")
    print(f"  copies       {transfers_line(trainer.collector)}")
    if trainer.trace is not None and trainer.trace.path is not None:
        print(f"  trace        {trainer.trace.path}, for https://ui.perfetto.dev")
    if trainer.profile is not None:
        print("  time")
        for line in profile_lines(trainer.profile):
            print(f"    {line}")


def evaluate_policy(settings: Settings) -> None:
    """Evaluate a policy in the evaluation mode of its environment; write the result."""
    folder = _prepared_folder(settings, "evaluations")
    seed = stream_seed(settings.seed, "evaluation")
    with closing(_evaluator(settings)) as evaluator:
        policy = _policy(settings, evaluator.env)
        with ProgressDisplay(evaluator.episodes, unit="episodes") as display:
            result = evaluator.evaluate(policy, settings.device, seed=seed, progress=display.update)
    path = unused(folder / f"{time.strftime('%Y%m%d_%H%M%S')}.json")
    write(path, json.dumps({**_origin(settings), **result.as_dict()}, indent=2))
    print(f"{_title(settings)}\n  {result}\n  written to {path}")


def show_policy(settings: Settings) -> None:
    """Film a policy; an environment may also show it live if there is a display."""
    folder = _prepared_folder(settings, "videos")
    with closing(_build_env(settings, "demo", settings.demo["num_envs"])) as env:
        policy = _policy(settings, env)
        seed = stream_seed(settings.seed, "demo")
        made = film(env, policy, settings.device, folder, **settings.demo, seed=seed)
    print(f"Filmed {_title(settings)}\n  {made}\n  {made.path}")


MODES: dict[Mode, Callable[[Settings], None]] = {
    "train": train,
    "eval": evaluate_policy,
    "demo": show_policy,
}

_STREAMS: dict[Mode, Stream] = {"train": "training", "eval": "evaluation", "demo": "demo"}


def _prepared_folder(settings: Settings, name: str) -> Path:
    """Seed all random numbers, and return a folder for results that is writable."""
    folder = results_folder(settings) / name
    check_writable(folder)
    seed_everything(settings.seed)
    return folder


def _build_env(settings: Settings, mode: Mode, num_envs: int | None = None) -> Environment:
    """Build the environment for a mode; `num_envs` replaces the setting of that name."""
    component = settings.env
    if num_envs is not None:
        component = component.replaced(num_envs=num_envs)
    seed = stream_seed(settings.seed, _STREAMS[mode])
    env: EnvBase = component.build(mode=mode, device=settings.device, seed=seed)
    try:
        paired = pair(env, settings.agent.target)
        observation_spec(paired, settings.observation_keys)
    except ConfigurationError:
        env.close()
        raise
    paired.set_seed(seed)
    return paired


def _evaluator(settings: Settings) -> Evaluator:
    limit = capabilities_of(settings.env, settings.device).max_evaluation_envs
    return Evaluator(partial(_build_env, settings, "eval"), limit=limit, **settings.evaluation)


def _build_agent(settings: Settings, env: EnvBase) -> Agent | UntrainedAgent:
    agent: Agent | UntrainedAgent = settings.agent.build(
        observation_spec(env, settings.observation_keys), action_spec(env), settings.device
    )
    return agent


def _policy(settings: Settings, env: EnvBase) -> PolicyWrapper:
    """Build the policy of the agent; load the checkpoint if the agent learns."""
    agent = _build_agent(settings, env)
    if isinstance(agent, Agent):
        assert settings.checkpoint is not None
        load_policy(settings.checkpoint, agent)
    return agent.policy


def _origin(settings: Settings) -> dict[str, Any]:
    """Return the origin of a result: the checkpoint, or without one all settings that count."""
    if settings.checkpoint is not None:
        return {"checkpoint": str(settings.checkpoint)}
    agent = settings.config["choices"]["agent"]
    return {"agent": agent, **{name: settings.config[name] for name in ("env", "seed")}}


def _title(settings: Settings) -> str:
    """Return the checkpoint, or without one the names of agent and environment."""
    choices = settings.config["choices"]
    return str(settings.checkpoint or f"agent={choices['agent']} env={choices['env']}")


def _command(*arguments: str) -> str:
    return f"{COMMAND} {shlex.join(arguments)}"


@contextmanager
def _stop_on_signal(trainer: TorchRLTrainer) -> Iterator[None]:
    """End training after the current step on Ctrl-C or SIGTERM, and at once on a second one."""

    def stop(number: int, frame: FrameType | None) -> None:
        trainer.stop_requested = True
        signal.signal(number, previous[number])

    signals: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.getsignal(number) for number in signals}
    for number in previous:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
