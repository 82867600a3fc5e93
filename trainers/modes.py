"""Modes of the program: train, evaluate, film."""

import json
import logging
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from textwrap import indent
from types import FrameType
from typing import Any

from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase

from agents.base import Agent
from agents.untrained import UntrainedAgent
from torchrl_gpu.arguments import AS_TYPED
from torchrl_gpu.checkpoints.files import new_file, write_text
from torchrl_gpu.devices.device import describe_device
from torchrl_gpu.devices.host import cpu_threads, keep_freed_memory
from torchrl_gpu.devices.memory import limited_memory
from torchrl_gpu.devices.seeding import Stream, seed_everything, stream_seed
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.environment import Environment
from torchrl_gpu.environments.specs import action_spec, observation_spec
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.processes import ONE_PROCESS, Processes
from trainers.command_line.schema import GeneralSettings, Mode
from trainers.command_line.settings import Settings
from trainers.components.pairing import capabilities_of, pair
from trainers.components.trust import trust_arguments
from trainers.evaluation.evaluation import Evaluation, Evaluator
from trainers.evaluation.film import film
from trainers.runs.folders import check_writable, results_folder, run_folder
from trainers.runs.loggers import log_film
from trainers.runs.policy_files import build_agent, load_checkpoint, restore_policy
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


def run_mode(settings: Settings) -> RunOutcome:
    """Train, evaluate or film with checked settings: see `trainers.run.run`."""
    keep_freed_memory()
    with (
        cpu_threads(settings.general.threads),
        limited_memory(settings.device, settings.memory_limit),
    ):
        return _MODES[settings.general.mode](settings)


def _train(settings: Settings, processes: Processes = ONE_PROCESS) -> RunOutcome:
    """Train from scratch or resume; evaluate the best checkpoint and write a summary."""
    resumed = settings.checkpoint if settings.in_place else None
    with run_folder(settings.folder, resumed) as folder:
        return _train_in(folder, settings, processes)


def _train_in(folder: Path, settings: Settings, processes: Processes) -> RunOutcome:
    started = time.perf_counter()
    seed_everything(settings.general.seed, processes.rank)
    with (
        closing(_build_env(settings, "train", rank=processes.rank)) as env,
        closing(_evaluator(settings)) as evaluator,
        closing(_build_trainer(settings, env, evaluator, folder, processes)) as trainer,
    ):
        name = type(trainer.agent).__name__
        logger.info("%s on %s, into %s", name, describe_device(settings.device), folder)
        if processes.is_writer:
            write_text(folder / "config.yaml", settings.of_run())
        with _stop_on_signal(trainer):
            trainer.train()
        if trainer.stop_requested:
            raise KeyboardInterrupt(
                f"\nStopped at {trainer.frames:,} frames; saved. To resume:\n"
                f"  {_command(settings, f'checkpoint={folder}')}"
            )
        best = trainer.checkpoints.best() or trainer.save()
    # With a new environment and policy, as `mode=eval` does; those of the training are closed.
    try:
        result = _evaluation(replace(settings, checkpoint=best, state=None))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"\nTrained for {trainer.frames:,} frames; saved. To evaluate:\n"
            f"  {_command(settings, 'mode=eval', f'checkpoint={folder}')}"
        ) from None
    seconds = time.perf_counter() - started
    names = {"agent": settings.config["choices"]["agent"], "env": settings.env_name}
    write_summary(trainer, result, **names, seconds=seconds)
    lines = [f"\nTrained for {trainer.frames:,} frames in {human_time(seconds)}."]
    lines += [f"  result       {result}", f"  checkpoint   {best}"]
    if env.capabilities.can_render:
        lines.append(f"  watch it     {_command(settings, 'mode=demo', f'checkpoint={folder}')}")
    if "tensorboard" in settings.trainer.settings["loggers"]:
        lines.append(f"  curves       {shlex.join(['tensorboard', '--logdir', str(folder)])}")
    lines.append(f"  updates      {settings.execution.description}")
    lines.append(f"  copies       {transfers_line(trainer.collector)}")
    if trainer.tracer is not None and trainer.tracer.path is not None:
        lines.append(f"  trace        {trainer.tracer.path}, for https://ui.perfetto.dev")
    if trainer.profiler is not None:
        lines += ["  time", indent(trainer.profiler.table(), "    ")]
    return RunOutcome(
        folder,
        seconds,
        result,
        "\n".join(lines),
        evaluations=trainer.evaluations,
        newest=trainer.checkpoints.latest(),
        best=best,
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


_MODES: dict[Mode, Callable[[Settings], RunOutcome]] = {
    "train": _train,
    "eval": _evaluate,
    "demo": _film,
}

_STREAMS: dict[Mode, Stream] = {"train": "training", "eval": "evaluation", "demo": "demo"}


def _prepared_folder(settings: Settings, name: str) -> Path:
    """Seed all random numbers, and return a folder for results that is writable."""
    folder = results_folder(settings.folder, settings.checkpoint) / name
    check_writable(folder)
    seed_everything(settings.general.seed)
    return folder


def _build_env(settings: Settings, mode: Mode, rank: int = 0, **replaced: int) -> Environment:
    """Build the environment for a mode, with some settings replaced."""
    seed = stream_seed(settings.general.seed, _STREAMS[mode], rank=rank)
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


def _command(settings: Settings, *arguments: str) -> str:
    """Return a command as it is typed, with the settings for the machine that differ."""
    defaults = GeneralSettings().of_machine()
    kept = [
        f"{name}={AS_TYPED.get(str(value), value)}"
        for name, value in settings.general.of_machine().items()
        if value != defaults[name]
    ]
    script = "torchrl-gpu"
    program = script if Path(sys.argv[0]).stem == script else "python -m trainers.run"
    return f"{program} {shlex.join([*arguments, *trust_arguments(settings.config), *kept])}"


@contextmanager
def _stop_on_signal(trainer: TorchRLTrainer) -> Iterator[None]:
    """End training after the current step on Ctrl-C, SIGTERM or SIGHUP.

    A second Ctrl-C or SIGTERM ends it at once. A terminal that closes sends SIGHUP more than once;
    `nohup` ignores it.
    """
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none

    def stop(number: int, frame: FrameType | None) -> None:
        trainer.stop_requested = True
        again = previous[number]
        if number == hangup:
            again = signal.SIG_IGN
        elif again == signal.SIG_IGN:  # as of Ctrl-C in a job of a script that ends with `&`
            again = signal.SIG_DFL
        signal.signal(number, again)

    is_main = threading.current_thread() is threading.main_thread()  # only it can handle signals
    signals: list[int] = [signal.SIGINT, signal.SIGTERM] if is_main else []
    if is_main and hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:
        signals.append(hangup)
    previous = {number: signal.getsignal(number) for number in signals}
    for number in previous:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
