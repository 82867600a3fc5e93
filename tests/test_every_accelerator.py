"""Every agent and every environment on an accelerator, by the command line.

A test that fails here has found something that an accelerator would trip over, such as a tensor of
the host among those of the device, a generator of the host, or NumPy on a tensor of the device.
"""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agents.base import Agent
from tests.envs.gym.environments import MODULE
from tests.helpers.agents import (
    CPU,
    WITH_ALL_OPTIONS,
    Case,
    assert_equal,
    every_agent_class,
    parameters,
)
from tests.helpers.pipeline import EPISODE, live
from tests.helpers.program import environments_built_once
from tests.helpers.training import FolderAt, make_trainer
from tests.stand_in import MAKERS
from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.execution.execution import Execution
from torchrl_gpu.execution.options import GraphMode
from trainers.components.choices import learning_agents
from trainers.runs.policy_files import load_policy
from trainers.training.trainer import TorchRLTrainer

AGENTS = learning_agents()
PRETRAINED = Path(__file__).parents[1] / "pretrained"

needs_atari = pytest.mark.skipif(
    importlib.util.find_spec("ale_py") is None or importlib.util.find_spec("cv2") is None,
    reason="ale-py or OpenCV is not installed: the extra `atari`",
)

ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "fanuc": (
        *("env=fanuc", "env.num_envs=4", "env.num_workers=1"),
        f"env.max_episode_steps={EPISODE}",
    ),
    "marinenav": (
        *("env=marinenav", "env.num_envs=4", "env.num_robots=2", "env.num_obstacles=1"),
        f"env.max_episode_steps={EPISODE}",
    ),
    "gym": (  # vectors and pixels
        *("env=gym", f"env.name={MODULE}:SightedArm-v0", "env.num_envs=4", "env.frame_stack=2"),
        *("agent.encoder.channels=[2,2,2]", "agent.encoder.random_shift=1"),
    ),
}
CART_POLE = (
    *("env=gym", "env.name=CartPole-v1", "env.num_envs=4"),
    f"env.options.max_episode_steps={EPISODE}",
)
# The time limit counts frames, also those without action at the start of an episode.
PONG = (
    *("env=gym", "env.name=ALE/Pong-v5", "env.num_envs=2", "env.options.max_episode_steps=46"),
    *("agent.encoder.channels=[2,2,2]", "agent.encoder.pixel_features=4"),
)


@pytest.fixture(scope="module", autouse=True)
def _environments() -> Iterator[None]:
    """Building an environment takes longer than all steps of a test."""
    with environments_built_once():
        yield


def _lives() -> Iterator[Any]:
    """Yield PPO and each third of the other agents with each environment and accelerator."""
    makers = {"fanuc": "xpu", "marinenav": "mps", "gym": "directml"}
    for number, agent in enumerate(sorted(AGENTS, key="ppo".__eq__)):
        for env in makers if agent == "ppo" else [[*makers][number % len(makers)]]:
            yield pytest.param(agent, env, MAKERS[makers[env]], id=f"{agent}-{env}-{makers[env]}")


@pytest.mark.parametrize(("agent", "env", "accelerator"), _lives(), indirect=["accelerator"])
def test_agent_lives_on_an_accelerator(
    agent: str,
    env: str,
    accelerator: torch.device,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live(monkeypatch, tmp_path, agent, accelerator, *ENVIRONMENTS[env], whole=agent == "ppo")


@pytest.mark.parametrize("agent", ["dqn", "ppo"])
def test_discrete_agent_lives_on_an_accelerator(
    agent: str, accelerator: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(monkeypatch, tmp_path, agent, accelerator, *CART_POLE)


@pytest.mark.slow
@needs_atari
def test_agent_plays_atari_on_an_accelerator(
    accelerator: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(monkeypatch, tmp_path, "rainbow", accelerator, *PONG, whole=True)


@pytest.mark.slow
@pytest.mark.parametrize("accelerator", MAKERS.values(), ids=MAKERS, indirect=True)
@every_agent_class
def test_resumed_run_equals_an_uninterrupted_run_on_accelerators_of_all_makers(
    agent_class: type[Agent], accelerator: torch.device, tmp_path: Path
) -> None:
    case = Case(agent_class, min(agent_class.actions))
    graphs: GraphMode = "on" if accelerator_of(accelerator).graphs else "off"

    def make(folder: str, seed: int = 0, **settings: Any) -> TorchRLTrainer:
        return make_trainer(
            case,
            tmp_path / folder,
            seed,
            {**WITH_ALL_OPTIONS, "rollout_length": 4, "batch_size": 16, "epochs": 1},
            accelerator,
            total_frames=160,
            random_frames=32,
            replay_capacity=500,
            checkpoint_interval=96,  # no whole number of rollouts: the open one is resumed as well
            log_interval=64,
            evaluation_env=None,
            execution=Execution(accelerator, graphs=graphs),
            **settings,
        )

    whole = make("whole", callbacks=[FolderAt(96, tmp_path / "part")])
    before = parameters(whole.agent)
    whole.train()
    second = make("part", seed=99)
    second.load(second.checkpoints.path(96))
    second.train()
    after = parameters(second.agent)
    assert second.updates == whole.updates > 0
    assert any(not torch.equal(before[name], value) for name, value in after.items())
    assert all(value.isfinite().all() for value in after.values())
    # Without the state of a generator, a resumed run draws other numbers.
    if accelerator_of(accelerator).has_generator:
        assert_equal(parameters(whole.agent), after)


def _shipped() -> list[Any]:
    return [
        pytest.param(
            str(path.relative_to(PRETRAINED)),
            marks=[needs_atari] if path.parent.name == "pong" else [],
        )
        for path in sorted(PRETRAINED.glob("*/*.safetensors"))
        if path.parent.name != "lift_cube"
    ]


@pytest.mark.parametrize("name", _shipped())
def test_shipped_policy_acts_as_on_the_host(name: str, accelerator: torch.device) -> None:
    actions = []
    for device in (CPU, accelerator):
        policy = load_policy(PRETRAINED / name, device)
        torch.manual_seed(0)
        observation = policy.interface.observation_spec.rand()
        actions.append(policy.policy(observation.to(device))["action"].cpu())
    torch.testing.assert_close(actions[1], actions[0])
