"""The state of open episodes in TorchRL's environments, beneath their transforms."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import torch
from tensordict import TensorDictBase
from torchrl.envs import EnvBase, GymWrapper, SerialEnv

from torchrl_gpu.environments.environment import EpisodesLostError, base_of
from torchrl_gpu.environments.recording import (
    Recorder,
    TransparentRecorder,
    announced,
    as_arrays,
    as_tensors,
)


class OpenEpisodes:
    """State of the environments beneath the transforms, if any, except for the part in a root.

    Attributes:
        are_known: whether this state and a root determine the future of the environment. So it is
            where the TensorDict holds all that an environment needs (`batch_locked` is false), and
            where a Gymnasium environment is played again; also in a `SerialEnv`.
        are_many: whether several environments keep a state, and step one after the other.
    """

    def __init__(self, env: EnvBase) -> None:
        self._env = env
        self._bases = _bases(env)
        self._recorders = _recorders(self._bases)
        unlocked = not any(base.batch_locked for base in self._bases)
        self.are_known = unlocked or bool(self._recorders)
        self.are_many = len(self._recorders) > 1

    def state_dict(self) -> dict[str, Any]:
        """Return the generators of first states, and the records of Gymnasium's episodes."""
        generators = [each.get_state() for each in self._generators()]
        state: dict[str, Any] = {"environments": len(self._bases), "generators": generators}
        if self._recorders:
            state["records"] = [as_tensors(each.episode) for each in self._recorders]
        return state

    def reset(self, state: Mapping[str, Any] | None) -> TensorDictBase:
        """Reset the environment, with transforms, and return its root.

        It plays the records of `state_dict()`; None to begin new episodes.
        """
        if not (self._recorders and state and self._fits(state)):
            return self._env.reset()
        for recorder, record in zip(self._recorders, state["records"], strict=True):
            recorder.episode = as_arrays(record)
        with announced(state["records"]):
            return self._env.reset()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict()` after its `reset`.

        Raises:
            EpisodesLostError: a Gymnasium environment did not repeat its episode, or the number of
                environments is another one.
        """
        if not self._fits(state):
            raise EpisodesLostError("the episodes were saved with another number of environments")
        if not all(recorder.repeated for recorder in self._recorders):
            raise EpisodesLostError("the simulator does not repeat the saved episodes exactly")
        for generator, saved in zip(self._generators(), state["generators"], strict=True):
            generator.set_state(saved)

    def _fits(self, state: Mapping[str, Any]) -> bool:
        return bool(state["environments"] == len(self._bases))

    def _generators(self) -> list[torch.Generator]:
        generators = (getattr(base, "rng", None) for base in self._bases)
        return [each for each in generators if isinstance(each, torch.Generator)]


def _bases(env: EnvBase) -> list[EnvBase]:
    base = base_of(env)
    if not isinstance(base, SerialEnv):
        return [base]
    if base.is_closed:
        base.start()  # builds its environments, as its first reset would
    return list(map(base_of, base._envs))


def _recorders(bases: list[EnvBase]) -> list[Recorder]:
    """Put a recorder around the Gymnasium environment of each base; none if one has another."""
    if not all(isinstance(b, GymWrapper) and isinstance(b._env, gymnasium.Env) for b in bases):
        return []
    for base in bases:
        if not isinstance(base._env, Recorder):
            base._env = TransparentRecorder(base._env, resets_within=False)
    return [base._env for base in bases]
