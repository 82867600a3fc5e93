"""Modules that the server of forks imports before it forks.

Without Ray, which reads its environment variables when it is imported: the forks import it. Garbage
is not collected among the modules.
"""

import gc
import sys
from importlib import import_module

sys.modules["ray"] = None  # type: ignore[assignment]
for _name in (
    *("trainers.run", "trainers.training.trainer", "trainers.evaluation.film"),
    *("trainers.collecting.actor", "torchrl_gpu.distributed", "torch.utils.tensorboard"),
    *("gymnasium.wrappers", "envs.fanuc.env", "envs.gym.env", "envs.marinenav"),
    *("tests.helpers.agents", "tests.helpers.environments"),
):
    import_module(_name)
del sys.modules["ray"]
gc.collect()
gc.freeze()
