"""Settings of the program, checked before anything is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from omegaconf import DictConfig, OmegaConf
from pydantic import Field

from agents.untrained import UntrainedAgent
from torchrl_gpu.arguments import check_settings, check_value
from torchrl_gpu.checkpoints.checkpoint import find_checkpoint
from torchrl_gpu.devices.device import resolve_device
from torchrl_gpu.devices.memory import memory_limit
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.execution import CompileMode, Execution, GraphMode
from torchrl_gpu.execution.precision import PrecisionName
from trainers.command_line.sizes import resolve_sizes, take_automatic
from trainers.components.choices import GROUPS
from trainers.components.component import TARGET, Component, read_component
from trainers.components.pairing import capabilities_of
from trainers.evaluation.evaluator import Evaluator
from trainers.evaluation.film import film
from trainers.runs.identity import check_trainable
from trainers.runs.layout import load_checkpoint
from trainers.training.overlap import overlap_of

Mode = Literal["train", "eval", "demo"]

# Arguments that the program itself passes to the constructors; settings must not contain them.
PROVIDED = {
    "agent": ("observation_spec", "action_spec", "device"),
    "env": ("mode", "device", "seed"),
    "trainer": ("env", "agent", "folder", "evaluation_env", "config", "seed", "execution"),
    "evaluation": ("env", "limit"),
    "demo": ("env", "policy", "device", "seed", "folder", "execution"),
}


@dataclass(frozen=True)
class Settings:
    """Checked settings of one call of the program.

    Attributes:
        mode: train, eval or demo.
        seed: seed of all random numbers.
        device: compute device.
        device_memory_limit: limit of the memory of the device in bytes; None for no limit.
        threads: number of CPU threads of PyTorch; None for one per core.
        execution: executes the training in its precision, eagerly, compiled or captured;
            eagerly and in float32 in other modes.
        observation_keys: observations that the agent receives; None for all.
        runs: folder of all runs.
        checkpoint: file to resume, evaluate or film; None to train from scratch, and for an agent
            that does not learn.
        agent: agent class and its settings.
        env: environment class and its settings.
        trainer: trainer class and its settings.
        evaluation: arguments of `Evaluator`.
        demo: arguments of `film`.
        experiment: name of the preset; None without one.
        config: all settings as plain values, to save with the run.
    """

    mode: Mode
    seed: int
    device: torch.device
    device_memory_limit: int | None
    threads: int | None
    execution: Execution
    observation_keys: list[str] | None
    runs: Path
    checkpoint: Path | None
    agent: Component
    env: Component
    trainer: Component
    evaluation: dict[str, Any]
    demo: dict[str, Any]
    experiment: str | None
    config: dict[str, Any]


def check(config: DictConfig, choices: Mapping[str, str | None], overrides: list[str]) -> Settings:
    """Check a composed configuration.

    Args:
        config: configuration composed by Hydra.
        choices: choice of each config group, as in `{"agent": "sac", "env": "fanuc"}`; None for
            the user's own class.
        overrides: arguments as typed; they take precedence over the settings of a checkpoint.

    Raises:
        ConfigurationError: a setting is unknown, missing or out of range, or mode, agent and
            checkpoint do not fit together.
    """
    mode, seed, device, limit, threads, checkpoint, runs = (
        check_value(_general, name, config[name])
        for name in (
            "mode",
            "seed",
            "device",
            "device_memory_limit",
            "threads",
            "checkpoint",
            "runs",
        )
    )
    resolved_device = resolve_device(device)
    resolved_limit = None if limit is None else memory_limit(limit, resolved_device)
    found = None
    if checkpoint is not None:
        found = find_checkpoint(Path(checkpoint), best=mode != "train")
        state = load_checkpoint(found)
        if mode == "train":
            check_trainable(state, found)
        config = _with_settings_of(state, found, config, choices, overrides)
        seed = check_value(_general, "seed", config["seed"])
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    unresolved: dict[str, Any] = OmegaConf.to_container(config)  # type: ignore[assignment]
    speed = {
        name: check_value(_general, name, plain[name])
        for name in ("precision", "compile", "graphs")
    }
    observation_keys = check_value(_general, "observation_keys", plain["observation_keys"])
    evaluation = check_settings(
        Evaluator, plain["evaluation"], "evaluation", PROVIDED["evaluation"]
    )
    automatic = take_automatic(plain)
    # The trainer first, because schedules of an agent refer to the length of the run.
    order = sorted(GROUPS, key=lambda group: group != "trainer")
    components = {g: read_component(g, plain[g], PROVIDED[g]) for g in order}
    components = resolve_sizes(components, automatic, resolved_device, resolved_limit)
    names = {g: choices[g] or components[g].target.__name__ for g in ("agent", "env")}
    _check_mode(mode, components["agent"].target, names["agent"], found)
    _check_overlap(components, resolved_device)
    return Settings(
        mode=mode,
        seed=seed,
        device=resolved_device,
        device_memory_limit=resolved_limit,
        threads=threads,
        execution=Execution(resolved_device, **speed) if mode == "train" else Execution(),
        observation_keys=observation_keys,
        runs=Path(runs),
        checkpoint=found,
        **components,
        evaluation=evaluation,
        demo=check_settings(film, plain["demo"], "demo", PROVIDED["demo"]),
        experiment=choices.get("experiment"),
        config={
            "choices": names,
            "seed": seed,
            **speed,
            "observation_keys": observation_keys,
            "evaluation": evaluation,
            **{
                group: component.config(unresolved[group])
                for group, component in components.items()
            },
        },
    )


def _check_mode(mode: Mode, agent: type, name: str, checkpoint: Path | None) -> None:
    """Refuse to train an agent that does not learn, and to act with one that has not learned."""
    if not issubclass(agent, UntrainedAgent):
        if mode != "train" and checkpoint is None:
            raise ConfigurationError(
                f"mode={mode} needs a trained policy: checkpoint=runs/... (a run folder or a file)"
            )
    elif mode == "train":
        raise ConfigurationError(f"agent={name} does not learn: mode=demo or mode=eval")
    elif checkpoint is not None:
        raise ConfigurationError(f"agent={name} does not learn: leave out checkpoint={checkpoint}")


def _check_overlap(components: Mapping[str, Component], device: torch.device) -> None:
    """Refuse `trainer.overlap=true` where agent or environment cannot."""
    agent, env = components["agent"].target, components["env"]
    settings, name = components["trainer"].settings, env.target.__name__
    if isinstance(overlap := settings.get("overlap"), bool):
        env_can = capabilities_of(env, device).can_overlap
        overlap_of(overlap, agent, name, env_can=env_can)


def _general(
    mode: Mode,
    seed: Annotated[int, Field(ge=0, lt=2**31)],
    device: str,
    device_memory_limit: int | float | str | None,
    threads: Annotated[int, Field(ge=1)] | None,
    precision: PrecisionName,
    compile: CompileMode,
    graphs: GraphMode,
    observation_keys: Annotated[list[str], Field(min_length=1)] | None,
    checkpoint: str | None,
    runs: str,
) -> None:
    """Declare types and ranges of the general settings, as a schema for `check_value`."""


def _with_settings_of(
    state: dict[str, Any],
    path: Path,
    config: DictConfig,
    choices: Mapping[str, str | None],
    overrides: list[str],
) -> DictConfig:
    """Return the configuration with the settings of the run that wrote the checkpoint."""
    trained = state.get("config") or {}
    for group in ("agent", "env"):
        of_checkpoint = trained.get("choices", {}).get(group)
        if choices[group] is not None and of_checkpoint != choices[group]:
            raise ConfigurationError(
                f"{group}={choices[group]}: {path} was trained with {group}={of_checkpoint}"
            )
    typed = [override.lstrip("+") for override in overrides if "." in override.split("=")[0]]
    OmegaConf.set_struct(config, False)
    sections = {group: trained[group] for group in ("agent", "env", "trainer")}
    sections["evaluation"] = trained.get("evaluation", {})
    _drop_settings_of_other_classes(sections, typed)
    for name in ("seed", "precision", "compile", "graphs", "observation_keys"):
        if not any(override.startswith(f"{name}=") for override in overrides):
            sections[name] = trained.get(name, config[name])
    merged = OmegaConf.merge(config, sections, OmegaConf.from_dotlist(typed))
    assert isinstance(merged, DictConfig)
    return merged


def _drop_settings_of_other_classes(sections: dict[str, Any], typed: list[str]) -> None:
    """Drop the saved settings of each component whose class the user has replaced."""
    for override in typed:
        name, _, path = override.partition("=")
        *groups, last = name.split(".")
        if last != TARGET:
            continue
        section: Any = sections
        for group in groups[:-1]:
            section = section.get(group, {})
        if section.get(groups[-1], {}).get(TARGET) != path:
            section.pop(groups[-1], None)
