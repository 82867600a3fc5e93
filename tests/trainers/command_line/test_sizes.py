"""`env.num_envs=auto` and `agent.batch_size=auto`."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.helpers.environments import IdentityEnv
from torchrl_gpu.devices.host import num_cores
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.tables import counted
from trainers.command_line import sizes
from trainers.command_line.sizes import resolve_sizes
from trainers.components.component import Component, read_component
from trainers.components.sections import AUTOMATIC
from trainers.run import settings_of

CUDA = torch.device("cuda:0")
GIB = 2**30


def accelerator(monkeypatch: pytest.MonkeyPatch, free: int) -> torch.device:
    """Return a device that reports its free memory, and that no machine needs to have."""
    module = SimpleNamespace(mem_get_info=lambda device: (free, free))
    monkeypatch.setattr(torch, "cuda", module)
    return CUDA


def resolved(
    env: dict[str, Any], agent: dict[str, Any], device: torch.device, *, limit: int | None = None
) -> tuple[int, int]:
    """Return the numbers for sections of the configuration; `auto` where they have none."""
    sections = {"env": env, "agent": agent}
    components = {g: read_component(g, section) for g, section in sections.items()}
    automatic = {g for g, name in AUTOMATIC.items() if name not in sections[g]}
    found = resolve_sizes(components, automatic, device, limit)
    return found["env"].settings["num_envs"], found["agent"].settings["batch_size"]


SAC = {"_target_": "agents.SAC"}
PPO = {"_target_": "agents.PPO", "rollout_length": 100}
FANUC = {"_target_": "envs.fanuc.FanucEnv"}
GENESIS = {**FANUC, "simulator": "genesis"}
SEA = {"_target_": "envs.marinenav.MarineNavEnv"}
LIFT = {"_target_": "envs.lift_cube.LiftCubeEnv"}
GYM = {"_target_": "envs.gym.GymnasiumEnv", "name": "CartPole-v1"}


def test_auto_becomes_numbers_in_the_settings_and_in_the_saved_configuration(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        settings = settings_of(
            *("agent=sac", "env=fanuc", "device=cpu"),
            *("env.num_envs=auto", "agent.batch_size=auto"),
        )
    num_envs = settings.env.settings["num_envs"]
    batch_size = settings.agent.settings["batch_size"]
    assert num_envs == 32 * num_cores()
    assert batch_size % num_envs == 0 or num_envs > 4 * 256
    assert settings.config["env"]["num_envs"] == num_envs
    assert settings.config["agent"]["batch_size"] == batch_size
    first, second = caplog.messages
    assert first == f"env.num_envs=auto: {num_envs} ({counted(num_cores(), 'core')}, 32 for each)"
    assert second.startswith(f"agent.batch_size=auto: {batch_size} (the default of SAC, 256")


@pytest.mark.parametrize(("env", "per_core"), [(FANUC, 32), ({**GYM, "vectorization": "async"}, 1)])
def test_simulators_in_processes_follow_the_cores(
    env: dict[str, Any], per_core: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "num_cores", lambda: 6)
    assert resolved(env, SAC, torch.device("cpu"))[0] == 6 * per_core
    assert resolved(env, SAC, accelerator(monkeypatch, GIB))[0] == 6 * per_core


@pytest.mark.parametrize(("env", "default"), [(SEA, 64), (LIFT, 16), (GENESIS, 64), (GYM, 8)])
def test_simulators_in_one_process_have_their_default_on_the_cpu(
    env: dict[str, Any], default: int
) -> None:
    assert resolved(env, SAC, torch.device("cpu"))[0] == default


@pytest.mark.parametrize("env", [SEA, LIFT, GENESIS, {**LIFT, "pixels": True}])
def test_simulators_on_an_accelerator_fill_at_most_half_of_its_free_memory(
    env: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert resolved(env, SAC, accelerator(monkeypatch, 80 * GIB))[0] == 1024
    few = resolved(env, SAC, accelerator(monkeypatch, 2**23))[0]
    assert 1 <= few <= 256
    assert resolved(env, SAC, accelerator(monkeypatch, 80 * GIB), limit=2**23)[0] == few


@pytest.mark.parametrize(
    ("free", "num_envs", "expected"),
    [
        (None, 64, 256),  # the CPU
        (80 * GIB, 64, 1024),
        (80 * GIB, 48, 1008),  # a multiple of the environments
        (80 * GIB, 4096, 4096),
        (80 * GIB, 8192, 1024),  # too many environments
        (GIB, 64, 512),
        (GIB // 8, 64, 256),
    ],
)
def test_batch_follows_the_device_its_memory_and_the_environments(
    free: int | None, num_envs: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = torch.device("cpu") if free is None else accelerator(monkeypatch, free)
    assert resolved({**SEA, "num_envs": num_envs}, SAC, device)[1] == expected


@pytest.mark.parametrize(
    ("num_envs", "expected"),
    [(8, 40), (64, 64), (3, 60), (128, 64), (1, 50)],
)
def test_minibatch_divides_the_rollout(num_envs: int, expected: int) -> None:
    batch_size = resolved({**SEA, "num_envs": num_envs}, PPO, torch.device("cpu"))[1]
    assert batch_size == expected
    assert 100 * num_envs % batch_size == 0


def test_an_environment_that_declares_nothing_keeps_its_default(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = Component("IdentityEnv", IdentityEnv, {"num_envs": 5})
    with caplog.at_level(logging.INFO):
        found = resolve_sizes({"env": env}, {"env"}, torch.device("cpu"), None)
    assert found["env"].settings["num_envs"] == 5
    assert "the default of IdentityEnv, which does not depend on the machine" in caplog.text


def test_a_class_without_the_setting_is_refused() -> None:
    env = Component("IdentityEnv", IdentityEnv, {})
    with pytest.raises(ConfigurationError, match=r"^env.num_envs=auto: IdentityEnv has no such"):
        resolve_sizes({"env": env}, {"env"}, torch.device("cpu"), None)
