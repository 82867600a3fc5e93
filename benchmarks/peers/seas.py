"""Jobs on 1,024 seas with one vessel each: PPO collects rollouts of marinenav and learns from them.

All sides observe the vessel alone, without the buoys, so that two layers of 256 are the whole
network. The loops of the other libraries are those of their runners, without logging.
"""

from __future__ import annotations

from typing import NamedTuple

import gymnasium as gym
import torch
from tensordict import TensorDict
from torch import Tensor

from agents.ppo import PPO
from benchmarks.peers import plain_agents, rsl_rl, skrl
from benchmarks.peers.jobs import HIDDEN, Builders, Run
from benchmarks.peers.ours import Training, extremes
from benchmarks.peers.plain_agents import Rollout
from benchmarks.peers.tasks import SEAS_TASK
from envs.marinenav import MarineNavEnv
from envs.marinenav.specs import GROUP
from torchrl_gpu.environments.specs import action_spec, observation_spec
from torchrl_gpu.execution.execution import CompileMode, Execution
from torchrl_gpu.execution.precision import PrecisionName

_TASK = SEAS_TASK


class Outcome(NamedTuple):
    """Result of a step of all vessels: observations `[N, D]`, all else `[N]`."""

    observation: Tensor  # of the next step
    reward: Tensor
    terminated: Tensor
    truncated: Tensor


class Vessels:
    """The environment as tensors, without TensorDict.

    Attributes:
        observation: present observations `[N, D]`.
    """

    def __init__(self) -> None:
        self._env = MarineNavEnv(num_envs=_TASK.num_envs, num_robots=1)
        self._root = self._env.reset()

    @property
    def observation(self) -> Tensor:
        """Present observations `[N, D]`."""
        observation: Tensor = self._root[GROUP, "observation"][:, 0]
        return observation

    def step(self, action: Tensor) -> Outcome:
        """Step all vessels by actions `[N, A]`, which are clipped to [-1, 1]."""
        self._root[GROUP, "action"] = action.clamp(-1.0, 1.0).unsqueeze(1)
        transition, self._root = self._env.step_and_maybe_reset(self._root)
        after = transition["next", GROUP]
        return Outcome(
            self.observation,
            after["reward"][:, 0, 0],
            after["terminated"][:, 0, 0],
            after["truncated"][:, 0, 0],
        )


def _dimensions(vessels: Vessels) -> tuple[int, int]:
    """Return the numbers of observed quantities and of dimensions of the action."""
    return vessels.observation.shape[1], 2


def build_ours(precision: PrecisionName = "fp32", compile: CompileMode = "off") -> Run:
    """Return a run of frames of this library."""
    env = MarineNavEnv(num_envs=_TASK.num_envs, num_robots=1)
    agent = PPO(
        observation_spec(env, ["observation"]),
        action_spec(env),
        torch.device("cpu"),
        hidden_sizes=HIDDEN,
        batch_size=_TASK.batch_size,
        rollout_length=_TASK.rollout_length,
        epochs=_TASK.epochs,
    )
    return Training(env, agent, execution=Execution(agent.device, precision, compile))


def build_plain() -> Run:
    """Return a run of frames in plain PyTorch."""
    vessels = Vessels()
    observed, actions = _dimensions(vessels)
    learner = plain_agents.PPO(
        observed, actions, False, epochs=_TASK.epochs, batch_size=_TASK.batch_size
    )

    @torch.no_grad()
    def step() -> Rollout:
        observation = vessels.observation
        distribution = learner.distribution(observation)
        action = distribution.sample()
        outcome = vessels.step(action)
        return Rollout(
            observation,
            action,
            learner.log_prob(distribution, action),
            learner.critic(observation).squeeze(-1),
            outcome.reward,
            (outcome.terminated | outcome.truncated).float(),
        )

    def run(frames: int) -> None:
        for _ in range(frames // _TASK.frames):
            steps = [step() for _ in range(_TASK.rollout_length)]
            rollout = Rollout(*(torch.stack(entries) for entries in zip(*steps, strict=True)))
            with torch.no_grad():
                last_value = learner.critic(vessels.observation).squeeze(-1)
            learner.update(rollout, last_value)

    return run


def build_rsl_rl() -> Run:
    """Return a run of frames of rsl_rl."""
    vessels = Vessels()

    def observe() -> TensorDict:
        return TensorDict({"policy": vessels.observation}, [_TASK.num_envs])

    ppo = rsl_rl.make_ppo(
        observe(),
        _dimensions(vessels)[1],
        _TASK.rollout_length,
        num_learning_epochs=_TASK.epochs,
        num_mini_batches=_TASK.minibatches,
    )

    def run(frames: int) -> None:
        for _ in range(frames // _TASK.frames):
            with torch.inference_mode():
                for _ in range(_TASK.rollout_length):
                    outcome = vessels.step(ppo.act(observe()))
                    done = (outcome.terminated | outcome.truncated).long()
                    time_outs = {"time_outs": outcome.truncated.float()}
                    ppo.process_env_step(observe(), outcome.reward, done, time_outs)
                ppo.compute_returns(observe())
            ppo.update()

    return run


def build_skrl() -> Run:
    """Return a run of frames of skrl."""
    vessels = Vessels()
    observed, actions = _dimensions(vessels)
    spaces = {
        "observation_space": gym.spaces.Box(-float("inf"), float("inf"), (observed,)),
        "action_space": gym.spaces.Box(-1.0, 1.0, (actions,)),
    }
    learner = skrl.agent(
        "PPO",
        skrl.ppo_models(spaces),
        skrl.memory_of(_TASK.rollout_length, _TASK.num_envs),
        spaces,
        rollouts=_TASK.rollout_length,
        learning_epochs=_TASK.epochs,
        mini_batches=_TASK.minibatches,
        value_clip=0.0,
        value_loss_scale=0.5,
    )
    learner.enable_training_mode(True)

    def run(frames: int) -> None:
        for _ in range(frames // _TASK.num_envs):
            step = {"timestep": 1, "timesteps": 1}
            with torch.no_grad():
                observation = vessels.observation
                action, _ = learner.act(observation, None, **step)
                outcome = vessels.step(action)
                learner.record_transition(
                    observations=observation,
                    states=None,
                    actions=action,
                    rewards=outcome.reward.unsqueeze(1),
                    next_observations=outcome.observation,
                    next_states=None,
                    terminated=outcome.terminated.unsqueeze(1),
                    truncated=outcome.truncated.unsqueeze(1),
                    infos={},
                    **step,
                )
            learner.post_interaction(**step)

    return run


OURS: Builders = {"seas_ppo": extremes(build_ours)}
PLAIN: Builders = {"seas_ppo": {"": build_plain}}
RSL_RL: Builders = {"seas_ppo": {"": build_rsl_rl}}
SKRL: Builders = {"seas_ppo": {"": build_skrl}}
