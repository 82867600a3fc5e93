"""Origin of a command: the earlier run whose policy it takes or whose training goes on."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.extras import check_extra
from trainers.command_line.composition import Composed, joined
from trainers.command_line.early import general_settings
from trainers.command_line.schema import GeneralSettings
from trainers.components.choices import SAVED_GROUPS
from trainers.components.sections import TARGET
from trainers.components.trust import check_trusted, named
from trainers.exporting.contract import Contract, read_contract
from trainers.runs.folders import goes_on
from trainers.runs.policy_files import check_trainable, find_policy, load_checkpoint

_logger = logging.getLogger(__name__)


class Origin(NamedTuple):
    """An earlier run or policy that a command uses; the attributes are those of `Settings`."""

    checkpoint: Path | None = None
    state: dict[str, Any] | None = None
    contract: Contract | None = None
    in_place: bool = False
    damaged: Sequence[Path] = ()


def origin_of(typed: Mapping[str, Any], composed: Composed) -> tuple[Composed, Origin]:
    """Return the configuration of a command with the settings of its origin, and the origin."""
    general = general_settings(composed.config)
    chosen, given = typed.get("experiment"), general.checkpoint or general.policy
    if chosen is not None and given is not None:
        _logger.warning("experiment=%s: the settings saved in %s replace its own", chosen, given)
    if general.checkpoint is not None:
        return _of_checkpoint(general.checkpoint, typed, composed)
    if general.policy is None:
        return composed, Origin()
    check_extra(f"policy={general.policy}", "export", "onnxruntime")
    if of_agent := [name for name in typed if name.startswith("agent.")]:
        raise ConfigurationError(
            f"{of_agent[0]}: the files of policy={general.policy} are fixed; leave it out"
        )
    origin = Origin(general.policy, contract=read_contract(general.policy))
    return with_settings_of(origin, typed, composed), origin


def _of_checkpoint(
    path: Path, typed: Mapping[str, Any], composed: Composed
) -> tuple[Composed, Origin]:
    """Return the configuration of a command with `checkpoint=path`: see `origin_of`."""
    trains = general_settings(composed.config).mode == "train"
    found = find_policy(path, best=not trains)
    try:
        state = load_checkpoint(found)
    except ConfigurationError:
        if found.exists():
            raise
        found = find_policy(path, best=not trains)  # a run that trains has replaced it
        state = load_checkpoint(found)
    if trains:
        check_trainable(state, found)
    origin = Origin(found, state, in_place=goes_on(found))
    return with_settings_of(origin, typed, composed), origin


def with_settings_of(origin: Origin, typed: Mapping[str, Any], composed: Composed) -> Composed:
    """Return the configuration of a command with the settings of the run of its origin.

    The choices of agent and environment are those of the run. What is typed takes precedence: a
    class of the user's own replaces that of the run, whose settings it may not have.
    """
    config, choices, path = composed.config, dict(composed.choices), origin.checkpoint
    contract, state = origin.contract, origin.state or {}
    trained = (state.get("config") if contract is None else contract.config) or {}
    for group in ("agent", "env"):
        if group not in trained.keys() | trained.get("choices", {}).keys():
            continue  # a script has built it
        choice = trained.get("choices", {}).get(group)
        if choices[group] not in (None, choice):
            choice = choice or trained[group].get(TARGET)
            raise ConfigurationError(
                f"{group}={choices[group]}: {path} was trained with {group}={choice}; leave out "
                f"{group}="
            )
        if f"{group}.{TARGET}" not in typed:
            choices[group] = choice
    names = (*SAVED_GROUPS, "evaluation", *GeneralSettings().saved())
    saved = OmegaConf.create({name: trained[name] for name in names if name in trained})
    for name, value in typed.items():
        section, _, last = name.rpartition(".")
        if last == TARGET and OmegaConf.select(saved, name) not in (None, value):
            OmegaConf.update(saved, section, {}, merge=False)
    known: Any = OmegaConf.to_container(config)
    config = joined(config, saved, typed=typed)
    merged: Any = OmegaConf.to_container(config)
    setting = "checkpoint" if contract is None else "policy"
    trust = general_settings(composed.config).trust
    check_trusted(f"{setting}={path}", merged, trust, known=[name for _, name in named(known)])
    return Composed(config, choices)
