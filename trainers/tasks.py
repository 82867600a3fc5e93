"""What the program can be asked to do: train, evaluate, show."""

from __future__ import annotations

import json
import logging
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType

from omegaconf import OmegaConf
from torchrl.envs import EnvBase

from agents.base import Agent
from torchrl_gpu.arguments import parameters_of
from torchrl_gpu.checkpoint import CheckpointFolder
from torchrl_gpu.device import describe_device
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.files import atomic_file
from torchrl_gpu.seeding import Stream, seed_everything, stream_seed
from torchrl_gpu.specs import action_spec, observation_spec
from trainers.demo import film
from trainers.evaluation import Evaluation, evaluate
from trainers.pairing import pair
from trainers.policies import load_policy
from trainers.progress import human_time
from trainers.settings import Component, Mode, Settings
from trainers.trainer import TorchRLTrainer

logger = logging.getLogger(__name__)
COMMAND = "python -m trainers.run"


def train(settings: Settings) -> None:
    """Train from scratch or go on; evaluate the best checkpoint and say what was reached."""
    started = time.perf_counter()
    folder = _run_folder(settings)
    _check_writable(folder)
    seed_everything(settings.seed)
    with (
        closing(_build_env(settings, "train")) as env,
        closing(_build_env(settings, "eval")) as evaluation_env,
    ):
        agent = _build_agent(settings, env)
        trainer: TorchRLTrainer = settings.trainer.build(
            env,
            agent,
            folder,
            evaluation_env=evaluation_env,
            config=settings.config,
            seed=settings.seed,
        )
        if settings.checkpoint is not None:
            trainer.load(settings.checkpoint)
        logger.info(
            "%s on %s, into %s", type(agent).__name__, describe_device(settings.device), folder
        )
        _write(folder / "config.yaml", OmegaConf.to_yaml(settings.config))
        with _stop_on_signal(trainer):
            trainer.train()
        if trainer.stop_requested:
            print(f"\nStopped at {trainer.frames:,} frames; saved. To go on:")
            print(f"  {COMMAND} checkpoint={folder}")
            raise KeyboardInterrupt
        best = trainer.checkpoints.best() or trainer.save()
        load_policy(best, agent)
        result = _evaluate(settings, evaluation_env, agent)
    seconds = time.perf_counter() - started
    summary = {"frames": trainer.frames, "seconds": seconds, **result.as_dict()}
    _write(folder / "summary.json", json.dumps(summary, indent=2))
    print(f"\nTrained for {trainer.frames:,} frames in {human_time(seconds)}.")
    print(f"  reached      {result}")
    print(f"  lies in      {best}")
    print(f"  watch it     {COMMAND} mode=demo checkpoint={folder}")
    print(f"  curves       tensorboard --logdir {folder}")


def evaluate_checkpoint(settings: Settings) -> None:
    """Evaluate a trained policy with full physics, and write the figures beside it."""
    with closing(_build_env(settings, "eval")) as env:
        agent = _load_agent(settings, env)
        result = _evaluate(settings, env, agent)
    path = _beside(settings, "evaluations") / f"{time.strftime('%Y%m%d_%H%M%S')}.json"
    figures = {"checkpoint": str(settings.checkpoint), **result.as_dict()}
    _write(path, json.dumps(figures, indent=2))
    print(f"{settings.checkpoint}\n  {result}\n  written to {path}")


def show_checkpoint(settings: Settings) -> None:
    """Film a trained policy, and show it live where there is a display."""
    with closing(_build_env(settings, "demo")) as env:
        agent = _load_agent(settings, env)
        folder = _beside(settings, "videos")
        seed = stream_seed(settings.seed, "demo")
        path = film(env, agent.policy, settings.device, folder, **settings.demo, seed=seed)
    print(f"Filmed {settings.checkpoint}\n  {path}")


TASKS: dict[Mode, Callable[[Settings], None]] = {
    "train": train,
    "eval": evaluate_checkpoint,
    "demo": show_checkpoint,
}


_STREAMS: dict[Mode, Stream] = {"train": "training", "eval": "evaluation", "demo": "demo"}


def _build_env(settings: Settings, mode: Mode) -> EnvBase:
    component = settings.env
    if mode == "demo" and "num_envs" in parameters_of(component.target):
        shown = {**component.settings, "num_envs": settings.demo.get("worlds", 1)}
        component = Component(component.target, shown)
    seed = stream_seed(settings.seed, _STREAMS[mode])
    env: EnvBase = component.build(mode=mode, device=settings.device, seed=seed)
    try:
        paired = pair(env, settings.agent.target)
    except ConfigurationError:
        env.close()
        raise
    paired.set_seed(seed)
    return paired


def _build_agent(settings: Settings, env: EnvBase) -> Agent:
    agent: Agent = settings.agent.build(observation_spec(env), action_spec(env), settings.device)
    return agent


def _load_agent(settings: Settings, env: EnvBase) -> Agent:
    assert settings.checkpoint is not None
    agent = _build_agent(settings, env)
    load_policy(settings.checkpoint, agent)
    return agent


def _evaluate(settings: Settings, env: EnvBase, agent: Agent) -> Evaluation:
    seed = stream_seed(settings.seed, "evaluation")
    return evaluate(env, agent.policy, settings.device, **settings.evaluation, seed=seed)


def _run_folder(settings: Settings) -> Path:
    """Return the folder to write into: the checkpoint's if that is the newest, else a new one."""
    checkpoint = settings.checkpoint
    if checkpoint is not None and checkpoint == CheckpointFolder(checkpoint.parent).latest():
        return checkpoint.parent.parent
    choices = settings.config["choices"]
    started = time.strftime("%Y%m%d_%H%M%S")
    folder = settings.runs / choices["env"] / choices["agent"] / started
    number = 1
    while folder.exists():
        number += 1
        folder = folder.with_name(f"{started}_{number}")
    return folder


def _check_writable(folder: Path) -> None:
    """Find out before anything is built whether a folder can be made and written to.

    Raises:
        ConfigurationError: there is no right or no space to write there.
    """
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(bytes(2**20))
    except OSError as error:
        raise ConfigurationError(f"cannot write to {existing}: {error.strerror}") from None


def _beside(settings: Settings, name: str) -> Path:
    """Return the folder for what is made from a checkpoint: in its run if it lies in one."""
    assert settings.checkpoint is not None
    home = settings.checkpoint.parent
    return (home.parent if home.name == "checkpoints" else home) / name


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot make {path.parent}: {error.strerror}") from None
    with atomic_file(path) as file:
        file.write(text.encode())


@contextmanager
def _stop_on_signal(trainer: TorchRLTrainer) -> Iterator[None]:
    """Let Ctrl-C or SIGTERM end training after the step under way; a second one ends it at once."""

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
