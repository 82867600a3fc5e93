"""Gymnasium's environments in processes, which are replaced when they die or hang."""

import contextlib
import logging
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from time import monotonic
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState
from gymnasium.vector.utils import clear_mpi_env_vars
from numpy.typing import NDArray

from envs.processes import (
    MAX_LOSSES,
    SECONDS_TO_END,
    SECONDS_TO_END_IN_STEP,
    Patience,
    patience_to_start,
    too_many_losses,
)
from torchrl_gpu.errors import ConfigurationError, WorkerError, one_line

log = logging.getLogger(__name__)

# Answers of a process: the result and whether it has succeeded. Observations are in shared memory.
_Answer = tuple[Any, bool]

# Result of a step: a transition; in `NEXT_STEP` the reset of an episode that is over; the first
# observation of a process that has been reset already; or the truncation of a lost episode.
_Due = Literal["transition", "reset", "first observation", "truncation"]

# Positions of the two ends of the pipe among the arguments of Gymnasium's `_async_worker`.
_CHILD_PIPE, _PARENT_PIPE = 2, 3


class WatchedVectorEnv(AsyncVectorEnv):
    """`AsyncVectorEnv` whose processes are replaced when they die or do not answer in time.

    The episode of a lost process is truncated with reward 0, in the step in which it is lost. The
    new process begins another episode as the autoreset mode says.

    `step_timeout` are the seconds that a step or reset of all environments may take; None for no
    limit. The other arguments are those of `AsyncVectorEnv`.

    Attributes:
        lost: whether the last step truncated an episode for this reason, bool `[num_envs]`; its
            observation is then not the last one of that episode.
        lost_episodes: number of such episodes, since a reader set it to 0.

    Raises:
        WorkerError: (by steps and resets) several processes in a row finished no step.
    """

    parent_pipes: list[Any]

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env]],
        *,
        step_timeout: float | None,
        **options: Any,
    ) -> None:
        self.step_timeout = step_timeout
        self.patience = patience_to_start(step_timeout)
        self.lost: NDArray[np.bool_] = np.zeros(len(env_fns), np.bool_)
        self.lost_episodes = 0
        self._processes = _Recorded([])
        try:
            super().__init__(env_fns, **options)
        except BaseException:  # such as that of a signal
            _kill_all(self._processes)  # which would report that their pipe is closed
            raise

    @property
    def owes_truncation(self) -> bool:
        """Whether the next step truncates an episode whose process was lost before it."""
        return any(pipe.due == "truncation" for pipe in self.parent_pipes)

    @property
    def processes(self) -> list[multiprocessing.Process]:
        """The processes, one for each environment."""
        return self._processes

    @processes.setter
    def processes(self, processes: list[multiprocessing.Process]) -> None:
        self._processes = _Recorded(processes)
        # Before multiprocessing waits at exit for its processes, forever for one that is stopped.
        Finalize(self, _kill_all, (self._processes,), exitpriority=0)

    def _check_spaces(self) -> None:
        # The first call of the constructor after it has started the processes.
        self.parent_pipes = [_Worker(self, *each) for each in enumerate(self.parent_pipes)]
        super()._check_spaces()

    def step_wait(self, timeout: float | None = None) -> Any:
        """Wait for the end of a step: see `AsyncVectorEnv.step_wait`."""
        self.lost = np.zeros_like(self.lost)
        return super().step_wait(timeout)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Close the environments and end their processes, also those that do not answer.

        They may end by themselves for `timeout` seconds (10, or 2 in a step), unless `terminate`.
        """
        for pipe in self.parent_pipes:
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.send(("close", None))
        if timeout is None:
            is_idle = self._state is AsyncState.DEFAULT
            timeout = SECONDS_TO_END if is_idle else SECONDS_TO_END_IN_STEP
        end = monotonic() + (0 if terminate else timeout)
        for process in self.processes:
            process.join(max(0.0, end - monotonic()))
            _kill(process)
        for pipe in self.parent_pipes:
            if pipe is not None:
                pipe.close()

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        plays = self._state in (AsyncState.WAITING_STEP, AsyncState.WAITING_RESET)
        level = gymnasium.logger.min_level
        gymnasium.logger.min_level = gymnasium.logger.ERROR + 1  # the exception is raised as well
        try:
            super()._raise_if_errors(successes)
        except (ConfigurationError, WorkerError):
            raise
        except Exception as error:
            if not plays:
                raise
            # Gymnasium cannot read the result; the environment itself has not failed.
            kind = type(error).__name__
            raise WorkerError(
                f"the result of a step or reset cannot be read: {kind}: {one_line(error)}"
            ) from None
        finally:
            gymnasium.logger.min_level = level

    @contextlib.contextmanager
    def without_timeout(self) -> Iterator[None]:
        """Let resets in the block take any time, as those that play episodes again."""
        limit, self.step_timeout = self.step_timeout, None
        try:
            yield
        finally:
            self.step_timeout = limit

    def replace(self, index: int) -> Connection:
        """Start another process for an environment, and return the pipe to it."""
        target, arguments = self._processes.started[index]
        context = multiprocessing.get_context(self.context)
        pipe, child_pipe = context.Pipe()
        arguments = list(arguments)
        arguments[_CHILD_PIPE], arguments[_PARENT_PIPE] = child_pipe, pipe
        process = context.Process(
            target=target, name=self.processes[index].name, args=arguments, daemon=self.daemon
        )
        with clear_mpi_env_vars():
            process.start()
        child_pipe.close()
        self.processes[index] = process
        return pipe


class _Recorded(list[multiprocessing.Process]):
    """Processes, with the functions and arguments of those that are appended.

    A process forgets them when it starts, and Gymnasium keeps no other reference to its shared
    memory.
    """

    def __init__(self, processes: Sequence[multiprocessing.Process]) -> None:
        super().__init__(processes)
        self.started: list[tuple[Any, Any]] = []

    def append(self, process: Any) -> None:
        """Add a process that has not started."""
        self.started.append((process._target, process._args))
        super().append(process)


class _Worker:
    """Pipe to the process of one environment, with the methods that `AsyncVectorEnv` calls.

    Every command has an answer: if the process is lost, that of another one.
    """

    def __init__(self, vector: WatchedVectorEnv, index: int, pipe: Connection) -> None:
        self._vector, self._index, self._pipe = vector, index, pipe
        self._message: tuple[str, Any] = ("", None)
        self._seed = self._losses = self._replaced = 0
        self._cause: str | None = None  # of the loss, in words
        self.due: _Due = "transition"

    def send(self, message: tuple[str, Any]) -> None:
        """Send a command."""
        self._message = message
        command, data = message
        # All processes share the time of a command, which begins with the first message. The first
        # command has the longer time of a start.
        if self._index == 0 and command != "_check_spaces":
            self._vector.patience = Patience(self._vector.step_timeout)
        if command == "reset":
            self._seed = self._seed if data["seed"] is None else data["seed"]
            self.due = "transition"
        if not (command == "step" and self.due in ("first observation", "truncation")):
            with contextlib.suppress(OSError):  # it is dead: `recv` notices
                self._pipe.send(message)

    def recv(self) -> _Answer:
        """Wait for the answer to the command."""
        command, _ = self._message
        if command == "step":
            return self._step()
        answer = self._answer(self._vector.patience)
        if answer is None and command == "_check_spaces":
            raise WorkerError(f"{self._name} {self._cause}")
        if answer is None and command == "reset-noop":
            return (None, {}), True  # the next step will notice
        if answer is None:
            answer = self._replace()
            if answer[1] and command != "reset":
                self.due = "first observation" if self._is_over else "truncation"
                self._vector.patience = Patience(self._vector.step_timeout)
                self.send(self._message)
                return self.recv()
        return answer

    def _step(self) -> _Answer:
        next_step = self._vector.autoreset_mode is AutoresetMode.NEXT_STEP
        if self.due in ("transition", "reset"):
            answer = self._answer(self._vector.patience)
            if answer is not None:
                if answer[1]:
                    self._losses = 0
                    is_over = next_step and bool(answer[0][2] or answer[0][3])
                    self.due = "reset" if is_over else "transition"
                return answer
            answer = self._replace()
            if not answer[1]:
                return answer
        if self._is_over:
            self.due = "transition"
            return (None, 0.0, False, False, {}), True
        self._vector.lost[self._index] = True
        self._vector.lost_episodes += 1
        self.due = "first observation" if next_step else "transition"
        return (None, 0.0, False, True, {}), True

    def _answer(self, patience: Patience) -> _Answer | None:
        """Wait for the answer of the process; end a process that is lost, and return None."""
        if self._cause is None:
            try:
                if patience.wait(self._pipe):
                    return self._pipe.recv()
                self._cause = f"has not answered for {patience.seconds:g} s"
            except (EOFError, OSError):
                self._process.join(SECONDS_TO_END)
                self._cause = f"died with exit code {self._process.exitcode}"
            self._pipe.close()
            _kill(self._process)
        return None

    def _replace(self) -> _Answer:
        """Replace the lost process, and return the answer to the reset of the new one."""
        lost = f"{self._name} {self._cause}"
        command, data = self._message
        reset = dict(data) if command == "reset" else {"seed": None, "options": None}
        while self._losses < MAX_LOSSES:
            self._losses += 1
            self._replaced += 1
            if reset["seed"] is None:  # of other episodes than the lost ones
                sequence = np.random.SeedSequence((self._seed, self._replaced))
                reset["seed"] = int(sequence.generate_state(1)[0])
            self._pipe, self._cause = self._vector.replace(self._index), None
            with contextlib.suppress(OSError):
                self._pipe.send(("reset", reset))
            answer = self._answer(patience_to_start(self._vector.step_timeout))
            if answer is not None:
                loss = "" if command == "reset" or self._is_over else "its episode is truncated; "
                log.warning("%s: %sprocess %d replaces it", lost, loss, self._process.pid)
                return answer
            lost = f"{self._name} {self._cause}"
        raise too_many_losses(lost)

    @property
    def _is_over(self) -> bool:
        """Whether the episode has ended, so that the next step begins another one."""
        return self.due in ("reset", "first observation")

    @property
    def _process(self) -> multiprocessing.Process:
        return self._vector.processes[self._index]

    @property
    def _name(self) -> str:
        return f"process {self._process.pid} of environment {self._index}"

    def close(self) -> None:
        """Close the pipe."""
        self._pipe.close()


def _kill_all(processes: list[multiprocessing.Process]) -> None:
    for process in processes:
        _kill(process)


def _kill(process: multiprocessing.Process) -> None:
    """Kill a process unless it has ended or never started; it may be stopped."""
    if process.pid is not None:
        process.kill()
        process.join(SECONDS_TO_END)
