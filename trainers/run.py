"""From arguments to a run: `settings_of`, `run`, and the command line with its `main`.

Scripts and notebooks call `run("agent=sac", "env=fanuc")`, which returns the outcome of the run.
The command line is `python -m trainers.run agent=sac env=fanuc`; see `--help`.

Both functions are imported from here, `from trainers.run import run, settings_of`: exported by the
package, `run` would hide this module of the same name. Modules that need torch are imported at
first use, so that a mistyped setting is refused at once.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import gc
import importlib
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, NoReturn

from torchrl_gpu.errors import FAILED, REFUSED, ConfigurationError
from torchrl_gpu.place import is_launched, launched_at, num_restarts, rank
from trainers.command_line.failures import print_exception
from trainers.signals import Interruption, cleans_up, exit_code, leave, program_ends

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainers.command_line.launching import JobEnd
    from trainers.command_line.settings import Settings
    from trainers.modes.outcome import RunOutcome

# Commands beside training and its modes: function of each, from its arguments to the exit code.
_COMMANDS = {
    "compare": "trainers.comparing.command:compare",
    "doctor": "torchrl_gpu.doctor.__main__:main",
    "import-sb3": "trainers.import_sb3:main",
    "replay": "trainers.runs.replays:main",
    "report": "trainers.comparing.command:report",
    "robot": "trainers.robot:main",
}


def settings_of(*arguments: str) -> Settings:
    """Return the checked settings of a command; nothing is built.

    Args:
        arguments: settings as typed, as in `settings_of("agent=sac", "env=fanuc")`.

    Raises:
        ConfigurationError: a setting is unknown, missing or out of range, or mode, agent and
            checkpoint do not fit together.
    """
    _import_own_packages()
    from trainers.command_line.composition import compose, read_settings

    typed = read_settings(arguments)
    composed = compose(typed)
    if "torch" not in sys.modules:
        from trainers.command_line.early import check_early

        check_early(composed.config)
        _import_program()
    from trainers.command_line.checking import check

    return check(typed, composed)


def _import_program() -> None:
    """Import torch and all modules of a run; collecting garbage would take a fifth of the time."""
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        importlib.import_module("trainers.modes.dispatch")
    finally:
        gc.freeze()  # modules stay: later collections need not search them
        if is_collecting:
            gc.enable()


def run(*arguments: str) -> RunOutcome:
    """Train, evaluate, film or record, as `mode=` says, and return the outcome.

    `threads=` and `device_memory_limit=` hold for the whole process until the run ends, also for
    other threads of it.

    Args:
        arguments: settings as typed, as in `run("agent=sac", "env=fanuc", "seed=3")`.

    Raises:
        ConfigurationError: a setting or a checkpoint does not fit.
        KeyboardInterrupt: a signal ended the training; the message says how to continue it.
        WorkerError: a process of several has ended; the message names it.
    """
    if not is_launched():
        return _begin(settings_of(*arguments))
    from trainers.ranks import run_launched

    return run_launched(lambda: _settings_of_launched(arguments))


def _settings_of_launched(arguments: Sequence[str]) -> Settings:
    """Return the settings under a launcher, which goes on with its run where it starts it again."""
    if num_restarts() and not any(a.startswith(("checkpoint=", "resume=")) for a in arguments):
        from trainers.runs.folders import trained_since

        settings = settings_of(*arguments, "resume=auto")
        newest = settings.checkpoint
        if newest is not None and trained_since(newest.parent.parent, launched_at()):
            return settings
    return settings_of(*arguments)


def _begin(settings: Settings) -> RunOutcome:
    """Run in this process, or in one process for each of several devices."""
    if len(settings.devices) > 1:
        from trainers.ranks import start

        return start(settings)
    from trainers.modes.dispatch import run_mode

    return run_mode(settings)


def main() -> int:
    """Run the command line and return the exit code.

    It is 0 after success, 1 after an unexpected error, 2 after bad input, 130 after Ctrl-C, 75
    after any other signal that asks to end; a sweep ends with the code of the last run that failed.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent, as of a service
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    try:
        folder = str(Path.cwd())
    except FileNotFoundError:
        return _refuse("the working directory has been deleted; change to another one")
    if folder not in sys.path:
        sys.path.append(folder)  # classes of the user's own, for the console script too
    command, arguments = next(iter(sys.argv[1:]), ""), sys.argv[2:]
    if command == "redirect":
        from torchrl_gpu.redirect import __main__ as redirect

        return redirect.start(arguments)
    with program_ends():
        try:
            _import_own_packages()
            if command in _COMMANDS:
                function = resolve_name(_COMMANDS[command])
                with cleans_up():  # files and folders that are not complete
                    return int(function(arguments))
            _check_command(command)
            return _start(sys.argv[1:])
        except KeyboardInterrupt as stop:
            if message := str(stop):
                with contextlib.suppress(OSError):  # the terminal has gone
                    print(message, flush=True)
            if is_launched() and not getattr(stop, "agreed", False):
                leave(stop)
            return exit_code(stop)
        except Exception as error:
            if isinstance(error, OSError) and _is_typed(error.filename):
                error = ConfigurationError(f"{error.filename}: {error.strerror}")
            if isinstance(error, ConfigurationError):
                return _refuse(str(error))
            print_exception(error)
            return FAILED


def _is_typed(path: object) -> bool:
    """Return whether an argument is a path, or a setting whose value it is."""
    return any(str(path) in (each, each.partition("=")[2]) for each in sys.argv[1:])


def _check_command(word: str) -> None:
    """Refuse a mistyped command, which is not a setting."""
    close = difflib.get_close_matches(word, [*_COMMANDS, "redirect"], n=1, cutoff=0.8)
    if close and "=" not in word:
        raise ConfigurationError(f"{word}: unknown command; did you mean {close[0]}?")


def _import_own_packages() -> None:
    """Import our packages, even if the working directory has folders of their names."""
    root = str(Path(__file__).parents[1])
    sys.path.insert(0, root)
    try:
        packages = [importlib.import_module(name) for name in ("agents", "envs")]
    finally:
        sys.path.remove(root)
    for package in packages:
        found = next(iter(getattr(package, "__path__", ())), None) or package.__file__
        if Path(str(found)).resolve().parent != Path(root).resolve():
            raise ConfigurationError(
                f"{found}: it has the name of a package of torchrl-gpu; give it another name"
            )


class _FlagParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"{message}; see --help")


def _start(arguments: list[str]) -> int:
    """Follow the flags: version, help, information, settings, a sweep, or a run."""
    from torchrl_gpu.commands import check_once, show
    from torchrl_gpu.version import __version__
    from trainers.components.choices import as_settings

    parser = _FlagParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("-c", "--cfg", choices=["job"])
    parser.add_argument("-i", "--info", choices=["all", "config", "defaults", "defaults-tree"])
    parser.add_argument("settings", nargs="*")
    flags, others = parser.parse_known_intermixed_args(arguments)
    if others:
        hint = as_settings(arguments)
        raise ConfigurationError(
            f"unrecognized arguments: {' '.join(others)}; "
            + (f"write {hint}" if hint else "see --help")
        )
    check_once(flags.settings)  # in a script, the last value counts
    runs = [flags.settings]
    if flags.multirun and (flags.help or flags.info or flags.cfg):
        from trainers.command_line.composition import runs_of
        from trainers.command_line.launching import divided

        runs = [each.settings for each in runs_of(divided(flags.settings)[0])]
    if flags.version:
        show(f"torchrl-gpu {__version__}")
    elif flags.help:
        from trainers.command_line.help import help_text

        show(help_text(runs[0]))
    elif flags.info:
        from trainers.command_line.composition import read_settings, show_info

        show_info(flags.info, read_settings(runs[0]))
    elif flags.cfg:
        show("---\n".join(settings_of(*run).as_yaml() for run in runs).rstrip())
    else:
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        if flags.multirun:
            if is_launched():
                raise ConfigurationError("-m: torchrun starts the processes of a single run")
            return _sweep(flags.settings)
        report = run(*flags.settings).report
        if rank() == 0:
            show(report)
    return 0


def _sweep(arguments: list[str]) -> int:
    """Run every combination of values, all checked first; a run that fails does not end others.

    The runs follow one another, or are jobs of a launcher of Hydra. At the end comes a table of all
    runs.
    """
    from torchrl_gpu.commands import show
    from torchrl_gpu.tables import table
    from trainers.command_line.composition import runs_of
    from trainers.command_line.launching import JobEnd, divided, launch

    code = 0
    arguments, of_launcher = divided(arguments)
    runs = runs_of(arguments)
    checked = {}
    ends = {each.title: ["not finished", ""] for each in runs}  # result and folder

    def note(title: str, end: JobEnd) -> None:
        nonlocal code
        ends[title] = [end.result, end.folder]
        if end.code == REFUSED:
            _refuse(f"{title}: {end.text}")
        elif end.text:
            show(end.text)
        code = end.code or code

    for each in runs:
        try:
            checked[each.title] = _settings_in_sweep(each.settings, alone=len(runs) == 1)
        except ConfigurationError as error:
            note(each.title, JobEnd(REFUSED, str(error), "refused"))
        except Exception as error:
            show(each.title)
            print_exception(error)
            note(each.title, JobEnd(FAILED, "", "failed"))
    with cleans_up():  # to print the table
        try:
            if of_launcher and checked:
                jobs = [each.settings for each in runs if each.title in checked]
                for title, end in zip(checked, launch(of_launcher, jobs), strict=True):
                    show(title)
                    note(title, end)
                checked.clear()
            for title, settings in checked.items():
                show(title)
                note(title, _end_of(settings))
        except KeyboardInterrupt as stop:
            given = [each.general for each in checked.values()]
            if not any(each.mode == "train" and each.checkpoint is None for each in given):
                raise
            hint = "To go on with the sweep, repeat its command with resume=auto."
            raise Interruption.of(stop, f"{stop}\n{hint}") from None
        finally:  # also after Ctrl-C
            header = [*runs[0].varied, "result", "folder"]
            rows = [[*each.varied.values(), *ends[each.title]] for each in runs]
            show(f"\n{table(header, rows, left=len(header))}")
    return code


def end_of_job(arguments: Sequence[str], *, alone: bool) -> JobEnd:
    """Run in a job of a launcher of Hydra; `alone` if it is the only run of its sweep."""
    from trainers.command_line.launching import JobEnd

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        settings = _settings_in_sweep(arguments, alone=alone)
    except ConfigurationError as error:  # as where this machine lacks the device
        end = JobEnd(REFUSED, str(error), "refused")
    else:
        end = _end_of(settings)
    print(end.text, flush=True)
    return end


def _settings_in_sweep(arguments: Sequence[str], *, alone: bool) -> Settings:
    """Return the settings of a run; several runs do not go on in the folder of one checkpoint."""
    # Each run reads its checkpoint when it begins: all of them together may be large.
    settings = replace(settings_of(*arguments), state=None)
    goes_on = alone or settings.general.resume is not None
    return replace(settings, in_place=settings.in_place and goes_on)


def _end_of(settings: Settings) -> JobEnd:
    """Run, and return how it has ended; the traceback of an error is printed."""
    from trainers.command_line.launching import JobEnd

    try:
        outcome = _begin(settings)
        return JobEnd(0, outcome.report, str(outcome.evaluation), str(outcome.folder))
    except ConfigurationError as error:
        return JobEnd(REFUSED, str(error), "refused")
    except Exception as error:
        print_exception(error)
        return JobEnd(FAILED, "", "failed")


def _refuse(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return REFUSED


if __name__ == "__main__":
    sys.exit(main())
