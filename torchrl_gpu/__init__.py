"""Device-resident building blocks for robot learning on TorchRL and TensorDict.

The names below are the public API. They are imported at first use, so that `import torchrl_gpu`
does not import torch.
"""

from typing import TYPE_CHECKING

from torchrl_gpu.lazy import lazy_exports

if TYPE_CHECKING:
    from torchrl_gpu.acting.collector import BatchCollector as BatchCollector
    from torchrl_gpu.acting.exploration import EpsilonGreedy as EpsilonGreedy
    from torchrl_gpu.acting.exploration import GaussianNoise as GaussianNoise
    from torchrl_gpu.acting.policy import PolicyWrapper as PolicyWrapper
    from torchrl_gpu.acting.schedules import LinearSchedule as LinearSchedule
    from torchrl_gpu.arguments import checked as checked
    from torchrl_gpu.datasets.dataset import Dataset as Dataset
    from torchrl_gpu.datasets.dataset import open_dataset as open_dataset
    from torchrl_gpu.datasets.dataset import write_dataset as write_dataset
    from torchrl_gpu.devices.device import resolve_device as resolve_device
    from torchrl_gpu.environments.action_table import with_action_table as with_action_table
    from torchrl_gpu.environments.adapter import as_environment as as_environment
    from torchrl_gpu.environments.capabilities import Capabilities as Capabilities
    from torchrl_gpu.environments.environment import Environment as Environment
    from torchrl_gpu.environments.robots import SharedPolicy as SharedPolicy
    from torchrl_gpu.environments.scene import Scene as Scene
    from torchrl_gpu.environments.scene import Shape as Shape
    from torchrl_gpu.environments.specs import action_spec as action_spec
    from torchrl_gpu.environments.specs import observation_spec as observation_spec
    from torchrl_gpu.errors import ConfigurationError as ConfigurationError
    from torchrl_gpu.execution.adam import adam as adam
    from torchrl_gpu.execution.execution import Execution as Execution
    from torchrl_gpu.redirect.block import redirect_cuda as redirect_cuda
    from torchrl_gpu.replay.buffer import ReplayBuffer as ReplayBuffer
    from torchrl_gpu.replay.episodes import Episode as Episode
    from torchrl_gpu.replay.episodes import episodes_of as episodes_of
    from torchrl_gpu.replay.episodes import fill as fill
    from torchrl_gpu.replay.prioritized import PrioritizedReplayBuffer as PrioritizedReplayBuffer
    from torchrl_gpu.replay.rollout import RolloutBuffer as RolloutBuffer
    from torchrl_gpu.version import __version__ as __version__
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
