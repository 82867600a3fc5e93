"""Training, evaluation, films and policy files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchrl_gpu.lazy import lazy_exports

if TYPE_CHECKING:
    from trainers.evaluation.evaluation import Evaluation, evaluate
    from trainers.evaluation.evaluator import Evaluator
    from trainers.evaluation.film import film
    from trainers.runs.policy_files import save_policy, trained_agent
    from trainers.training.trainer import TorchRLTrainer
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "Evaluation": "trainers.evaluation.evaluation",
            "Evaluator": "trainers.evaluation.evaluator",
            "TorchRLTrainer": "trainers.training.trainer",
            "evaluate": "trainers.evaluation.evaluation",
            "film": "trainers.evaluation.film",
            "save_policy": "trainers.runs.policy_files",
            "trained_agent": "trainers.runs.policy_files",
        },
    )

__all__ = [
    "Evaluation",
    "Evaluator",
    "TorchRLTrainer",
    "evaluate",
    "film",
    "save_policy",
    "trained_agent",
]
