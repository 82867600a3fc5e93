"""Record the episodes of a policy as a dataset."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase

from torchrl_gpu.acting.interface import PolicyInterface
from torchrl_gpu.arguments import checked
from torchrl_gpu.datasets.dataset import DatasetFormat, new_dataset
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.specs import action_spec, observation_spec
from torchrl_gpu.replay.episodes import Episode, EpisodeCutter
from torchrl_gpu.tables import counted
from trainers.evaluation.evaluation import Evaluation, evaluate


class Recording(NamedTuple):
    """A recorded dataset.

    Attributes:
        path: folder of the dataset.
        episodes: number of its episodes, one for each robot of an environment with several.
        transitions: number of its transitions.
        evaluation: means over the episodes of the environments.
    """

    path: Path
    episodes: int
    transitions: int
    evaluation: Evaluation

    def __str__(self) -> str:
        """Return the result in two lines of text."""
        episodes, steps = counted(self.episodes, "episode"), counted(self.transitions, "transition")
        return f"{self.evaluation}\n  {episodes}, {steps}"


@checked
def record(
    env: EnvBase,
    policy: TensorDictModuleBase,
    device: torch.device,
    folder: Path,
    *,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
    episodes: Annotated[int, Field(ge=1)] = 20,
    path: Path | None = None,
    format: DatasetFormat = "minari",
) -> Recording:
    """Record episodes of the greedy policy as a dataset: the observations that it reads, and more.

    A transition also has action, reward, terminated, truncated and, where the environment reports
    it, success. In an environment with several robots, each robot has separate episodes.

    Args:
        env: batched environment in its evaluation mode; it is seeded and reset.
        policy: policy to record; its previous mode is restored afterwards.
        device: device of the policy.
        folder: folder of the dataset without `path`, which is then named by date and time.
        seed: seed of the environment; equal seeds give equal episodes.
        progress: function that is called at intervals with the number of finished episodes.
        episodes: number of episodes of all environments together.
        path: folder of the dataset, which must not exist; None for a new one beside the run.
        format: `minari` or `lerobot` (v3.0), which need the extra `data`.

    Returns:
        Path and size of the dataset, and the results of its episodes.

    Raises:
        ConfigurationError: the folder exists or cannot be written, or a package is missing.
    """
    env = as_environment(env)
    observed = observation_spec(env, policy.in_keys)
    interface = PolicyInterface.of(observed, action_spec(env), env.capabilities)
    cutter = EpisodeCutter(interface.leaves)
    lengths: list[int] = []
    path = path or folder / time.strftime("%Y%m%d_%H%M%S")
    with new_dataset(path, format, interface) as write:

        def keep(ended: Iterable[Episode]) -> None:
            for episode in ended:
                write(episode)
                lengths.append(len(episode))

        evaluation = evaluate(
            env,
            policy,
            device,
            episodes=episodes,
            seed=seed,
            progress=progress,
            observe=lambda step, counts: keep(cutter.add(step, counts)),
        )
        keep(cutter.rest())  # of robots that moved when their environment ended
    return Recording(path, len(lengths), sum(lengths), evaluation)
