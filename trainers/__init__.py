"""Training, evaluation, films and policy files."""

from typing import TYPE_CHECKING

from torchrl_gpu.lazy import lazy_exports

if TYPE_CHECKING:
    from trainers.evaluation.evaluation import Evaluation as Evaluation
    from trainers.evaluation.evaluation import evaluate as evaluate
    from trainers.evaluation.evaluator import Evaluator as Evaluator
    from trainers.evaluation.film import film as film
    from trainers.evaluation.record import record as record
    from trainers.runs.policy_files import TrainedPolicy as TrainedPolicy
    from trainers.runs.policy_files import load_policy as load_policy
    from trainers.runs.policy_files import save_policy as save_policy
    from trainers.runs.replays import export_replay as export_replay
    from trainers.training.callbacks import Callback as Callback
    from trainers.training.trainer import TorchRLTrainer as TorchRLTrainer
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
