"""Step a batched environment with a policy, and deliver the transitions on its device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase

from torchrl_gpu.acting.robots import Robots
from torchrl_gpu.devices.transfer import PackedTransfer
from torchrl_gpu.environments.adapter import AdaptedEnvironment, as_environment
from torchrl_gpu.execution import EAGER, Execution


class BatchCollector:
    """Collects one transition of every environment of a batch per call.

    An environment on the policy's device is stepped in place. One on the host costs one packed copy
    each way per step: the actions there, observations and outcomes back.

    Args:
        env: any TorchRL environment; one that is no `Environment` is adapted.
        device: of policy and replay.
        observation_keys: keys that the policy reads; `active` comes along where the environment
            has it.
        execution: carries out acting.

    Attributes:
        env: the environment, in the form that it is stepped in.
        robots: the robots that the policy acts for.
    """

    def __init__(
        self,
        env: EnvBase,
        device: torch.device,
        observation_keys: Sequence[NestedKey],
        execution: Execution = EAGER,
    ) -> None:
        self.env = as_environment(env)
        self.execution = execution
        self.device = device
        self.robots = Robots(self.env)
        told = set(self.env.observation_spec.keys(include_nested=True))
        self.observation_keys = self.robots.keys(list(observation_keys))
        self.observation_keys += [key for key in self.robots.keys(["active"]) if key in told]
        self._is_remote = self.env.device != device
        self._to_device = PackedTransfer(device)
        self._to_host = PackedTransfer(self.env.device)
        # The state that the next action is for, on the environment's device, and its observations
        # on the policy's.
        self._root: TensorDictBase | None = None
        self._observation: TensorDictBase | None = None

    @torch.no_grad()
    def step(self, policy: TensorDictModuleBase) -> TensorDictBase:
        """Act once in every environment, and begin new episodes where they are over.

        Args:
            policy: any TensorDict module that writes `action`.

        Returns:
            The transition `[*B]` on the policy's device in TorchRL's layout; `next` holds the true
            last observation, also where a new episode has begun. Valid until the next call.
        """
        if self._root is None or self._observation is None:
            self._root, self._observation = self._begin(self.env.reset())
        if not self._is_remote:
            self.execution.act(policy, self.robots.view(self._root))
            transition, self._root = self.env.step_and_maybe_reset(self._root)
            self._observation = self._root
            return transition

        acted = self._observation
        self.execution.act(policy, self.robots.view(acted))
        action = self._to_host(acted.select(self.robots.action_key))
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
        """Return the state of the environment and, where that is complete, what to act upon."""
        if self._root is None:
            return {}
        state: dict[str, Any] = {"world": self.env.state_dict()}
        if self.env.has_state:
            state["root"] = self._root.to_dict()
        return state

    def restart(self) -> None:
        """Begin a new episode in every environment."""
        self._root, self._observation = self._begin(self.env.reset())

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Go on from a state that `state_dict` returned.

        Returns:
            Whether the episodes under way go on. If not, `restart` begins new ones, as the next
            step would, and all that is remembered of the old ones, a return so far for instance,
            has to be forgotten.
        """
        self._root = self._observation = None
        if not state:
            return False
        state = _in_present_form(state, self.env)
        # A reset tells the batch sizes of what is nested, which the state does not.
        root = self.env.reset()
        self.env.load_state_dict(state["world"])
        if not self.env.has_state:
            return False
        saved = TensorDict(state["root"], batch_size=self.env.batch_size).to(self.env.device)
        # Of an older checkpoint there may be more than the environment shows.
        known = list(root.keys(include_nested=True, leaves_only=True))
        self._root, self._observation = self._begin(root.update(saved.select(*known)))
        return True

    def _begin(self, root: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        return root, root.to(self.device) if self._is_remote else root


def _in_present_form(state: dict[str, Any], env: EnvBase) -> dict[str, Any]:
    """Return a state with that of the transforms within that of the environment.

    Older checkpoints keep beside each other the state of the environment beneath all transforms,
    what that environment showed, and the state of the outermost transform.
    """
    is_old = isinstance(env, AdaptedEnvironment) and "base" not in state["world"]
    if not is_old:
        return state
    transforms = [state["transforms"]] if "transforms" in state else []
    world = {"base": state["world"], "root": state["root"], "transforms": transforms}
    return {"world": world, "root": state["root"]}
