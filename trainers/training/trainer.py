"""The training loop: collect transitions, update the agent, log, evaluate, save checkpoints."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from omegaconf import OmegaConf
from pydantic import Field
from tensordict import TensorDictBase
from torchrl.envs import EnvBase
from torchrl.envs.utils import RandomPolicy

from agents.base import Agent
from torchrl_gpu.acting.collector import BatchCollector, Collector, Simulating
from torchrl_gpu.arguments import CheckedFields
from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder
from torchrl_gpu.checkpoints.files import write_text
from torchrl_gpu.devices.seeding import Stream, stream_seed
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.environment import name_of, reports_success
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.execution import Execution, Policy
from torchrl_gpu.timers import Timers
from trainers.collecting.collectors import RemoteEnvironment
from trainers.components.component import record
from trainers.components.pairing import check_evaluation, check_fit, overlap_of
from trainers.evaluation.evaluation import Evaluation, EvaluationStoppedError
from trainers.evaluation.evaluator import BorrowingEvaluator, Evaluator
from trainers.finite_watch import FiniteWatch, NonfiniteError, OnNonfinite
from trainers.metrics import EpisodeStatistics, MetricAccumulator
from trainers.profiling.profile import Profile
from trainers.profiling.trace import Trace
from trainers.runs.loggers import LoggerName, MetricLogger
from trainers.system import SystemUsage
from trainers.training.callbacks import Callback
from trainers.training.experience import check_updates, experience_of, learned_transitions
from trainers.training.metric_rows import MetricRows
from trainers.training.nonfinite import restart_failed
from trainers.training.progress import ProgressDisplay
from trainers.training.resuming import resume
from trainers.training.saving import CheckpointSaver, begin_save, save_after_error, save_if_changed
from trainers.training.summary import write_summary
from trainers.training.watchdog import Watchdog

logger = logging.getLogger(__name__)


class TorchRLTrainer(CheckedFields):
    """Trains any agent in any batched TorchRL environment.

    Args:
        env: training environment, any TorchRL environment that `as_environment` accepts.
        agent: agent to train; its device holds the networks and the replay buffer.
        folder: run folder, which receives metrics and checkpoints.
        evaluation_env: environment in its evaluation mode, or an `Evaluator`, which builds one on
            demand. With an `Evaluator` or None, evaluations use `env` if it can switch its mode
            (`Capabilities.can_switch_mode`); otherwise there are none with None.
        config: configuration of the run, saved in every checkpoint (JSON values). The trainer adds
            class and settings of agent and trainer.
        execution: executes policy steps and gradient steps; by default it chooses precision and
            compilation by the length of the run, see `Execution.plan`.
        seed: seed of the run; it determines the episodes of the evaluations.
        total_frames: number of environment steps to train for.
        random_frames: number of environment steps with uniformly random actions before the first
            update; without effect on on-policy agents (PPO).
        replay_capacity: maximum number of observations in the replay buffer; without effect on
            on-policy agents (PPO).
        log_interval: environment steps between two rows of logged metrics.
        evaluation_interval: environment steps between two evaluations in training.
        evaluation_episodes: number of episodes of each evaluation during training.
        evaluate_untrained: also evaluate the policy before the first step, at 0 frames, so that a
            learning curve shows where learning begins.
        stop_at_score: score of an evaluation during the training that ends the training: success
            rate 0 to 1, or mean return where the environment reports no success. None to train for
            `total_frames`.
        checkpoint_interval: environment steps between two checkpoints; None for
            `evaluation_interval`. Every evaluation saves one as well.
        checkpoints_kept: number of newest checkpoints to keep; the best checkpoint is always kept
            as well.
        save_replay: save the replay buffer beside the newest checkpoint, so that a resumed run
            continues with it.
        save_in_background: write checkpoints while the training goes on, one at a time; only the
            end of the run waits for the last one. If false, the training waits for each.
        overlap: do the updates of each batched step while the environment simulates the next one,
            so that the policy that acts lacks the updates of one batched step. The number of
            updates is the same. None for all off-policy agents in an environment that can overlap
            (`Capabilities.can_overlap`).
        on_nonfinite: response to an observation or reward that is NaN or infinite: `stop` ends the
            training in the next row of metrics or checkpoint, before it is written; `restart`
            begins new episodes in these environments at once and learns nothing from the step, for
            which the host reads from the device in every step. Actions, losses and parameters that
            are not finite always end the training.
        loggers: destinations of metrics, any of `csv`, `tensorboard`, `wandb` and `trackio`.
        callbacks: callbacks of steps, logging, evaluation and saving, called in this order.
        show_progress: show a progress bar.
        profile: measure the time of each part of the training. On an accelerator the host then
            waits for the device at both ends of every part, which makes the training slower.
        trace: number of batched steps to record, with every operation of host and device, in a
            file of `folder` for https://ui.perfetto.dev; recorded after the first update. 0 for no
            trace.

    Attributes:
        frames: environment steps so far, of all processes of the agent.
        updates: gradient steps so far.
        stop_requested: set it to end the training after the current step.
        evaluation_requested: set it, in all processes, to evaluate after the next step as well.
        evaluation_seconds: seconds of the evaluations since the training began or was resumed.
        started: time of `time.perf_counter` at which the training began, less the seconds before it
            resumed.
        evaluations: evaluations during the training so far, by number of frames; a resumed run
            includes those before.
        profiler: time of each part so far; None without `profile`.

    Raises:
        ConfigurationError: an argument is out of range, the run would end before its first update,
            `stop_at_score` is above any success rate, or `overlap` is true and agent or environment
            cannot overlap.
    """

    env: EnvBase = field(kw_only=False)
    agent: Agent = field(kw_only=False)
    folder: Path = field(kw_only=False)
    evaluation_env: EnvBase | Evaluator | None = None
    config: dict[str, Any] = field(default_factory=dict)
    execution: Execution = field(default_factory=Execution)
    seed: Annotated[int, Field(ge=0)] = 0
    total_frames: Annotated[int, Field(ge=1)] = 1_000_000
    random_frames: Annotated[int, Field(ge=0)] = 5_000
    replay_capacity: Annotated[int, Field(ge=1)] = 1_000_000
    log_interval: Annotated[int, Field(ge=1)] = 10_000
    evaluation_interval: Annotated[int, Field(ge=1)] = 100_000
    evaluation_episodes: Annotated[int, Field(ge=1)] = 200
    evaluate_untrained: bool = False
    stop_at_score: float | None = None
    checkpoint_interval: Annotated[int, Field(ge=1)] | None = None
    checkpoints_kept: Annotated[int, Field(ge=1)] = 3
    save_replay: bool = True
    save_in_background: bool = True
    overlap: bool | None = None
    on_nonfinite: OnNonfinite = "stop"
    loggers: Sequence[LoggerName] = ("csv", "tensorboard")
    callbacks: Sequence[Callback] = ()
    show_progress: bool = True
    profile: bool = False
    trace: Annotated[int, Field(ge=0)] = 0

    def __post_init__(self) -> None:
        recorded = record(agent=self.agent, trainer=self)
        self.config = {"seed": self.seed, **recorded, **self.config}
        if isinstance(self.evaluation_env, EnvBase):
            check_evaluation(self.agent, self.env, self.evaluation_env)
        self.env = env = as_environment(self.env)
        agent, can = self.agent, env.capabilities
        check_fit(agent, env)
        self.overlap = overlap_of(self.overlap, type(agent), name_of(env), env_can=can.can_overlap)
        self.processes = agent.processes
        env.join(self.processes)
        self.num_envs = env.batch_size.numel()
        self.frames_per_step = self.num_envs * self.processes.count
        settings = partial(getattr, agent), partial(getattr, self)
        check_updates(type(agent), *settings, self.frames_per_step)
        highest = 1.0 if reports_success(env) else math.inf
        if self.stop_at_score is not None and self.stop_at_score > highest:
            raise ConfigurationError(
                f"trainer.stop_at_score={self.stop_at_score:g}: scores in {name_of(env)} are "
                "success rates from 0 to 1; use 0.95 for 95 %"
            )
        length = self.total_frames, self.random_frames, self.frames_per_step
        self.execution.plan(learned_transitions(agent, *length), agent.device, agent.can_capture)

        self.frames = 0
        self.updates = 0
        self.stop_requested = False
        self.evaluation_requested = False
        self.evaluations: dict[int, Evaluation] = {}
        self.evaluation_seconds = 0.0
        self._is_resumed = False

        sizes = self.frames_per_step, self.replay_capacity, self.random_frames
        self.experience = experience_of(agent, *sizes, self.execution, can)
        rows, device, is_writer = agent.action_spec.shape[0], agent.device, self.processes.is_writer
        if is_writer:
            agent.warn_of_unused()
        self.episodes = EpisodeStatistics(rows, device, self.processes)
        self.simulating = Simulating()
        self.collector = self._build_collector()
        self.robots = self.collector.robots
        random_action = env.full_action_spec[self.robots.action_key]
        self.random_policy = RandomPolicy(random_action.to(device))
        if isinstance(self.evaluation_env, EnvBase):
            self.evaluation_env = Evaluator(self.evaluation_env)
        elif can.can_switch_mode:
            self.evaluation_env = BorrowingEvaluator(env, self.collector, self.begin_new_episodes)

        self.watch = FiniteWatch(agent.policy.in_keys, rows, device)
        self.restarts = torch.zeros((), device=device)  # since the last row of metrics
        folder = self.folder / "checkpoints"
        self.checkpoints = CheckpointFolder(folder, self.checkpoints_kept, self.processes.apart())
        self.saver = CheckpointSaver(self.save_in_background, self._call_on_save, self.processes)
        self.watchdog = Watchdog(self.checkpoints, self.simulating)

        self.update_metrics = MetricAccumulator()
        sinks = self.loggers if is_writer else ()
        self.metric_logger = MetricLogger(self.folder, sinks, self.config)
        self.system = SystemUsage(device)
        self.metric_rows = MetricRows(self)
        self.profiler = Profile(self, [device, env.device]) if self.profile else None
        self.tracer = Trace(self, self.trace, self.folder) if self.trace and is_writer else None
        self.timers = Timers(*filter(None, (self.profiler, self.tracer)))
        self.collector.timers = self.timers
        self.started = time.perf_counter()

    def _build_collector(self) -> Collector:
        agent, env = self.agent, self.env
        if isinstance(env, RemoteEnvironment):
            return env.collector(
                agent,
                random_frames=self.experience.random_frames,
                updates=lambda: self.updates,
                forget=self.episodes.forget_open,
            )
        keys = agent.policy.in_keys
        return BatchCollector(env, agent.device, keys, self.execution, self.simulating)

    def train(self) -> None:
        """Train until `total_frames`, `stop_at_score` or `stop_requested`; evaluate and save.

        Its end writes `summary.json`, with the best evaluation. A further call continues the
        training. An exception ends it with a checkpoint of the state before, unless a number was
        NaN or infinite; so does Ctrl-C in a step that the watchdog has reported.

        Raises:
            ConfigurationError: the folder has the checkpoints of another training.
        """
        is_new = self.frames == 0 and self.saver.newest is None and not self._is_resumed
        if is_new and self.checkpoints.latest() is not None:
            raise ConfigurationError(
                f"folder={self.folder}: it has the checkpoints of another training, which this one "
                "would replace; name another folder, or resume by trainer.load(path)"
            )
        lines, self.experience.memory = self.experience.memory, ()
        for line in lines:
            logger.info(line)
        # A checkpoint belongs to the run whose folder has this file; the program writes more to it.
        path = self.folder / "config.yaml"
        if self.processes.is_writer and not path.exists():
            write_text(path, OmegaConf.to_yaml(self.config))
        # All steps, so that a resumed run computes as one without an interruption.
        steps = self.total_frames // self.frames_per_step
        self.env.plan(steps, self.execution.may_compile)
        self.agent.policy.train()
        self.metric_rows.begin()
        shows_progress = self.show_progress and self.processes.is_writer
        with (
            self.timers.running(),
            ProgressDisplay(self.total_frames, self.frames, enabled=shows_progress) as display,
        ):
            self.execution.announce = lambda stage: display.update(self.frames, stage=stage)
            try:
                with self.watchdog:
                    self._train(display)
            except KeyboardInterrupt:
                saved = self.watchdog.is_interrupted and save_after_error(self)
                if not saved or not self.stop_requested:
                    raise
            except NonfiniteError:  # the last good checkpoint stays the newest
                raise
            except Exception as error:
                if not save_after_error(self) or not self.stop_requested:
                    raise
                # A signal to stop may have ended the workers of the environment as well.
                logger.info("after the request to stop: %s: %s", type(error).__name__, error)
        best = max(reversed(self.evaluations.values()), key=lambda each: each.score, default=None)
        write_summary(self, best)

    def _train(self, display: ProgressDisplay) -> None:
        # An interrupted run owes the evaluation before the first step, or after the last one.
        is_due = self.evaluate_untrained if self.frames == 0 else self._evaluates()
        if is_due and self.frames not in self.evaluations:
            self._evaluate(display)
        while self.frames < self.total_frames and not self._ends():
            self.timers.next_step()
            with self.timers("save"):
                self.saver.before_step()
            if self.overlap:
                # The environment simulates while the agent learns from the steps before.
                self.collector.begin(self._policy())
                self._learn()
            transition = self.collect()
            with self.timers("store"):
                self.experience.store(transition)
            if not self.overlap or self._pauses():
                self._learn()
            # First of all, because the disk may be full for the logs, or the memory insufficient
            # for an evaluation.
            if self._saves():
                begin_save(self)
            if self._passed(self.log_interval):
                self.metric_rows.log(display)
            if self._evaluates():
                self._evaluate(display)
            display.update(self.frames)
            for callback in self.callbacks:
                callback.on_step(self)
        if not self.processes.any(self.stop_requested) and self.frames not in self.evaluations:
            self._evaluate(display)
        save_if_changed(self)
        self.saver.wait()

    def collect(self) -> TensorDictBase:
        """Step every environment of the batch once and count its frames.

        The first `random_frames` actions are uniformly random, all later ones the policy's.

        Returns:
            The transitions `[R]` on the agent's device, one for each robot of the batch.
        """
        policy = self._policy()
        step = self.collector.step(policy)
        if policy is self.random_policy:  # its frames count for the schedules of the agent too
            self.agent.policy.frames.add_(self.frames_per_step)
        self.frames += self.frames_per_step
        transition = self.robots.transition(step)
        self.watch.update(transition)
        if self.on_nonfinite == "restart":
            transition = restart_failed(self, transition)
        self.episodes.update(transition)
        return transition

    def _policy(self) -> Policy:
        """Return the policy that acts in the next step."""
        is_random = self.frames < self.experience.random_frames
        return self.random_policy if is_random else self.agent.policy

    def _learn(self) -> None:
        """Take all gradient steps that are due."""
        batches = self.experience.batches()
        while True:
            with self.timers("sample"):
                batch = next(batches, None)
            if batch is None:
                return
            with self.timers("update"):
                update = self.execution.update(self.agent, batch)
            with self.timers("store"):
                self.experience.update_priorities(batch, update.priorities)
            self.update_metrics.add(update.metrics)
            self.updates += 1

    def _passed(self, interval: int) -> bool:
        """Return whether the last step reached or passed a multiple of `interval`."""
        return self.frames // interval != (self.frames - self.frames_per_step) // interval

    def _pauses(self) -> bool:
        """Return whether the loop logs, evaluates, saves or ends after the last step."""
        is_last = self.frames >= self.total_frames
        return is_last or self._saves() or self._evaluates() or self._passed(self.log_interval)

    def _saves(self) -> bool:
        """Return whether the last step reached the next checkpoint."""
        return self._passed(self.checkpoint_interval or self.evaluation_interval)

    def _evaluates(self) -> bool:
        """Return whether an evaluation follows the last step."""
        is_due = self.evaluation_requested or self._passed(self.evaluation_interval)
        return self.evaluation_env is not None and is_due

    def _ends(self) -> bool:
        """Return whether a process was asked to stop the training, or reached `stop_at_score`."""
        if self.processes.any(self.stop_requested):
            self.stop_requested = True
            return True
        if (score := self.stop_at_score) is None:
            return False
        reaches = any(evaluation.score >= score for evaluation in self.evaluations.values())
        return self.processes.any(reaches)

    def _evaluate(self, display: ProgressDisplay) -> None:
        """Evaluate between two checkpoints: without the evaluation and with it."""
        self.evaluation_requested = False
        if self.evaluation_env is None:
            return
        started = time.perf_counter()
        save_if_changed(self)
        episodes = self.evaluation_episodes

        def show(done: int) -> None:
            done = min(done * self.processes.count, episodes)  # the others are about as far
            display.update(self.frames, stage=f"evaluating {done:,}/{episodes:,} episodes")

        with self.timers("evaluate"):
            try:
                evaluation = self.evaluate(episodes, "selection", show, lambda: self.stop_requested)
            except EvaluationStoppedError:
                return
            finally:
                display.update(self.frames, stage="")
        self.evaluations[self.frames] = evaluation
        begin_save(self)
        with self.timers("log"):
            seconds = time.perf_counter() - self.started
            self.metric_logger.log(self.frames, {"seconds": seconds, **evaluation.as_metrics()})
        if self.processes.is_writer:
            display.message(f"{self.frames:,} frames: {evaluation}")
        self.evaluation_seconds += time.perf_counter() - started
        for callback in self.callbacks:
            callback.on_evaluation(self, evaluation)

    def evaluate(
        self,
        episodes: int,
        stream: Stream = "evaluation",
        progress: Callable[[int], object] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Evaluation:
        """Run the greedy policy of the agent in the evaluation environment.

        All processes of the agent call this method and play their shares of the episodes.
        If the training environment serves as the evaluation environment, its state is restored
        afterwards; an environment without a saved state begins new episodes.

        Args:
            episodes: number of episodes, at least 1.
            stream: random stream that determines the episodes, see `stream_seed`.
            progress: function that is called at intervals with the number of episodes that this
                process has finished.
            stop: function that is asked at intervals whether to break off; None for never.

        Returns:
            Mean return, mean length and success rate of the episodes.

        Raises:
            EvaluationStoppedError: a process was to break off.
            ConfigurationError: the trainer has no evaluation environment.
        """
        if self.evaluation_env is None:
            raise ConfigurationError("evaluation_env is missing: an evaluation needs one")
        return self.evaluation_env.evaluate(
            self.agent.policy,
            self.agent.device,
            episodes=episodes,
            seed=stream_seed(self.seed, stream, rank=self.processes.rank),
            progress=progress,
            execution=self.execution,
            simulating=self.simulating,
            stop=stop,
            processes=self.processes,
            training_env=self.env,
        )

    def save(self) -> Path:
        """Write a checkpoint with the complete state of training, and return its path.

        Raises:
            ConfigurationError: a parameter is NaN or infinite, and nothing is written; or the file
                cannot be written.
        """
        begin_save(self)
        self.saver.wait()
        return self.checkpoints.path(self.frames)

    def _call_on_save(self, path: Path) -> None:
        for callback in self.callbacks:
            callback.on_save(self, path)

    def load(self, checkpoint: Path | str, state: Mapping[str, Any] | None = None) -> None:
        """Resume from a checkpoint.

        It restores frames, networks, optimizers, replay buffer, environment and random state.
        If the replay buffer was not saved, the policy fills a new one for `random_frames`
        environment steps before the next update.

        Args:
            checkpoint: path of a checkpoint, or of a run folder for its newest one.
            state: content of the file if it has been read already, see `load_checkpoint`.

        Raises:
            ConfigurationError: the checkpoint does not exist, cannot be read, or belongs to another
                agent or environment.
        """
        resume(self, checkpoint, state)
        self._is_resumed = True

    def begin_new_episodes(self) -> None:
        """Abandon the open episodes of an environment whose state cannot be restored.

        The seed depends on the frames, so that the new episodes differ from the first ones.
        """
        self.saver.wait()  # it may be reading the rollout, which begins anew
        self.env.set_seed(stream_seed(self.seed, "training", self.frames, self.processes.rank))
        self.collector.restart()
        self.episodes.forget_open()
        self.experience.forget_episodes()
        self.agent.forget_episodes()

    def close(self) -> None:
        """Write out buffered metrics and close the loggers."""
        self.metric_logger.close()
