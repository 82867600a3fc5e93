"""Runs from Python, and sweeps."""

import json
import logging
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from omegaconf import OmegaConf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensordict import TensorDictBase
from torchrl.data import Composite, TensorSpec

from agents import DQN
from tests.helpers.datasets import interface_of, random_episodes
from tests.helpers.environments import IdentityEnv
from tests.helpers.forks import CAN_FORK, fork_server
from tests.helpers.program import Call
from tests.helpers.training import metric_rows
from torchrl_gpu.checkpoints import state_file
from torchrl_gpu.checkpoints.checkpoint import find_checkpoint
from torchrl_gpu.datasets.dataset import write_dataset
from torchrl_gpu.errors import ConfigurationError
from trainers.run import main, run, settings_of
from trainers.runs.policy_files import load_checkpoint
from trainers.signals import Interruption
from trainers.training.trainer import TorchRLTrainer

CARTPOLE = ["agent=dqn", "env=gym", "env.name=CartPole-v1", "device=cpu"]
QUICK = [
    *CARTPOLE,
    *("trainer.total_frames=64", "trainer.random_frames=32", "trainer.evaluation_interval=32"),
    *("trainer.evaluation_episodes=2", "trainer.checkpoint_interval=32", "evaluation.episodes=2"),
]

ZERO = ["mode=eval", "agent=zero", "env=gym", "env.name=CartPole-v1"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run, which no test changes."""
    return run(*QUICK, f"runs={tmp_path_factory.mktemp('trained')}").folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy of the folder."""
    return Path(shutil.copytree(trained, tmp_path / "copy"))


def test_run_returns_its_outcome_and_goes_on_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = f"runs={tmp_path}"
    threads = torch.get_num_threads()
    running = set(threading.enumerate())
    outcome = run(*QUICK, runs, f"threads={threads + 1}")
    assert torch.get_num_threads() == threads, "the threads of the caller"
    assert outcome.folder.parent == tmp_path / "gym" / "CartPole-v1" / "dqn"
    assert list(outcome.evaluations) == [32, 64]
    assert outcome.newest == outcome.folder / "checkpoints" / "frames_000000000064.safetensors"
    assert outcome.best is not None
    assert outcome.best.is_file()
    assert outcome.evaluation.episodes == 2
    assert outcome.seconds > 0.0
    assert "checkpoint   " in outcome.report
    begun = set(threading.enumerate()) - running
    assert "_AsyncWriterThread" not in {type(thread).__name__ for thread in begun}, "open log"
    assert capsys.readouterr().out == ""

    load = mock.Mock(wraps=state_file.load_state)
    monkeypatch.setattr("trainers.runs.policy_files.load_state", load)
    resumed = run(f"checkpoint={outcome.folder}", "trainer.total_frames=96", "device=cpu", runs)
    assert resumed.folder == outcome.folder
    assert list(resumed.evaluations) == [32, 64, 96]
    read = [mock.call(outcome.newest), mock.call(resumed.best)]
    assert load.mock_calls == read, "each checkpoint is read once"

    evaluated = run("mode=eval", f"checkpoint={resumed.best}", "device=cpu", runs)
    assert evaluated.evaluation == resumed.evaluation
    assert evaluated.seconds > 0.0
    assert load.mock_calls == [*read, mock.call(resumed.best)]
    demo = ("mode=demo", "demo.episodes=1", "demo.video=gif", "device=cpu", runs)
    filmed = run(f"checkpoint={resumed.best}", *demo)
    assert filmed.film is not None
    events = EventAccumulator(str(filmed.film.parent)).Reload()
    (image,) = events.Images("demo")
    assert image.encoded_image_string == filmed.film.read_bytes()
    assert resumed.best is not None
    assert resumed.best.stem == f"frames_{image.step:012d}"


def begin(seed: int, runs: Path, together: Barrier) -> None:
    together.wait()
    run(*QUICK, f"seed={seed}", f"runs={runs}")


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        ("metrics.csv", "metrics.csv is not a metrics file"),
        ("checkpoints/*_replay*", "_replay.safetensors is truncated or damaged"),
        (None, "agent.demonstrations=.*: its actions have shape"),
    ],
)
def test_refusals_precede_the_announcement_of_the_replay(
    damaged: str | None,
    said: str,
    folder: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    arguments = [f"checkpoint={folder}", "trainer.total_frames=96", "device=cpu"]
    if damaged is None:
        interface = interface_of()  # with continuous actions
        write_dataset(tmp_path / "data", random_episodes(interface), interface, "lerobot")
        arguments.append(f"agent.demonstrations={tmp_path / 'data'}")
    else:
        max(folder.glob(damaged)).write_text("mine")
    with pytest.raises(ConfigurationError, match=said):
        run(*arguments)
    assert "the replay needs" not in caplog.text


@pytest.mark.skipif(not CAN_FORK, reason="needs fork, without which torch loads anew")
def test_runs_of_processes_that_begin_at_once_are_whole(tmp_path: Path) -> None:
    count = 4
    server = fork_server()
    together = server.Barrier(count)
    begun = [server.Process(target=begin, args=(seed, tmp_path, together)) for seed in range(count)]
    for process in begun:
        process.start()
    for process in begun:
        process.join()
    assert [process.exitcode for process in begun] == [0] * count
    folders = list((tmp_path / "gym" / "CartPole-v1" / "dqn").iterdir())
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in folders]
    assert sorted(summary["seed"] for summary in summaries) == list(range(count))
    for folder, summary in zip(folders, summaries, strict=True):
        state = load_checkpoint(find_checkpoint(folder))
        assert (state["frames"], state["config"]["seed"]) == (64, summary["seed"])
        assert OmegaConf.load(folder / "config.yaml").seed == summary["seed"]
        assert [int(row["frames"]) for row in metric_rows(folder)] == [32, 64]


class GreedyEnv(IdentityEnv):
    """Needs more memory for many environments than there is."""

    def __init__(self, num_envs: int = 16, fits: int = 16) -> None:
        if num_envs > fits:
            raise MemoryError(f"{num_envs} environments")
        super().__init__(num_envs)


def test_a_closing_evaluation_that_fails_loses_nothing(tmp_path: Path) -> None:
    arguments = [
        *("agent=ppo", f"env._target_={__name__}.GreedyEnv", "device=cpu", f"runs={tmp_path}"),
        *("agent.rollout_length=4", "trainer.total_frames=64", "trainer.evaluation_episodes=16"),
        *("trainer.show_progress=false", "evaluation.episodes=20"),
    ]
    with pytest.raises(MemoryError):
        run(*arguments)
    (folder,) = tmp_path.glob("*/*/*")
    resumed = (f"checkpoint={folder}", "env.fits=20", "trust=tests")
    outcome = run(*resumed, "device=cpu", f"runs={tmp_path}")
    assert outcome.folder == folder
    assert list(outcome.evaluations) == [64]
    summary = json.loads((folder / "summary.json").read_text(), parse_constant=pytest.fail)
    assert summary["episodes"] == 20
    assert [row["frames"] for row in metric_rows(folder)] == ["64"]


class FailingEnv(IdentityEnv):
    """Fails in a step."""

    def __init__(self, num_envs: int = 2, step: int = 30) -> None:
        super().__init__(num_envs)
        self.left = step

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.left -= 1
        if self.left == 0:
            raise OSError("the robot is off")
        return super()._step(tensordict)


@pytest.mark.slow
def test_an_error_in_training_shows_how_to_resume(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = f"env._target_={__name__}.FailingEnv"
    quick = ("agent.rollout_length=4", "compile=off", "device=cpu")
    with pytest.raises(OSError, match="the robot is off"):
        run("agent=ppo", env, *quick, f"runs={tmp_path}")
    (folder,) = tmp_path.glob("*/*/*")
    last = caplog.messages[-1]
    assert last.startswith("to resume from the newest checkpoint:\n  python -m trainers.run ")
    assert f" checkpoint={folder} trust=tests device=cpu" in last


def test_an_evaluated_run_that_trains_may_replace_its_best_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = find_checkpoint(folder, best=True)
    (other,) = {*folder.glob("checkpoints/frames_000000000??[24].safetensors")} - {best}

    def load(path: Path) -> object:
        if best.exists():
            best.unlink()  # by the run
            (best.parent / "best.json").unlink()
        return load_checkpoint(path)

    monkeypatch.setattr("trainers.command_line.origin.load_checkpoint", load)
    settings = settings_of("mode=eval", f"checkpoint={folder}", "device=cpu")
    assert settings.checkpoint == other
    with pytest.raises(ConfigurationError, match="not found"):
        settings_of("mode=eval", f"checkpoint={best}", "device=cpu")


def test_a_run_is_not_resumed_with_fewer_frames_than_it_has(trained: Path) -> None:
    for frames in (16, 48):  # before the first update, and after it
        with pytest.raises(ConfigurationError) as error:
            settings_of(f"checkpoint={trained}", f"trainer.total_frames={frames}", "device=cpu")
        said = f"trainer.total_frames={frames}: the run has 64 frames already; give more"
        assert str(error.value) == said
    settings_of(f"checkpoint={trained}", "trainer.total_frames=64", "device=cpu")


@pytest.mark.parametrize("frames", [32, 64])
def test_a_run_that_has_reached_its_score_goes_on_by_the_command_it_prints(
    frames: int, tmp_path: Path
) -> None:
    end = (f"trainer.total_frames={frames}", "trainer.random_frames=16", "trainer.stop_at_score=1")
    command = [*QUICK, f"runs={tmp_path}", *end, "resume=auto"]
    ended = run(*command)
    assert list(ended.evaluations) == [32]
    longer = "trainer.total_frames=96"
    for typed in ([longer], [longer, "trainer.stop_at_score=2"]):
        with pytest.raises(ConfigurationError, match=r"stop_at_score=[12]: the run has reached "):
            settings_of(f"checkpoint={ended.folder}", *typed, "device=cpu")
    again = run(*command).report
    printed = shlex.split(again[again.index("checkpoint=") :])
    assert list(run(*printed).evaluations) == [32, 64]


class EightEnvs(IdentityEnv):
    """Environments whose number is not a setting."""

    def __init__(self) -> None:
        super().__init__(num_envs=8)


class SmallDQN(DQN):
    """Agent of settings that are not those of the command."""

    def __init__(self, observation_spec: Composite, action_spec: TensorSpec, device: torch.device):
        super().__init__(observation_spec, action_spec, device, batch_size=8)


def test_an_agent_may_lack_settings(tmp_path: Path) -> None:
    agent = (f"agent._target_={__name__}.SmallDQN", "env=gym", "env.name=CartPole-v1")
    assert "batch_size" not in settings_of(*agent, "device=cpu", f"runs={tmp_path}").agent.settings


def test_a_run_of_any_class_that_has_passed_its_length_is_not_refused(tmp_path: Path) -> None:
    arguments = [
        "agent=sac",
        f"env._target_={__name__}.EightEnvs",
        *QUICK[3:],
        "trainer.total_frames=68",
        f"runs={tmp_path}",
        "resume=auto",
    ]
    ended = run(*arguments)
    assert list(ended.evaluations) == [32, 64, 72]
    again = run(*arguments)
    assert (again.folder, again.evaluations) == (ended.folder, ended.evaluations)
    with pytest.raises(ConfigurationError, match="the run has 72 frames already; give more"):
        settings_of(f"checkpoint={ended.folder}", "trust=tests", "trainer.total_frames=70")


def test_command_to_resume_keeps_the_name_of_the_program_and_device_and_limits(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    program: Call,
    tmp_path: Path,
) -> None:
    collect = TorchRLTrainer.collect

    def interrupt(trainer: TorchRLTrainer) -> TensorDictBase:
        signal.raise_signal(signal.SIGINT)
        return collect(trainer)

    machine = ["device=cpu", "device_memory_limit=0.9", "threads=2"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/torchrl-gpu", *QUICK, *machine])
    with monkeypatch.context() as patched:
        patched.setattr(TorchRLTrainer, "collect", interrupt)
        assert main() == 130
    command = capfd.readouterr().out.splitlines()[-1]
    (folder,) = Path("runs/gym/CartPole-v1/dqn").iterdir()
    assert command == f"  torchrl-gpu checkpoint={folder} {' '.join(machine)}"
    assert program(*shlex.split(command.removeprefix("  torchrl-gpu "))).code == 0
    made = OmegaConf.load(folder / "config.yaml")
    assert (made.device, made.device_memory_limit, made.threads) == ("cpu", 0.9, 2)
    assert made.versions.torch == version("torch")
    assert made.versions["torchrl-gpu"] == version("torchrl-gpu")
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["agent"], summary["env"], summary["seed"]) == ("dqn", "gym/CartPole-v1", 0)


def test_run_works_in_a_thread(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        outcome = pool.submit(run, *QUICK, f"runs={tmp_path}").result()
    assert outcome.best is not None


def test_settings_are_read_in_several_threads_at_once() -> None:
    seeds = range(4)
    with ThreadPoolExecutor(max_workers=4) as pool:
        read = pool.map(lambda seed: settings_of(*CARTPOLE, f"seed={seed}"), seeds)
    assert [settings.general.seed for settings in read] == list(seeds)


def test_general_setting_follows_that_of_a_section() -> None:
    settings = settings_of(*CARTPOLE, "threads=${env.num_envs}", "env.num_envs=2")
    assert settings.general.threads == 2


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("CartPole-v1", "gym/CartPole-v1"),
        ("package.envs:Arm-v0", "gym/Arm-v0"),
        ("ALE/Pong-v5", "gym/ALE/Pong-v5"),
        ("/../my arm 2*", "gym/my_arm_2_"),
        ("../..", "gym"),
    ],
)
def test_folder_of_runs_names_the_environment(name: str, folder: str) -> None:
    settings = settings_of(*CARTPOLE, "runs=mine")
    settings = replace(settings, env=settings.env.replaced(name=name))
    assert settings.folder == Path("mine", folder, "dqn")


@pytest.mark.parametrize("function", [run, settings_of])
def test_bad_settings_are_raised(function: object) -> None:
    with pytest.raises(ConfigurationError, match=r"^unknown agent sacc; choose one of: ac_iqn"):
        function("agent=sacc", "env=fanuc")  # type: ignore[operator]


@pytest.mark.parametrize("argument", [["agent=sac", "env=fanuc"], {"agent": "sac"}, None])
def test_settings_that_are_not_separate_texts_are_refused(argument: Any) -> None:
    said = re.escape(f'{argument}: each setting is a separate argument, as in run("agent=sac", "')
    with pytest.raises(ConfigurationError, match=f"^{said}"):
        run(argument)


def test_mistyped_settings_and_help_are_answered_without_torch() -> None:
    cases = [
        (["agent=sacc", "env=fanuc"], "error: unknown agent sacc; choose"),
        (["agent=sac", "env=fanuc", "agent.learnig_rate=1"], "did you mean learning_rate?"),
        (["agent=sac", "env=fanuc", "seeds=3"], "seeds: unknown setting; did you mean seed?"),
        (["agent=sac", "env=fanuc", "gamma=0.9"], "gamma: unknown setting; did you mean agent.ga"),
        (["agent=sac", "env=gym"], "env.name: GymnasiumEnv needs this setting: Gymnasium id "),
        (["agent=sac", "env=lift_cube", "env.arm.hamd=x"], "env.arm.hamd: Arm has no such setting"),
        (["agent=sac", "env=fanuc", "demo.video=avi"], "demo.video=avi: input should be 'mp4'"),
        (["agent=sac", "env=fanuc", "--help"], ""),
        (["agent=ppo", "env=gym", "env.name=CartPole-v1", "--help"], ""),
    ]
    code = f"""if True:
        import contextlib, io, sys
        from trainers.run import main

        for arguments, said in {cases}:
            sys.argv[1:] = arguments
            with contextlib.redirect_stderr(io.StringIO()) as errors:
                code = main()
            assert said in errors.getvalue(), (arguments, errors.getvalue())
            assert code == (2 if said else 0), (arguments, code)
            assert "torch" not in sys.modules and "numpy" not in sys.modules, arguments
        """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_garbage_collection_goes_on_after_the_imports_of_a_run() -> None:
    code = """if True:
        import gc, sys
        from trainers.run import settings_of

        settings_of("agent=sac", "env=fanuc", "device=cpu")
        assert "trainers.modes.train" in sys.modules
        assert gc.isenabled() and gc.get_freeze_count()
        """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_values_have_the_types_that_were_typed() -> None:
    settings = settings_of(
        *("agent=sac", "env=fanuc", "device=cpu", "agent.hidden_sizes=[64,32]"),
        *("agent.learning_rate=1e-4", "trainer.total_frames=10_000", "runs=my runs, (old)"),
        *("agent.learning_rate_end=0.0", "agent.learning_rate_frames=${trainer.total_frames}"),
        "observation_keys=[observation]",
    )
    assert settings.agent.settings["hidden_sizes"] == [64, 32]
    assert settings.agent.settings["learning_rate"] == 1e-4
    assert settings.agent.settings["learning_rate_frames"] == 10_000
    assert settings.config["agent"]["learning_rate_frames"] == "${trainer.total_frames}"
    assert settings.general.runs == Path("my runs, (old)")
    assert settings.config["observation_keys"] == ["observation"]


def test_settings_without_effect_are_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ppo = ["agent=ppo", *QUICK[1:], "experiment=null", "agent.rollout_length=4", f"runs={tmp_path}"]
    run(*ppo, "agent.log_std_init=-1")
    assert [line for line in caplog.messages if "no effect" in line] == [
        "trainer.random_frames: no effect with PPO, which learns on-policy",
        "agent.log_std_init=-1.0: no effect with discrete actions",
    ]


def test_failed_run_of_a_sweep_does_not_end_the_others(tmp_path: Path, program: Call) -> None:
    varied = ["seed=range(1,4)", "agent.gamma=0.9,1.7", "-m"]
    code, output, errors = program(*QUICK, *varied)
    assert code == 2
    titles = [line for line in output.splitlines() if line.startswith("run ")]
    assert titles == [f"run {2 * seed - 1} of 6: seed={seed} agent.gamma=0.9" for seed in (1, 2, 3)]
    refused = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert [line.partition("agent.gamma=1.7: input")[0] for line in refused] == [
        f"error: run {2 * seed} of 6: seed={seed} agent.gamma=1.7: " for seed in (1, 2, 3)
    ]
    runs = list((tmp_path / "runs" / "gym" / "CartPole-v1" / "dqn").iterdir())
    seeds = {OmegaConf.select(OmegaConf.load(run / "config.yaml"), "seed") for run in runs}
    assert seeds == {1, 2, 3}
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    header, _, *rows = (re.split("  +", line) for line in output.splitlines()[-8:])
    assert header == ["seed", "agent.gamma", "result", "folder"]
    assert [row[:2] for row in rows] == [[str(n), g] for n in (1, 2, 3) for g in ("0.9", "1.7")]
    assert [row[2:] for row in rows[1::2]] == [["refused"]] * 3
    assert {row[3] for row in rows[::2]} == {str(run.relative_to(tmp_path)) for run in runs}
    assert all(re.fullmatch(r"return \S+, \S+ steps, 2 episodes", row[2]) for row in rows[::2])


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [(QUICK, "\nTo go on with the sweep, repeat its command with resume=auto."), (ZERO, "")],
)
def test_an_interrupted_sweep_says_how_to_go_on(
    arguments: list[str], hint: str, monkeypatch: pytest.MonkeyPatch, program: Call
) -> None:
    stop = Interruption(signal.SIGTERM, "Stopped at 48 frames.")
    monkeypatch.setattr("trainers.run._begin", mock.Mock(side_effect=stop))
    code, output, _ = program(*arguments, "-m", "seed=1,2")
    assert code == 75
    assert output.endswith(f"not finished\n2     not finished\nStopped at 48 frames.{hint}\n")


def test_runs_of_a_sweep_all_begin_with_the_same_checkpoint(
    trained: Path, tmp_path: Path, program: Call
) -> None:
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    arguments = [f"checkpoint={trained}", "trainer.total_frames=96", "device=cpu"]
    assert program(*arguments, "agent.learning_rate=1e-4,1e-2", "-m").code == 0
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before
    rates = []
    for folder in tmp_path.glob("runs/gym/CartPole-v1/dqn/*"):
        assert [row["frames"] for row in metric_rows(folder)] == ["96"]
        state = load_checkpoint(find_checkpoint(folder))
        rates.append(state["config"]["agent"]["learning_rate"])
    assert sorted(rates) == [1e-4, 1e-2]


def test_unexpected_error_while_a_sweep_is_checked_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch, program: Call
) -> None:
    def resolve_device(name: str) -> torch.device:
        if name == "cuda":
            raise RuntimeError("driver")
        return torch.device(name)

    monkeypatch.setattr("trainers.command_line.checking.resolve_device", resolve_device)
    arguments = [text for text in QUICK if text != "device=cpu"]
    code, output, errors = program(*arguments, "device=cuda,cpu", "-m")
    assert code == 1
    assert "RuntimeError: driver" in errors
    assert re.search(
        r"Trained for 64 frames in .* s, building and closing evaluation included\.", output
    )


def test_an_exception_of_the_program_is_shown_with_all_frames(
    monkeypatch: pytest.MonkeyPatch, program: Call
) -> None:
    monkeypatch.setattr("trainers.command_line.checking.resolve_device", None)
    ended = program(*QUICK)
    assert ended.code == 1
    assert ended.err.startswith("Traceback")
    assert "in settings_of" in ended.err
    assert "in check" in ended.err


def test_configuration_of_a_command_is_printed(
    monkeypatch: pytest.MonkeyPatch, program: Call
) -> None:
    printed = OmegaConf.create(program(*CARTPOLE, "seed=3", "--cfg", "job").report())
    assert (printed.seed, printed.mode, printed.device) == (3, "train", "cpu")
    assert printed.agent.n_step == 20
    assert (printed.experiment, printed.demo.episodes) == ("CartPole-v1/dqn", 8)
    output = program(*CARTPOLE, "-m", "seed=3,4", "--cfg", "job").report()
    printed_runs = [OmegaConf.create(run) for run in output.split("\n---\n")]
    assert [run.seed for run in printed_runs] == [3, 4]
    root = logging.getLogger()  # Hydra prints by a handler that stays
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    output = program(*CARTPOLE, "-m", "seed=3,4", "--info", "defaults-tree").report()
    assert "CartPole-v1/_replay" in output
