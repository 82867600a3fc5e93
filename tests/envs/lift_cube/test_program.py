"""The environment in the program."""

from pathlib import Path

import pytest
import torch

from envs.lift_cube import LiftCubeEnv
from tests.helpers.pipeline import EPISODE, live
from tests.helpers.program import Call, changed, environments_built_once
from tests.helpers.programs import Start
from trainers.components.choices import learning_agents

SMALL = ("env=lift_cube", "env.num_envs=4", "device=cpu", "env.max_episode_steps=5")


@pytest.mark.slow
@pytest.mark.parametrize("agent", learning_agents())
def test_agent_lives_on_an_accelerator(
    agent: str,
    lift: LiftCubeEnv,
    accelerator: torch.device,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lift, "max_episode_steps", EPISODE)
    with environments_built_once(lift):
        live(monkeypatch, tmp_path, agent, accelerator, "env=lift_cube", "env.num_envs=4")


@pytest.mark.slow
def test_film_shows_the_scene_and_the_wrist(
    accelerator: torch.device, tmp_path: Path, program: Call
) -> None:
    film = ("mode=demo", "agent=random", "demo.episodes=1", *SMALL)
    assert "height [mm]" in program(*changed(film, f"device={accelerator.type}")).report()
    (path,) = tmp_path.glob("runs/lift_cube/random/videos/*.mp4")
    assert path.stat().st_size > 500


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("env.camera.size=0",), "greater than or equal to 8"),
        (("env.camera.renderer=fast",), "batched"),
        (("env.arm.home=[0,1]",), "it takes 7"),
        (("env.friction=[2,1]",), "lowest, highest"),
        (("env.size=[0,1]",), "lowest, highest"),
        (("env.task=throw",), "lift"),
        (("env.arm.file=nowhere.xml",), "not found"),
        (("env.num_envs=1000000", "device_memory_limit=2GiB"), "would fit"),
        (("env.camera.renderer=madrona", "env.pixels=true", "device=cpu"), "NVIDIA"),
        (("env.camera.size=48", "env.camera.fov=60"), "env.camera.size, env.camera.fov: without"),
    ],
)
def test_wrong_setting_ends_in_one_line(
    arguments: tuple[str, ...], words: str, program: Call
) -> None:
    assert words in program("agent=sac", "env=lift_cube", *arguments).refusal()


@pytest.mark.slow
def test_missing_opengl_ends_in_one_line(start: Start) -> None:
    arguments = ["agent=zero", "mode=eval", "evaluation.episodes=1", *SMALL]
    program = start(*arguments, variables={"PYOPENGL_PLATFORM": "osmesa"})
    code = program.end(300.0)
    if code == 0:
        pytest.skip("OpenGL works without EGL here: OSMesa is installed")
    assert code == 2
    (line,) = [line for line in program.output.splitlines() if line.startswith("error:")]
    assert "Genesis cannot be imported" in line
    assert "libegl1" in line
