"""Mode train: train from scratch or resume, and evaluate the best checkpoint."""

import json
import logging
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from textwrap import indent

from torchrl.envs import EnvBase

from agents.base import Agent, OnPolicyAgent
from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder
from torchrl_gpu.checkpoints.contents import reading
from torchrl_gpu.checkpoints.files import discard, write_text
from torchrl_gpu.commands import command_line
from torchrl_gpu.devices.device import describe_device
from torchrl_gpu.devices.seeding import seed_everything
from torchrl_gpu.errors import ProcessLostError
from torchrl_gpu.processes import ONE_PROCESS, Processes
from torchrl_gpu.tables import human_time
from trainers.command_line.settings import Settings
from trainers.evaluation.evaluation import Evaluation, evaluations_of
from trainers.evaluation.evaluator import Evaluator
from trainers.finite_watch import NonfiniteError
from trainers.modes.building import agent_of, evaluator_of, training_env
from trainers.modes.evaluate import evaluation_of
from trainers.modes.outcome import RunOutcome, command_of
from trainers.modes.viewer_process import viewer_beside
from trainers.runs.folders import run_folder
from trainers.runs.policy_files import load_checkpoint
from trainers.signals import Interruption, handled_first, stops
from trainers.training.callbacks import Callback
from trainers.training.summary import transfers_line, write_summary
from trainers.training.trainer import TorchRLTrainer

logger = logging.getLogger(__name__)


def train(settings: Settings, processes: Processes) -> RunOutcome:
    """Train from scratch or resume; evaluate the best checkpoint and write a summary."""
    resumed = settings.checkpoint if settings.in_place else None
    if resumed is not None and settings.general.resume is not None:
        outcome = _ended(resumed, settings)
        if outcome is not None:
            return outcome
    run = run_folder(settings.folder, resumed, settings.damaged)
    with run if processes.is_writer else nullcontext() as held:
        folder: Path = processes.agree(held)
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


def _train_in(folder: Path, settings: Settings, processes: Processes) -> RunOutcome:
    started = time.perf_counter()
    seed_everything(settings.general.seed, processes.rank)
    with (
        closing(training_env(settings, processes)) as env,
        viewer_beside(settings, env, folder) if processes.is_writer else nullcontext(),
        closing(evaluator_of(settings)) as evaluator,
        closing(build_trainer(settings, env, evaluator, folder, processes)) as trainer,
    ):
        earlier = time.perf_counter() - trainer.started  # seconds of a run before it resumed
        name = type(trainer.agent).__name__
        logger.info("%s on %s, into %s", name, describe_device(settings.device), folder)
        best, patient = _train_to_the_end(trainer, settings)
    if not processes.is_writer:
        with handled_first(lambda *_: None):  # the writer says how the run has ended
            ended: RunOutcome | int = patient.agree(None)
        if isinstance(ended, int):
            raise Interruption(ended, agreed=True)
        return ended
    # With a new environment and policy, as `mode=eval` does; those of the training are closed.
    try:
        result = evaluation_of(replace(settings, checkpoint=best, state=None))
    except KeyboardInterrupt as stop:
        evaluate = command_of(settings, "mode=eval", f"checkpoint={folder}")
        message = f"\nTrained for {trainer.frames:,} frames; saved. To evaluate:\n  {evaluate}"
        interruption = Interruption.of(stop, message)
        with suppress(ProcessLostError):  # the others may have ended by the same signal
            patient.agree(interruption.number)
            interruption.agreed = True
        raise interruption from None
    seconds = time.perf_counter() - started
    names = {"agent": settings.config["choices"]["agent"], "env": settings.env_name}
    write_summary(trainer, result, **names, seconds=earlier + seconds, ended=True)
    took = f"{human_time(earlier + seconds)}, building and closing evaluation included"
    heading = f"\nTrained for {trainer.frames:,} frames in {took}."
    outcome = RunOutcome(
        folder,
        result,
        "\n".join([heading, *_report(trainer, settings, result, best)]),
        seconds,
        evaluations=trainer.evaluations,
        newest=trainer.checkpoints.latest(),
        best=best,
    )
    patient.agree(outcome)
    return outcome


def _train_to_the_end(trainer: TorchRLTrainer, settings: Settings) -> tuple[Path, Processes]:
    """Train, and tell how to resume if an exception or a signal ends the training.

    Returns:
        The best checkpoint, and the processes for calls that wait as long as its evaluation takes.

    Raises:
        Interruption: a signal, here or in another process, has stopped the training.
    """
    folder, processes = trainer.folder, trainer.processes
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
        number = _agreed_stop(trainer, signals)
        if number is None:
            # Others may lack an evaluation that was made before they joined the run.
            best = processes.agree(trainer.checkpoints.best()) or trainer.save()
            patient = processes.apart(timedelta(days=1))
            number = _agreed_stop(trainer, signals)
    if number is not None or signals:
        raise Interruption(
            number or next(iter(signals)),
            f"\nStopped at {trainer.frames:,} frames; saved. To resume:\n"
            f"  {command_of(settings, f'checkpoint={folder}')}",
            agreed=number is not None,
        )
    return best, patient


def _agreed_stop(trainer: TorchRLTrainer, signals: Iterable[int]) -> int | None:
    """Return the signal with which all processes end if one of them has been asked to stop."""
    if not trainer.processes.any(trainer.stop_requested):
        return None
    number = next(iter(signals), signal.SIGINT)
    # All end with the code of the one signaled.
    return signal.SIGTERM if trainer.processes.any(number != signal.SIGINT) else number


def _report(
    trainer: TorchRLTrainer, settings: Settings, result: Evaluation, best: Path
) -> list[str]:
    """Return the lines about a training that has ended: results, and commands to go on."""
    folder, tracer, profiler = trainer.folder, trainer.tracer, trainer.profiler
    lines = [f"  result       {result}", f"  checkpoint   {best}"]
    if trainer.env.capabilities.can_render:
        lines.append(f"  watch it     {command_of(settings, 'mode=demo', f'checkpoint={folder}')}")
    if "tensorboard" in trainer.loggers:
        lines.append(f"  curves       {command_line(['tensorboard', '--logdir', str(folder)])}")
    lines.append(f"  updates      {settings.execution.description}")
    lines.append(f"  copies       {transfers_line(trainer.collector)}")
    if tracer is not None and tracer.path is not None:
        lines.append(f"  trace        {tracer.path}, for https://ui.perfetto.dev")
    if profiler is not None:
        lines += ["  time", indent(profiler.table(), "    ")]
    return lines


def _ended(newest: Path, settings: Settings) -> RunOutcome | None:
    """Return the outcome of a run that has ended by itself; None if there is something left.

    `newest` is the newest checkpoint of the run, whose settings are those of the command.
    """
    folder = newest.parent.parent
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        if summary["ended"] is not True:
            return None
        result = Evaluation(**{each.name: summary.get(each.name) for each in fields(Evaluation)})
        frames = int(summary["frames"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    state = settings.state or load_checkpoint(newest)
    with reading(newest):
        evaluations = evaluations_of(state)
    goal, more = settings.trainer.settings["stop_at_score"], []
    if goal is not None and any(each.score >= goal for each in evaluations.values()):
        more.append("trainer.stop_at_score=null")
    if frames >= settings.trainer.settings["total_frames"]:
        more.append(f"trainer.total_frames={2 * frames}")
    lines = [
        f"\nTrained already, for {frames:,} frames, into {folder}",
        f"  result       {result}",
        f"  continue it  {command_of(settings, f'checkpoint={folder}', *more)}",
    ]
    return RunOutcome(
        folder,
        result,
        "\n".join(lines),
        evaluations=evaluations,
        newest=newest,
        best=CheckpointFolder(newest.parent).best() or newest,
    )


def build_trainer(
    settings: Settings,
    env: EnvBase,
    evaluator: Evaluator,
    folder: Path,
    processes: Processes = ONE_PROCESS,
    callbacks: Sequence[Callback] = (),
) -> TorchRLTrainer:
    """Build agent and trainer; load the checkpoint to resume."""
    agent = agent_of(settings, env)
    assert isinstance(agent, Agent)
    if isinstance(agent, OnPolicyAgent) and processes.is_writer:
        for name in ("trainer.random_frames", "trainer.replay_capacity"):
            if name in settings.typed:
                learner = type(agent).__name__
                logger.warning("%s: no effect with %s, which learns on-policy", name, learner)
    agent.join(processes)
    trainer: TorchRLTrainer = settings.trainer.build(
        env,
        agent,
        folder,
        evaluation_env=evaluator,
        config=settings.config,
        execution=settings.execution,
        seed=settings.general.seed,
        callbacks=callbacks,
    )
    if settings.checkpoint is not None:
        trainer.load(settings.checkpoint, settings.state)
    return trainer
