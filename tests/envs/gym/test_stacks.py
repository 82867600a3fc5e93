"""Stacks of images, equal to those of Gymnasium's wrapper in every autoreset mode."""

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.wrappers import FrameStackObservation
from tensordict import TensorDictBase
from torchrl.envs import StepCounter, TransformedEnv
from torchrl.envs.utils import check_env_specs

from agents.dqn import DQN
from envs.gym import GymnasiumEnv
from tests.envs.gym.conftest import MakeGym
from tests.envs.gym.environments import MODULE
from tests.helpers.environments import check_that_transitions_are_not_overwritten
from torchrl_gpu.environments.action_table import with_action_table
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.specs import observation_spec
from torchrl_gpu.errors import ConfigurationError
from trainers.training.trainer import TorchRLTrainer

IMAGE = f"{MODULE}:Image-v0"
MODES = ("disabled", "same_step", "next_step")
FRAMES = 3
SEED = 7


@pytest.fixture
def make_gym(make_gym: MakeGym) -> MakeGym:
    """Build environments with three copies by default, observed as stacks of images."""
    return partial(make_gym, name=IMAGE, num_envs=3, seed=SEED, frame_stack=FRAMES)


def act(tensordict: TensorDictBase) -> TensorDictBase:
    return tensordict.set("action", torch.zeros(3, dtype=torch.int64))


def channels_first(stack: Any) -> torch.Tensor:
    """Return a stack `[frames, H, W, C]` of Gymnasium as `[frames * C, H, W]`."""
    images = np.moveaxis(stack, -1, 1)
    return torch.from_numpy(images.reshape(-1, *images.shape[2:]))


def transitions_by_hand(index: int, count: int) -> list[tuple[torch.Tensor, torch.Tensor, bool]]:
    """Return the first transitions of one copy: root, next observation, and whether it ended."""
    env = FrameStackObservation(gymnasium.make(IMAGE), FRAMES)
    stack, _ = env.reset(seed=SEED + index)
    found = []
    for _ in range(count):
        after, _, terminated, truncated, _ = env.step(5)
        found.append((channels_first(stack), channels_first(after), terminated or truncated))
        stack = env.reset()[0] if terminated or truncated else after
    return found


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_stacks_equal_those_of_gymnasium(
    make_gym: MakeGym, vectorization: str, autoreset: str
) -> None:
    env = make_gym(vectorization=vectorization, autoreset=autoreset)
    rollout = env.rollout(40, act, break_when_any_done=False)
    for index in range(3):
        rows = rollout[index]
        if "active" in rows.keys():  # noqa: SIM118
            rows = rows[rows["active"].squeeze(-1)]
        by_hand = transitions_by_hand(index, 30)
        assert any(over for *_, over in by_hand)
        for row, (stack, after, over) in zip(rows, by_hand, strict=False):
            assert row["pixels"].equal(stack)
            assert row["next", "pixels"].equal(after)
            assert bool(row["next", "done"]) == over


@pytest.mark.parametrize("autoreset", MODES)
def test_specs_are_those_of_stacks(make_gym: MakeGym, autoreset: str) -> None:
    env = make_gym(autoreset=autoreset)
    check_env_specs(env)
    assert env.observation_spec["pixels"].shape == (3, 3 * FRAMES, 8, 10)
    assert env.capabilities.frame_stacks == {"pixels": FRAMES}


def test_only_images_of_a_dict_are_stacked(make_gym: MakeGym) -> None:
    env = make_gym(name=f"{MODULE}:DictCounter-v0")
    assert env.capabilities.frame_stacks == {"camera": FRAMES}
    assert env.observation_spec["camera"].shape == (3, 3 * FRAMES, 9, 8)
    assert env.observation_spec["place"].shape == (3, 4)
    check_env_specs(env)


def test_discrete_actions_leave_the_stacks_declared_and_transforms_do_not(
    make_gym: MakeGym,
) -> None:
    env = make_gym(name=f"{MODULE}:DictCounter-v0")
    assert with_action_table(env).capabilities.frame_stacks == {"camera": FRAMES}
    assert not as_environment(TransformedEnv(env, StepCounter())).capabilities.frame_stacks


def test_a_reset_at_any_time_begins_new_stacks(make_gym: MakeGym) -> None:
    env = make_gym()
    root = env.reset()
    for _ in range(2):
        _, root = env.step_and_maybe_reset(act(root))
    mask = torch.tensor([[False], [True], [False]])
    restarted = env.reset(root.clone().set("_reset", mask))
    brightness = restarted["pixels"].amax((-2, -1)).unflatten(1, (FRAMES, 3))[..., 0]
    assert brightness.tolist() == [[0, 1, 2], [0, 0, 0], [0, 1, 2]]
    assert not env.reset()["pixels"].any()


def test_returned_stacks_are_not_overwritten(make_gym: MakeGym) -> None:
    env = make_gym(autoreset="same_step")
    check_that_transitions_are_not_overwritten(env, act, 12)


def test_an_environment_without_images_has_nothing_to_stack() -> None:
    with pytest.raises(ConfigurationError, match=r"CartPole-v1: env\.frame_stack=4: .* no images"):
        GymnasiumEnv(name="CartPole-v1", frame_stack=4)
    env = GymnasiumEnv(name="CartPole-v1")
    assert not env.capabilities.frame_stacks
    env.close()


@pytest.mark.parametrize("autoreset", MODES)
def test_training_stores_each_image_once(make_gym: MakeGym, autoreset: str, tmp_path: Path) -> None:
    env = make_gym(name=f"{MODULE}:Camera-v0", autoreset=autoreset)
    cpu = torch.device("cpu")
    agent = DQN(observation_spec(env), env.action_spec, cpu, batch_size=8)
    trainer = TorchRLTrainer(
        env,
        agent,
        tmp_path,
        total_frames=90,
        random_frames=60,
        replay_capacity=60,
        loggers=(),
        show_progress=False,
    )
    trainer.train()
    trainer.close()
    assert trainer.updates > 0
    stored = trainer.experience.part(()).state
    assert stored["rows.pixels"].shape[1:] == (1, 16, 16)
    brightness = trainer.experience.replay.sample(64)["pixels"].amax((-2, -1)).int()  # type: ignore[union-attr]
    assert ((brightness[:, 1:] - brightness[:, :-1] == 1) | (brightness[:, 1:] == 0)).all()
