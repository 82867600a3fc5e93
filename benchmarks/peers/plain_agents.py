"""Algorithms in plain PyTorch, as one file without a library would have them.

Networks, losses and settings are those of the other sides; tensors instead of NumPy, one Adam for
each kind of network.
"""

import math
from collections.abc import Iterable
from copy import deepcopy
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from benchmarks.fixture import ACTION_DIM, BATCH, HIDDEN, NUM_ACTIONS, OBSERVATION_DIM
from benchmarks.peers.jobs import GAMMA, TARGET_PERIOD, PPOTask

_TAU = 0.005
_LOG_STD = (-20.0, 2.0)


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    """Return a network with the common hidden layers."""
    layers: list[nn.Module] = []
    for width in HIDDEN:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


class Batch(NamedTuple):
    """Transitions `[B, ...]`."""

    observation: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    next_observation: Tensor


def random_batch(count: int, is_discrete: bool) -> Batch:
    """Return random transitions `[count, ...]`, none of which terminates."""
    action = torch.rand(count, ACTION_DIM) * 2.0 - 1.0
    if is_discrete:
        action = torch.randint(NUM_ACTIONS, (count, 1))
    return Batch(
        torch.randn(count, OBSERVATION_DIM),
        action,
        torch.randn(count, 1),
        torch.zeros(count, 1),
        torch.randn(count, OBSERVATION_DIM),
    )


class Replay:
    """Ring of transitions, with a tensor for each entry.

    Args:
        capacity: number of transitions.
        example: transitions `[N, ...]` that give shapes and dtypes.
    """

    def __init__(self, capacity: int, example: Batch) -> None:
        self._entries = Batch(*(x.new_zeros(capacity, *x.shape[1:]) for x in example))
        self._capacity = capacity
        self._next = self._size = 0

    def add(self, transition: Batch) -> None:
        """Store transitions `[N, ...]`; N divides the capacity."""
        count = len(transition.reward)
        for ring, values in zip(self._entries, transition, strict=True):
            ring[self._next : self._next + count] = values
        self._next = (self._next + count) % self._capacity
        self._size = min(self._size + count, self._capacity)

    def sample(self) -> Batch:
        """Return random transitions `[BATCH, ...]`."""
        index = torch.randint(self._size, (BATCH,))
        return Batch(*(ring[index] for ring in self._entries))


def follow(target: nn.Module, online: nn.Module, rate: float) -> None:
    """Move the parameters of a target network towards those of its online network."""
    with torch.no_grad():
        for old, new in zip(target.parameters(), online.parameters(), strict=True):
            old.lerp_(new, rate)


def adam(networks: Iterable[nn.Module], rate: float, epsilon: float = 1e-8) -> torch.optim.Adam:
    """Return an optimizer of the parameters of some networks."""
    return torch.optim.Adam([p for n in networks for p in n.parameters()], rate, eps=epsilon)


def descend(optimizer: torch.optim.Optimizer, loss: Tensor, max_norm: float | None = None) -> None:
    """Take one gradient step."""
    optimizer.zero_grad()
    loss.backward()
    if max_norm is not None:
        nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], max_norm)
    optimizer.step()


class SAC:
    """Soft actor-critic with two critics and a learned temperature."""

    def __init__(self, observation_dim: int, action_dim: int, rate: float = 3e-4) -> None:
        self.actor = mlp(observation_dim, 2 * action_dim)
        self.critics = nn.ModuleList(mlp(observation_dim + action_dim, 1) for _ in range(2))
        self.targets = deepcopy(self.critics)
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.target_entropy = -float(action_dim)
        self.actor_optimizer = adam([self.actor], rate)
        self.critic_optimizer = adam([self.critics], rate)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], rate)

    def act(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions and their log-probabilities `[B, 1]`."""
        mean, log_std = self.actor(observation).chunk(2, -1)
        normal = Normal(mean, log_std.clamp(*_LOG_STD).exp())
        before = normal.rsample()
        # log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2x))
        slope = 2.0 * (math.log(2.0) - before - F.softplus(-2.0 * before))
        return before.tanh(), (normal.log_prob(before) - slope).sum(-1, keepdim=True)

    def values(self, critics: nn.ModuleList, observation: Tensor, action: Tensor) -> list[Tensor]:
        """Return the values `[B, 1]` of each critic."""
        pair = torch.cat([observation, action], -1)
        return [critic(pair) for critic in critics]

    def update(self, batch: Batch) -> None:
        """Take one gradient step of critics, actor and temperature."""
        alpha = self.log_alpha.detach().exp()
        with torch.no_grad():
            action, log_prob = self.act(batch.next_observation)
            following = torch.minimum(*self.values(self.targets, batch.next_observation, action))
            following = following - alpha * log_prob
            target = batch.reward + GAMMA * (1.0 - batch.terminated) * following
        values = self.values(self.critics, batch.observation, batch.action)
        descend(
            self.critic_optimizer, F.mse_loss(values[0], target) + F.mse_loss(values[1], target)
        )

        action, log_prob = self.act(batch.observation)
        value = torch.minimum(*self.values(self.critics, batch.observation, action))
        descend(self.actor_optimizer, (alpha * log_prob - value).mean())
        excess = log_prob.detach().mean() + self.target_entropy
        descend(self.alpha_optimizer, -(self.log_alpha.exp() * excess).sum())
        follow(self.targets, self.critics, _TAU)


class DDPG:
    """Deterministic actor with one critic."""

    def __init__(self) -> None:
        self.actor = nn.Sequential(mlp(OBSERVATION_DIM, ACTION_DIM), nn.Tanh())
        self.critic = mlp(OBSERVATION_DIM + ACTION_DIM, 1)
        self.target_actor, self.target_critic = deepcopy(self.actor), deepcopy(self.critic)
        self.actor_optimizer = adam([self.actor], 1e-3)
        self.critic_optimizer = adam([self.critic], 1e-3)

    def update(self, batch: Batch) -> None:
        """Take one gradient step of critic and actor."""
        with torch.no_grad():
            action = self.target_actor(batch.next_observation)
            following = self.target_critic(torch.cat([batch.next_observation, action], -1))
            target = batch.reward + GAMMA * (1.0 - batch.terminated) * following
        value = self.critic(torch.cat([batch.observation, batch.action], -1))
        descend(self.critic_optimizer, F.mse_loss(value, target))
        action = self.actor(batch.observation)
        value = self.critic(torch.cat([batch.observation, action], -1))
        descend(self.actor_optimizer, -value.mean())
        follow(self.target_actor, self.actor, _TAU)
        follow(self.target_critic, self.critic, _TAU)


class DQN:
    """Deep Q-network with a target network that is copied at intervals, without double Q."""

    def __init__(self) -> None:
        self.network = mlp(OBSERVATION_DIM, NUM_ACTIONS)
        self.target = deepcopy(self.network)
        self.optimizer = adam([self.network], 1e-3)
        self.updates = 0

    def update(self, batch: Batch) -> None:
        """Take one gradient step."""
        with torch.no_grad():
            following = self.target(batch.next_observation).amax(1, keepdim=True)
            target = batch.reward + GAMMA * (1.0 - batch.terminated) * following
        value = self.network(batch.observation).gather(1, batch.action)
        descend(self.optimizer, F.smooth_l1_loss(value, target), max_norm=10.0)
        self.updates += 1
        if self.updates % TARGET_PERIOD == 0:
            follow(self.target, self.network, 1.0)


class Choice(NamedTuple):
    """Observations `[..., D]`, actions, their log-probabilities `[...]`, and values `[...]`."""

    observation: Tensor
    action: Tensor
    log_prob: Tensor
    value: Tensor


class Rollout(NamedTuple):
    """Steps `[T, num_envs, ...]` of a policy; `done` is 1 where an episode ended."""

    observation: Tensor
    action: Tensor
    log_prob: Tensor
    value: Tensor
    reward: Tensor
    done: Tensor


class PPO:
    """Proximal policy optimization with actor and critic apart.

    Args:
        observation_dim: number of observed numbers.
        actions: number of discrete actions, or of dimensions of a continuous one.
        is_discrete: whether actions are numbers or vectors.
        task: settings.
    """

    def __init__(
        self, observation_dim: int, actions: int, is_discrete: bool, task: PPOTask
    ) -> None:
        self.actor = mlp(observation_dim, actions)
        self.critic = mlp(observation_dim, 1)
        self.log_std = nn.Parameter(torch.zeros(actions))
        self.is_discrete = is_discrete
        self.task = task
        learned = [*self.actor.parameters(), *self.critic.parameters(), self.log_std]
        self.optimizer = torch.optim.Adam(learned, task.learning_rate, eps=1e-5)

    def choose(self, observation: Tensor) -> Choice:
        """Draw actions, and return all that a rollout keeps of them."""
        distribution = self.distribution(observation)
        action = distribution.sample()
        value = self.critic(observation).squeeze(-1)
        return Choice(observation, action, self.log_prob(distribution, action), value)

    def distribution(self, observation: Tensor) -> Categorical | Normal:
        """Return the distribution of the actions."""
        output = self.actor(observation)
        return (
            Categorical(logits=output) if self.is_discrete else Normal(output, self.log_std.exp())
        )

    def log_prob(self, distribution: Categorical | Normal, action: Tensor) -> Tensor:
        """Return the log-probabilities `[B]` of actions."""
        log_prob: Tensor = distribution.log_prob(action)
        return log_prob if self.is_discrete else log_prob.sum(-1)

    def advantages(self, rollout: Rollout, last_value: Tensor) -> Tensor:
        """Return the advantages `[T, num_envs]` by generalized advantage estimation."""
        advantages = torch.zeros_like(rollout.reward)
        gamma = self.task.gamma
        following, advantage = last_value, torch.zeros_like(last_value)
        for step in reversed(range(len(rollout.reward))):
            goes_on = 1.0 - rollout.done[step]
            error = rollout.reward[step] + gamma * goes_on * following - rollout.value[step]
            advantage = error + gamma * self.task.gae_lambda * goes_on * advantage
            advantages[step], following = advantage, rollout.value[step]
        return advantages

    def update(self, rollout: Rollout, last_value: Tensor) -> None:
        """Take the gradient steps of all epochs of a rollout."""
        advantages = self.advantages(rollout, last_value)
        returns = (advantages + rollout.value).flatten()
        advantages = advantages.flatten()
        samples = (*(x.flatten(0, 1) for x in rollout[:3]), advantages, returns)
        for _ in range(self.task.epochs):
            for index in torch.randperm(len(returns)).split(self.task.batch_size):
                self.learn(*(x[index] for x in samples))

    def learn(
        self,
        observation: Tensor,
        action: Tensor,
        old_log_prob: Tensor,
        advantage: Tensor,
        returned: Tensor,
    ) -> None:
        """Take one gradient step from a minibatch."""
        distribution = self.distribution(observation)
        ratio = (self.log_prob(distribution, action) - old_log_prob).exp()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        error = F.mse_loss(self.critic(observation).squeeze(-1), returned)
        descend(self.optimizer, 0.5 * error - gain, max_norm=0.5)
