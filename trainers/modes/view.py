"""The viewer: mode demo with `viewer=web`, and the process beside a training."""

import contextlib
import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Final, NoReturn

import torch
from tensordict.nn import TensorDictModuleBase

from agents.base import Agent
from envs.processes import end_with, parent_of_workers
from torchrl_gpu.arguments import parameters_of
from torchrl_gpu.devices.host import ONE_THREAD
from torchrl_gpu.devices.seeding import seed_everything
from torchrl_gpu.environments.environment import Environment, name_of
from torchrl_gpu.errors import ConfigurationError, one_line
from torchrl_gpu.execution.execution import EAGER
from torchrl_gpu.signals import ignore_stop_signals, stop_signals_held
from trainers.command_line.settings import Settings
from trainers.modes.building import agent_of, build_env, policy_of, title_of
from trainers.runs.folders import run_of
from trainers.runs.policy_files import restore_policy
from trainers.viewing.address import free_port
from trainers.viewing.checkpoints import BEST, NEWEST, WatchedCheckpoints, name_of_checkpoint
from trainers.viewing.curves import LearningCurves
from trainers.viewing.page import Page
from trainers.viewing.player import Player
from trainers.viewing.viewer import Viewer

# While it imports torch, which takes a few seconds of a core, and then.
_NICENESS_TO_START, _NICENESS = 5, 19
_CPU: Final = torch.device("cpu")
# Whatever the working directory holds, the process finds the modules of this one.
_PROGRAM: Final = "import sys; sys.path[:] = {path}; from {module} import main; main({parent})"

logger = logging.getLogger(__name__)


def view(settings: Settings) -> NoReturn:
    """Show a policy in the browser until a signal ends the program, and follow its run."""
    checkpoint, given = settings.checkpoint, settings.general.checkpoint
    run = None if checkpoint is None or settings.contract is not None else run_of(checkpoint)
    chosen = str(given or settings.general.policy or title_of(settings))
    if run is not None and checkpoint is not None and given is not None:
        chosen = BEST if given.is_dir() else name_of_checkpoint(checkpoint)
    _view(settings, run, chosen, lambda address: print(f"Watch it at {address}", flush=True))


def _view(
    settings: Settings, run: Path | None, chosen: str, tell: Callable[[str], object]
) -> NoReturn:
    """Serve the page, and play in it.

    Args:
        settings: settings of the call.
        run: folder of the run to follow; None for a policy that belongs to none.
        chosen: name of the policy to play first.
        tell: function that is called with the address of the page.
    """
    general, demo = settings.general, settings.demo
    num_envs: int = demo["num_envs"]
    title = f"{settings.config['choices']['agent']}, {settings.env_name}"
    port = free_port(general.viewer_host, general.viewer_port)
    with closing(Page(general.viewer_host, port, title)) as page:
        tell(page.address)
        page.say(f"Preparing {settings.env_name}; a simulator that compiles takes up to a minute.")
        seed_everything(general.seed)
        env_settings: dict[str, int] = {"num_envs": num_envs}
        if "window" in parameters_of(settings.env.target):
            env_settings["window"] = False  # the page is the window
        with closing(build_env(settings, "demo", **env_settings)) as env:
            check_renders(env)
            policy, load = _policy_of(settings, env)
            player = Player(env, policy, settings.device)
            checkpoints = WatchedCheckpoints(run, chosen)
            names = checkpoints.names()
            first = chosen if chosen in names else names[0]
            page.add_controls(names, first, num_envs, demo["speed"])
            learning = None if run is None else LearningCurves(run)
            Viewer(page, player, checkpoints, load, learning, demo["seconds_between"]).run()


def check_renders(env: Environment) -> None:
    """Refuse an environment without pictures, where only the built one knows.

    Raises:
        ConfigurationError: it cannot render.
    """
    if not env.capabilities.can_render:
        raise ConfigurationError(f"viewer=web: {name_of(env)} cannot render")


def _policy_of(
    settings: Settings, env: Environment
) -> tuple[TensorDictModuleBase, Callable[[Path], None]]:
    """Return the policy, and the function that loads another checkpoint into it."""
    agent = None if settings.contract is not None else agent_of(settings, env)
    if not isinstance(agent, Agent):
        return policy_of(settings, env), lambda _: None
    if settings.checkpoint is not None:
        restore_policy(settings.checkpoint, agent, settings.state, env)
    return agent.policy, lambda checkpoint: restore_policy(checkpoint, agent)


@contextmanager
def viewer_beside(settings: Settings, env: Environment, run: Path) -> Iterator[None]:
    """Show the policy of a run that trains in the block, in a process of the lowest priority.

    The process ends with this one. If it fails, a message says so, and the training goes on.

    Args:
        settings: settings of the training; without `viewer=web`, nothing happens.
        env: environment of the training.
        run: run folder.

    Raises:
        ConfigurationError: the environment cannot render.
    """
    if settings.general.viewer == "off":
        yield
        return
    check_renders(env)
    # The training has the device for itself.
    settings = replace(settings, device=_CPU, devices=[_CPU], execution=EAGER)
    settings = replace(settings, checkpoint=None, state=None)
    program = _PROGRAM.format(path=sys.path, module=__name__, parent=parent_of_workers())
    with stop_signals_held():
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **ONE_THREAD},
        )
    assert process.stdin is not None
    assert process.stdout is not None
    reader = threading.Thread(target=_log, args=(process.stdout,), daemon=True)
    reader.start()
    try:
        with contextlib.suppress(OSError):  # it has ended already
            process.stdin.write(pickle.dumps((settings, run.absolute())))
            process.stdin.flush()
        yield
    finally:
        process.kill()
        process.wait()
        reader.join()


def _log(stdout: IO[bytes]) -> None:
    for line in stdout:
        logger.info("%s", line.decode(errors="replace").rstrip())


def main(parent: int | None) -> None:
    """Be the process beside a training, which writes its settings to standard input."""
    ignore_stop_signals()
    end_with(parent)
    _give_way(_NICENESS_TO_START)
    torch.set_num_threads(1)
    told = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # simulators print
    try:
        settings, run = pickle.load(sys.stdin.buffer)
        threading.Thread(target=_end_with_input, daemon=True).start()

        def tell(address: str) -> None:
            print(f"watch it at {address}", file=told)
            _give_way(_NICENESS - _NICENESS_TO_START)

        _view(settings, run, NEWEST, tell)
    except Exception as error:
        print(f"the viewer has ended; the training goes on: {one_line(error)}", file=told)


def _give_way(niceness: int) -> None:
    if hasattr(os, "nice"):
        os.nice(niceness)


def _end_with_input() -> None:
    """End this process with the program that started it, whatever ends that."""
    sys.stdin.buffer.read()
    os._exit(0)
