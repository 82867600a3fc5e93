"""Step a batched world with a policy, and deliver what happened on the policy's device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase, TransformedEnv

from torchrl_gpu.actors import Actors
from torchrl_gpu.execution import Execution
from torchrl_gpu.transfer import PackedTransfer


class BatchCollector:
    """Collects one transition of every world of a batch per call.

    A world on the policy's device is stepped where it is. A world on the host costs one packed
    copy each way per step: actions there, all that came of them back.

    Args:
        env: a batched TorchRL environment.
        device: where policy and replay live.
        observation_keys: what the policy reads; `active` comes along where the world tells it.
        execution: carries out acting; None for eager execution.

    Attributes:
        actors: who acts in the world: it is for them that the policy is asked.
    """

    def __init__(
        self,
        env: EnvBase,
        device: torch.device,
        observation_keys: Sequence[NestedKey],
        execution: Execution | None = None,
    ) -> None:
        self.env = env
        self.execution = execution or Execution()
        self.device = device
        self.actors = Actors(env)
        told = set(env.observation_spec.keys(include_nested=True))
        self.observation_keys = self.actors.keys(list(observation_keys))
        self.observation_keys += [key for key in self.actors.keys(["active"]) if key in told]
        self._is_remote = env.device != device
        self._to_device = PackedTransfer(device)
        self._to_host = PackedTransfer(env.device)
        # The state that the next action is for: on the world's device, and its observations on
        # the policy's.
        self._root: TensorDictBase | None = None
        self._observation: TensorDictBase | None = None

    @torch.no_grad()
    def step(self, policy: TensorDictModuleBase) -> TensorDictBase:
        """Act once in every world; worlds that are done start anew.

        Args:
            policy: any TensorDict module that writes `action` for the actors.

        Returns:
            The transition `[*B]` on the policy's device in TorchRL's layout; `next` holds the true
            last observation, also where the world was reset. Valid until the next call.
        """
        if self._root is None or self._observation is None:
            self._root, self._observation = self._begin(self.env.reset())
        if not self._is_remote:
            self.execution.act(policy, self.actors.view(self._root))
            transition, self._root = self.env.step_and_maybe_reset(self._root)
            self._observation = self._root
            return transition

        acted = self._observation
        self.execution.act(policy, self.actors.view(acted))
        action = self._to_host(acted.select(self.actors.action_key))
        transition, root = self.env.step_and_maybe_reset(self._root.update(action))
        arrived = self._to_device(
            TensorDict(
                {"next": transition["next"], "observation": root.select(*self.observation_keys)},
                batch_size=self.env.batch_size,
            )
        )
        self._root, self._observation = root, arrived["observation"]
        return acted.set("next", arrived["next"])

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the world and what it shows now; empty where it tells none."""
        base = _base(self.env).state_dict()
        if not base or self._root is None:
            return {}
        state: dict[str, Any] = {"world": base, "root": self._root.to_dict()}
        if isinstance(self.env, TransformedEnv):
            state["transforms"] = dict(self.env.transform.state_dict())
        return state

    def restart(self) -> None:
        """Begin a new episode in every environment with the next step."""
        self._root = self._observation = None

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Go on from a state that `state_dict` returned.

        Returns:
            Whether the episodes go on; if not, because the state is empty, `restart` is due.
        """
        if not state:
            return False
        # A reset tells the batch sizes of what is nested, which the state does not.
        root = self.env.reset()
        _base(self.env).load_state_dict(state["world"])
        if isinstance(self.env, TransformedEnv):
            self.env.transform.load_state_dict(state["transforms"])
        saved = TensorDict(state["root"], batch_size=self.env.batch_size).to(self.env.device)
        self._root, self._observation = self._begin(root.update(saved))
        return True

    def _begin(self, root: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        return root, root.to(self.device) if self._is_remote else root


def _base(env: EnvBase) -> EnvBase:
    while isinstance(env, TransformedEnv):
        env = env.base_env
    return env
