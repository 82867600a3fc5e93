"""Small environments that agents solve in seconds."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

from torchrl_gpu.environments.capabilities import Capabilities
from torchrl_gpu.environments.environment import Environment


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
    """Environment whose state is a number of steps, one more tensor and a generator.

    Attributes:
        kept: name of the attribute with the tensor.
        steps: number of steps of each episode `[num_envs, 1]`.
        generator: source of all random numbers.
    """

    kept: ClassVar[str]
    steps: torch.Tensor
    generator: torch.Generator

    def _set_seed(self, seed: int | None) -> None:
        self.generator.manual_seed(seed or 0)

    def state_dict(self, **kwargs: object) -> dict[str, torch.Tensor]:
        """Return the complete state of the environment."""
        tensors = {name: getattr(self, name) for name in ("steps", self.kept)}
        return {**tensors, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, torch.Tensor], **kwargs: object) -> None:
        for name in ("steps", self.kept):
            setattr(self, name, state[name].to(self.device))
        self.generator.set_state(state["generator"])


class IdentityEnv(SeededEnv):
    """Rewards actions equal to the observation: the reward is minus the squared difference.

    Episodes are truncated at the time limit, and terminate when the first component of the
    observation exceeds `terminates_above`.
    """

    kept = "observation"
    capabilities = Capabilities(has_state=True)

    def __init__(
        self,
        num_envs: int = 16,
        action_dim: int = 2,
        max_episode_steps: int = 8,
        terminates_above: float = 2.0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(device=torch.device(device), batch_size=torch.Size([num_envs]))
        shape = (num_envs, action_dim)
        self.max_episode_steps = max_episode_steps
        self.terminates_above = terminates_above
        self.observation_spec = Composite(
            observation=Bounded(-1.0, 1.0, shape, device=self.device),
            success=Binary(1, (num_envs, 1), dtype=torch.bool, device=self.device),
            shape=(num_envs,),
        )
        self.action_spec = Bounded(-1.0, 1.0, shape, device=self.device)
        self.reward_spec = Unbounded((num_envs, 1), device=self.device)
        self.full_done_spec = Composite(
            {
                key: Binary(1, (num_envs, 1), dtype=torch.bool, device=self.device)
                for key in ("done", "terminated", "truncated")
            },
            shape=(num_envs,),
        )
        table = tuple(product((-0.5, 0.0, 0.5), repeat=action_dim))
        self.capabilities = replace(self.capabilities, discrete_actions=table)
        self.generator = torch.Generator().manual_seed(0)
        self.steps = torch.zeros(num_envs, 1, dtype=torch.long, device=self.device)
        self.observation = torch.zeros(shape, device=self.device)

    def _draw(self) -> torch.Tensor:
        drawn = torch.rand(self.observation.shape, generator=self.generator)
        return (2.0 * drawn - 1.0).to(self.device)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: object) -> TensorDict:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None:
            mask = torch.ones_like(self.steps, dtype=torch.bool)
        self.steps = torch.where(mask, 0, self.steps)
        self.observation = torch.where(mask, self._draw(), self.observation)
        nothing = torch.zeros_like(mask)
        return TensorDict(
            {
                "observation": self.observation.clone(),
                "success": nothing,
                "done": nothing.clone(),
                "terminated": nothing.clone(),
                "truncated": nothing.clone(),
            },
            batch_size=self.batch_size,
        )

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        error = (tensordict["action"] - self.observation).square().sum(-1, keepdim=True)
        self.steps = self.steps + 1
        self.observation = self._draw()
        terminated = self.observation[:, :1] > self.terminates_above
        truncated = (self.steps >= self.max_episode_steps) & ~terminated
        return TensorDict(
            {
                "observation": self.observation.clone(),
                "reward": -error,
                "success": error < 0.01,
                "terminated": terminated,
                "truncated": truncated,
                "done": terminated | truncated,
            },
            batch_size=self.batch_size,
        )


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
    """Rewards the index of the observation's component that is 1: reward 1, otherwise 0.

    Episodes are truncated at the time limit.
    """

    kept = "wanted"
    capabilities = Capabilities(has_state=True)

    def __init__(
        self, num_envs: int = 16, num_actions: int = 4, max_episode_steps: int = 8
    ) -> None:
        super().__init__(device=torch.device("cpu"), batch_size=torch.Size([num_envs]))
        self.num_actions = num_actions
        self.max_episode_steps = max_episode_steps
        flag = Binary(1, (num_envs, 1), dtype=torch.bool)
        self.observation_spec = Composite(
            observation=Bounded(0.0, 1.0, (num_envs, num_actions)),
            success=flag.clone(),
            shape=(num_envs,),
        )
        self.action_spec = Categorical(num_actions, shape=(num_envs,))
        self.reward_spec = Bounded(0.0, 1.0, (num_envs, 1))
        self.full_done_spec = Composite(
            {key: flag.clone() for key in ("done", "terminated", "truncated")}, shape=(num_envs,)
        )
        self.generator = torch.Generator().manual_seed(0)
        self.steps = torch.zeros(num_envs, 1, dtype=torch.long)
        self.wanted = torch.zeros(num_envs, dtype=torch.long)

    def _observation(self) -> torch.Tensor:
        return torch.nn.functional.one_hot(self.wanted, self.num_actions).float()

    def _draw(self) -> torch.Tensor:
        return torch.randint(self.num_actions, self.wanted.shape, generator=self.generator)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: object) -> TensorDict:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None:
            mask = torch.ones_like(self.steps, dtype=torch.bool)
        self.steps = torch.where(mask, 0, self.steps)
        self.wanted = torch.where(mask.squeeze(1), self._draw(), self.wanted)
        nothing = torch.zeros_like(mask)
        return TensorDict(
            {
                "observation": self._observation(),
                **{k: nothing.clone() for k in ("success", "done", "terminated", "truncated")},
            },
            batch_size=self.batch_size,
        )

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        hit = (tensordict["action"] == self.wanted).unsqueeze(1)
        self.steps = self.steps + 1
        self.wanted = self._draw()
        truncated = self.steps >= self.max_episode_steps
        return TensorDict(
            {
                "observation": self._observation(),
                "reward": hit.float(),
                "success": hit,
                "terminated": torch.zeros_like(truncated),
                "truncated": truncated,
                "done": truncated.clone(),
            },
            batch_size=self.batch_size,
        )
