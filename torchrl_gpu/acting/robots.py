"""Who acts in a world: the world itself, or the robots of a group in it."""

from __future__ import annotations

from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase

from torchrl_gpu.environments.environment import group_of


class Actors:
    """Sees a batch of worlds as the batch of those who act in them.

    A world of several robots follows TorchRL's multi-agent convention: their observations,
    actions, rewards and dones lie under a group key, `[*B, R, ...]`. One agent shared by all
    robots acts for each of them by itself and learns from them as from separate worlds. Where a
    world has no group, all of this is the world's own data as it is.

    Args:
        env: a batched TorchRL environment whose step takes one action, or one of each robot.

    Attributes:
        group: the key of the robots; None for a world without.
        action_key: of what they do.
        reward_key: of what they are given for it.

    Raises:
        ConfigurationError: a step takes more than one kind of action.
    """

    def __init__(self, env: EnvBase) -> None:
        self.group = group_of(env)
        self.action_key = self._key("action")
        self.reward_key = self._key("reward")

    def keys(self, keys: list[NestedKey]) -> list[NestedKey]:
        """Return where the world keeps what the actors know under some keys."""
        return [self._key(key) for key in keys]

    def view(self, root: TensorDictBase) -> TensorDictBase:
        """Return what the actors see, and where they write what they do: `[*B]` or `[*B, R]`."""
        return root if self.group is None else root.get(self.group)

    def transition(self, transition: TensorDictBase) -> TensorDictBase:
        """Return the transition of every actor, `[*B]` or `[*B * R]`, in TorchRL's layout."""
        if self.group is None:
            return transition
        own = transition.get(self.group).copy()
        return own.set("next", transition.get(("next", self.group))).flatten()

    def _key(self, key: NestedKey) -> NestedKey:
        if self.group is None:
            return key
        return (self.group, key) if isinstance(key, str) else (self.group, *key)


class SharedPolicy(TensorDictModuleBase):
    """One policy for every robot of a world, in the form that TorchRL calls policies in.

    Args:
        policy: reads what one robot sees and writes its `action`, for any number of them at once,
            as `PolicyWrapper` does.
        env: the world, which keeps both under the key of the group.
    """

    def __init__(self, policy: TensorDictModuleBase, env: EnvBase) -> None:
        super().__init__()
        self.policy = policy
        self._actors = Actors(env)
        self.in_keys = self._actors.keys(policy.in_keys)
        self.out_keys = [self._actors.action_key]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the actions of all robots."""
        self.policy(self._actors.view(tensordict))
        return tensordict
