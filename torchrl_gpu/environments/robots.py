"""Robots of a group, flattened into the batch of an agent."""

from tensordict import NestedKey, TensorDictBase, unravel_key
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase

from torchrl_gpu.environments.environment import group_of


class Robots:
    """Flattens the robots of a group into the batch.

    An environment with several robots follows TorchRL's multi-agent convention: their observations,
    actions, rewards and dones lie under a group key, `[*B, R, ...]`. One agent shared by all robots
    acts for each robot separately and learns from them as from separate environments. An
    environment without a group is used unchanged.

    Attributes:
        group: key of the group of robots; None for an environment without a group.
        action_key: key of the actions.
        reward_key: key of the rewards.

    Raises:
        ConfigurationError: the environment has several action keys.
    """

    def __init__(self, env: EnvBase) -> None:
        self.group = group_of(env)
        self.action_key, self.reward_key = self.keys(["action", "reward"])

    def keys(self, keys: list[NestedKey]) -> list[NestedKey]:
        """Return the full keys in the environment of keys within the group."""
        return keys if self.group is None else [unravel_key((self.group, key)) for key in keys]

    def view(self, root: TensorDictBase) -> TensorDictBase:
        """Return the part of a root that the policy reads and writes: `[*B]` or `[*B, R]`."""
        return root if self.group is None else root.get(self.group)

    def transition(self, transition: TensorDictBase) -> TensorDictBase:
        """Return the transition of every robot, `[*B]` or `[*B * R]`, in TorchRL's layout."""
        if self.group is None:
            return transition
        own = transition.get(self.group).copy()
        return own.set("next", transition.get(("next", self.group))).flatten()


class SharedPolicy(TensorDictModuleBase):
    """One policy for all robots of an environment, callable by TorchRL's rollouts and collectors.

    Args:
        policy: batched policy of a single robot, such as `PolicyWrapper`: reads the robot's
            observations and writes its `action`.
        env: environment with the robots, see `Robots`.
    """

    def __init__(self, policy: TensorDictModuleBase, env: EnvBase) -> None:
        super().__init__()
        self.policy = policy
        self._robots = Robots(env)
        self.in_keys = self._robots.keys(policy.in_keys)
        self.out_keys = [self._robots.action_key]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the actions of all robots."""
        self.policy(self._robots.view(tensordict))
        return tensordict
