"""NaN and infinity in a training: the environments that brought them restart, or the run ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tensordict import TensorDictBase

from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder
from trainers.finite_watch import NonfiniteError, without

if TYPE_CHECKING:
    from trainers.training.trainer import TorchRLTrainer


def restart_failed(trainer: TorchRLTrainer, transition: TensorDictBase) -> TensorDictBase:
    """Begin new episodes where a step `[R]` failed; return the step without these episodes.

    The `watch` of the training has watched the step. An environment that fails again in the next
    step is not forgiven: no restart helps it.
    """
    failed = trainer.watch.failed
    if not failed.any() or (failed & trainer.watch.failed_before).any():
        return transition
    environments = failed.view(trainer.num_envs, -1).any(1)
    rows = environments.repeat_interleave(len(failed) // trainer.num_envs)
    trainer.watch.forgive(rows)
    trainer.episodes.forget_open(rows)
    trainer.restarts += environments.sum()
    trainer.collector.restart(environments.view(trainer.env.batch_size))
    return without(transition, rows, trainer.agent.policy.in_keys)


def refuse_nonfinite(trainer: TorchRLTrainer, names: Iterable[str]) -> None:
    """End a training if an entry of a step, or a metric or parameter of `names`, is not finite."""
    name = next(iter(names), None)
    cause = trainer.watch.cause(trainer.frames // trainer.frames_per_step)
    if name or cause:
        learned = f"agent: {name} is NaN or infinite after {trainer.updates:,} updates"
        trainer.saver.wait()
        kept = CheckpointFolder(trainer.folder / "checkpoints").paths()
        last = f"the last good checkpoint is {kept[-1]}" if kept else "there is no checkpoint"
        raise NonfiniteError(f"{cause or learned}; {last}")
