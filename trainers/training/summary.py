"""`summary.json`: identity, result and speed of a run."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torchrl_gpu.acting.collector import Collector
from torchrl_gpu.checkpoints.files import write_text
from torchrl_gpu.devices.memory import human_bytes
from torchrl_gpu.environments.environment import name_of
from trainers.evaluation.evaluation import Evaluation

if TYPE_CHECKING:
    from trainers.training.trainer import TorchRLTrainer


def write_summary(trainer: TorchRLTrainer, result: Evaluation | None, **named: Any) -> None:
    """Write the summary of an ended training; entries in `named` replace those of the trainer."""
    if not trainer.processes.is_writer:
        return
    summary = {
        "agent": type(trainer.agent).__name__,
        "env": name_of(trainer.env),
        "seed": trainer.seed,
        "frames": trainer.frames,
        "seconds": time.perf_counter() - trainer.started,
        **named,
        **({} if result is None else asdict(result)),
        "precision": trainer.execution.precision.name,
        "compile": trainer.execution.compile_mode,
        "products": trainer.execution.products,
        "transfers": transfers(trainer.collector),
    }
    if trainer.profiler is not None:
        summary["profile"] = trainer.profiler.as_dict()
    write_text(trainer.folder / "summary.json", json.dumps(summary, indent=2))


def transfers(collector: Collector) -> dict[str, dict[str, float]]:
    """Return the copies and bytes of a batched step in each direction, as means over all steps."""
    steps = max(1, collector.steps)
    directions = {"to_device": collector.to_device, "to_host": collector.to_host}
    return {
        name: {
            "copies_per_step": transfer.copies / steps,
            "bytes_per_step": transfer.bytes / steps,
        }
        for name, transfer in directions.items()
    }


def transfers_line(collector: Collector) -> str:
    """Return the transfers of a batched step as one line of text."""
    directions = transfers(collector)
    if not any(values["copies_per_step"] for values in directions.values()):
        return "none: environment and policy are on one device"
    texts = [
        f"{values['copies_per_step']:.3g} {name.replace('_', ' the ')} "
        f"({human_bytes(values['bytes_per_step'])})"
        for name, values in directions.items()
    ]
    return f"{' and '.join(texts)} per batched step"
