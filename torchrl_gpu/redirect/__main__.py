"""Run a script that hard-codes `cuda` without cuda: `torchrl-gpu redirect`; see `--help`."""

import atexit
import importlib.util
import os
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from unittest import mock

from torchrl_gpu.devices.device import describe_device, resolve_device
from torchrl_gpu.errors import FAILED, INTERRUPTED, REFUSED, ConfigurationError
from torchrl_gpu.redirect.block import redirect_cuda

USAGE = """\
Run a script that hard-codes cuda on the accelerator of this machine, or on its CPU.

  torchrl-gpu redirect [device=NAME] script.py [argument ...]
  torchrl-gpu redirect [device=NAME] -m module [argument ...]

device is auto, xpu, mps, directml or cpu, with an index as in xpu:1 (auto).
"""


def start(arguments: list[str]) -> int:
    """Run the command in a new interpreter, which replaces this one if possible.

    The console script imports packages that change defaults of Python (torchrl makes `spawn` the
    way to start processes) or have names that a script may use for its own packages (`agents`).
    Arguments and exit code are those of `main`.
    """
    words = [sys.executable, "-m", "torchrl_gpu.redirect", *arguments]
    if os.name == "posix":
        os.execv(sys.executable, words)
    child = subprocess.Popen(words)
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            continue  # Ctrl-C has reached the child too, which decides when to end


def main(arguments: list[str]) -> int:
    """Run a script or module as `__main__`, with cuda redirected.

    Args:
        arguments: `device=NAME` or nothing, then the script or `-m` and the module, then their
            own arguments.

    Returns:
        Exit code: 0, 1 after an exception of the script, 2 if the script or the device was not
        found, 130 after Ctrl-C.

    Raises:
        SystemExit: the script raised it.
    """
    if arguments[:1] in (["--help"], ["-h"]):
        sys.stdout.write(USAGE)
        return 0
    try:
        name = "auto"
        if arguments and arguments[0].startswith("device="):
            name, arguments = arguments[0].partition("=")[2], arguments[1:]
        is_module = arguments[:1] == ["-m"]
        words = arguments[1:] if is_module else arguments
        if not words or not words[0]:
            raise ConfigurationError("the script is missing, as in: torchrl-gpu redirect script.py")
        if not is_module and not Path(words[0]).exists():
            raise ConfigurationError(f"{words[0]}: file not found")
        device = resolve_device(name)
        if not is_module and Path(words[0]).is_dir() and not Path(words[0], "__main__.py").exists():
            raise ConfigurationError(f"{words[0]}: a folder without __main__.py; name a script")
        is_cuda = device.type == "cuda"
        text = "cuda is available, nothing is redirected:" if is_cuda else "cuda is redirected to"
        print(f"{text} {device} ({describe_device(device)})", file=sys.stderr)  # noqa: T201
        with ExitStack() as stack:
            stack.enter_context(_command_line_of(words, is_module))
            stack.enter_context(redirect_cuda(device))
            threads = set(threading.enumerate())
            try:
                return _run(words[0], is_module)
            finally:
                if any(not thread.daemon for thread in set(threading.enumerate()) - threads):
                    # Python ends after threads that are not daemons: they need cuda until then.
                    atexit.register(stack.pop_all().close)
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return REFUSED


def _run(name: str, is_module: bool) -> int:
    if is_module and (name.startswith(".") or not _exists(name)):
        raise ConfigurationError(f"-m {name}: module not found")
    try:
        if is_module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    except (Exception, KeyboardInterrupt) as error:
        traceback = _of_the_script(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED
    return 0


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError as error:
        if error.name is not None and module.startswith(error.name):
            return False
        raise


def _of_the_script(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames in front of the script."""
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    while traceback is not None and traceback.tb_frame.f_code.co_filename in ours:
        traceback = traceback.tb_next
    return traceback


@contextmanager
def _command_line_of(words: list[str], is_module: bool) -> Iterator[None]:
    """Give the script the arguments and the search path that `python` would give it."""
    path = list(sys.path)
    if not getattr(sys.flags, "safe_path", False):
        script = Path(words[0]).resolve()
        path[0] = str(Path.cwd() if is_module else script if script.is_dir() else script.parent)
    with mock.patch.object(sys, "argv", list(words)), mock.patch.object(sys, "path", path):
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
