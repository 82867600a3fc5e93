"""From arguments to a run: `settings_of`, `run`, and the command line with its `main`.

Scripts and notebooks call `run("agent=sac", "env=fanuc")`, which returns what the run has reached.
The command line is `python -m trainers.run agent=sac env=fanuc`; see `--help`.

Both functions are imported from here, `from trainers.run import run, settings_of`: exported by the
package, `run` would hide this module of the same name.

Everything that needs torch is imported at first use, so that the mistyped name of an agent or an
environment is refused at once.
"""

from __future__ import annotations

import logging
import sys
import traceback
from typing import TYPE_CHECKING

from torchrl_gpu.errors import ConfigurationError
from trainers.command_line.flags import read_flags
from trainers.components.choices import check_choices

if TYPE_CHECKING:
    from trainers.command_line.settings import Settings
    from trainers.modes import RunOutcome

_FAILED = 1
_REFUSED = 2
_INTERRUPTED = 130  # what a shell reports of a program that Ctrl-C ended


def settings_of(*arguments: str) -> Settings:
    """Return the checked settings of a command; nothing is built.

    Args:
        arguments: settings as typed, as in `settings_of("agent=sac", "env=fanuc")`.

    Raises:
        ConfigurationError: a setting is unknown, missing or out of range, or mode, agent and
            checkpoint do not fit together.
    """
    check_choices(arguments)
    from trainers.command_line.arguments import read_settings
    from trainers.command_line.settings import check

    return check(read_settings(arguments))


def run(*arguments: str) -> RunOutcome:
    """Train, evaluate or film, as `mode=` says, and return the outcome.

    Args:
        arguments: settings as typed, as in `run("agent=sac", "env=fanuc", "seed=3")`.

    Raises:
        ConfigurationError: a setting or a checkpoint does not fit.
        KeyboardInterrupt: Ctrl-C or SIGTERM ended the run; the message says how to continue it.
    """
    return _run(settings_of(*arguments))


def main() -> int:
    """Run the command line and return the exit code.

    It is 0 after success, 2 after bad input, 130 after Ctrl-C; a sweep ends with the code of the
    last run that failed, 1 after an unexpected error.
    """
    arguments = sys.argv[1:]
    if arguments[:1] == ["doctor"]:
        from torchrl_gpu.doctor.__main__ import main as doctor

        return doctor(arguments[1:])
    if arguments[:1] == ["redirect"]:
        from torchrl_gpu.redirect import command as redirect

        return redirect.start(arguments[1:])
    try:
        return _main(arguments)
    except ConfigurationError as error:
        return _refuse(str(error))
    except KeyboardInterrupt as stop:
        if message := str(stop):
            print(message)
        return _INTERRUPTED


def _main(arguments: list[str]) -> int:
    flags = read_flags(arguments)
    if flags.help:
        from trainers.command_line.help import help_text

        print(help_text(flags.settings))
        return 0
    if flags.info is not None:
        from trainers.command_line.arguments import read_settings
        from trainers.command_line.composition import show_info

        show_info(flags.info, read_settings(flags.settings))
        return 0
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if flags.multirun:
        return _sweep(flags.settings)
    settings = settings_of(*flags.settings)
    if flags.cfg is not None:
        from omegaconf import OmegaConf

        print(OmegaConf.to_yaml({**settings.general.plain(), **settings.config}), end="")
    else:
        print(_run(settings).report)
    return 0


def _sweep(arguments: list[str]) -> int:
    """Run every combination of values, all checked first; a run that fails does not end others."""
    from trainers.command_line.arguments import runs_of

    code, checked = 0, []
    for title, settings in runs_of(arguments):
        try:
            checked.append((title, settings_of(*settings)))
        except ConfigurationError as error:
            code = _refuse(f"{title}: {error}")
    for title, ready in checked:
        print(title, flush=True)
        try:
            print(_run(ready).report)
        except ConfigurationError as error:
            code = _refuse(f"{title}: {error}")
        except Exception:
            traceback.print_exc()
            code = _FAILED
    return code


def _run(settings: Settings) -> RunOutcome:
    from trainers.modes import run_mode

    return run_mode(settings)


def _refuse(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return _REFUSED


if __name__ == "__main__":
    sys.exit(main())
