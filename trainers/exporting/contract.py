"""Contract of an exported policy, as JSON: its inputs, its output, its measured result."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

import torch
from tensordict import NestedKey
from torch import Tensor
from torchrl.data import Bounded, TensorSpec

from torchrl_gpu.acting.interface import PolicyInterface, SimulatorAction
from torchrl_gpu.checkpoints.contents import check_count, check_like, reading
from torchrl_gpu.environments.capabilities import Element
from torchrl_gpu.environments.specs import name_of_key
from torchrl_gpu.errors import ConfigurationError, shortened
from trainers.components.trust import check_plain
from trainers.evaluation.evaluation import Evaluation, check_evaluation
from trainers.exporting.agreement import Agreement

FORMAT: Final = 1
CONTRACT: Final = "contract.json"
ONNX: Final = "policy.onnx"
PT2: Final = "policy.pt2"

# Bytes of a contract, many times that of one with a table of a thousand actions.
_MAX_SIZE: Final = 2**24

# Parts of an observation or action that an environment has to share with the policy.
_SHARED: Final = ("name", "shape", "dtype", "unit", "frames", "table", "range")


@dataclass(frozen=True)
class Contract:
    """Inputs, output and measured result of an exported policy.

    Attributes:
        agent: class name of the agent.
        frames: environment steps that it was trained for.
        observations: observations in their order, see `observations_of`.
        action: action, see `action_of`.
        step_seconds: time between two actions in seconds; None if unknown.
        evaluation: result of the checkpoint.
        agreement: largest differences of actions from those of the checkpoint.
        config: settings of the run: classes and settings of environment and agent, and choices.
        versions: versions of this library, torch and ONNX Runtime, by name.
        files: SHA-256 of the other files of the folder, by name.
    """

    agent: str
    frames: int
    observations: list[dict[str, Any]]
    action: dict[str, Any]
    step_seconds: float | None
    evaluation: Evaluation
    agreement: Agreement
    config: dict[str, Any]
    versions: dict[str, str]
    files: dict[str, str]

    def as_json(self) -> str:
        """Return the contract as the text of its file."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2)

    def check_fits(self, interface: PolicyInterface, folder: Path) -> None:
        """Refuse an environment of other observations, actions, units or step duration."""
        found = [*observations_of(interface), action_of(interface)]
        known = [*self.observations, self.action]
        names, own = ([each["name"] for each in entries] for entries in (known, found))
        problem = None
        if names != own:
            problem = f"reads and returns {', '.join(names)}, the environment has {', '.join(own)}"
        elif self.step_seconds != interface.step_seconds:
            problem = (
                f"acts every {self.step_seconds} s, "
                f"a step of the environment takes {interface.step_seconds} s"
            )
        else:
            for entry, other in zip(known, found, strict=True):
                for part in _SHARED:
                    one, two = (each.get(part) for each in (entry, other))
                    if one != two and problem is None:
                        shown = f"{shortened(str(one), 60)}, not {shortened(str(two), 60)}"
                        problem = f"{entry['name']} has the {part} {shown} as in the environment"
        if problem is not None:
            raise ConfigurationError(f"policy={folder}: does not fit the environment: {problem}")


def observations_of(
    interface: PolicyInterface, elements: Mapping[NestedKey, Sequence[Element]] | None = None
) -> list[dict[str, Any]]:
    """Describe the observations of a policy in their order.

    Args:
        interface: interface of the policy.
        elements: elements of the observations, see `Capabilities`.

    Returns:
        Of each: `name` (input of the files), `key` (its parts), `shape` without the batch, `dtype`,
        `low` and `high` (numbers, or None without a bound), `unit`, `frames` of a stack, and
        `elements`; None where unknown.
    """
    named = {name_of_key(key): found for key, found in (elements or {}).items()}
    leaves = interface.observation_spec.items(include_nested=True, leaves_only=True)
    return [
        {
            "name": (name := name_of_key(key)),
            "key": [key] if isinstance(key, str) else list(key),
            "shape": list(leaf.shape[1:]),
            "dtype": str(leaf.dtype).removeprefix("torch."),
            **_bounds(leaf),
            "unit": interface.units.get(name),
            "frames": interface.frame_stacks.get(name),
            "elements": _described(named.get(name)),
        }
        for key, leaf in leaves
    ]


def action_of(
    interface: PolicyInterface, elements: Sequence[Element] | None = None
) -> dict[str, Any]:
    """Describe the action that `TrainedPolicy` returns: `observations_of` describes its parts.

    It also has its `meaning` in words, the `table` whose rows are the possible actions, and the
    `range` that actions -1 and 1 of the agent stand for.
    """
    leaf, table = interface.action_spec, interface.action_table
    to_simulator = SimulatorAction(interface)
    bounds = _bounds(leaf)
    if table is not None:
        table = to_simulator(torch.arange(len(table)))
        bounds = {"low": table.amin(0).tolist(), "high": table.amax(0).tolist()}
        shape, dtype, meaning = table.shape[1:], table.dtype, "a row of the table"
    elif not leaf.dtype.is_floating_point:
        choices = leaf.space.n
        bounds = {"low": 0, "high": choices - 1}
        shape, dtype, meaning = leaf.shape[1:], torch.int64, f"one of {choices} choices"
    else:
        shape, dtype, meaning = leaf.shape[1:], leaf.dtype, "a value within the bounds"
    if interface.action_range is not None:
        bounds = dict(zip(("low", "high"), interface.action_range.tolist(), strict=True))
    if "action" in interface.units:
        meaning += f", in {interface.units['action']}"
    return {
        "name": "action",
        "shape": list(shape),
        "dtype": str(dtype).removeprefix("torch."),
        **bounds,
        "unit": interface.units.get("action"),
        "meaning": meaning,
        "table": None if table is None else table.tolist(),
        "range": None if interface.action_range is None else interface.action_range.tolist(),
        "elements": _described(elements),
    }


def _described(elements: Sequence[Element] | None) -> list[dict[str, Any]] | None:
    return None if elements is None else [each._asdict() for each in elements]


def _bounds(leaf: TensorSpec) -> dict[str, Any]:
    """Return lowest and highest values without the batch: a number where all are equal."""
    if not isinstance(leaf, Bounded):
        return {"low": None, "high": None}
    return {side: _values(getattr(leaf.space, side)[0]) for side in ("low", "high")}


def _values(bound: Tensor) -> Any:
    first = bound.flatten()[0]
    return _finite((first if bool((bound == first).all()) else bound).tolist())


def _finite(values: Any) -> Any:
    """Return numbers, nested in lists, with None in place of those that are infinite."""
    if isinstance(values, list):
        return [_finite(each) for each in values]
    return values if math.isfinite(values) else None


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_contract(folder: Path) -> Contract:
    """Read the contract of an exported folder; nothing that it names is imported."""
    path = folder / CONTRACT
    source = f"policy={folder}"
    try:
        if folder.is_file():
            raise ConfigurationError(f"{source} is a file; name its folder: policy={folder.parent}")
        if path.stat().st_size > _MAX_SIZE:
            raise ConfigurationError(f"{source}: {CONTRACT} is too large")
        text, digest = path.read_bytes(), sha256(folder / ONNX)
    except OSError as error:
        missing = Path(error.filename).name
        raise ConfigurationError(
            f"{source}: not an exported policy: {missing}: {error.strerror}; mode=export writes one"
        ) from None
    with reading(path, "policy"):
        content = json.loads(text)
        if content.pop("format") != FORMAT:
            raise ConfigurationError(f"{source}: another version of this library wrote it")
        check_plain(source, content["config"])
        content["evaluation"] = Evaluation(**content["evaluation"])
        batches = tuple(content["agreement"].pop("batches"))
        content["agreement"] = Agreement(**content["agreement"], batches=batches)
        contract = Contract(**{each.name: content[each.name] for each in fields(Contract)})
        _check(contract, source)
        if contract.files[ONNX] != digest:
            raise ConfigurationError(f"{source}: {ONNX} is damaged, or not that of {CONTRACT}")
    return contract


def _check(contract: Contract, source: str) -> None:
    """Refuse a contract whose parts have other types than those that are used."""
    check_count(contract.frames, f"{source}: frames")
    seconds = contract.step_seconds
    check_like(seconds, None if seconds is None else 0.0, f"{source}: step_seconds")
    check_like(contract.agent, "", f"{source}: agent")
    check_evaluation(contract.evaluation, f"{source}: evaluation")
    for entry in (*contract.observations, contract.action):
        check_like(entry["name"], "", f"{source}: name")
