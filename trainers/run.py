"""The command line: `python -m trainers.run agent=sac env=fanuc`. See `--help`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import hydra
import torch
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from torchrl_gpu.devices.host import keep_freed_memory
from torchrl_gpu.devices.memory import limited_memory
from torchrl_gpu.doctor.__main__ import main as doctor
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.redirect import command as redirect
from trainers import modes
from trainers.command_line.arguments import complete, explain, help_text
from trainers.command_line.settings import Settings, check
from trainers.components.choices import CUSTOM, choices_of

_INTERRUPTED = 130  # what a shell reports of a program that Ctrl-C ended

# Commands beside training, by their name as the first argument.
_COMMANDS: dict[str, Callable[[list[str]], int]] = {"doctor": doctor, "redirect": redirect.start}


def main() -> int:
    """Run the command line and return the exit code: 0, 2 after bad input, 130 after Ctrl-C."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] in _COMMANDS:
        return _COMMANDS[arguments[0]](arguments[1:])
    # Hydra raises its errors instead of printing them, so that they can be shortened to one line.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    try:
        if "--help" in arguments or "-h" in arguments:
            print(help_text(arguments))
            return 0
        sys.argv[1:] = complete(arguments)
        run()
    except ConfigurationError as error:
        return refuse(str(error))
    except (HydraException, OmegaConfBaseException) as error:
        return refuse(explain(error))
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


def settings_of(*arguments: str) -> Settings:
    """Return the checked settings of a command; nothing is built.

    Args:
        arguments: arguments as typed, as in `settings_of("agent=sac", "env=fanuc")`.

    Raises:
        ConfigurationError: an argument is unknown, missing or out of range.
    """
    try:
        with initialize_config_module("configs", version_base="1.3"):
            config = compose("config", complete([*arguments]), return_hydra_config=True)
        composed: Any = OmegaConf.to_container(config.hydra, resolve=False)
        with open_dict(config):
            del config["hydra"]
        return _checked(config, composed["runtime"]["choices"], composed["overrides"]["task"])
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigurationError(explain(error)) from None


@hydra.main(version_base="1.3", config_path="pkg://configs", config_name="config")
def run(config: DictConfig) -> None:
    """Check the composed configuration and run its mode."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    composed = HydraConfig.get()
    try:
        settings = _checked(config, composed.runtime.choices, list(composed.overrides.task))
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        keep_freed_memory()
        with limited_memory(settings.device, settings.device_memory_limit):
            modes.MODES[settings.mode](settings)
    except ConfigurationError as error:
        # Hydra would add lines of its own to any other exception.
        raise SystemExit(refuse(str(error))) from None


def refuse(reason: str) -> int:
    """Print an error as one line and return the exit code of bad input."""
    print(f"error: {reason}", file=sys.stderr)
    return 2


def _checked(
    config: DictConfig, choices: Mapping[str, str | None], overrides: list[str]
) -> Settings:
    if HydraConfig.initialized():
        _check_experiment(choices.get("experiment"), overrides)
    return check(config, {g: None if c == CUSTOM else c for g, c in choices.items()}, overrides)


def _check_experiment(choice: str | None, overrides: list[str]) -> None:
    """Refuse an unknown experiment, which Hydra ignores because `experiment` is optional."""
    group, _, name = f"experiment/{choice}".rpartition("/")
    known = GlobalHydra.instance().config_loader().get_group_options(group)
    if f"experiment={choice}" in overrides and name not in known:
        there = ", ".join(choices_of("experiment"))
        raise ConfigurationError(
            f"experiment={choice}: there is no such experiment; there are: {there}"
        )


if __name__ == "__main__":
    sys.exit(main())
