"""Plays the episodes that a viewer shows, of one environment of a batch, step by step."""

from collections import defaultdict, deque
from typing import Final

import numpy as np
import torch
from tensordict.nn import TensorDictModuleBase
from torchrl.envs.utils import step_mdp

from torchrl_gpu.environments.captions import picture_of, write_captions
from torchrl_gpu.environments.environment import Environment
from torchrl_gpu.environments.robots import Robots
from torchrl_gpu.intervals import Scores
from trainers.evaluation.film import USUAL_STEP_SECONDS, Picture, enlarged, step_once

REWARD: Final = "reward"
MAX_STEPS: Final = 2000  # last steps of an episode in its curves, which the page gets each time


class Player:
    """Plays one episode after the other by a policy on a device, greedily.

    The environment is a batch that can render. The episode ends when it ends in the environment
    that is shown; then all of them begin anew.

    Attributes:
        index: number of the environment that is shown; a change takes `begin`.
        step_seconds: simulated time of a step.
        done: whether the episode is over.
        steps: number of steps of the episode.
        episode_return: undiscounted return of the episode so far.
        episodes: number of episodes that ended since `count_anew`.
        successes: number of those that succeeded; None in an environment without success.
    """

    def __init__(
        self, env: Environment, policy: TensorDictModuleBase, device: torch.device
    ) -> None:
        self.index = 0
        self.step_seconds = env.capabilities.step_seconds or USUAL_STEP_SECONDS
        self._env = env
        self._policy = policy.eval()
        self._device = device
        self._robots = Robots(env)
        self.count_anew()
        self.begin()

    def count_anew(self) -> None:
        """Count the episodes of another policy."""
        self.episodes = 0
        self.successes: int | None = None

    def begin(self) -> None:
        """Begin an episode."""
        self._state = self._env.reset()
        self.done = False
        self.steps, self.episode_return = 0, 0.0
        # Rewards of the last steps, in all and by terms.
        self._rewards: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=MAX_STEPS))

    def step(self) -> None:
        """Step once, in an episode that is not over."""
        state = step_once(self._env, self._robots, self._policy, self._device, self._state)
        after = state["next"]
        # The robots of one environment share its return.
        rewards = after[self._robots.reward_key].reshape(self._env.num_envs, -1)
        reward = float(rewards[self.index].mean())
        self.episode_return += reward
        self._rewards[REWARD].append(reward)
        for name, value in self._env.reward_terms(self.index).items():
            self._rewards[name].append(value)
        self.steps += 1
        self.done = bool(after["done"][self.index].all())
        if self.done:
            self.episodes += 1
            if (success := after.get("success", None)) is not None:
                self.successes = (self.successes or 0) + int(success[self.index].all())
        self._state = step_mdp(state)

    @property
    def seconds(self) -> float:
        """Simulated time since the beginning of the episode."""
        return self.steps * self.step_seconds

    def curves(self) -> dict[str, Scores]:
        """Return time in seconds, and the reward of each step, in all and by terms `[K]`.

        The steps are the last ones of the episode, at most `MAX_STEPS`.
        """
        first = max(0, self.steps - MAX_STEPS)
        time = self.step_seconds * np.arange(first + 1, self.steps + 1)
        return {"seconds": time, **{name: np.array(x) for name, x in self._rewards.items()}}

    @property
    def caption(self) -> str:
        """Line of text about the state of the environment."""
        return self._env.caption(self.index) or f"return {self.episode_return:.1f}"

    def picture(self) -> Picture:
        """Draw the environment `[H, W, 3]`, below its caption."""
        return write_captions(enlarged(picture_of(self._env, self.index)), [self.caption])
