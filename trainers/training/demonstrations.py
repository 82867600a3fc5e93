"""Demonstrations of a training: a fixed share of every batch of an off-policy agent."""

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from agents.base import OffPolicyAgent
from torchrl_gpu.checkpoints.contents import check_like
from torchrl_gpu.datasets.demonstrations import load_demonstrations
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.replay.buffer import ReplayBuffer
from torchrl_gpu.replay.episodes import Episode, fill, rows_needed

logger = logging.getLogger(__name__)


class Demonstrations:
    """Draws the last rows of every batch from demonstrations, all others from a replay buffer.

    The demonstrations are in a buffer of the same class, on the same device, so that n-step
    returns, priorities and weights of a row are those of its buffer. They stay the same during a
    training.

    Args:
        agent: agent with `demonstrations`.
        replay: replay buffer of the agent.
        action_table: table whose row numbers are the actions of the agent, if it has one.

    Attributes:
        memory: line about the memory of this buffer.
    """

    can_capture = False  # see `ReplayBuffer`

    def __init__(
        self,
        agent: OffPolicyAgent,
        replay: ReplayBuffer,
        action_table: Sequence[Sequence[float]] | None,
    ) -> None:
        assert agent.demonstrations is not None
        self._count = demonstrations_of_batch(agent.demonstration_share, agent.batch_size)
        self._replay = replay
        observed, acted = agent.observation_spec, agent.action_spec
        episodes = load_demonstrations(agent.demonstrations, observed, acted, action_table)
        frames = max((replay.frame_stacks or {}).values(), default=1)
        self._buffer = replace(
            replay,
            capacity=rows_needed(episodes, frames),
            observation_spec=observed[0].expand(1),
            action_spec=acted[0].expand(1, *acted.shape[1:]),
            setting="observations of agent.demonstrations",
        )
        self.memory = self._buffer.memory
        fill(self._buffer, episodes)
        if self._buffer.is_empty:
            raise ConfigurationError(
                f"agent.demonstrations={agent.demonstrations}: it has no complete transition"
            )
        self._digest = _digest(episodes)

    def sample(self, batch_size: int) -> TensorDict:
        """Draw a batch; see `ReplayBuffer.sample`."""
        own = self._replay.sample(batch_size - self._count)
        return torch.cat((own, self._buffer.sample(self._count)))

    def update_priorities(self, batch: TensorDictBase, priorities: Tensor | None) -> None:
        """Set new priorities for a batch of `sample`; see `ReplayBuffer.update_priorities`."""
        first = len(batch) - self._count
        for buffer, rows in ((self._replay, slice(first)), (self._buffer, slice(first, None))):
            own = None if priorities is None else priorities[rows]
            buffer.update_priorities(batch[rows], own)

    def state_dict(self) -> dict[str, Any]:
        """Return a hash of the demonstrations, and the state of their sampling."""
        return {"digest": self._digest, **self._buffer.sampling_state()}

    def check_state(self, state: Any) -> None:
        """Refuse a state that `state_dict` did not return; None for that of a run without them."""
        if state is not None and state["digest"] == self._digest:
            check_like(state, self.state_dict(), "demonstrations")

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Go on from a state, or anew if it is None or that of other demonstrations."""
        if state is None:
            return
        if state["digest"] == self._digest:
            self._buffer.load_sampling_state(state)
        else:
            logger.warning(
                "agent.demonstrations: these are others than before; priorities begin anew"
            )


def demonstrations_of_batch(share: float, batch_size: int) -> int:
    """Return the number of transitions of every batch that are demonstrations."""
    count = round(share * batch_size)
    if not 0 < count < batch_size:
        raise ConfigurationError(
            f"agent.demonstration_share={share:g}: of agent.batch_size={batch_size} that is "
            f"{count}; at least 1 has to be a demonstration, and at least 1 the agent's own"
        )
    return count


def _digest(episodes: Iterable[Episode]) -> str:
    """Return a hash of all that an agent learns from."""
    found = hashlib.sha256()
    for each in episodes:
        flags = each.terminated, each.truncated
        for tensor in (*each.observations.values(), each.action, each.reward, *flags):
            found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()
