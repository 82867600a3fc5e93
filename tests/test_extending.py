"""The worked example of docs/extending.md, followed outside the repository."""

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from agents import OffPolicyAgent
from tests.helpers.program import Call

REPOSITORY = Path(__file__).parent.parent
PAGE = (REPOSITORY / "docs" / "extending.md").read_text()


def example(file: str, name: str) -> Any:
    """Return a class from a file of the example."""
    (code,) = re.findall(rf"`{file}`:\n\n```python\n(.*?)```", PAGE, re.DOTALL)
    module: dict[str, Any] = {"__name__": name}
    # Without this file's own import of annotations from __future__.
    exec(compile(code, file, "exec", dont_inherit=True), module)
    return module[name]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package of the example."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "my_robots").mkdir()
    (folder / "my_robots" / "__init__.py").touch()
    for name, code in re.findall(r"`(my_robots/\w+\.py)`:\n\n```python\n(.*?)```", PAGE, re.DOTALL):
        (folder / name).write_text(code)
    return folder


@pytest.mark.slow
def test_command_of_the_page_trains_the_users_agent_in_the_users_environment(
    home: Path, monkeypatch: pytest.MonkeyPatch, program: Call
) -> None:
    command, *_ = re.findall(r"```bash\npython -m trainers.run (.*?)```", PAGE, re.DOTALL)
    monkeypatch.syspath_prepend(home)
    arguments = shlex.split(command.replace("\\\n", " "))
    said = program(*arguments, "evaluation.episodes=64", "compile=off", folder=home).report()
    success = re.search(r"result +success ([\d.]+)%", said)
    assert success is not None, said
    assert float(success[1]) > 90.0
    (folder,) = (home / "runs" / "Glide" / "TD3").iterdir()
    again = ("mode=eval", f"checkpoint={folder}", "evaluation.episodes=64", "trust=my_robots")
    assert program(*again, folder=home).code == 0


def test_the_agent_of_the_page_is_built_without_an_environment(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(home)
    section = PAGE.partition("## An algorithm in a unit test")[2]
    script, *_ = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(script, "script", "exec", dont_inherit=True), names)
    assert isinstance(names["agent"], OffPolicyAgent)


def test_the_environment_of_the_page_is_filmed(
    home: Path, monkeypatch: pytest.MonkeyPatch, program: Call
) -> None:
    (found,) = re.findall(r"^python -m trainers.run (mode=demo agent=.*)", PAGE, re.MULTILINE)
    monkeypatch.syspath_prepend(home)
    assert program(*found.split(), "demo.episodes=1", "demo.video=gif", folder=home).code == 0
    (film,) = (home / "runs" / "Glide" / "random" / "videos").glob("*.gif")
    pixels = np.asarray(Image.open(film).convert("RGB")).reshape(-1, 3).astype(int)
    for colour in ([0, 160, 0], [200, 0, 0]):  # origin and puck
        assert (abs(pixels - colour).max(1) < 30).sum() > 20


FOURIER = "agent.encoder._target_=my_robots.vision.Fourier"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["env=gym", "env.name=Pendulum-v1", "agent=sac", FOURIER], ""),
        (
            ["env=fanuc", "agent=sac", FOURIER, "agent.encoder.frequencies=0"],
            "agent.encoder.frequencies=0: input should be greater than or equal to 1",
        ),
        (["env._target_=my_robots.glide.Glide", "agent=sac"], ""),
        (["env._target_=my_robots.glide.Glide", "agent=dqn"], ""),
        (
            ["env._target_=my_robots.glide.Glide", "agent=sac", "env.num_envs=0"],
            "env.num_envs=0: input should be greater than or equal to 1",
        ),
        (
            ["env=gym", "env.name=CartPole-v1", "agent._target_=my_robots.td3.TD3"],
            "agents that do: dqn, iqn, ppo, rainbow",
        ),
        (
            ["env=fanuc", "agent._target_=my_robots.td3.Td3"],
            "agent._target_=my_robots.td3.Td3: module 'my_robots.td3' has no attribute 'Td3'",
        ),
    ],
)
def test_users_classes_combine_with_built_in_ones(
    home: Path, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, program: Call
) -> None:
    quick = ["trainer.total_frames=144", "trainer.random_frames=128"]
    quick += ["trainer.evaluation_episodes=4", "evaluation.episodes=4"]
    monkeypatch.syspath_prepend(home)
    ended = program(*arguments, *quick, folder=home)
    assert ended.code == (2 if said else 0)
    assert said in ended.err
