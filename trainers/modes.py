"""Modes of the program: train, evaluate, film."""

import json
import logging
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Any

import torch
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase

from agents.base import Agent
from agents.untrained import UntrainedAgent
from torchrl_gpu.arguments import AS_TYPED, parameters_of
from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder
from torchrl_gpu.checkpoints.contents import reading
from torchrl_gpu.checkpoints.files import discard, new_file, write_text
from torchrl_gpu.devices.device import describe_device
from torchrl_gpu.devices.host import cpu_threads, keep_freed_memory
from torchrl_gpu.devices.memory import limited_memory
from torchrl_gpu.devices.seeding import Stream, seed_everything, stream_seed
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.environment import Environment
from torchrl_gpu.environments.specs import action_spec, observation_spec
from torchrl_gpu.errors import ConfigurationError, ProcessLostError
from torchrl_gpu.execution.execution import EAGER
from torchrl_gpu.processes import ONE_PROCESS, Processes
from trainers.collecting.collectors import Collectors
from trainers.command_line.schema import GeneralSettings, Mode
from trainers.command_line.settings import Settings
from trainers.components.choices import choices_of, path_of
from trainers.components.component import Component
from trainers.components.pairing import capabilities_of, pair
from trainers.components.sections import TARGET
from trainers.components.trust import trust_arguments
from trainers.evaluation.evaluation import Evaluation, Evaluator, evaluations_of
from trainers.evaluation.film import film
from trainers.nonfinite import NonfiniteError
from trainers.runs.folders import check_writable, results_folder, run_folder
from trainers.runs.loggers import log_film
from trainers.runs.policy_files import build_agent, load_checkpoint, restore_policy
from trainers.signals import Interruption, cleans_up, stops
from trainers.training.progress import ProgressDisplay, human_time
from trainers.training.summary import transfers_line, write_summary
from trainers.training.trainer import TorchRLTrainer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunOutcome:
    """What a call of the program has reached.

    Attributes:
        folder: run folder, or folder of the evaluation or the film.
        seconds: duration of the call in seconds.
        evaluation: result of the best checkpoint after training, of the evaluated policy, or of
            the filmed episodes.
        report: result as lines of text.
        evaluations: evaluations during the training, by number of frames.
        newest: newest checkpoint of the run; None without training.
        best: checkpoint of the best evaluation, or the newest one without evaluations; None without
            training.
        film: path of the film; None if none was made.
    """

    folder: Path
    seconds: float
    evaluation: Evaluation
    report: str
    evaluations: Mapping[int, Evaluation] = field(default_factory=dict)
    newest: Path | None = None
    best: Path | None = None
    film: Path | None = None


def run_mode(settings: Settings, processes: Processes = ONE_PROCESS) -> RunOutcome:
    """Train, evaluate or film with checked settings: see `trainers.run.run`.

    Args:
        settings: settings of this process.
        processes: processes that train together; all of them return the same outcome.
    """
    keep_freed_memory()
    with (
        cleans_up(),
        cpu_threads(settings.general.threads),
        limited_memory(settings.device, settings.memory_limit),
    ):
        if settings.general.mode == "train":
            return _train(settings, processes)
        return (_evaluate if settings.general.mode == "eval" else _film)(settings)


def _train(settings: Settings, processes: Processes) -> RunOutcome:
    """Train from scratch or resume; evaluate the best checkpoint and write a summary."""
    resumed = settings.checkpoint if settings.in_place else None
    if resumed is not None and settings.general.resume is not None:
        outcome = _ended(resumed, settings)
        if outcome is not None:
            return outcome
    with _shared_folder(settings, resumed, processes) as folder:
        try:
            return _train_in(folder, settings, processes)
        except ProcessLostError as error:
            resume = command_of(settings, f"checkpoint={folder}")
            raise ProcessLostError(f"{error}; to resume: {resume}") from error
        except KeyboardInterrupt as stop:
            newest = CheckpointFolder(folder / "checkpoints").latest()
            if str(stop) or not (folder / "config.yaml").exists():  # not begun
                raise
            if newest is None:
                message = "\nEnded at once. Nothing has been saved yet."
                raise Interruption.of(stop, message) from None
            resume = command_of(settings, f"checkpoint={folder}")
            message = f"\nEnded at once. To resume from {newest.name}:\n  {resume}"
            raise Interruption.of(stop, message) from None


@contextmanager
def _shared_folder(
    settings: Settings, resumed: Path | None, processes: Processes
) -> Iterator[Path]:
    """Hold the folder of a run in the process of rank 0; yield it in all processes."""
    if not processes.is_writer:
        yield processes.agree(None)
        return
    with run_folder(settings.folder, resumed, settings.damaged) as folder:
        yield processes.agree(folder)


def _train_in(folder: Path, settings: Settings, processes: Processes) -> RunOutcome:
    started = time.perf_counter()
    seed_everything(settings.general.seed, processes.rank)
    with (
        closing(training_env(settings, processes)) as env,
        closing(_evaluator(settings)) as evaluator,
        closing(_build_trainer(settings, env, evaluator, folder, processes)) as trainer,
    ):
        name = type(trainer.agent).__name__
        logger.info("%s on %s, into %s", name, describe_device(settings.device), folder)
        with stops(trainer) as signals:
            if processes.is_writer:
                write_text(folder / "config.yaml", settings.of_run())
                discard(folder / "summary.json")  # of the run as it ended before
            try:
                trainer.train()
            except NonfiniteError:  # would happen again
                raise
            except Exception:
                if processes.count == 1 and trainer.checkpoints.latest() is not None:
                    resume = command_of(settings, f"checkpoint={folder}")
                    logger.warning("to resume from the newest checkpoint:\n  %s", resume)
                raise
        if processes.any(trainer.stop_requested):  # perhaps of another one alone
            raise Interruption(
                next(iter(signals), signal.SIGINT),
                f"\nStopped at {trainer.frames:,} frames; saved. To resume:\n"
                f"  {command_of(settings, f'checkpoint={folder}')}",
            )
        # Others may lack an evaluation that was made before they joined the run.
        best = processes.agree(trainer.checkpoints.best()) or trainer.save()
    # The others wait as long as the evaluation takes.
    patient = processes.apart(timedelta(days=1))
    if not processes.is_writer:
        ended: RunOutcome | int = patient.agree(None)
        if isinstance(ended, int):
            raise Interruption(ended)
        return ended
    # With a new environment and policy, as `mode=eval` does; those of the training are closed.
    try:
        result = _evaluation(replace(settings, checkpoint=best, state=None))
    except KeyboardInterrupt as stop:
        evaluate = command_of(settings, "mode=eval", f"checkpoint={folder}")
        message = f"\nTrained for {trainer.frames:,} frames; saved. To evaluate:\n  {evaluate}"
        interruption = Interruption.of(stop, message)
        with suppress(ProcessLostError):  # the others may have ended by the same signal
            patient.agree(interruption.number)
        raise interruption from None
    seconds = time.perf_counter() - started
    names = {"agent": settings.config["choices"]["agent"], "env": settings.env_name}
    write_summary(trainer, result, **names, seconds=seconds, ended=True)
    lines = [f"\nTrained for {trainer.frames:,} frames in {human_time(seconds)}."]
    lines += [f"  result       {result}", f"  checkpoint   {best}"]
    if env.capabilities.can_render:
        lines.append(f"  watch it     {command_of(settings, 'mode=demo', f'checkpoint={folder}')}")
    if "tensorboard" in settings.trainer.settings["loggers"]:
        lines.append(f"  curves       {shlex.join(['tensorboard', '--logdir', str(folder)])}")
    lines.append(f"  updates      {settings.execution.description}")
    lines.append(f"  copies       {transfers_line(trainer.collector)}")
    if trainer.tracer is not None and trainer.tracer.path is not None:
        lines.append(f"  trace        {trainer.tracer.path}, for https://ui.perfetto.dev")
    if trainer.profiler is not None:
        lines += ["  time", indent(trainer.profiler.table(), "    ")]
    outcome = RunOutcome(
        folder,
        seconds,
        result,
        "\n".join(lines),
        evaluations=trainer.evaluations,
        newest=trainer.checkpoints.latest(),
        best=best,
    )
    patient.agree(outcome)
    return outcome


def _ended(newest: Path, settings: Settings) -> RunOutcome | None:
    """Return the outcome of a run that has ended by itself; None if there is something left.

    Args:
        newest: newest checkpoint of the run.
        settings: settings of the command, which are those of the run.
    """
    folder = newest.parent.parent
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        if summary["ended"] is not True:
            return None
        result = Evaluation(**{each.name: summary.get(each.name) for each in fields(Evaluation)})
        frames = f"trainer.total_frames={2 * summary['frames']}"
        longer = command_of(settings, f"checkpoint={folder}", frames)
        lines = [f"\nTrained already, for {summary['frames']:,} frames, into {folder}"]
        lines += [f"  result       {result}", f"  train longer {longer}"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    state = settings.state or load_checkpoint(newest)
    with reading(newest):
        evaluations = evaluations_of(state)
    return RunOutcome(
        folder,
        0.0,
        result,
        "\n".join(lines),
        evaluations=evaluations,
        newest=newest,
        best=CheckpointFolder(newest.parent).best() or newest,
    )


def _evaluate(settings: Settings) -> RunOutcome:
    """Evaluate a policy in the evaluation mode of its environment; write the result."""
    started = time.perf_counter()
    folder = _prepared_folder(settings, "evaluations")
    result = _evaluation(settings)
    if settings.checkpoint is not None:
        origin: dict[str, Any] = {"checkpoint": str(settings.checkpoint)}
    else:  # all settings that count
        config = settings.config
        origin = {"agent": config["choices"]["agent"], "env": config["env"], "seed": config["seed"]}
    with new_file(folder / f"{time.strftime('%Y%m%d_%H%M%S')}.json") as path:
        write_text(path, json.dumps({**origin, **asdict(result)}, indent=2))
    report = f"{_title(settings)}\n  {result}\n  written to {path}"
    return RunOutcome(folder, time.perf_counter() - started, result, report)


def _evaluation(settings: Settings) -> Evaluation:
    """Evaluate the policy, eagerly and in float32, as policy files act."""
    seed_everything(settings.general.seed)
    seed = stream_seed(settings.general.seed, "evaluation")
    with closing(_evaluator(settings)) as evaluator:
        policy = _policy(settings, evaluator.env)
        with ProgressDisplay(evaluator.episodes, unit="episodes") as display:
            return evaluator.evaluate(policy, settings.device, seed=seed, progress=display.update)


def _film(settings: Settings) -> RunOutcome:
    """Film a policy; an environment may also show it live if there is a display."""
    started = time.perf_counter()
    folder = _prepared_folder(settings, "videos")
    with closing(_build_env(settings, "demo", num_envs=settings.demo["num_envs"])) as env:
        policy = _policy(settings, env)
        seed = stream_seed(settings.general.seed, "demo")
        made = film(env, policy, settings.device, folder, **settings.demo, seed=seed)
    is_gif, loggers = made.path.suffix == ".gif", settings.trainer.settings["loggers"]
    if settings.checkpoint is not None and is_gif and "tensorboard" in loggers:
        state = settings.state or load_checkpoint(settings.checkpoint)
        log_film(made.path, state.get("frames", 0))
    report = f"Filmed {_title(settings)}\n  {made}\n  {made.path}"
    seconds = time.perf_counter() - started
    return RunOutcome(folder, seconds, made.evaluation, report, film=made.path)


_STREAMS: dict[Mode, Stream] = {"train": "training", "eval": "evaluation", "demo": "demo"}


def _prepared_folder(settings: Settings, name: str) -> Path:
    """Seed all random numbers, and return a folder for results that is writable."""
    folder = results_folder(settings.folder, settings.checkpoint) / name
    check_writable(folder)
    seed_everything(settings.general.seed)
    return folder


def training_env(settings: Settings, processes: Processes = ONE_PROCESS) -> Environment:
    """Return the environment of a process that trains, or the facade of those of its collectors."""
    collectors: Collectors = settings.collectors.build()
    seed = stream_seed(settings.general.seed, "training", rank=processes.rank)
    if collectors.is_remote:
        settings = replace(settings, device=torch.device("cpu"), execution=EAGER, state=None)
    build = partial(_build_env_of_collector, settings)
    return collectors.environment(build, settings.env.settings.get("num_envs"), seed, processes)


def _build_env_of_collector(settings: Settings, num_envs: int | None, seed: int) -> Environment:
    replaced = {} if num_envs is None else {"num_envs": num_envs}
    return _build_env(settings, "train", seed, **replaced)


def _build_env(
    settings: Settings, mode: Mode, seed: int | None = None, **replaced: int
) -> Environment:
    """Build the environment for a mode, with some settings replaced, by the seed of the mode."""
    if seed is None:
        seed = stream_seed(settings.general.seed, _STREAMS[mode])
    component = settings.env.replaced(**replaced)
    env: EnvBase = component.build(mode=mode, device=settings.device, seed=seed)
    try:
        paired = pair(env, settings.agent.target)
        observation_spec(paired, settings.general.observation_keys)
    except ConfigurationError:
        env.close()
        raise
    paired.set_seed(seed)
    return paired


def _evaluator(settings: Settings) -> Evaluator:
    limit = capabilities_of(settings.env, settings.device).max_evaluation_envs

    def build(num_envs: int) -> EnvBase:
        return _build_env(settings, "eval", num_envs=num_envs)

    return Evaluator(build, limit=limit, **settings.evaluation)


def _build_agent(settings: Settings, env: EnvBase) -> Agent | UntrainedAgent:
    observations = observation_spec(env, settings.general.observation_keys)
    path = settings.checkpoint
    return build_agent(settings.agent, observations, action_spec(env), settings.device, path)


def _build_trainer(
    settings: Settings, env: EnvBase, evaluator: Evaluator, folder: Path, processes: Processes
) -> TorchRLTrainer:
    """Build agent and trainer; load the checkpoint to resume."""
    agent = _build_agent(settings, env)
    assert isinstance(agent, Agent)
    agent.join(processes)
    trainer: TorchRLTrainer = settings.trainer.build(
        env,
        agent,
        folder,
        evaluation_env=evaluator,
        config=settings.config,
        execution=settings.execution,
        seed=settings.general.seed,
    )
    if settings.checkpoint is not None:
        trainer.load(settings.checkpoint, settings.state)
    return trainer


def _policy(settings: Settings, env: EnvBase) -> TensorDictModuleBase:
    """Build the policy of the agent; load the checkpoint if the agent learns."""
    agent = _build_agent(settings, env)
    if isinstance(agent, Agent):
        assert settings.checkpoint is not None
        restore_policy(settings.checkpoint, agent, settings.state, as_environment(env))
    return agent.policy


def _title(settings: Settings) -> str:
    """Return the checkpoint, or without one the names of agent and environment."""
    choices = settings.config["choices"]
    return str(settings.checkpoint or f"agent={choices['agent']} env={choices['env']}")


def command_of(settings: Settings, *arguments: str) -> str:
    """Return a command as it is typed, with the settings for the machine that differ.

    Only a training has several devices, and collectors.
    """
    trains = not any(argument.startswith("mode=") for argument in arguments)
    defaults = GeneralSettings().of_machine()
    kept = [
        f"{name}={AS_TYPED.get(str(value), value)}"
        for name, value in settings.general.of_machine().items()
        if value != defaults[name] and (trains or name != "devices")
    ]
    kept += _collectors_as_typed(settings.collectors) if trains else []
    script = "torchrl-gpu"
    program = script if Path(sys.argv[0]).stem == script else "python -m trainers.run"
    return f"{program} {shlex.join([*arguments, *trust_arguments(settings.config), *kept])}"


def _collectors_as_typed(collectors: Component) -> list[str]:
    """Return the settings of collectors that differ from the default as they are typed."""
    known = {path_of("collectors", choice): choice for choice in choices_of("collectors")}
    choice = known.get(collectors.path)
    chosen = f"collectors={choice}" if choice else f"collectors.{TARGET}={collectors.path}"
    defaults = parameters_of(collectors.target)
    differing = [
        f"collectors.{name}={AS_TYPED.get(str(value), value)}"
        for name, value in collectors.settings.items()
        if value != defaults[name].default
    ]
    return differing if choice == "local" else [chosen, *differing]
