"""Training, evaluation, films and policy files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchrl_gpu.lazy import lazy_exports

if TYPE_CHECKING:
    from trainers.demo import film
    from trainers.evaluation import Evaluation, evaluate
    from trainers.evaluator import Evaluator
    from trainers.policy_files import save_policy, trained_agent
    from trainers.trainer import TorchRLTrainer
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "Evaluation": "trainers.evaluation",
            "Evaluator": "trainers.evaluator",
            "TorchRLTrainer": "trainers.trainer",
            "evaluate": "trainers.evaluation",
            "film": "trainers.demo",
            "save_policy": "trainers.policy_files",
            "trained_agent": "trainers.policy_files",
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
