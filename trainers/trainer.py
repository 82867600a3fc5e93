"""The training loop: collect, learn, log, evaluate, checkpoint."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from tensordict import TensorDictBase
from torchrl.envs import EnvBase
from torchrl.modules import RandomPolicy

from agents.base import Agent
from torchrl_gpu.acting.collector import BatchCollector
from torchrl_gpu.arguments import checked
from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder, replay_path
from torchrl_gpu.checkpoints.state_file import load_state
from torchrl_gpu.devices.seeding import Stream, rng_state, set_rng_state, stream_seed
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution import EAGER, Execution
from trainers.evaluation import Evaluation, evaluate
from trainers.evaluator import Evaluator, evaluation_mode
from trainers.experience import experience_of
from trainers.identity import check_identity, check_trainable, identity
from trainers.layout import LAYOUT, load_checkpoint
from trainers.loggers import MetricLogger
from trainers.metrics import EpisodeStatistics, MetricAccumulator
from trainers.progress import ProgressDisplay

logger = logging.getLogger(__name__)


class _StopError(Exception):
    """Ends an evaluation that is no longer waited for."""


class TorchRLTrainer:
    """Trains any agent in any batched TorchRL environment.

    Args:
        env: the environment to learn in: any of TorchRL's, see `as_environment`.
        agent: the agent that learns, on its own device.
        folder: where metrics and checkpoints go.
        evaluation_env: an environment in its evaluation mode, or an `Evaluator`, which builds one
            when it is needed. It is not needed where `env` can switch its mode: evaluations then
            happen there. None otherwise: no evaluations.
        config: what was configured, kept in every checkpoint (JSON values).
        execution: carries out acting and gradient steps.
        seed: of the run; it decides which episodes the evaluations play.
        total_frames: environment steps in all.
        random_frames: environment steps with uniformly random actions before learning starts, for
            agents that learn from a replay.
        replay_capacity: observations that the replay holds.
        log_interval: environment steps between two lines of metrics.
        evaluation_interval: environment steps between two evaluations.
        evaluation_episodes: episodes of each evaluation on the way.
        checkpoint_interval: environment steps between two checkpoints.
        checkpoints_kept: newest checkpoints that are kept; the best one is kept besides.
        save_replay: keep the replay beside the newest checkpoint, so that training goes on with it.
        loggers: where metrics go: `csv`, `tensorboard`, `wandb`.
        show_progress: whether a progress bar is shown.
    """

    @checked
    def __init__(
        self,
        env: EnvBase,
        agent: Agent,
        folder: Path,
        *,
        evaluation_env: EnvBase | Evaluator | None = None,
        config: dict[str, Any] | None = None,
        execution: Execution = EAGER,
        seed: Annotated[int, Field(ge=0)] = 0,
        total_frames: Annotated[int, Field(ge=1)] = 1_000_000,
        random_frames: Annotated[int, Field(ge=0)] = 5_000,
        replay_capacity: Annotated[int, Field(ge=1)] = 1_000_000,
        log_interval: Annotated[int, Field(ge=1)] = 10_000,
        evaluation_interval: Annotated[int, Field(ge=1)] = 100_000,
        evaluation_episodes: Annotated[int, Field(ge=1)] = 200,
        checkpoint_interval: Annotated[int, Field(ge=1)] = 100_000,
        checkpoints_kept: Annotated[int, Field(ge=1)] = 3,
        save_replay: bool = True,
        loggers: Sequence[Literal["csv", "tensorboard", "wandb"]] = ("csv", "tensorboard"),
        show_progress: bool = True,
    ) -> None:
        self.env = env = as_environment(env)
        self.agent = agent
        self.folder = folder
        given = isinstance(evaluation_env, EnvBase)
        self._evaluator = Evaluator(evaluation_env) if given else evaluation_env
        self._evaluates_in_training_env = not given and env.can_switch_mode
        self.config = config or {}
        self.total_frames = total_frames
        self.log_interval = log_interval
        self.evaluation_interval = evaluation_interval
        self.seed = seed
        self.evaluation_episodes = evaluation_episodes
        self.checkpoint_interval = checkpoint_interval
        self.save_replay = save_replay
        self.show_progress = show_progress

        self.num_envs = env.batch_size.numel()
        self.experience = experience_of(agent, self.num_envs, replay_capacity, random_frames)
        self.execution = execution
        self.collector = BatchCollector(env, agent.device, agent.policy.in_keys, self.execution)
        self.robots = self.collector.robots
        random_action = env.full_action_spec[self.robots.action_key]
        self.random_policy = RandomPolicy(random_action.to(agent.device))
        self.episodes = EpisodeStatistics(agent.action_spec.shape[0], agent.device)
        self.update_metrics = MetricAccumulator()
        self.checkpoints = CheckpointFolder(folder / "checkpoints", keep=checkpoints_kept)
        self.metric_logger = MetricLogger(folder, loggers)

        self.frames = 0
        self.updates = 0
        self.stop_requested = False
        self.evaluation: Evaluation | None = None
        self._evaluated_at: int | None = None
        self._started = self._logged_at = time.perf_counter()
        self._logged_frames = 0

    def train(self) -> None:
        """Train until `total_frames`, or until `stop_requested` is set; evaluate and save.

        Calling it again goes on.
        """
        self.agent.policy.train()
        self._logged_at, self._logged_frames = time.perf_counter(), self.frames
        with ProgressDisplay(self.total_frames, self.frames, enabled=self.show_progress) as display:
            while self.frames < self.total_frames and not self.stop_requested:
                for batch in self.experience.batches(self.collect()):
                    update = self.execution.update(self.agent, batch)
                    self.experience.learned(batch, update.priorities)
                    self.update_metrics.add(update.metrics)
                    self.updates += 1
                if self._passed(self.log_interval):
                    self._log(display)
                if self._passed(self.evaluation_interval):
                    self._evaluate(display)
                if self._passed(self.checkpoint_interval):
                    self.save()
                display.update(self.frames)
            if self._evaluated_at != self.frames and not self.stop_requested:
                self._evaluate(display)
        self.save()

    def close(self) -> None:
        """Write out the metrics that are still buffered."""
        self.metric_logger.close()

    def collect(self) -> TensorDictBase:
        """Act once in every world, at random at first; return the transitions of who acts."""
        is_random = self.frames < self.experience.random_frames
        step = self.collector.step(self.random_policy if is_random else self.agent.policy)
        self.frames += self.num_envs
        transition = self.robots.transition(step)
        after = transition["next"]
        self.episodes.update(
            after["reward"],
            after["done"],
            after.get("success", None),
            transition.get("active", None),
        )
        return transition

    def evaluate(
        self,
        episodes: int,
        stream: Stream = "evaluation",
        progress: Callable[[int], object] | None = None,
    ) -> Evaluation:
        """Run the greedy policy of the agent in the evaluation environment.

        Where the training environment is used for it, training then goes on from the state that it
        had, or from new episodes if it tells no state.

        Args:
            episodes: at least 1.
            stream: the use, which decides the episodes, see `stream_seed`.
            progress: called now and then with the number of episodes done.

        Raises:
            ConfigurationError: the trainer has no evaluation environment.
        """
        run: dict[str, Any] = {
            "policy": self.agent.policy,
            "device": self.agent.device,
            "episodes": episodes,
            "seed": stream_seed(self.seed, stream),
            "progress": progress,
            "execution": self.execution,
        }
        if not self._evaluates_in_training_env:
            if self._evaluator is None:
                raise ConfigurationError("evaluation_env: an evaluation needs one")
            return self._evaluator.evaluate(**run)
        # A copy, because the environment goes on to write to the tensors of its state.
        state = copy.deepcopy(self.collector.state_dict())
        try:
            with evaluation_mode(self.env) as env:
                return evaluate(env, **run)
        finally:
            if not self.collector.load_state_dict(state):
                self._begin_new_episodes()

    def save(self) -> Path:
        """Write a checkpoint of everything that the rest of the training depends on."""
        state = {
            "layout": LAYOUT,
            **identity(self.agent),
            "config": self.config,
            "frames": self.frames,
            "updates": self.updates,
            "seconds": time.perf_counter() - self._started,
            "experience": self.experience.state_dict(),
            "agent": self.agent.training_state(),
            "collector": self.collector.state_dict(),
            "episodes": self.episodes.state_dict(),
            "random": rng_state(self.agent.device),
        }
        stored = self.experience.stored() if self.save_replay else None
        score = None
        if self.evaluation is not None and self._evaluated_at == self.frames:
            score = self.evaluation.score
        return self.checkpoints.save(self.frames, state, stored, score)

    def load(self, checkpoint: Path) -> None:
        """Go on from a checkpoint: frames, networks, optimizers, replay, world and random numbers.

        Where the replay was not kept, it is filled anew by `random_frames` steps of the policy
        before learning goes on.

        Raises:
            ConfigurationError: the file cannot be used, or belongs to another agent or world.
        """
        state = load_checkpoint(checkpoint)
        check_identity(state, self.agent, checkpoint)
        check_trainable(state, checkpoint)
        self.frames = state["frames"]
        self.updates = state["updates"]
        self._started = time.perf_counter() - state["seconds"]
        self.episodes.load_state_dict(state["episodes"])
        self.agent.load_training_state(state["agent"])
        goes_on = self.collector.load_state_dict(state["collector"])
        stored = None
        if replay_path(checkpoint).exists():
            stored = load_state(replay_path(checkpoint))
        else:
            logger.info("no replay beside %s: it is filled anew", checkpoint)
        self.experience.load_state_dict(state["experience"], stored)
        self.metric_logger.resume_from(self.frames)
        set_rng_state(state["random"], self.agent.device)
        if not goes_on:
            self._begin_new_episodes()

    def _begin_new_episodes(self) -> None:
        """Leave the episodes under way, of an environment without a state to go on from.

        The seed depends on the frames, so that the new episodes are not those with which the run
        has begun.
        """
        self.env.set_seed(stream_seed(self.seed, "training", self.frames))
        self.collector.restart()
        self.episodes.forget_open()
        self.experience.forget_episodes()
        self.agent.forget_episodes()

    def _log(self, display: ProgressDisplay) -> None:
        now, episodes = time.perf_counter(), self.episodes.flush()
        metrics = {
            "seconds": now - self._started,
            "frames_per_second": (self.frames - self._logged_frames) / (now - self._logged_at),
            **episodes,
            **self.update_metrics.flush(),
            **self.env.metrics(),
        }
        self._logged_at, self._logged_frames = now, self.frames
        self.metric_logger.log(self.frames, metrics)
        display.update(
            self.frames,
            success=episodes.get("episode/success"),
            mean_return=episodes.get("episode/return"),
        )

    def _evaluate(self, display: ProgressDisplay) -> None:
        if self._evaluator is None and not self._evaluates_in_training_env:
            return
        episodes = self.evaluation_episodes

        def show(done: int) -> None:
            display.update(self.frames, stage=f"evaluating {done:,}/{episodes:,} episodes")
            if self.stop_requested:
                raise _StopError

        try:
            self.evaluation = self.evaluate(episodes, "selection", show)
        except _StopError:
            return
        finally:
            display.update(self.frames, stage="")
        self._evaluated_at = self.frames
        seconds = time.perf_counter() - self._started
        self.metric_logger.log(self.frames, {"seconds": seconds, **self.evaluation.as_metrics()})
        display.message(f"{self.frames:,} frames: {self.evaluation}")

    def _passed(self, interval: int) -> bool:
        """Return whether the last step passed a multiple of `interval` frames."""
        return self.frames // interval != (self.frames - self.num_envs) // interval
