"""Selection of the preset of an agent and an environment."""

from pathlib import Path

import gymnasium
import pytest
from omegaconf import OmegaConf

from tests.helpers.program import Call
from torchrl_gpu.errors import ConfigurationError
from trainers.command_line.help import help_text
from trainers.components.choices import choices_of
from trainers.run import settings_of

PRESETS = [name for name in choices_of("experiment") if "/" in name]


def pair(preset: str) -> list[str]:
    """Return the arguments that name the environment and the agent of a preset."""
    env, _, agent = preset.rpartition("/")
    named = [f"env={env}"] if env in choices_of("env") else ["env=gym", f"env.name={env}"]
    return [f"agent={agent}", *named]


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_of_a_pair_is_selected_and_valid(preset: str) -> None:
    if preset.startswith("ALE/"):
        pytest.importorskip("ale_py", reason="the extra `atari` is not installed")
    assert settings_of(*pair(preset)).experiment == preset


@pytest.mark.parametrize(
    ("preset", "agent", "env"),
    [
        ("fanuc_many_sac", "sac", "fanuc"),
        ("fanuc_hold", "sac", "fanuc"),
        ("lift_pixels", "sac", "lift_cube"),
        ("marinenav_many_ddpg", "ddpg", "marinenav"),
        ("marinenav_many_sac", "sac", "marinenav"),
        ("multi_env_wrist", "ppo", "lift_cube"),
        ("pong_quick_dqn", "dqn", "gym"),
        ("pong_quick_rainbow", "rainbow", "gym"),
        ("reach_pixels", "ddpg", "lift_cube"),
    ],
)
def test_preset_selects_its_agent_and_environment(preset: str, agent: str, env: str) -> None:
    if preset.startswith("pong_"):
        pytest.importorskip("ale_py", reason="the extra `atari` is not installed")
    settings = settings_of(f"experiment={preset}")
    assert settings.experiment == preset
    assert settings.config["choices"] == {"agent": agent, "env": env}


def test_quick_replaces_the_preset_of_a_pair() -> None:
    settings = settings_of(*pair("CartPole-v1/dqn"), "experiment=quick")
    assert settings.experiment == "quick"
    assert settings.trainer.settings["random_frames"] == 19_000


@pytest.mark.parametrize("name", ["Maze/Small-v0", "gymnasium:Maze/Small-v0"])
def test_preset_in_a_folder_of_the_user_is_found_by_the_name_without_its_module(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gymnasium.registry, "Maze/Small-v0", gymnasium.spec("CartPole-v1"))
    preset = tmp_path / "experiment" / "Maze" / "Small-v0" / "dqn.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text("# @package _global_\nagent:\n  n_step: 7\n")
    search = f"hydra.searchpath=[{tmp_path.as_uri()}]"
    settings = settings_of("agent=dqn", "env=gym", f"env.name={name}", search)
    assert settings.agent.settings["n_step"] == 7
    settings = settings_of("agent=iqn", "env=gym", f"env.name={name}", search)
    assert settings.agent.settings["n_step"] == 1


def test_presets_are_found_in_each_folder_of_the_user(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one folder", "two, three [4]")]
    for folder in folders:
        preset = folder / "experiment" / f"{folder.name[:3]}.yaml"
        preset.parent.mkdir(parents=True)
        preset.write_text("# @package _global_\nagent:\n  n_step: 7\n")
    search = f'hydra.searchpath=[file://{folders[0]}, "file://{folders[1]}"]'
    for name in ("one", "two"):
        settings = settings_of("agent=dqn", "env=fanuc", f"experiment={name}", search)
        assert settings.agent.settings["n_step"] == 7


def test_a_preset_with_an_error_of_yaml_is_named(tmp_path: Path) -> None:
    preset = tmp_path / "experiment" / "cut.yaml"
    preset.parent.mkdir()
    preset.write_text("agent: [")
    with pytest.raises(ConfigurationError, match=r"^while parsing .*cut\.yaml\", line 1"):
        settings_of(
            "agent=dqn", "env=fanuc", "experiment=cut", f"hydra.searchpath=[{tmp_path.as_uri()}]"
        )


def test_help_lists_the_choices_in_a_folder_of_the_user(tmp_path: Path) -> None:
    for group in ("agent", "env", "experiment"):
        (tmp_path / group).mkdir()
        (tmp_path / group / f"my_{group}.yaml").write_text("")
    text = help_text([f"hydra.searchpath=[{tmp_path.as_uri()}]"])
    assert ", my_agent, ppo, " in text
    assert ", my_env\n" in text
    assert ", my_experiment, " in text


@pytest.mark.parametrize("preset", ["fanuc/sac", "CartPole-v1/dqn"])
def test_null_selects_no_preset(preset: str) -> None:
    settings = settings_of(*pair(preset), "experiment=null")
    assert settings.experiment is None
    assert settings.trainer.settings["total_frames"] == 1_000_000


def test_a_preset_beside_a_checkpoint_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    trained = ("mode=eval", "checkpoint=pretrained:fanuc/sac", "device=cpu")
    saved = settings_of(*trained, "experiment=null").config
    assert caplog.messages == []
    assert settings_of(*trained, "experiment=quick").config == saved
    (said,) = caplog.messages
    assert said == ("experiment=quick: the settings saved in pretrained:fanuc/sac replace its own")


def test_class_of_the_users_own_has_no_preset() -> None:
    settings = settings_of("agent._target_=agents.sac.SAC", "env=fanuc")
    assert settings.agent.settings["gamma"] == 0.99


@pytest.mark.parametrize(
    ("arguments", "setting", "values"),
    [
        (["agent=dqn,iqn", "env=gym", "env.name=CartPole-v1"], "agent.n_step", {20, 40}),
        (["agent=sac,ac_iqn", "env=fanuc"], "agent.batch_size", {128, 256}),
        (
            ["agent=dqn", "env=gym", "env.name=CartPole-v1,Acrobot-v1,MountainCar-v0"],
            "experiment",
            {"CartPole-v1/dqn", "Acrobot-v1/dqn", None},
        ),
    ],
)
def test_each_run_of_a_sweep_has_its_own_preset(
    arguments: list[str], setting: str, values: set[object], program: Call
) -> None:
    printed = program(*arguments, "-m", "--cfg", "job").report().split("---")
    runs = [OmegaConf.create(text) for text in printed if text.strip()]
    assert {OmegaConf.select(run, setting) for run in runs} == values


def test_help_lists_the_agents_with_a_preset_of_each_environment_in_one_line(program: Call) -> None:
    lines = [line.split(maxsplit=1) for line in program("--help").report().splitlines()]
    for preset in PRESETS:
        env, _, agent = preset.rpartition("/")
        (agents,) = [line[1] for line in lines if line and line[0] == env]
        assert agent in agents.split(", ")
