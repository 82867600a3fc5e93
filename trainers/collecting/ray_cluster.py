"""The cluster of Ray: this machine alone, or one that runs; and the processes of collectors in it.

This module imports Ray, so it is imported only where collectors are those of Ray.
"""

import contextlib
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, Final

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing about a run leaves the cluster
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # silences a warning

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from torchrl_gpu.devices.host import num_cores
from torchrl_gpu.errors import ConfigurationError, WorkerError, one_line
from torchrl_gpu.signals import STOP_SIGNALS, stop_signals_held
from trainers.collecting.actor import CollectorActor, Description

logger = logging.getLogger(__name__)

# Seconds within which Ray has to start the process of a collector.
START_SECONDS: Final = 120.0

# Characters in front of the paths of Ray's sockets; macOS, whose own folder has more, allows 103.
_MAX_FOLDER: Final = 26

# Processes of a collector in a row that end without a chunk: another one would not help.
MAX_LOSSES: Final = 3

# Exceptions of which this process cannot make an object again; not in all versions of Ray.
_UNREADABLE: Final = getattr(ray.exceptions, "UnserializableException", RayTaskError)

# Seconds that collectors have to close their environments at the end of the run.
_SECONDS_TO_END: Final = 10.0


def connect(address: str | None, cores: int) -> Callable[[], object]:
    """Start Ray on this machine, or join a cluster, without its output and its handlers of signals.

    Args:
        address: see `RayCollectors`.
        cores: number of cores that Ray may reserve where it is started.

    Returns:
        Function that leaves the cluster, and removes the folder of a Ray that was started; without
        effect if this process had connected before. Keep the function: without it, Python deletes
        the folder of Ray while Ray runs.

    Raises:
        ConfigurationError: there is no cluster at the address, or one of another version.
    """
    leaving = contextlib.ExitStack()
    if ray.is_initialized():
        return leaving.close
    options: dict[str, Any] = {"address": address}
    if address is None:
        place = "/tmp" if len(gettempdir()) > _MAX_FOLDER and os.name == "posix" else None
        folder = TemporaryDirectory(prefix="ray_", dir=place, ignore_cleanup_errors=True)
        options = {"address": "local", "num_cpus": max(cores, num_cores())}
        options |= {"include_dashboard": False, "_temp_dir": leaving.enter_context(folder)}
    leaving.callback(ray.shutdown)
    try:
        with _undisturbed(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
            # It would print a thousand characters about each lost process, besides our one line.
            worker = vars(import_module("ray._private.worker"))
            worker["print_to_stdstream"] = lambda *_, **__: None
    except (ConnectionError, RuntimeError, ValueError) as error:
        leaving.close()
        reason = one_line(error).rstrip(".")
        raise ConfigurationError(
            f"collectors.address={address}: {reason}; start one by ray start --head, or leave "
            "collectors.address out for this machine; a head that asks for a token needs "
            "RAY_AUTH_MODE=token here"
        ) from None
    return leaving.close


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep the handlers of signals of this program, some of which Ray replaces.

    The processes that Ray starts ignore signals for the whole group of processes, as Ctrl-C and
    the warning of a scheduler, except SIGTERM, by which they end each other.
    """
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    with stop_signals_held(signal.SIGTERM):
        try:
            yield
        finally:
            for number, handler in before.items():
                if signal.getsignal(number) is not handler:
                    signal.signal(number, handler)


class CollectorProcess:
    """One collector: its process, which is replaced when it dies.

    Attributes:
        place: process and machine, see `Place`; in words before there is one.
        description: see `Description`.
        is_built: whether the process has environments.
        losses: number of its processes in a row that ended without a chunk.
    """

    place: Any = "not started"
    description: Description

    def __init__(self, number: int, count: int, cores: int, build: bytes) -> None:
        self.number = number
        self._count = count
        self.losses = 0
        self._cores = cores
        self._build = build
        self._actor: Any = None
        self.is_built = False

    def launch(self) -> None:
        """Ask Ray for a process; `build` waits for it."""
        self.is_built = False
        actor = ray.remote(CollectorActor)
        self._actor = actor.options(num_cpus=self._cores, max_restarts=0).remote(self._cores)

    def build(self, seed: int) -> None:
        """Build the environments in the process.

        Raises:
            WorkerError: Ray has not started the process in time, its machine lacks this library,
                or the environment raised an exception.
            RayError: the process ended.
        """
        place = self.ask("place")
        if not ray.wait([place], timeout=START_SECONDS)[0]:
            free, cores = (
                resources.get("CPU", 0)
                for resources in (ray.available_resources(), ray.cluster_resources())
            )
            raise WorkerError(
                f"collector {self.number}: Ray has not started its process within "
                f"{START_SECONDS:.0f} s; {free:g} of {cores:g} cores of the cluster are free, and "
                f"it needs {self._cores}"
            )
        try:
            self.place = ray.get(place)
        except RayActorError as error:
            if not error.actor_init_failed:
                raise
            reason = str(error).strip().rpartition("\n")[2]
            raise WorkerError(
                f"collector {self.number} cannot start ({reason}); all machines need the same "
                "versions of Python, Ray and this library"
            ) from None
        folder = str(Path.cwd())
        paths = [path or folder for path in sys.path]
        self.description = self.call(
            "build", folder, paths, self._build, seed, self.number, self._count
        )
        self.is_built = True

    def ask(self, method: str, *arguments: Any) -> Any:
        """Begin a call of a method of `CollectorActor`, and return the reference of its result."""
        return getattr(self._actor, method).remote(*arguments)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of `CollectorActor`, see `result`."""
        return self.result(self.ask(method, *arguments))

    def result(self, reference: Any) -> Any:
        """Wait for the value of a reference.

        Raises:
            WorkerError: the environment or the policy raised an exception.
            ConfigurationError: the environment or the policy cannot be used.
            RayError: the process, or its machine, is lost.
        """
        try:
            return ray.get(reference)
        except (RayTaskError, _UNREADABLE) as error:
            cause = getattr(error, "cause", error)
            if isinstance(cause, ConfigurationError | WorkerError):
                raise type(cause)(str(cause)) from None
            # The error derives from its cause as well, and has the attributes of the cause alone.
            heading = f"{type(cause).__name__} in collector {self.number} ({self.place})"
            raise WorkerError(f"{heading}\n{error}") from None

    def replace(self, error: RayError, seed: int, known: Mapping[str, Any]) -> str:
        """Start another process in place of a lost one, and return one line about the loss.

        Args:
            error: error by which the loss was noticed.
            seed: seed of the new environments.
            known: arguments of methods of `CollectorActor` to call then, by name.

        Raises:
            WorkerError: too many processes were lost in a row, or none could be started.
        """
        before, cause = self.place, error
        while self.losses < MAX_LOSSES:
            self.losses += 1
            self.end()
            self.launch()
            try:
                self.build(seed)
                for method, argument in known.items():
                    self.call(method, argument)
            except RayError as failure:
                cause = failure
            else:
                return f"collector {self.number} ({before}) died ({_reason(error)})"
        raise WorkerError(
            f"collector {self.number} ({self.place}) died ({_reason(cause)}), the last of "
            f"{self.losses + 1} processes in a row that collected nothing"
        )

    def end(self) -> None:
        """End the process at once."""
        with contextlib.suppress(RayError, ValueError):
            ray.kill(self._actor)


def end(processes: list[CollectorProcess], leave: Callable[[], object]) -> None:
    """Let collectors close their environments, end them, and leave the cluster; see `connect`."""
    if not ray.is_initialized():
        return
    with contextlib.suppress(RayError):
        closing = [process.ask("close") for process in processes if process.is_built]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=_SECONDS_TO_END)
    for process in processes:
        process.end()
    leave()


def _reason(error: RayError) -> str:
    """Return the cause of a loss in a few words."""
    text = one_line(error)
    for sign in ("Worker exit detail: ", "The actor is dead because "):
        text = text.partition(sign)[2] or text
    return text.partition(". ")[0].rstrip(".")
