"""Small environments that agents solve in seconds."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, TensorSpec, Unbounded
from torchrl.envs import EnvBase

from torchrl_gpu.environments.capabilities import Capabilities
from torchrl_gpu.environments.environment import DONE_NAMES, Environment


def trajectory(env: EnvBase, actions: Tensor, root: TensorDict | None = None) -> TensorDict:
    """Return the transitions of a sequence of actions, from a root or from a reset."""
    root = env.reset() if root is None else root
    steps = []
    for action in actions:
        step, root = env.step_and_maybe_reset(root.set(env.action_key, action))
        steps.append(step.clone())
    return torch.stack(steps)


def check_that_transitions_are_not_overwritten(
    env: EnvBase, act: Callable[[TensorDictBase], TensorDictBase], steps: int
) -> None:
    """Check that later steps leave the returned transitions as they are."""
    root, handed_out = env.reset(), []
    for _ in range(steps):
        transition, root = env.step_and_maybe_reset(act(root))
        handed_out.append((transition, transition.clone()))
    for tensordict, at_the_time in handed_out:
        assert (tensordict == at_the_time).all()


class SeededEnv(Environment):
    """Environment that draws new numbers in every step, and shows them as its observation.

    Episodes are truncated at the time limit, and terminate when the first number exceeds
    `terminates_above`.

    Attributes:
        steps: number of steps of each episode `[num_envs, 1]`.
        numbers: numbers of the current observation `[num_envs, D]`.
        generator: source of all random numbers.
    """

    capabilities = Capabilities(has_state=True)
    terminates_above = math.inf

    def __init__(
        self, num_envs: int, max_episode_steps: int, observation: TensorSpec, numbers: Tensor
    ) -> None:
        super().__init__(device=numbers.device, batch_size=torch.Size([num_envs]))
        self.max_episode_steps = max_episode_steps
        self.observation_spec = Composite(
            observation=observation, success=self._spec_of_flag(1), shape=(num_envs,)
        )
        self.full_done_spec = self._spec_of_dones()
        self.generator = torch.Generator().manual_seed(0)
        self.steps = torch.zeros(num_envs, 1, dtype=torch.long, device=self.device)
        self.numbers = numbers

    def _draw(self) -> Tensor:
        """Return new numbers `[num_envs, D]`."""
        raise NotImplementedError

    def _observation(self) -> Tensor:
        """Return the observation of the current numbers, in separate memory."""
        raise NotImplementedError

    def _judge(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the reward of an action and whether it is a success, both `[num_envs, 1]`."""
        raise NotImplementedError

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: object) -> TensorDict:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None:
            mask = torch.ones_like(self.steps, dtype=torch.bool)
        self.steps = torch.where(mask, 0, self.steps)
        self.numbers = torch.where(mask, self._draw(), self.numbers)
        flags = {name: torch.zeros_like(mask) for name in ("success", *DONE_NAMES)}
        return TensorDict({"observation": self._observation(), **flags}, self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        reward, success = self._judge(tensordict["action"])
        self.steps = self.steps + 1
        self.numbers = self._draw()
        terminated = self.numbers[:, :1] > self.terminates_above
        truncated = (self.steps >= self.max_episode_steps) & ~terminated
        return TensorDict(
            {
                "observation": self._observation(),
                "reward": reward,
                "success": success,
                "terminated": terminated,
                "truncated": truncated,
                "done": terminated | truncated,
            },
            self.batch_size,
        )

    def _set_seed(self, seed: int | None) -> None:
        self.generator.manual_seed(seed or 0)

    def state_dict(self, **kwargs: object) -> dict[str, Tensor]:
        """Return the complete state of the environment."""
        generator = self.generator.get_state()
        return {"steps": self.steps, "numbers": self.numbers, "generator": generator}

    def load_state_dict(self, state: dict[str, Tensor], **kwargs: object) -> None:
        self.steps, self.numbers = (state[name].to(self.device) for name in ("steps", "numbers"))
        self.generator.set_state(state["generator"])


class IdentityEnv(SeededEnv):
    """Rewards actions equal to the observation: the reward is minus the squared difference."""

    def __init__(
        self,
        num_envs: int = 16,
        action_dim: int = 2,
        max_episode_steps: int = 8,
        terminates_above: float = 2.0,
        device: torch.device | str = "cpu",
    ) -> None:
        numbers = torch.zeros(num_envs, action_dim, device=device)
        unit = Bounded(-1.0, 1.0, numbers.shape, device=numbers.device)
        super().__init__(num_envs, max_episode_steps, unit, numbers)
        self.terminates_above = terminates_above
        self.action_spec = unit.clone()
        self.reward_spec = Unbounded((num_envs, 1), device=self.device)
        table = tuple(product((-0.5, 0.0, 0.5), repeat=action_dim))
        self.capabilities = replace(self.capabilities, discrete_actions=table)

    def _draw(self) -> Tensor:
        drawn = torch.rand(self.numbers.shape, generator=self.generator)
        return (2.0 * drawn - 1.0).to(self.device)

    def _observation(self) -> Tensor:
        return self.numbers.clone()

    def _judge(self, action: Tensor) -> tuple[Tensor, Tensor]:
        error = (action - self.numbers).square().sum(-1, keepdim=True)
        return -error, error < 0.01


class OverlapEnv(IdentityEnv):
    """Counts the steps that have begun and not ended."""

    capabilities = replace(IdentityEnv.capabilities, can_overlap=True)
    in_flight = 0

    def begin_step(self, tensordict: TensorDictBase) -> None:
        self.in_flight += 1

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        self.in_flight -= 1
        return super()._step(tensordict)


class MatchEnv(SeededEnv):
    """Rewards the index of the observation's component that is 1: reward 1, otherwise 0."""

    def __init__(
        self, num_envs: int = 16, num_actions: int = 4, max_episode_steps: int = 8
    ) -> None:
        observation = Bounded(0.0, 1.0, (num_envs, num_actions))
        numbers = torch.zeros(num_envs, 1, dtype=torch.long)
        super().__init__(num_envs, max_episode_steps, observation, numbers)
        self.num_actions = num_actions
        self.action_spec = Categorical(num_actions, shape=(num_envs,))
        self.reward_spec = Bounded(0.0, 1.0, (num_envs, 1))

    def _draw(self) -> Tensor:
        return torch.randint(self.num_actions, self.numbers.shape, generator=self.generator)

    def _observation(self) -> Tensor:
        return torch.nn.functional.one_hot(self.numbers.squeeze(1), self.num_actions).float()

    def _judge(self, action: Tensor) -> tuple[Tensor, Tensor]:
        hit = action.unsqueeze(1) == self.numbers
        return hit.float(), hit
