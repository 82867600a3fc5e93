"""The state of a training, which its checkpoints hold, and how a training goes on from it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder, find_checkpoint, rank_folder
from torchrl_gpu.checkpoints.contents import check_count, check_like, reading
from torchrl_gpu.checkpoints.state_file import load_state
from torchrl_gpu.devices.seeding import (
    check_rng_state,
    rng_state,
    seed_everything,
    set_rng_state,
    stream_seed,
)
from torchrl_gpu.environments.environment import name_of
from trainers.evaluation.evaluation import evaluations_of, evaluations_state
from trainers.runs.policy_files import (
    LAYOUT,
    check_identity,
    check_trainable,
    identity,
    load_checkpoint,
)

if TYPE_CHECKING:
    from trainers.training.trainer import TorchRLTrainer

logger = logging.getLogger(__name__)


def state_of(trainer: TorchRLTrainer) -> dict[str, Any]:
    """Return the complete state of a training, but for its replay.

    The process of rank 0 returns that of the run and of its share, all others that of their share.
    """
    own = {
        "frames": trainer.frames,
        "collector": trainer.collector.state_dict(),
        "episodes": trainer.episodes.state_dict(),
        "agent_episodes": trainer.agent.episode_state(),
        "random": rng_state(trainer.agent.device),
    }
    if (shown := trainer.experience.demonstrations) is not None:
        own["demonstrations"] = shown.state_dict()
    if not trainer.processes.is_writer:
        return own
    return {
        **own,
        "layout": LAYOUT,
        **identity(trainer.agent, trainer.env),
        "config": trainer.config,
        "processes": trainer.processes.count,
        "updates": trainer.updates,
        "seconds": time.perf_counter() - trainer.started,
        "experience": trainer.experience.state_dict(),
        "agent": trainer.agent.training_state(),
        "update_metrics": trainer.update_metrics.state_dict(),
        "evaluations": evaluations_state(trainer.evaluations),
        "execution": trainer.execution.state_dict(),
    }


def resume(
    trainer: TorchRLTrainer, checkpoint: Path | str, state: Mapping[str, Any] | None
) -> None:
    """Let a training go on from a checkpoint: see `TorchRLTrainer.load`."""
    checkpoint = find_checkpoint(checkpoint)
    state = load_checkpoint(checkpoint) if state is None else state
    check_identity(state, trainer.agent, checkpoint, trainer.env)
    check_trainable(state, checkpoint)
    with reading(checkpoint):
        check_count(state["processes"], "processes", low=1, high=4096)
    own, path = _share(trainer, state, checkpoint)
    with reading(checkpoint):
        _check(trainer, state)
    parts = None
    if own is not None:
        with reading(path):
            _check_share(trainer, own)
            parts = trainer.checkpoints.load_replay(path)
    # The collector first: only loading shows whether its state fits.
    goes_on = own is not None and trainer.collector.load_state_dict(own["collector"])
    goes_on = not trainer.processes.any(not goes_on)  # rollouts end together
    with reading(checkpoint):
        if own is None:
            has_replay = _divide(trainer, state, checkpoint)
        else:
            has_replay = parts is not None
            trainer.experience.load_state_dict(state["experience"], parts)
            if (shown := trainer.experience.demonstrations) is not None:
                shown.load_state_dict(own.get("demonstrations"))
            trainer.episodes.load_state_dict(own["episodes"])
            for name, tensor in trainer.agent.episode_state().items():
                tensor.copy_(own["agent_episodes"][name])
        trainer.frames = state["frames"]
        trainer.updates = state["updates"]
        trainer.evaluations = evaluations_of(state)
        trainer.started = time.perf_counter() - state["seconds"]
        trainer.update_metrics.load_state_dict(state["update_metrics"], trainer.agent.device)
        trainer.agent.load_training_state(state["agent"])
        trainer.execution.load_state_dict(state["execution"])
        if own is not None:
            set_rng_state(own["random"], trainer.agent.device)
    if not has_replay:
        logger.info("no complete replay buffer beside %s: the policy fills a new one", checkpoint)
    trainer.metric_logger.resume_from(trainer.frames)
    if not goes_on:
        if (
            own is not None
            and trainer.frames > 0
            and not (trainer.env.capabilities.has_state and "root" in own["collector"])
        ):
            logger.info("%s: no open episodes are saved; new ones begin", name_of(trainer.env))
        trainer.begin_new_episodes()
    is_own = own is not None and path == trainer.checkpoints.path(trainer.frames)
    trainer.saver.newest = (trainer.frames, len(trainer.evaluations)) if is_own else None


def _share(
    trainer: TorchRLTrainer, state: Mapping[str, Any], checkpoint: Path
) -> tuple[Mapping[str, Any] | None, Path]:
    """Return the saved share of this process, and its file.

    The share is None if another number of processes saved the run, or the file was deleted.
    """
    processes = trainer.processes
    path = rank_folder(checkpoint.parent, processes.rank) / checkpoint.name
    is_divided_so = state["processes"] == processes.count
    is_missing = not processes.is_writer and not path.exists()
    if not is_divided_so or processes.any(is_missing):
        return None, path
    return (state if processes.is_writer else load_state(path)), path


def _divide(trainer: TorchRLTrainer, state: Mapping[str, Any], checkpoint: Path) -> bool:
    """Take a share of a run that other processes saved; return whether its replay is complete."""
    processes, saved = trainer.processes, state["processes"]
    logger.info(
        "%s was saved by %d process(es), and goes on with %d: its replay is divided anew, and new "
        "episodes begin",
        checkpoint,
        saved,
        processes.count,
    )
    seed = stream_seed(trainer.seed, "training", state["frames"], processes.rank)
    seed_everything(seed, processes.rank)
    folders = [rank_folder(checkpoint.parent, rank) for rank in range(saved)]
    replays = [CheckpointFolder(f).load_replay(f / checkpoint.name) for f in folders]
    complete = [replay for replay in replays if replay is not None]
    shares = complete if len(complete) == saved else None
    trainer.experience.divide(state["experience"], shares)
    if "world" in state["collector"]:
        trainer.env.load_progress(state["collector"]["world"])
    return shares is not None


def _check(trainer: TorchRLTrainer, state: Mapping[str, Any]) -> None:
    """Refuse the state of a run that does not fit, before anything of it is loaded."""
    for name in ("frames", "updates"):
        check_count(state[name], name)
    check_like(state["seconds"], 0.0, "seconds")
    evaluations_of(state)
    trainer.update_metrics.check_state(state["update_metrics"])
    check_like(state["experience"], trainer.experience.state_dict(), "experience")
    trainer.execution.check_state(state["execution"])
    trainer.agent.check_training_state(state["agent"])


def _check_share(trainer: TorchRLTrainer, own: Mapping[str, Any]) -> None:
    """Refuse the share of a process that does not fit, before anything of it is loaded."""
    check_like(own["collector"], dict.fromkeys(own["collector"]), "collector")
    trainer.episodes.check_state(own["episodes"])
    episodes = trainer.agent.episode_state()
    check_like(own["agent_episodes"], episodes, "the open episodes of the agent")
    check_rng_state(own["random"], trainer.agent.device)
    if (shown := trainer.experience.demonstrations) is not None:
        shown.check_state(own.get("demonstrations"))
