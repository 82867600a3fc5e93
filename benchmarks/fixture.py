"""Sizes, types of arguments, random data, agents and trainings that the benchmarks share."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Bounded, Categorical, Composite, TensorSpec, Unbounded
from torchrl.envs import EnvBase

from agents.base import Agent, OnPolicyAgent
from envs.fanuc.observation import observation_size
from envs.fanuc.robot import load_robot
from torchrl_gpu.arguments import parameters_of
from torchrl_gpu.environments.specs import ActionKind, action_spec, observation_spec
from torchrl_gpu.execution.execution import EAGER, Execution
from trainers.modes.building import training_env
from trainers.run import settings_of
from trainers.training.experience import ReplayExperience
from trainers.training.trainer import TorchRLTrainer

CPU = torch.device("cpu")
NEVER = 10**9  # frames that no training reaches

# Sizes of the environment fanuc: a discrete action moves no joint, or one up or down at one of two
# speeds.
OBSERVATION_DIM, ACTION_DIM = observation_size(load_robot()), load_robot().num_joints
NUM_ACTIONS = 1 + 4 * ACTION_DIM

BATCH = 256  # transitions of a gradient step
WIDTH = 256
HIDDEN = (WIDTH, WIDTH)
HORIZON = 8  # steps of a rollout; a batch for an on-policy agent is one rollout

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0.0)]
Sizes = Annotated[Sequence[Count], Field(min_length=1)]


def kind_of(agent_class: type[Agent]) -> ActionKind:
    """Return the kind of action that an agent is measured with: continuous if it has the choice."""
    return "continuous" if "continuous" in agent_class.actions else "discrete"


def specs(
    *shape: int, kind: ActionKind = "continuous", device: torch.device = CPU
) -> tuple[Composite, TensorSpec]:
    """Return the specs of observations and actions of a batch, with the sizes of fanuc."""
    see = Composite(
        observation=Unbounded((*shape, OBSERVATION_DIM), device=device), shape=shape, device=device
    )
    act: TensorSpec = Bounded(-1.0, 1.0, (*shape, ACTION_DIM), device=device)
    if kind == "discrete":
        act = Categorical(NUM_ACTIONS, shape=shape, dtype=torch.int64, device=device)
    return see, act


def random_transitions(see: Composite, act: TensorSpec) -> TensorDict:
    """Return a random transition for each row of the specs; no episode ends."""
    no = torch.zeros(*see.shape, 1, dtype=torch.bool, device=act.device)
    reward = torch.randn(no.shape, device=act.device)
    ends = {"terminated": no, "truncated": no, "done": no}
    after = see.rand().update({"reward": reward, **ends})
    transitions: TensorDict = see.rand().update({"action": act.rand(), "next": after})
    return transitions


def random_steps(env: EnvBase) -> Callable[[int], None]:
    """Return a function that steps an environment a number of times by random actions."""
    spec = env.full_action_spec[env.action_keys[0]]
    # Few repeated actions would drift every arm of `fanuc` into its limits and itself, and contacts
    # take PyBullet longer.
    actions = [spec.rand() for _ in range(100)]
    root = env.reset()

    def run(steps: int) -> None:
        nonlocal root
        for step in range(steps):
            root.set(env.action_keys[0], actions[step % len(actions)])
            _, root = env.step_and_maybe_reset(root)

    return run


def build_agent(
    agent_class: type[Agent], see: Composite, act: TensorSpec, **settings: Any
) -> Agent:
    """Return an agent for the specs; settings that it does not have are ignored."""
    known = parameters_of(agent_class)
    constructor: Callable[..., Agent] = agent_class
    fitting = {name: value for name, value in settings.items() if name in known}
    return constructor(see, act, act.device, **fitting)


def random_batch(agent: Agent, rows: int) -> TensorDictBase:
    """Return random transitions for a gradient step, prepared if the agent is on-policy.

    Args:
        agent: agent of one environment.
        rows: number of transitions, a multiple of `HORIZON`.
    """
    shape = (HORIZON, rows // HORIZON)
    see, act = agent.observation_spec, agent.action_spec
    rollout = random_transitions(see.expand(shape), act.expand(*shape, *act.shape[1:]))
    return (agent.prepare(rollout) if isinstance(agent, OnPolicyAgent) else rollout).reshape(-1)


def gradient_step(
    agent: Agent, batch: TensorDictBase, execution: Execution = EAGER
) -> Callable[[], object]:
    """Return a function that takes one gradient step from a batch."""
    return partial(execution.update, agent, batch)


class Training:
    """A training in a temporary folder, continued by any number of frames.

    Args:
        env: environment to train in.
        agent: agent to train.
        settings: further arguments of the trainer.
    """

    def __init__(self, env: EnvBase, agent: Agent, **settings: Any) -> None:
        self._folder = tempfile.TemporaryDirectory()
        fixed = {"total_frames": NEVER, "checkpoint_interval": NEVER}
        quiet = {"save_replay": False, "show_progress": False}
        folder = Path(self._folder.name)
        self.trainer = TorchRLTrainer(env, agent, folder, **{**fixed, **quiet, **settings})

    @classmethod
    def of(cls, arguments: Sequence[str], **settings: Any) -> Training:
        """Return the training that arguments of the main program describe, on the CPU.

        Args:
            arguments: arguments of the main program.
            settings: further arguments of the trainer.
        """
        torch.manual_seed(0)
        chosen = settings_of(*arguments, "device=cpu")
        env = training_env(chosen)
        agent = chosen.agent.build(observation_spec(env), action_spec(env), CPU)
        # The length of a run decides how its updates are executed.
        settings = {"total_frames": chosen.trainer.settings["total_frames"], **settings}
        return cls(env, agent, execution=chosen.execution, **settings)

    def __call__(self, frames: int) -> None:
        """Train for a number of frames, and write a checkpoint."""
        self.trainer.total_frames = self.trainer.frames + frames
        self.trainer.train()

    def collect(self, frames: int) -> None:
        """Act by the policy for a number of frames and store the transitions, without updates."""
        experience = self.trainer.experience
        assert isinstance(experience, ReplayExperience)
        for _ in range(frames // self.trainer.num_envs):
            experience.replay.extend(self.trainer.collect())

    def close(self) -> None:
        """Close the trainer and the environment, and delete the folder."""
        self.trainer.close()
        self.trainer.env.close(raise_if_closed=False)
        self._folder.cleanup()


def stop_after(trainer: Any, frames: int) -> None:
    """Request a stop of a training after a number of frames, as a signal does."""
    collect = trainer.collect

    def stopping() -> TensorDictBase:
        transition: TensorDictBase = collect()
        trainer.stop_requested = trainer.frames >= frames
        return transition

    trainer.collect = stopping
