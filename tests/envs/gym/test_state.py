"""Open episodes that are saved and go on in another process, to the same bytes."""

import logging
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import PendulumEnv
from tensordict import TensorDictBase

from envs.gym import GymnasiumEnv
from tests.envs.gym.conftest import MakeGym
from tests.envs.gym.environments import MODULE, TIME_LIMIT, Counter, Unrepeatable
from torchrl_gpu.acting.collector import BatchCollector
from torchrl_gpu.checkpoints.state_file import load_state, save_state
from torchrl_gpu.environments import recording
from torchrl_gpu.environments.environment import EpisodesLostError
from torchrl_gpu.errors import WorkerError

AUTORESETS = ["disabled", "same_step", "next_step"]
NUM_ENVS = 3
# Not at the same step of all episodes.
SAVED_AT, COMPARED = 17, 25

KINDS: dict[str, dict[str, Any]] = {
    "counter": {"name": f"{MODULE}:Counter-v0"},
    "dict": {"name": f"{MODULE}:DictCounter-v0", "frame_stack": 3},
    "choices": {"name": f"{MODULE}:NestedChoices-v0"},
    "pendulum": {"name": "Pendulum-v1", "options": {"max_episode_steps": 12}},
    "cartpole": {"name": "CartPole-v1"},
    "lander": {"name": "LunarLander-v3", "options": {"max_episode_steps": 15}},
    "walker": {"name": "BipedalWalker-v3", "options": {"max_episode_steps": 15}},
    "racing": {"name": "CarRacing-v3", "num_envs": 2, "options": {"max_episode_steps": 5}},
    "hopper": {"name": "Hopper-v5"},
    # The time limit counts frames, up to 30 of which are without action at the start.
    "pong": {"name": "ALE/Pong-v5", "num_envs": 2, "options": {"max_episode_steps": 50}},
    "breakout": {
        "name": "ALE/Breakout-v5",
        "num_envs": 2,
        "terminal_on_life_loss": True,
        "options": {"max_episode_steps": 40, "repeat_action_probability": 0.25},
    },
}
# Simulators that take long: fewer steps of two environments, in one mode each.
SLOW = [("racing", "disabled"), ("pong", "next_step"), ("breakout", "same_step")]
NEEDS = {
    "lander": "Box2D",
    "walker": "Box2D",
    "racing": "Box2D",
    "hopper": "mujoco",
    "pong": "ale_py",
    "breakout": "ale_py",
}


@pytest.fixture
def make(make_gym: MakeGym) -> MakeGym:
    """Build environments of the kinds above."""

    def make(kind: str, **settings: Any) -> GymnasiumEnv:
        if kind in NEEDS:
            pytest.importorskip(NEEDS[kind], reason=f"{kind} needs {NEEDS[kind]}")
        return make_gym(**{"num_envs": NUM_ENVS, "seed": 3, **KINDS[kind], **settings})

    return make


class Acting:
    """Acts by a sequence of random actions."""

    def __init__(self, env: GymnasiumEnv) -> None:
        torch.manual_seed(0)
        self.actions = [env.action_spec.rand() for _ in range(SAVED_AT + 2 * COMPARED)]
        self.number = 0

    def __call__(self, root: TensorDictBase) -> TensorDictBase:
        self.number += 1
        return root.set("action", self.actions[self.number - 1])


def collector_of(env: GymnasiumEnv) -> BatchCollector:
    keys = [key for key in env.observation_spec.keys(True, True) if key != "active"]
    return BatchCollector(env, torch.device("cpu"), keys)


def collect(collector: BatchCollector, policy: Acting, steps: int, *, overlap: bool) -> list[Any]:
    transitions = []
    for _ in range(steps):
        if overlap:
            collector.begin(policy)
        transitions.append(collector.step(policy).clone())
    return transitions


def through_a_file(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    save_state(folder / "state.safetensors", state)
    return load_state(folder / "state.safetensors")


def assert_same(ours: list[Any], theirs: list[Any]) -> None:
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        for key in set(one.keys(True, True)) | set(other.keys(True, True)):
            assert torch.equal(one[key], other[key]), (number, key)


def check_continues(
    make: MakeGym,
    folder: Path,
    kind: str,
    *,
    begun: bool = False,
    resumed_as: str | None = None,
    **settings: Any,
) -> None:
    """Save a collector twice on its way, and continue both times in a new environment."""
    saved_at, compared = (8, 13) if kind in dict(SLOW) else (SAVED_AT, COMPARED)
    whole = collector_of(make(kind, **settings))
    overlap = whole.env.capabilities.can_overlap
    policy = Acting(whole.env)
    collect(whole, policy, saved_at, overlap=overlap)
    states, numbers, parts = [], [], []
    for _ in range(2):
        if begun:
            whole.begin(policy)
        states.append(through_a_file(whole.state_dict(), folder))
        numbers.append(policy.number)
        parts.append(collect(whole, policy, compared, overlap=overlap))
    assert sum(int(step["next", "done"].sum()) for step in parts[0]) >= whole.env.num_envs

    if resumed_as is not None:
        settings["vectorization"] = resumed_as
    second = collector_of(make(kind, **settings))
    policy.number = numbers[0]
    assert second.load_state_dict(states[0])
    assert_same(parts[0], collect(second, policy, compared, overlap=overlap))

    # What a resumed run saves is what the run that never stopped saves.
    if begun:
        second.begin(policy)
    again = through_a_file(second.state_dict(), folder)
    third = collector_of(make(kind, **settings))
    policy.number = numbers[1]
    assert third.load_state_dict(again)
    assert_same(parts[1], collect(third, policy, compared, overlap=overlap))


FAST = [kind for kind in KINDS if kind not in dict(SLOW)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "autoreset"), [*product(FAST, AUTORESETS), *SLOW])
def test_episodes_go_on_exactly(kind: str, autoreset: str, make: MakeGym, tmp_path: Path) -> None:
    check_continues(make, tmp_path, kind, autoreset=autoreset)


@pytest.mark.slow
@pytest.mark.parametrize("autoreset", AUTORESETS)
@pytest.mark.parametrize(("kind", "begun"), [("cartpole", False), ("dict", True)])
def test_episodes_in_processes_go_on_exactly(
    kind: str, autoreset: str, begun: bool, make: MakeGym, tmp_path: Path
) -> None:
    settings = {"vectorization": "async", "autoreset": autoreset}
    check_continues(make, tmp_path, kind, begun=begun, **settings)


@pytest.mark.parametrize(("first", "second"), [("sync", "async"), ("async", "sync")])
def test_episodes_go_on_in_the_other_vectorization(
    first: str, second: str, make: MakeGym, tmp_path: Path
) -> None:
    check_continues(make, tmp_path, "pendulum", vectorization=first, resumed_as=second)


def saved(make: MakeGym, folder: Path, kind: str, **settings: Any) -> dict[str, Any]:
    """Return the state of a collector in the middle of its episodes."""
    collector = collector_of(make(kind, **settings))
    collect(collector, Acting(collector.env), SAVED_AT, overlap=False)
    return through_a_file(collector.state_dict(), folder)


@pytest.mark.parametrize(
    ("kind", "vectorization"),
    [
        ("another_reward", "sync"),
        ("another_observation", "sync"),
        ("failure", "sync"),
        ("failure", "async"),
    ],
)
def test_a_simulator_that_does_not_repeat_begins_new_episodes(
    kind: str,
    vectorization: str,
    make: MakeGym,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings: dict[str, Any] = {
        "name": f"{MODULE}:Unrepeatable-v0",
        "options": {"kind": kind},
        "vectorization": vectorization,
    }
    state = saved(make, tmp_path, "counter", **settings)
    monkeypatch.setattr(Unrepeatable, "runs", Unrepeatable.runs + 1)
    collector = collector_of(make("counter", **settings))
    with caplog.at_level(logging.WARNING):
        assert not collector.load_state_dict(state)
    (line,) = caplog.messages
    assert line == ("the simulator does not repeat the saved episodes exactly: new episodes begin")
    collector.restart()
    (step,) = collect(collector, Acting(collector.env), 1, overlap=False)
    assert (step["observation"][:, 1] == 0).all()  # the first step of every episode


@pytest.mark.parametrize(
    "settings",
    [
        {"num_envs": 2},
        {"autoreset": "same_step"},
        {"autoreset": "next_step"},
        {"options": {"max_episode_steps": 2}},
    ],
)
def test_other_settings_begin_new_episodes(
    settings: dict[str, Any], make: MakeGym, tmp_path: Path
) -> None:
    state = saved(make, tmp_path, "cartpole")
    assert not collector_of(make("cartpole", **settings)).load_state_dict(state)


@pytest.mark.parametrize("autoreset", AUTORESETS)
@pytest.mark.parametrize(("limit", "other"), [(SAVED_AT + 9, SAVED_AT), (SAVED_AT, SAVED_AT + 9)])
def test_another_end_of_the_saved_episode_begins_new_ones(
    limit: int, other: int, autoreset: str, make: MakeGym, tmp_path: Path
) -> None:
    def limited(steps: int) -> dict[str, Any]:
        return {"options": {"max_episode_steps": steps}, "autoreset": autoreset}

    state = saved(make, tmp_path, "pendulum", **limited(limit))
    goes_on = collector_of(make("pendulum", **limited(other))).load_state_dict(state)
    # In these modes the ended episode was followed by a new one within the last step.
    assert goes_on == (limit == SAVED_AT and autoreset != "next_step")


class LegacyPendulum(PendulumEnv):
    """Draws from a generator of old versions of NumPy, and rewards by an array."""

    np_random = np.random.RandomState(0)

    def reset(self, **_: Any) -> Any:
        self.state, self.last_u = self.np_random.uniform(size=2), None
        return self._get_obs(), {}

    def step(self, u: Any) -> Any:
        observation, reward, *rest = super().step(u)
        return observation, np.array([reward]), *rest


def test_other_generators_train_and_begin_new_episodes(make: MakeGym, tmp_path: Path) -> None:
    gymnasium.register("Legacy-v0", LegacyPendulum, disable_env_checker=True)
    settings = {"name": "Legacy-v0", "vectorization": "async", "options": None}
    state = saved(make, tmp_path, "pendulum", **settings)
    assert not collector_of(make("pendulum", **settings)).load_state_dict(state)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_episodes_are_lost_by_a_failed_reset(
    vectorization: str, make_gym: MakeGym, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Counter.reset

    def begin_once(counter: Counter, **options: Any) -> Any:
        if hasattr(counter, "end"):
            raise OSError("no camera")
        return begin(counter, **options)

    monkeypatch.setattr(Counter, "reset", begin_once)
    env = make_gym(f"{MODULE}:Counter-v0", num_envs=2, vectorization=vectorization)
    with pytest.raises((OSError, WorkerError), match="no camera"):
        env.rollout(TIME_LIMIT + 1, break_when_any_done=False)
    with pytest.raises(EpisodesLostError, match="a step or reset of the environment has failed"):
        env.state_dict()


def test_vectorized_code_saves_no_episodes(make: MakeGym, tmp_path: Path) -> None:
    vectorization = {"vectorization": "vector_entry_point"}
    env = make("counter", **vectorization)
    assert not env.capabilities.has_state
    env.reset()
    assert env.state_dict() == {}
    state = saved(make, tmp_path, "counter", **vectorization)
    assert not collector_of(make("counter")).load_state_dict(state)
    state = saved(make, tmp_path, "counter")
    assert not collector_of(make("counter", **vectorization)).load_state_dict(state)


@pytest.mark.parametrize("mode", ["eval", "demo"])
def test_evaluations_record_nothing(mode: str, make: MakeGym) -> None:
    env = make("counter", mode=mode)
    env.rollout(3)
    assert not env.capabilities.has_state
    assert env.state_dict() == {}


def test_a_step_after_the_end_belongs_to_the_next_episode_once(
    make: MakeGym, tmp_path: Path
) -> None:
    """A restored environment that owed a reset owes none after an explicit one."""
    env = make("counter", autoreset="next_step")
    root, policy = env.reset(), Acting(env)
    while not root["done"].any() and bool(root["active"].all()):
        _, root = env.step_and_maybe_reset(policy(root))
    other = make("counter", autoreset="next_step")
    other.reset()
    other.load_state_dict(through_a_file(env.state_dict(), tmp_path))
    root = other.reset()
    step, _ = other.step_and_maybe_reset(policy(root))
    assert (step["next", "observation"][:, 1] == 1).all()


def test_long_replays_say_so(
    make: MakeGym, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = saved(make, tmp_path, "walker")
    monkeypatch.setattr(recording, "_SECONDS_UNTIL_ANNOUNCED", 0.0)
    with caplog.at_level(logging.INFO):
        assert collector_of(make("walker")).load_state_dict(state)
    assert any(line.startswith("playing ") and "again" in line for line in caplog.messages)
