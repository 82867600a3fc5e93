"""Atari environments of the Arcade Learning Environment."""

import importlib.util
import sys
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.wrappers import FrameStackObservation
from torchrl.envs.utils import check_env_specs

from envs.gym import GymnasiumEnv
from envs.gym.atari import WRAPPED_OPTIONS, Preprocessing
from envs.gym.vector import registered
from tests.envs.gym.conftest import MakeGym
from torchrl_gpu.errors import ConfigurationError

PONG = "ALE/Pong-v5"

needs_ale = pytest.mark.skipif(
    importlib.util.find_spec("ale_py") is None or importlib.util.find_spec("cv2") is None,
    reason="ale-py or OpenCV is not installed: the extra `atari`",
)


@pytest.fixture
def make_gym(make_gym: MakeGym) -> MakeGym:
    """Build games of Pong by default."""
    return partial(make_gym, name=PONG)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(gymnasium.registry):
        if name.startswith("ALE/"):
            monkeypatch.delitem(gymnasium.registry, name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r'extra: pip install "torchrl-gpu\[atari\]"'):
        GymnasiumEnv(name=PONG)


@needs_ale
def test_a_missing_opencv_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(ConfigurationError, match=r'extra: pip install "torchrl-gpu\[atari\]"'):
        GymnasiumEnv(name=PONG)


@needs_ale
def test_a_misspelt_game_is_corrected() -> None:
    with pytest.raises(ConfigurationError, match=r"did you mean ALE/Pong-v5"):
        GymnasiumEnv(name="ALE/Pog-v5")


@needs_ale
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"autoreset": "same_step"},
        {"vectorization": "async"},
        {"vectorization": "vector_entry_point"},
        {"vectorization": "vector_entry_point", "autoreset": "same_step"},
    ],
)
def test_agents_observe_stacks_of_four_grey_images(make_gym: MakeGym, settings: dict) -> None:
    env = make_gym(**settings)
    check_env_specs(env)
    pixels = env.observation_spec["pixels"]
    assert (pixels.shape, pixels.dtype) == ((2, 4, 84, 84), torch.uint8)
    assert env.capabilities.frame_stacks == {"pixels": 4}
    assert env.capabilities.step_seconds == pytest.approx(4 / 60)


@needs_ale
def test_transitions_equal_those_of_gymnasiums_wrappers(make_gym: MakeGym) -> None:
    env = make_gym(num_envs=1, seed=3)
    registered(PONG)
    by_hand = FrameStackObservation(Preprocessing()(gymnasium.make(PONG, frameskip=1)), 4)
    stack, _ = by_hand.reset(seed=3)
    root = env.reset()
    for step in range(40):
        assert np.array_equal(root["pixels"][0], stack[..., 0])
        stack, reward, *_ = by_hand.step(step % 6)
        transition, root = env.step_and_maybe_reset(root.set("action", torch.tensor([step % 6])))
        assert transition["next", "reward"].item() == reward
    by_hand.close()


@needs_ale
def test_the_vectorized_code_computes_what_the_wrapper_computes() -> None:
    registered(PONG)
    preprocessing = Preprocessing(noop_max=0)
    sure: dict[str, Any] = {"repeat_action_probability": 0.0}
    env = preprocessing(gymnasium.make(PONG, **WRAPPED_OPTIONS, **sure))
    vector = gymnasium.make_vec(
        PONG,
        num_envs=1,
        vectorization_mode="vector_entry_point",
        **preprocessing.vectorized_options(),
        **sure,
    )
    image, batch = env.reset()[0], vector.reset()[0]
    for step in range(60):
        assert np.array_equal(image[..., 0], batch[0, 0])
        image, *outcome, _ = env.step(step % 5)
        batch, *outcomes, _ = vector.step(np.array([step % 5]))
        assert outcome == [column[0] for column in outcomes]
    env.close()
    vector.close()


@needs_ale
@pytest.mark.parametrize("vectorization", ["sync", "vector_entry_point"])
@pytest.mark.parametrize(
    ("settings", "largest"),
    [({}, 1.0), ({"clip_rewards": False}, 5.0), ({"mode": "eval"}, 5.0)],
)
def test_rewards_are_clipped_in_training_only(
    make_gym: MakeGym, vectorization: Any, settings: dict, largest: float
) -> None:
    # In Space Invaders an alien counts 5 points or more.
    settings = {"num_envs": 1, "vectorization": vectorization, "seed": 1, **settings}
    env = make_gym(name="ALE/SpaceInvaders-v5", **settings)
    root, rewards = env.reset(), []
    for _ in range(150):
        transition, root = env.step_and_maybe_reset(root.set("action", torch.tensor([1])))
        rewards.append(transition["next", "reward"])
    highest = torch.stack(rewards).max().item()
    assert highest == 1.0 if largest == 1.0 else highest >= largest


@needs_ale
@pytest.mark.parametrize("vectorization", ["sync", "vector_entry_point"])
@pytest.mark.parametrize(("mode", "ends"), [("train", True), ("eval", False)])
def test_the_loss_of_a_life_ends_episodes_of_training_only(
    make_gym: MakeGym, vectorization: Any, mode: Any, ends: bool
) -> None:
    env = make_gym(
        name="ALE/Breakout-v5",
        num_envs=1,
        vectorization=vectorization,
        mode=mode,
        terminal_on_life_loss=True,
    )
    root, terminated = env.reset(), False
    for _ in range(60):  # the first ball is lost within 40 steps, the fifth one later
        transition, root = env.step_and_maybe_reset(root.set("action", torch.tensor([1])))
        terminated |= bool(transition["next", "terminated"].any())
    assert terminated == ends


@needs_ale
def test_preprocessing_can_be_switched_off(make_gym: MakeGym) -> None:
    env = make_gym(atari_preprocessing=False)
    check_env_specs(env)
    assert env.observation_spec["pixels"].shape == (2, 3, 210, 160)
    assert not env.capabilities.frame_stacks


@needs_ale
def test_sticky_actions_are_those_of_the_id_unless_chosen(make_gym: MakeGym) -> None:
    def probability(env: GymnasiumEnv) -> float:
        game = env._vector.envs[0].unwrapped
        return float(game.ale.getFloat("repeat_action_probability"))

    assert probability(make_gym()) == 0.25
    assert probability(make_gym(options={"repeat_action_probability": 0.5})) == 0.5
    assert probability(make_gym(name="ale_py:PongNoFrameskip-v4")) == 0.0


@needs_ale
@pytest.mark.parametrize("vectorization", ["sync", "vector_entry_point"])
def test_a_film_shows_the_game_in_colour(make_gym: MakeGym, vectorization: Any) -> None:
    env = make_gym(mode="demo", vectorization=vectorization)
    assert env.capabilities.can_render
    env.reset()
    assert env.render().shape == (210, 160, 3)


@needs_ale
def test_a_film_ignores_the_threads_of_the_vectorized_code(make_gym: MakeGym) -> None:
    threads = {"num_threads": 1, "thread_affinity_offset": -1}
    settings: dict[str, Any] = {"vectorization": "vector_entry_point", "options": threads}
    assert make_gym(**settings).num_envs == 2
    env = make_gym(mode="demo", **settings)
    env.reset()
    assert env.render().shape == (210, 160, 3)


@needs_ale
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"options": {"frameskip": 4}},
            r"^env\.options\.frameskip: .* env\.atari_preprocessing=false",
        ),
        ({"options": {"noop_max": 5}}, r"options\.noop_max: the preprocessing .* sets"),
        ({"atari_preprocessing": False, "terminal_on_life_loss": True}, "terminal_on_life_loss"),
        (
            {"atari_preprocessing": False, "vectorization": "vector_entry_point"},
            r"^env\.atari_preprocessing=false: .* env\.vectorization=sync or async",
        ),
        ({"vectorization": "vector_entry_point", "autoreset": "disabled"}, r"^env\.autoreset=dis"),
        (
            {"name": "CartPole-v1", "atari_preprocessing": True},
            r"^env\.atari_preprocessing=true: CartPole-v1 is not",
        ),
        ({"name": "CartPole-v1", "terminal_on_life_loss": True}, "terminal_on_life_loss"),
    ],
)
def test_invalid_settings_raise_one_line_errors(settings: dict, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        GymnasiumEnv(**{"name": PONG, **settings})
