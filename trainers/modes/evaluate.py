"""Mode eval: evaluate a policy."""

import json
import time
from contextlib import closing
from dataclasses import asdict
from typing import Any

from torchrl_gpu.checkpoints.files import new_file, write_text
from torchrl_gpu.devices.seeding import seed_everything, stream_seed
from trainers.command_line.settings import Settings
from trainers.evaluation.evaluation import Evaluation
from trainers.modes.building import evaluator_of, policy_of, prepared_folder, title_of
from trainers.modes.outcome import RunOutcome
from trainers.training.progress import ProgressDisplay


def evaluate(settings: Settings) -> RunOutcome:
    """Evaluate a policy in the evaluation mode of its environment; write the result."""
    folder = prepared_folder(settings, "evaluations")
    result = evaluation_of(settings)
    if settings.checkpoint is not None:
        name = "checkpoint" if settings.contract is None else "policy"
        origin: dict[str, Any] = {name: str(settings.checkpoint)}
    else:  # all settings that count
        config = settings.config
        origin = {"agent": config["choices"]["agent"], "env": config["env"], "seed": config["seed"]}
    with new_file(folder / f"{time.strftime('%Y%m%d_%H%M%S')}.json") as path:
        write_text(path, json.dumps({**origin, **asdict(result)}, indent=2))
    lines = [title_of(settings), f"  {result}"]
    if settings.contract is not None:
        lines.append(f"  checkpoint: {settings.contract.evaluation}")
    report = "\n".join([*lines, f"  written to {path}"])
    return RunOutcome(folder, result, report)


def evaluation_of(settings: Settings) -> Evaluation:
    """Evaluate the policy, eagerly and in float32, as policy files act."""
    seed_everything(settings.general.seed)
    seed = stream_seed(settings.general.seed, "evaluation")
    with closing(evaluator_of(settings)) as evaluator:
        policy = policy_of(settings, evaluator.env)
        with ProgressDisplay(evaluator.episodes, unit="episodes") as display:
            return evaluator.evaluate(policy, settings.device, seed=seed, progress=display.update)
