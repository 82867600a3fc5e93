import itertools
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from tests.helpers.program import Call, call
from torchrl_gpu import extras
from torchrl_gpu.arguments import parameters_of
from torchrl_gpu.checkpoints.checkpoint import find_checkpoint
from torchrl_gpu.checkpoints.state_file import load_state, save_state
from torchrl_gpu.errors import ConfigurationError
from trainers.command_line.schema import GeneralSettings
from trainers.components.choices import choices_of
from trainers.run import settings_of

pytestmark = pytest.mark.directml

BASE = ["agent=sac", "env=fanuc"]
TOO_LONG = 300 * "x"
SHORT = [
    *BASE,
    *("device=cpu", "env.num_envs=8", "env.num_workers=1", "trainer.total_frames=640"),
    *("trainer.random_frames=160", "trainer.replay_capacity=5000", "trainer.log_interval=160"),
    *("trainer.evaluation_interval=320", "trainer.evaluation_episodes=8", "evaluation.episodes=8"),
    "env.max_episode_steps=3",
]


AGENTS, ENVS = (", ".join(choices_of(group)) for group in ("agent", "env"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["agent=foo", "env=fanuc"], f"unknown agent foo; choose one of: {AGENTS}"),
        (["agent=sac", "env=foo"], f"unknown env foo; choose one of: {ENVS}"),
        (["env=fanuc"], f"agent= is missing; choose one of: {AGENTS}"),
        (["mode=eval"], "error: mode=eval: checkpoint=RUN is missing, a run folder or a file; "),
        (["mode=export"], "mode=export: checkpoint=RUN is missing, a run folder or a file\n"),
        (
            ["mode=demo", "agent=zero", "env=fanuc", "demo.num_envs=100000"],
            "error: demo.num_envs=100000: fanuc shows at most 1 at a time; use demo.num_envs=1",
        ),
        ([*BASE, "trainer=foo"], "unknown trainer foo; choose one of: default"),
        ([*BASE, "--foo"], "unrecognized arguments: --foo; see --help"),
        ([*BASE, "--cfg", "foo"], "invalid choice: 'foo'"),
        ([*BASE, "seed"], "seed: write NAME=VALUE"),
        ([*BASE, "seed=1,2"], "seed=1,2: several values need -m"),
        ([*BASE, "env.urdf=a, b"], "one text needs quotes: \"env.urdf='a, b'\""),
        ([*BASE, "env.urdf=a=b"], "one text needs quotes: \"env.urdf='a=b'\""),
        ([*BASE, "agent=ppo"], "error: agent=sac agent=ppo: leave one of them out"),
        ([*BASE, "seed=1", "seed=1", "seed=2"], "seed=1 seed=2: leave one of them out"),
        ([*BASE, "-m", "seed=interval(0,1)"], "seed=interval(0,1): an interval has no list"),
        ([*BASE, "agent.gamma=${env.foo}"], "agent.gamma: Interpolation key 'env.foo' not found"),
        (["agent._target_=nowhere.Agent", "env=fanuc"], "agent._target_=nowhere.Agent: No module"),
        (["agent=sac", "env=gym", "env.name=CartPole-v1"], "agents that do: dqn, iqn, ppo"),
        (["agent=foo/bar", "env=fanuc"], "unknown agent foo/bar; choose one of: ac_iqn, ddpg"),
        ([*BASE, "experiment=foo"], "unknown experiment foo; choose one of: ALE/Pong-v5/dqn"),
        ([*BASE, "experiment=fanuc/_base"], "unknown experiment fanuc/_base"),
        ([*BASE, "hydra/launcher=foo"], "hydra/launcher: only a sweep has a launcher; add -m"),
        ([*BASE, "colour=red"], "colour: unknown setting"),
        (["agent", "sac", "env=fanuc"], "agent: write agent=sac env=fanuc; see --help"),
        (["sac", "fanuc"], "sac: write agent=sac env=fanuc; see --help"),
        (["agent=sac env=fanuc"], "agent=sac env=fanuc: write agent=sac env=fanuc; see --help"),
        (["sac fanuc seed=3"], "sac fanuc seed=3: write agent=sac env=fanuc seed=3; see"),
        (["mode=eval", "checkpoint=my sac, old"], "checkpoint=my sac, old: file or folder not"),
        (["agent", "=", "sac", "env=fanuc"], "agent: write agent=sac env=fanuc; see --help"),
        (["--agent=sac", "env=fanuc"], "arguments: --agent=sac; write agent=sac env=fanuc"),
        (["--agent", "sac", "-env", "fanuc"], "--agent -env fanuc; write agent=sac env=fanuc"),
        (["sac", "moon"], "sac: write NAME=VALUE; see --help"),
        (["runs=my sac folder", "fanuc"], "fanuc: write NAME=VALUE; see --help"),
        (["agent=sac", "env=fanuc", ""], "empty argument: write agent=sac env=fanuc; see"),
        ([*BASE, "+agent.foo=3"], "+agent.foo=3: write NAME=VALUE; see --help"),
        (["agent=", "env=fanuc"], "agent=: the value is missing; choose one of: ac_iqn"),
        (["agent=sac,iqn", "env=fanuc"], "agent=sac,iqn: several values need -m"),
        (["agent=sac", "env=fanuc,gym"], "env=fanuc,gym: several values need -m"),
        (["agent=sac,foo", "env=fanuc"], "unknown agent sac,foo; choose one of: ac_iqn"),
        (["agent=foo", "--info", "defaults"], "unknown agent foo; choose one of: ac_iqn"),
        ([*BASE, "hydra.searchpath=[pkg://nowhere]"], "searchpath=pkg://nowhere: No module named"),
        ([*BASE, "hydra.searchpath=[file://no/where]"], "=file://no/where: folder not found"),
        ([*BASE, "mode=eval", "checkpoint="], "checkpoint=: the value is missing"),
        ([*BASE, "sed=1"], "sed: unknown setting; did you mean seed?"),
        ([*BASE, "env.colour=red"], "env.colour: FanucEnv has no such setting"),
        ([*BASE, "agent.learnig_rate=1"], "did you mean learning_rate?"),
        ([*BASE, "trainer.frames=1"], "trainer.frames: TorchRLTrainer has no such setting"),
        ([*BASE, "env.num_envs=0"], "env.num_envs=0: input should be greater than or equal to 1"),
        (
            ["agent=sac", "env=marinenav", "env.num_envs=10000000000000"],
            "env.num_envs=10000000000000: input should be less than or equal to 1048576",
        ),
        ([*BASE, "device=-1"], "device=-1: write auto, cpu or another kind of device, as in cuda"),
        ([*BASE, "threads=100000000"], "threads=100000000: input should be less than or equal to"),
        ([*BASE, "env.num_envs=many"], "env.num_envs=many: input should be a valid integer"),
        ([*BASE, "agent.learning_rate=-1"], "agent.learning_rate=-1: input should be greater"),
        (["agent=ppo", "env=marinenav", "trainer.total_frames=all"], "trainer.total_frames=all: "),
        ([*BASE, "agent.learning_rate_end=null"], "learning_rate_frames: a schedule"),
        (["agent=sac", "env=marinenav", "env.mixture=1", "env.curriculum=1"], "mixture: set one"),
        ([*BASE, "agent.gamma=[1]"], "agent.gamma=[1]: input should be a valid number"),
        ([*BASE, "agent.gamma=null"], "agent.gamma=null: input should be a valid number"),
        ([*BASE, "agent.learning_rate=true"], "learning_rate=true: input should be a number"),
        ([*BASE, "agent.learning_rate=inf"], "learning_rate=inf: input should be a finite number"),
        (
            [*BASE, "agent.hidden_sizes=256"],
            "_sizes=256: input should be a list; write [256]",
        ),
        ([*BASE, "agent.hidden_sizes.0=3"], "is a list; write agent.hidden_sizes=[...]"),
        (["agent=iqn", *BASE[1:], "agent.hidden_sizes=[]"], "[]: it takes at least 1 value"),
        ([*BASE, "trainer.loggers=csv"], "loggers=csv: input should be a list; write [csv]"),
        ([*BASE, "observation_keys=pixels"], "keys=pixels: input should be a list; write [pixels]"),
        ([*BASE, "observation_keys=[]"], "observation_keys=[]: it takes at least 1 value"),
        (
            ["agent=sac", "env=marinenav", "observation_keys=[speed]"],
            "there is no observation speed; this environment has: observation, objects",
        ),
        (
            [*BASE, "mode=fly"],
            "mode=fly: input should be 'train', 'eval', 'demo', 'record', 'export' or 'tune'",
        ),
        ([*BASE, "seed=-1"], "seed=-1: input should be greater than or equal to 0"),
        ([*BASE, "device=quantum"], "quantum"),
        ([*BASE, "precision=fp8"], "precision=fp8: input should be 'auto', 'fp32', 'tf32'"),
        (
            [*BASE, "device=cpu", "precision=tf32"],
            "precision=tf32: not available on cpu; choose fp32",
        ),
        ([*BASE, "compile=on"], "compile=on: input should be 'auto', 'off', 'default' or"),
        ([*BASE, "products=mkl"], "products=mkl: input should be 'auto' or 'torch'"),
        ([*BASE, "graphs=all"], "graphs=all: input should be 'auto', 'off' or 'on'"),
        ([*BASE, "device=cpu", "graphs=on"], "graphs=on: cpu cannot capture graphs"),
        ([*BASE, "device_memory_limit=0"], "device_memory_limit=0: use a fraction"),
        ([*BASE, "device_memory_limit=900TiB"], ": cpu has only "),
        ([*BASE, "mode=eval"], "mode=eval needs a trained policy: checkpoint="),
        ([*BASE, "agent._target_=nowhere.Agent"], "agent._target_=nowhere.Agent: No module named"),
        ([*BASE, "agent._target_=pathlib.Path"], "not a subclass of agents.base.Agent"),
        ([*BASE, "checkpoint=nowhere"], "checkpoint=nowhere: file or folder not found"),
        ([*BASE, f"checkpoint={TOO_LONG}"], ": File name too long"),
        ([*BASE, "env.urdf=nowhere.urdf"], "nowhere.urdf"),
        ([*BASE, "env.urdf="], "env.urdf=: string should have at least 1 character"),
        (
            ["mode=record", "agent=zero", "env=fanuc", "record.path="],
            "record.path=: the value is missing",
        ),
        ([*BASE, "env.urdf=other.urdf"], "other.urdf"),
        (
            [*BASE, "runs=file/below"],
            "/file: Not a directory; name another folder with runs=FOLDER",
        ),
        ([*BASE, "runs=null"], "runs=None: input should be a path"),
        ([*BASE, f"runs={TOO_LONG}"], ": File name too long"),
        (
            ["mode=record", "agent=zero", "env=fanuc", f"record.path={TOO_LONG}/data"],
            "/data: File name too long",
        ),
        ([*BASE, "trainer.replay_capacity=100000000000"], "replay"),
        (
            [*BASE, "trainer.random_frames=1000", "trainer.total_frames=300"],
            "trainer.total_frames=300: the run would end before its first update, which takes 1020 "
            "frames (trainer.random_frames=1000, agent.utd_ratio=0.05)",
        ),
        (
            [*BASE, "trainer.replay_capacity=100"],
            "trainer.replay_capacity=100: the replay is smaller than a batch, agent.batch_size=256",
        ),
        ([*BASE, "trainer.loggers=[carrier_pigeon]"], "carrier_pigeon"),
        ([*BASE, "env.num_envs=[1"], "env.num_envs=[1"),
        ([*BASE, "evaluation.num_envs=0"], "evaluation.num_envs=0: input should be greater"),
        ([*BASE, "evaluation.limit=8"], "evaluation.limit: Evaluator has no such setting"),
        ([*BASE, "agent.encoder.color=1"], "agent.encoder.color: ObservationEncoderFactory has no"),
        ([*BASE, "agent.encoder.channels=[0]"], "agent.encoder.channels=[0]: input should be"),
        (
            [*BASE, "agent.encoder._target_=agents.modules.encoders.EncoderFactory"],
            "agent.encoder._target_=agents.modules.encoders.EncoderFactory: abstract; it does not",
        ),
        ([*BASE, "agent.encodr.channels=[1]"], "did you mean encoder?"),
        ([*BASE, "evaluation=3"], "evaluation=3: write evaluation.NAME=... for each setting"),
        (
            [*BASE, "agent.encoder=cnn"],
            "agent.encoder=cnn: use agent.encoder.NAME=...",
        ),
        (
            [*BASE, "agent.encoder.convolutions=nature", "agent.encoder.channels=[8,8]"],
            "agent.encoder: channels=[8, 8]: convolutions=nature takes three numbers",
        ),
        (
            [*BASE, "agent.encoder._target_=agents.SAC"],
            "not a subclass of agents.modules.encoders.EncoderFactory",
        ),
        ([*BASE, "demo.speed=0"], "demo.speed=0: input should be greater than 0"),
        ([*BASE, "demo.speed=inf"], "demo.speed=inf: input should be a finite number"),
        ([*BASE, "demo.speed=2"], "demo.speed: mode=train does not use it (only mode=demo)"),
        (
            ["mode=eval", "agent=zero", "env=fanuc", "record.episodes=2"],
            "record.episodes: mode=eval does not use it (only mode=record); leave it out",
        ),
        (
            ["mode=demo", "agent=zero", "env=fanuc", "evaluation.episodes=2"],
            "evaluation.episodes: mode=demo does not use it (only mode=train, mode=tune, ",
        ),
        (["mode=eval", "agent=zero", "env=fanuc", "collectors=ray"], "collectors: mode=eval does"),
        (["mode=eval", "agent=zero", "env=fanuc", "precision=bf16"], "precision: mode=eval does"),
        (["agent=ppo", "env=fanuc", "trainer.overlap=true"], "overlap=true: PPO learns on-policy"),
        (
            [*BASE, "env.simulator=genesis", "trainer.overlap=true"],
            "trainer.overlap=true: FanucEnv with these settings",
        ),
        (
            ["agent=sac", "env=marinenav", "trainer.overlap=true"],
            "trainer.overlap=true: MarineNavEnv with these settings",
        ),
        (
            ["agent=dqn", "env=gym", "env.name=CartPole-v1", "env.options.kind=[1,nan]"],
            "error: this command: its setting env.options.kind.1 is NaN or has control characters",
        ),
        ([*BASE, "trust=nope"], "trust=nope: only files of checkpoint=, policy= and resume= name"),
        ([*BASE, "viewer_port=80"], "viewer_port: only viewer=web has a viewer; leave it out"),
    ],
)
def test_bad_input_ends_in_a_one_line_error_before_anything_is_built(
    arguments: list[str], said: str, tmp_path: Path, program: Call
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "other.urdf").write_text('<robot name="stick"><link name="base"/></robot>')
    before = sorted(tmp_path.rglob("*"))
    assert said in f"error: {program(*arguments).refusal()}\n"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "setting", "package", "extra"),
    [
        ([*BASE, "trainer.loggers=[csv,wandb]"], "trainer.loggers", "wandb", "wandb"),
        ([*BASE, "trainer.loggers=[csv,trackio]"], "trainer.loggers", "trackio", "trackio"),
        ([*BASE, "collectors=ray"], "collectors=ray", "ray", "ray"),
        ([*BASE, "mode=tune"], "mode=tune", "optuna", "tune"),
        ([*BASE, "viewer=web"], "viewer=web", "viser", "viewer"),
        (["mode=export", "checkpoint=pretrained:fanuc/sac"], "mode=export", "onnxscript", "export"),
        (["mode=eval", "policy=export"], "policy=export", "onnxruntime", "export"),
    ],
)
def test_a_missing_package_is_named_with_its_extra_before_anything_is_built(
    arguments: list[str], setting: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == package else "found")
    with pytest.raises(ConfigurationError) as refused:
        settings_of(*arguments)
    assert str(refused.value) == (
        f'{setting}: {package} not installed; pip install "torchrl-gpu[{extra}]"'
    )


def test_help_lists_the_settings_of_an_encoder(program: Call) -> None:
    lines = program(*BASE, "--help").report().splitlines()
    assert any(line.startswith("  agent.encoder.channels ") for line in lines)
    pairs = itertools.pairwise(lines)
    assert not any(line.startswith("Settings of ") and not after for line, after in pairs)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a short training run."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert call(monkeypatch, folder, *SHORT) == 0
    runs = list((folder / "runs" / "fanuc" / "sac").iterdir())
    assert len(runs) == 1
    return runs[0]


def test_run_writes_configuration_metrics_checkpoints_and_summary(trained: Path) -> None:
    assert "num_envs: 8" in (trained / "config.yaml").read_text()
    assert (trained / "metrics.csv").read_text().count("\n") > 4
    summary = json.loads((trained / "summary.json").read_text())
    assert summary["frames"] == 640
    assert summary["episodes"] == 8
    assert summary["transfers"]["to_device"] == {"copies_per_step": 0, "bytes_per_step": 0}
    assert "profile" not in summary
    assert 0.0 <= summary["success_low"] <= summary["success"] <= summary["success_high"] <= 1.0
    assert (trained / "checkpoints" / "frames_000000000640.safetensors").is_file()


def test_eval_needs_only_a_checkpoint(trained: Path, program: Call) -> None:
    arguments = ["mode=eval", f"checkpoint={trained}", "evaluation.episodes=9"]
    assert "9 episodes" in program(*arguments).report()
    (written,) = (trained / "evaluations").iterdir()
    assert json.loads(written.read_text())["episodes"] == 9


def test_printed_commands_run_as_they_stand(tmp_path: Path, program: Call) -> None:
    """Also in a folder whose name contains special characters of the shell and of lists."""
    short = [*SHORT, "trainer.loggers=[csv]", "trainer.profile=true"]
    output = program(*short, "runs=my runs, (old)").report()
    assert "tensorboard" not in output, "no curves were written for it"
    assert "copies       none: environment and policy are on one device" in output
    assert "per frame" in output
    (summary,) = tmp_path.glob("my runs*/*/*/*/summary.json")
    assert json.loads(summary.read_text())["profile"]["parts"]["simulate"]["share"] > 0
    (command,) = [line for line in output.splitlines() if "trainers.run" in line]
    _, arguments = command.split("python -m trainers.run ")
    assert program(*shlex.split(arguments), "demo.episodes=1").code == 0
    assert list(tmp_path.glob("my runs, (old)/fanuc/sac/*/videos/*.mp4"))


@pytest.mark.parametrize("video", ["mp4", "gif"])
def test_demo_writes_a_film_and_reports_its_episodes(
    video: str, trained: Path, program: Call
) -> None:
    arguments = ["mode=demo", f"checkpoint={trained}", "demo.episodes=1", f"demo.video={video}"]
    output = program(*arguments).report()
    (film,) = (trained / "videos").glob(f"*.{video}")
    assert film.stat().st_size > 5_000
    assert "3.0 steps, 1 episode\n" in output
    assert "mean at the end: distance [mm]" in output


def test_resumed_run_continues_in_its_folder(trained: Path, tmp_path: Path, program: Call) -> None:
    own = shutil.copytree(trained, tmp_path / "mine")
    arguments = [f"checkpoint={own}", "trainer.total_frames=800", "precision=bf16"]
    assert program(*arguments).code == 0
    assert json.loads((own / "summary.json").read_text())["frames"] == 800
    assert OmegaConf.load(own / "config.yaml").precision == "bf16"
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path, state: path.write_bytes(path.read_bytes()[:-100]), "truncated"),
        (lambda path, state: path.write_bytes(b"not a checkpoint"), "checkpoint"),
        (lambda path, state: torch.save({"a": 1}, path), "pickle"),
        (lambda path, state: state["config"]["choices"].update(agent="ppo"), "agent=ppo"),
        (lambda path, state: state["config"]["choices"].update(env="sea"), "env=sea"),
        (lambda path, state: save_state(path, {**state, "random": {"python": {}}}), "damaged"),
    ],
)
def test_unusable_checkpoint_is_refused(
    spoil: object, said: str, trained: Path, tmp_path: Path, program: Call
) -> None:
    path = tmp_path / "frames_000000000001.safetensors"
    state = load_state(find_checkpoint(trained))
    save_state(path, state)
    spoil(path, state)  # type: ignore[operator]
    if said.startswith(("agent=", "env=")):
        save_state(path, state)
    assert said in program(*BASE, f"checkpoint={path}").refusal()


def test_help_lists_choices_and_describes_settings(program: Call) -> None:
    text = program(*BASE, "--help").report()
    assert "python -m trainers.run agent=AGENT env=ENV" in text
    for setting in ("agent.learning_rate", "env.num_envs", "trainer.total_frames", "demo.video"):
        assert setting in text
    assert "environment steps to train for, at least 1 (144000, preset)" in " ".join(text.split())


def help_of(program: Call, *arguments: str) -> dict[str, str]:
    """Return the entries of the help text by the name of the setting."""
    text = re.sub(r"\n {34}", " ", program(*arguments, "--help").report())
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.startswith("  ")]
    return {name: rest[0] for name, *rest in lines if rest}


def test_help_shows_the_values_that_the_command_uses(program: Call) -> None:
    given = ["agent.gamma=0.9", "agent.learning_rate_end=0", "seed=7"]
    given += ["agent.learning_rate_frames=${trainer.total_frames}"]
    shown = help_of(program, *BASE, *given)
    for name, end in {
        "agent.learning_rate": "(0.002, preset)",
        "agent.hidden_sizes": "([64, 64], preset)",
        "agent.gamma": "(0.9, typed)",
        "agent.learning_rate_frames": "(144000, typed)",
        "agent.twins": "(minimum)",
        "agent.encoder.channels": "(null)",
        "env.num_envs": "(128, preset)",
        "trainer.loggers": "(['csv', 'tensorboard'])",
        "seed": "(7, typed)",
    }.items():
        assert shown[name].endswith(f" {end}"), name
    without = help_of(program, *BASE, "experiment=null", "env.num_envs=auto", "-m", "seed=4,5")
    assert without["agent.learning_rate"].endswith("(0.0003)")
    assert without["env.num_envs"].endswith("(auto, typed)")
    assert without["seed"].endswith("(4, typed)")
    settings = settings_of(*BASE, *given)
    assert settings.agent.settings["learning_rate"] == 0.002
    assert settings.agent.settings["learning_rate_frames"] == 144_000


def test_help_shows_the_settings_of_a_checkpoint(trained: Path, program: Call) -> None:
    given = ["trainer.random_frames=200", "seed=7"]
    # Another test continues the run.
    first = trained / "checkpoints" / "frames_000000000640.safetensors"
    shown = help_of(program, f"checkpoint={first}", *given)
    settings = settings_of(f"checkpoint={first}", *given)
    for name, end in {
        "agent.hidden_sizes": "([64, 64], checkpoint)",
        "agent.encoder.vector_features": "(null, checkpoint)",
        "env.num_envs": "(8, checkpoint)",
        "trainer.total_frames": "(640, checkpoint)",
        "trainer.random_frames": "(200, typed)",
        "evaluation.episodes": "(8, checkpoint)",
        "seed": "(7, typed)",
        "precision": "(auto, checkpoint)",
        "device": "(auto)",
    }.items():
        assert shown[name].endswith(f" {end}"), name
    assert settings.trainer.settings["total_frames"] == 640


_OWN = """
from typing import Annotated

from pydantic import Field

from agents import SAC
from agents.modules.encoders import ObservationEncoderFactory
from trainers import TorchRLTrainer
from trainers.collecting.collectors import Collectors


class OwnAgent(SAC):
    boldness: Annotated[float, Field(ge=0.0, description="share of bold actions")] = 0.25


class OwnEncoder(ObservationEncoderFactory):
    depth: int = 3


class OwnTrainer(TorchRLTrainer):
    patience: int = 5


class OwnCollectors(Collectors):
    machines: int = 2
"""


def test_help_shows_the_settings_of_own_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Call
) -> None:
    (tmp_path / "own_classes.py").write_text(_OWN)
    monkeypatch.syspath_prepend(tmp_path)
    for encoder in ("agent.encoder._target_=own_classes.OwnEncoder", "agent.encoder.shared=true"):
        own = ["agent._target_=own_classes.OwnAgent", "env=fanuc", encoder]
        own += [f"{g}._target_=own_classes.Own{g.title()}" for g in ("trainer", "collectors")]
        shown = help_of(program, *own)
        assert shown["agent.boldness"] == "share of bold actions, at least 0 (0.25)"
        assert shown["agent.learning_rate"].endswith("(0.0003)")
        assert ("agent.encoder.depth" in shown) == ("OwnEncoder" in encoder)
        assert {"trainer.patience", "collectors.machines"} <= shown.keys()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["agent._target_=nowhere.Agent"], "agent._target_=nowhere.Agent: No module named"),
        (["env._target_=agents.SAC"], "env._target_=agents.SAC: not a subclass of torchrl"),
        (["agent=sacc"], "unknown agent sacc"),
        (["agent.gamma=${agent.gama}"], "agent.gamma: Interpolation key 'agent.gama' not found"),
    ],
)
def test_help_on_what_cannot_be_used_is_an_error(
    arguments: list[str], said: str, program: Call
) -> None:
    assert program(*arguments, "--help").refusal().startswith(said)


def test_help_lists_every_general_setting(program: Call) -> None:
    text = program("--help").report()
    section = text[text.index("General settings") : text.index("Settings of agent")]
    assert [line.split()[0] for line in section.splitlines()[1:] if line[2:3].strip()] == (
        list(parameters_of(GeneralSettings))
    )
    words = " ".join(section.split())
    assert "seed of all random numbers, at least 0 and below 2,147,483,648 (0)" in words
    assert "number of CPU threads of PyTorch, 1 to 1,024; null for one per core" in words


def test_help_marks_required_settings(program: Call) -> None:
    text = " ".join(program("agent=dqn", "env=gym", "--help").report().split())
    assert "imports `package` first (required)" in text
