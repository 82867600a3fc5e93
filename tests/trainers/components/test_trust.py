"""Files run no code: no class is imported and nothing is resolved but by the user's own word."""

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from tests.helpers.program import Call
from torchrl_gpu.checkpoints.checkpoint import find_checkpoint
from torchrl_gpu.checkpoints.state_file import load_state, save_state
from torchrl_gpu.errors import ConfigurationError
from trainers import load_policy, save_policy
from trainers.command_line.help import help_text
from trainers.modes.outcome import command_of
from trainers.run import run, settings_of

QUICK = [
    *("device=cpu", "trainer.total_frames=16", "trainer.random_frames=8"),
    *("trainer.evaluation_episodes=1", "trainer.replay_capacity=100", "trainer.loggers=[csv]"),
    *("evaluation.episodes=1", "agent.hidden_sizes=[8]"),
]
CARTPOLE = ["agent=dqn", "env=gym", "env.name=CartPole-v1", "experiment=null"]
# A module of the user, and one of Python's that acts when it is imported.
FOREIGN = ("own_robots", "this")
SECRET = "correct horse"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return find_checkpoint(run(*CARTPOLE, *QUICK, f"runs={tmp_path_factory.mktemp('runs')}").folder)


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the foreign modules looked for so far, and the resolvers called."""
    found: list[str] = []

    class Finder:
        @staticmethod
        def find_spec(name: str, *_: Any) -> None:
            if name.partition(".")[0] in FOREIGN:
                found.append(name)

    (tmp_path / "own_robots.py").write_text(
        "from agents import DQN\n"
        "from agents.modules.encoders import ObservationEncoderFactory\n"
        "from envs.gym import GymnasiumEnv\n"
        "class Own(DQN): pass\n"
        "class Seen(ObservationEncoderFactory): pass\n"
        "class World(GymnasiumEnv): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    monkeypatch.setenv("SECRET", SECRET)
    OmegaConf.register_new_resolver("spy", lambda: found.append("resolver"))
    yield found
    OmegaConf.clear_resolver("spy")
    for module in FOREIGN:
        sys.modules.pop(module, None)


def _resume(file: Path, folder: Path) -> None:
    run(f"checkpoint={file}", "trainer.total_frames=32", "device=cpu", f"runs={folder}")


def _evaluate(file: Path, folder: Path) -> None:
    run("mode=eval", f"checkpoint={file}", "device=cpu", f"runs={folder}")


def _film(file: Path, folder: Path) -> None:
    run("mode=demo", f"checkpoint={file}", "demo.episodes=1", "device=cpu", f"runs={folder}")


def _save(file: Path, folder: Path) -> None:
    save_policy(file, folder / "policy.safetensors")
    load_policy(folder / "policy.safetensors")


WAYS: dict[str, Callable[[Path, Path], object]] = {
    "resume": _resume,
    "mode=eval": _evaluate,
    "mode=demo": _film,
    "--help": lambda file, folder: help_text([f"checkpoint={file}"]),
    "load_policy": lambda file, folder: load_policy(file),
    "save_policy": _save,
}
PROGRAM = ("resume", "mode=eval", "mode=demo", "--help")

Hostile = tuple[Sequence[str], Any]
# Place in the configuration, and what a hostile file puts there.
CLASSES: dict[str, Hostile] = {
    "agent": (("agent", "_target_"), "own_robots.Own"),
    "environment": (("env", "_target_"), "this.World"),
    "trainer": (("trainer", "_target_"), "own_robots.Trainer"),
    "encoder": (("agent", "encoder", "_target_"), "own_robots.Seen"),
    "no name": (("env", "_target_"), {}),
    "Gymnasium id": (("env", "name"), "this:CartPole-v1"),
    "wrapper": (("env", "wrappers"), ["this.World"]),
    "wrapper with arguments": (("env", "wrappers"), [{"_target_": "this.World", "size": 3}]),
    "wrapper that writes": (
        ("env", "wrappers"),
        [{"_target_": "gymnasium.wrappers.RecordVideo", "video_folder": "/elsewhere"}],
    ),
}
VALUES: dict[str, Hostile] = {
    "environment variable": (("agent", "gamma"), "${oc.env:SECRET}"),
    "resolver": (("agent", "gamma"), "${spy:}"),
    "resolver in a name": (("env", "name"), "own_robots${spy:}:CartPole-v1"),
    "resolver of a class": (("agent", "_target_"), "${spy:}"),
    "resolver in a list": (("agent", "hidden_sizes"), ["${spy:}"]),
    "resolver of a general setting": (("seed",), "${spy:}"),
    "resolver of a section": (("evaluation",), {"episodes": "${spy:}"}),
    "name of another setting": (("env", "name"), "${agent.encoder._target_}"),
    "circle": (("agent", "gamma"), "${agent.gamma}"),
}


def spoilt(checkpoint: Path, folder: Path, hostile: Hostile) -> Path:
    """Return a file with a hostile entry in its configuration."""
    state = load_state(checkpoint)
    *sections, last = hostile[0]
    section = state["config"]
    for name in sections:
        section = section[name]
    section[last] = hostile[1]
    path = folder / "frames_000000000016.safetensors"
    save_state(path, state)
    return path


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CLASSES)
def test_a_file_imports_no_class_that_the_user_does_not_trust(
    case: str, way: str, checkpoint: Path, tmp_path: Path, seen: list[str]
) -> None:
    file = spoilt(checkpoint, tmp_path, CLASSES[case])
    if way in PROGRAM or case in ("agent", "encoder"):
        place, name = CLASSES[case]
        if isinstance(name, list):
            place, name = (*place, "0"), name[0]
        if name and isinstance(name, dict):
            place, name = (*place, "_target_"), name["_target_"]
        with pytest.raises(ConfigurationError) as refused:
            WAYS[way](file, tmp_path)
        assert f"it names {'.'.join(place)}={name}" in str(refused.value)
        assert str(refused.value).endswith(f"add trust={re.split('[.:]', str(name))[0]}")
    else:  # a policy acts without its environment
        WAYS[way](file, tmp_path)
    assert seen == []
    assert not any(module in sys.modules for module in FOREIGN)


# All ways read the values by the same lines before they differ.
@pytest.mark.parametrize(
    ("case", "way"),
    [
        *product(VALUES, ("resume", "load_policy")),
        *product(("resolver", "resolver in a name"), ("mode=eval", "mode=demo", "--help")),
        ("resolver", "save_policy"),
    ],
)
def test_a_file_resolves_nothing(
    case: str, way: str, checkpoint: Path, tmp_path: Path, seen: list[str]
) -> None:
    file = spoilt(checkpoint, tmp_path, VALUES[case])
    with pytest.raises(ConfigurationError, match="not a plain value") as refused:
        WAYS[way](file, tmp_path)
    assert SECRET not in str(refused.value)
    assert seen == []


DEEP: Any = {}
for _ in range(100):
    DEEP = {"a": DEEP}


@pytest.mark.parametrize(
    ("hostile", "said"),
    [
        ((("agent",), ["agents.SAC"]), "its configuration is damaged or too large"),
        ((("choices",), "sac"), "its configuration is damaged or too large"),
        ((("env", "options"), DEEP), "its configuration is damaged or too large"),
        ((("choices", "agent"), 3), "choices.agent=3 is not a name"),
        ((("agent", "gamma"), torch.ones(())), "its setting agent.gamma is not a plain value"),
    ],
)
def test_a_damaged_configuration_is_refused_in_one_line(
    hostile: Hostile, said: str, checkpoint: Path, tmp_path: Path
) -> None:
    file = spoilt(checkpoint, tmp_path, hostile)
    for way in WAYS.values():
        with pytest.raises(ConfigurationError, match=rf"{said}$"):
            way(file, tmp_path)


@pytest.mark.parametrize("name", ["../../elsewhere", "/elsewhere"])
def test_a_file_does_not_choose_where_the_program_writes(
    name: str, checkpoint: Path, tmp_path: Path
) -> None:
    file = spoilt(checkpoint, tmp_path, (("choices", "env"), name))
    with pytest.raises(ConfigurationError, match=rf"choices.env={name} is not a name$"):
        _evaluate(file, tmp_path / "runs")


def test_a_setting_still_follows_a_number_of_its_file(checkpoint: Path, tmp_path: Path) -> None:
    state = load_state(checkpoint)
    state["config"]["agent"] |= {
        "learning_rate_end": 0.0,
        "learning_rate_frames": "${trainer.total_frames}",
    }
    save_state(tmp_path / "follows.safetensors", state)
    load_policy(tmp_path / "follows.safetensors")
    arguments = ("mode=eval", f"checkpoint={tmp_path / 'follows.safetensors'}", "device=cpu")
    longer = settings_of(*arguments, "trainer.total_frames=64")
    assert longer.agent.settings["learning_rate_frames"] == 64


def test_classes_that_the_user_types_or_trusts_are_imported(
    tmp_path: Path, seen: list[str], program: Call
) -> None:
    own = ["agent._target_=own_robots.Own", "agent.encoder._target_=own_robots.Seen"]
    world = ["env._target_=own_robots.World", "env.name=CartPole-v1"]
    output = program(*own, *world, *QUICK).report()
    (demo,) = [line for line in output.splitlines() if "mode=demo" in line]
    (config,) = (tmp_path / "runs").rglob("config.yaml")
    folder = config.parent
    evaluate = ["mode=eval", f"checkpoint={folder}", "device=cpu"]
    assert program(*evaluate).refusal().endswith("add trust=own_robots")
    assert program(*evaluate, *own, world[0]).code == 0
    assert program(*evaluate, "trust=[other,own_robots]").code == 0
    printed = shlex.split(demo.split("python -m trainers.run ")[1])
    assert program(*printed, "demo.episodes=1").code == 0

    with pytest.raises(ConfigurationError, match=r"add trust=own_robots$"):
        load_policy(folder)
    with pytest.raises(ConfigurationError, match=r"add trust=own_robots$"):
        load_policy(folder, trust="own_robot")
    assert load_policy(folder, trust="own_robots").interface.leaves["observation"].shape == (1, 4)


@pytest.mark.usefixtures("seen")
def test_a_printed_command_trusts_classes_only_beside_a_file() -> None:
    own = ("agent._target_=own_robots.Own", "env._target_=own_robots.World")
    settings = settings_of(*own, "env.name=CartPole-v1", "device=cpu")
    assert " trust=own_robots" in command_of(settings, "checkpoint=RUN")
    assert "trust" not in command_of(settings, "experiment=own/best")


def test_trust_takes_names_of_packages() -> None:
    with pytest.raises(ConfigurationError, match=r"^trust=my-robots: "):
        settings_of(*CARTPOLE, "trust=my-robots")
