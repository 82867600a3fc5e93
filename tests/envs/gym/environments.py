"""Tiny Gymnasium environments, registered when this module is imported."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

MODULE = "tests.envs.gym.environments"
TIME_LIMIT = 5


class Counter(gymnasium.Env):
    """Observes the random length of the episode and the number of steps taken.

    The episode terminates at its length. Some lengths exceed the time limit, others equal it, so
    that both flags are true at once.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012
    observation_space = Box(0.0, 100.0, (2,), np.float64)
    action_space = Discrete(3, start=5)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def observe(self) -> Any:
        return np.array([self.end, self.steps], np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.end = int(self.np_random.integers(3, TIME_LIMIT + 2))
        self.steps = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.steps += 1
        return self.observe(), self.reward(action), self.steps == self.end, False, {}

    def reward(self, action: Any) -> float:
        return 100.0 * float(action) + self.steps

    def render(self) -> Any:
        return np.full((4, 6, 3), self.steps, np.uint8)


class ThreadCounter(Counter):
    """Counter that observes the number of threads of torch in its process."""

    def observe(self) -> Any:
        return np.array([torch.get_num_threads(), self.steps], np.float64)


class DictCounter(Counter):
    """Counter with a Dict observation and continuous actions."""

    observation_space = Dict(
        place=Box(0.0, 100.0, (2, 2), np.float32),
        camera=Box(0, 255, (9, 8, 3), np.uint8),
        phase=Discrete(TIME_LIMIT + 1, start=2),
    )
    action_space = Box(np.array([-2.0, 0.0]), np.array([2.0, 10.0]), dtype=np.float64)

    def observe(self) -> Any:
        camera = np.arange(9 * 8 * 3, dtype=np.uint8).reshape(9, 8, 3) + np.uint8(self.steps)
        place = np.array([[self.end, self.steps], [0, 1]], np.float32)
        return {"place": place, "camera": camera, "phase": np.int64(2 + self.steps)}

    def reward(self, action: Any) -> float:
        assert action in self.action_space
        return float(action[0] + 100 * action[1])


class Image(Counter):
    """Counter observed as the brightness of an image, channels last."""

    observation_space = Box(0, 255, (8, 10, 3), np.uint8)

    def observe(self) -> Any:
        image = np.zeros(self.observation_space.shape, np.uint8)
        image[0, ..., 0] = self.steps
        return image


class ChannelsFirst(Image):
    """Counter observed as the brightness of an image, channels first."""

    observation_space = Box(0, 255, (1, 8, 10), np.uint8)


class Camera(Image):
    """Counter observed as the brightness of an image that is large enough for convolutions."""

    observation_space = Box(0, 255, (16, 16, 1), np.uint8)


class SightedArm(DictCounter):
    """Counter with continuous actions, observed as a vector and a large enough image."""

    observation_space = Dict(
        joints=Box(0.0, 100.0, (2,), np.float32), camera=Camera.observation_space
    )

    def observe(self) -> Any:
        camera = np.full(Camera.observation_space.shape, self.steps, np.uint8)
        return {"joints": np.array([self.end, self.steps], np.float32), "camera": camera}


class Number(Counter):
    """Counter observed as an element of a Discrete space."""

    observation_space = Discrete(TIME_LIMIT + 1, start=-1)

    def observe(self) -> Any:
        return np.int64(self.steps - 1)


class Broken(Counter):
    def reward(self, action: Any) -> float:
        raise KeyError("%s is broken" % "the third joint")  # noqa: UP031


class Hanging(Counter):
    """Counter that hangs at its last action."""

    def reward(self, action: Any) -> float:
        if action == 7:
            time.sleep(60)
        return super().reward(action)


class Fatal(Counter):
    """Counter whose process ends, without an exception, once a file exists."""

    def __init__(self, file: str, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.file = Path(file)

    def reward(self, action: Any) -> float:
        if self.file.exists():
            os._exit(3)
        return super().reward(action)


class WrongAnswer(Counter):
    """Counter whose steps return what cannot be sent to another process."""

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], {"function": lambda: 0}


class Unrepeatable(Counter):
    """Counter that differs in each run: `another_reward`, `another_observation` or `failure`."""

    runs = 0  # of the program

    def __init__(self, kind: str, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.kind = kind

    def observe(self) -> Any:
        shift = 0.5 * self.runs * (self.kind == "another_observation")
        return super().observe() + np.array([shift, 0.0])

    def reward(self, action: Any) -> float:
        if self.kind == "failure" and self.runs and self.steps > 1:
            raise RuntimeError("not again")
        return super().reward(action) + self.runs * (self.kind == "another_reward")


class TupleAnswer(Counter):
    observation_space = gymnasium.spaces.Tuple((Discrete(2), Discrete(2)))

    def observe(self) -> Any:
        return self.steps % 2, self.end % 2


class Doubled(gymnasium.ObservationWrapper):
    """Observes twice the values, of an array alone."""

    def observation(self, observation: Any) -> Any:
        return 2 * observation


class Cropped(gymnasium.ObservationWrapper):
    """Is for images alone."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        assert env.observation_space.dtype == np.uint8, "no image"


class Solver(Counter):
    """Counter that is solved at every third step; its first `info` says so too.

    Its last `info` lacks the entry `running`.
    """

    kinds: dict[str, Callable[[bool], Any]] = {  # noqa: RUF012
        "array": lambda solved: np.array([solved]),
        "number": float,
        "numpy": np.bool_,
        "dictionary": lambda solved: {"task": solved},
        "list": lambda solved: [solved],
        "nan": lambda solved: float("nan"),
        "two": lambda solved: np.array([solved, solved]),
        "word": lambda solved: "yes" if solved else "no",
    }

    def __init__(self, kind: str = "numpy", render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.kind = self.kinds[kind]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        return super().reset(seed=seed)[0], {"solved": self.kind(True)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        *result, _ = super().step(action)
        solved = {"solved": self.kind(self.steps % 3 == 0)}
        is_running = self.steps < min(self.end, TIME_LIMIT)
        return *result, {**solved, "running": True} if is_running else solved


class TakenName(Counter):
    observation_space = Dict(reward=Box(0.0, 1.0))


class NestedChoices(DictCounter):
    """Counter with a nested Dict observation and several choices at once as its action."""

    observation_space = Dict(
        place=DictCounter.observation_space["place"],
        sight=Dict(
            camera=DictCounter.observation_space["camera"],
            inner=Dict(phase=DictCounter.observation_space["phase"]),
        ),
    )
    action_space = MultiDiscrete([2, 3], start=[1, -1])

    def observe(self) -> Any:
        seen = super().observe()
        sight = {"camera": seen["camera"], "inner": {"phase": seen["phase"]}}
        return {"place": seen["place"], "sight": sight}


class TwoNames(Counter):
    observation_space = Dict({"arm.joints": Box(0.0, 1.0), "arm": Dict(joints=Box(0.0, 1.0))})


class Words(Counter):
    action_space = gymnasium.spaces.Text(3)


class ManySwitches(Counter):
    action_space = MultiBinary(11)


class Unbounded(Counter):
    action_space = Box(-np.inf, 1.0, (2,))


class Undrawable(Counter):
    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012


class Unfound(Counter):
    """Needs a file that does not exist, as MuJoCo's environments with a wrong `xml_file`."""

    def __init__(self) -> None:
        raise OSError("File robot.xml does not exist")


class VectorCounter(VectorEnv):
    """Counters with their own vectorization, which overwrites the arrays that it returned."""

    def __init__(
        self,
        num_envs: int,
        max_episode_steps: int,
        autoreset: str | None = "same_step",
        render_mode: str | None = None,
    ) -> None:
        self.num_envs, self.render_mode = num_envs, render_mode
        self.mode = autoreset and AutoresetMode[autoreset.upper()]
        self.metadata = {"autoreset_mode": self.mode} if self.mode else {}
        self.single_observation_space = Counter.observation_space
        self.single_action_space = Counter.action_space
        self.observation_space = batch_space(Counter.observation_space, num_envs)
        self.action_space = batch_space(Counter.action_space, num_envs)
        self.limit = max_episode_steps
        self.counters = [Counter() for _ in range(num_envs)]
        self.observations = np.zeros((num_envs, 2))
        self.rewards = np.zeros(num_envs, np.float32)
        self.terminated = np.zeros(num_envs, bool)
        self.truncated = np.zeros(num_envs, bool)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        for i in np.flatnonzero(mask):
            self.observations[i], _ = self.counters[i].reset(
                seed=None if seed is None else seed + int(i)
            )
        self.terminated[mask] = self.truncated[mask] = False
        return self.observations, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict]:
        over = self.terminated | self.truncated
        for i, counter in enumerate(self.counters):
            if over[i]:
                assert self.mode is AutoresetMode.NEXT_STEP
                self.observations[i], _ = counter.reset()
                self.rewards[i], self.terminated[i], self.truncated[i] = 0.0, False, False
            else:
                self.observations[i], self.rewards[i], self.terminated[i], _, _ = counter.step(
                    actions[i]
                )
                self.truncated[i] = counter.steps >= self.limit
        info = {"solved": self.observations[:, 1] == 3}
        if self.mode is AutoresetMode.SAME_STEP:
            over = self.terminated | self.truncated
            info = {"final_obs": self.observations.copy(), "_final_obs": over}
            for i in np.flatnonzero(over).tolist():
                self.observations[i], _ = self.counters[i].reset()
            flags = self.terminated.copy(), self.truncated.copy()
            self.terminated[:] = self.truncated[:] = False
            return self.observations, self.rewards, *flags, info
        return self.observations, self.rewards, self.terminated, self.truncated, info


_KINDS = [kind for kind in vars().values() if isinstance(kind, type) and issubclass(kind, Counter)]

for _kind in _KINDS:
    gymnasium.register(
        f"{_kind.__name__}-v0",
        entry_point=_kind,
        max_episode_steps=TIME_LIMIT,
        vector_entry_point=VectorCounter if _kind is Counter else None,
        disable_env_checker=True,
    )
gymnasium.register("VectorOnly-v0", vector_entry_point=VectorCounter)
