"""Checkpoints and policy files: layout and identity, and policies that act from a file alone."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torchrl.data import Composite, TensorSpec

from agents.base import Agent
from agents.modules.training_state import POLICY, load_networks
from torchrl_gpu.acting.interface import GivenObservation, PolicyInterface, SimulatorAction, by_name
from torchrl_gpu.acting.policy import Observations
from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder, find_checkpoint, shares_of
from torchrl_gpu.checkpoints.contents import check_count, check_like, reading
from torchrl_gpu.checkpoints.state_file import load_state, save_state
from torchrl_gpu.devices.device import check_device, resolve_device
from torchrl_gpu.devices.memory import limited_allocations
from torchrl_gpu.environments.environment import Environment
from torchrl_gpu.environments.specs import name_of_key
from torchrl_gpu.errors import ConfigurationError, one_line, shortened
from trainers.components.component import Component, read_component
from trainers.components.trust import check_plain, check_trusted, resolved

LAYOUT = 6

# The policies that ship with the library, beside its packages in the checkout and in the wheel.
_PRETRAINED = Path(__file__).parents[2] / "pretrained"
_PREFIX = "pretrained:"

logger = logging.getLogger(__name__)


def find_policy(path: Path | str, best: bool) -> Path:
    """Return the file of a policy: `pretrained:NAME`, or a path as `find_checkpoint` takes it."""
    text = Path(path).as_posix()
    if not text.startswith(_PREFIX):
        return find_checkpoint(path, best)
    files = pretrained_policies()
    name = text.removeprefix(_PREFIX)
    if name not in files:
        raise ConfigurationError(f"checkpoint={text}: choose one of: {', '.join(files)}")
    return files[name]


def pretrained_policies() -> dict[str, Path]:
    """Return the files of all policies that ship with the library, by names as in `fanuc/sac`."""
    files = sorted(_PRETRAINED.glob("*/*.safetensors"))
    return {file.relative_to(_PRETRAINED).with_suffix("").as_posix(): file for file in files}


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint or a policy file.

    Raises:
        ConfigurationError: the file cannot be read, see `load_state`, has another layout, its
            settings are not plain values, see `check_plain`, or it does not describe a policy. The
            message names the newest other checkpoint of its folder that can be read, if any.
    """
    try:
        return _load(path)
    except ConfigurationError as error:
        others = reversed(CheckpointFolder(path.parent).paths())
        readable = next((other for other in others if other != path and _can_load(other)), None)
        if readable is None:
            raise
        raise ConfigurationError(f"{error}; the newest that can be read is {readable}") from error


def _can_load(path: Path) -> bool:
    try:
        return bool(_load(path))
    except ConfigurationError:
        return False


def _load(path: Path) -> dict[str, Any]:
    state = load_state(path)
    layout = state.get("layout")
    if type(layout) is not int or layout != LAYOUT:
        raise ConfigurationError(
            f"checkpoint={path}: another version of this library wrote it, in layout "
            f"{shortened(one_line(str(layout)))}; this version reads layout {LAYOUT}"
        )
    check_plain(f"checkpoint={path}", state.setdefault("config", {}))
    with reading(path):
        check_count(state.get("frames", 0), "frames")
        check_like(state.get("seconds", 0.0), 0.0, "seconds")
        check_like(state["agent_name"], "", "agent_name")
        _policy_of(state)
        PolicyInterface.from_state(state["interface"])
    return state


def newest_readable(run: Path, processes: int) -> tuple[Path, dict[str, Any], list[Path]]:
    """Return the newest checkpoint of a run that can be resumed, its content, and newer ones.

    Args:
        run: run folder.
        processes: number of processes; each reads its share if as many have saved the checkpoint.
    """
    reasons: dict[Path, ConfigurationError] = {}
    for path in reversed(CheckpointFolder(run / "checkpoints").paths()):
        try:
            state = _load(path)
            check_trainable(state, path)
            for share in shares_of(path) if state.get("processes", 1) == processes else ():
                load_state(share)
        except ConfigurationError as error:
            reasons[path] = error
        else:
            return path, state, list(reasons)
    raise next(iter(reasons.values()))


def identity(agent: Agent, env: Environment) -> dict[str, Any]:
    """Return the class name of an agent, and the interface of its policy in an environment."""
    interface = PolicyInterface.of(agent.observation_spec, agent.action_spec, env.capabilities)
    return {"agent_name": type(agent).__name__, "interface": interface.state_dict()}


def check_identity(
    state: Mapping[str, Any], agent: Agent, checkpoint: Path, env: Environment | None = None
) -> None:
    """Refuse a checkpoint of another agent class or of other observations or actions.

    Where an environment is given, observations or actions in other units are only reported: images
    drawn in another way, for instance.
    """
    name = type(agent).__name__
    if state.get("agent_name") != name:
        raise ConfigurationError(
            f"checkpoint={checkpoint}: it contains the agent {state.get('agent_name')}, not {name}"
        )
    saved = PolicyInterface.from_state(state["interface"])
    found = saved.shapes()
    expected = PolicyInterface(agent.observation_spec, agent.action_spec).shapes()
    # The order counts, too: the networks read the observations one after the other.
    if list(found.items()) != list(expected.items()):
        raise ConfigurationError(
            f"checkpoint={checkpoint}: it belongs to another environment, with {found}; "
            f"this one has {expected}"
        )
    if env is not None:
        units = {name_of_key(key): unit for key, unit in env.capabilities.units.items()}
        for name in {**saved.units, **units}:
            was, unit = (each.get(name, "unnamed units") for each in (saved.units, units))
            if was != unit:
                logger.warning("%s: the policy was trained with %s; this is %s", name, was, unit)


def check_trainable(state: Mapping[str, Any], checkpoint: Path) -> None:
    """Refuse to resume training from a policy file."""
    if "agent" not in state:
        raise ConfigurationError(
            f"checkpoint={checkpoint}: a policy file cannot resume training; use a "
            "checkpoint of a run"
        )


class TrainedPolicy(nn.Module):
    """The greedy policy of an agent for use outside of a simulator: see `load_policy`.

    Attributes:
        interface: shapes, dtypes, bounds and units of observations and actions, frame stacks, time
            of a step, action table and action range.
        policy: the policy as a TensorDict module, for `evaluate`, `film` or a collector; it returns
            the actions that the environment takes: row numbers of the action table, or actions
            that the environment itself maps to the action range.
    """

    def __init__(self, agent: Agent, interface: PolicyInterface) -> None:
        super().__init__()
        self.interface = interface
        self.policy = agent.policy.eval()
        self.to_simulator = SimulatorAction(interface)
        self.to(agent.device)

    def forward(self, observation: Observations) -> Tensor:
        """Return the actions for observations `[*B, ...]`, tensors in and out.

        Args:
            observation: tensors by key, in the dtypes of `interface`, on the policy's device.

        Returns:
            Actions as `predict` returns them: `[*B, action_dim]`, or indices `[*B]` int64.
        """
        action = self.policy.actor.act(observation, deterministic=True)
        values: Tensor = self.to_simulator(self.policy.to_bounds(action))
        return values

    @torch.no_grad()
    def predict(self, observation: GivenObservation) -> NDArray[Any] | Tensor:
        """Return the greedy actions for one observation or a batch.

        Args:
            observation: NumPy arrays or tensors by name, each `[*B, ...]` as the environment gives
                them, a stack of frames included; or the array alone, of a policy that reads one
                observation. Nested names are joined by dots, or in nested dicts or a TensorDict.

        Returns:
            Actions `[*B, action_dim]` in the units that the simulator takes, see
            `interface.units` and `interface.action_range`; or indices `[*B]`. A tensor on the
            policy's device for tensors, otherwise a NumPy array.

        Raises:
            ConfigurationError: an observation is missing, unknown, not a tensor of numbers, or has
                another shape or dtype, or an array holds NaN or infinity.
        """
        device = self.policy.frames.device
        action: Tensor = self(self.interface.read(observation, device))
        named = by_name(observation if isinstance(observation, Mapping) else {"": observation})
        if any(isinstance(value, Tensor) for value in named.values()):
            return action
        return action.cpu().numpy()


def load_policy(
    path: Path | str, device: torch.device | str = "cpu", trust: Sequence[str] = ()
) -> TrainedPolicy:
    """Load a policy to act with, from a checkpoint or a policy file alone.

    No environment is built. Transforms of the environment are not in the file: the policy reads
    the observations that they return.

    Args:
        path: path of a checkpoint or policy file; of a run folder, for its best checkpoint; or
            `pretrained:NAME`, as in `pretrained:fanuc/sac`, for a policy of the library.
        device: device of the policy, or its name as `resolve_device` takes it.
        trust: name of your package whose classes the file may name, or several; they are imported,
            which runs their code.

    Raises:
        ConfigurationError: the file cannot be read, belongs to another version of its agent, lacks
            the settings of the agent, or names a class that is neither part of this library nor
            trusted; or the device is not available.
    """
    path = find_policy(path, best=True)
    state = load_checkpoint(path)
    if "agent" not in state["config"]:
        raise ConfigurationError(
            f"checkpoint={path}: it lacks the settings of the agent; pass them to the trainer: "
            'TorchRLTrainer(..., config={"agent": {"_target_": "package.Class", ...}})'
        )
    section = state["config"]["agent"]
    packages = [trust] if isinstance(trust, str) else trust
    check_trusted(f"checkpoint={path}", {"agent": section}, packages)
    place = resolve_device(device) if isinstance(device, str) else device
    check_device(place)
    with reading(path):
        component = read_component("agent", resolved(section, state["config"]))
        interface = PolicyInterface.from_state(state["interface"])
        specs = interface.observation_spec.to(place), interface.action_spec.to(place)
        agent: Agent = build_agent(component, *specs, place, path)
        restore_policy(path, agent, state)
        return TrainedPolicy(agent, interface)


def build_agent(
    component: Component,
    observation_spec: Composite,
    action_spec: TensorSpec,
    device: torch.device,
    checkpoint: Path | None,
) -> Any:
    """Build an agent that will be loaded from a checkpoint; None for a new agent."""
    if checkpoint is None:
        return component.build(observation_spec, action_spec, device)
    # A policy file lacks critics, target networks and buffers that an agent computes itself.
    largest = 16 * checkpoint.stat().st_size + 64 * 2**20
    refusal = f"checkpoint={checkpoint}: by its settings the agent is far larger than the file"
    with limited_allocations(largest, refusal):
        return component.build(observation_spec, action_spec, device)


def restore_policy(
    path: Path,
    agent: Agent,
    state: Mapping[str, Any] | None = None,
    env: Environment | None = None,
) -> None:
    """Load the policy of a checkpoint or a policy file into an agent.

    `state` is the content of the file if it has been read already. The units are compared with
    those of `env`, if there is one.
    """
    state = load_checkpoint(path) if state is None else state
    check_identity(state, agent, path, env)
    with reading(path):
        load_networks(agent.policy, _policy_of(state))


def save_policy(checkpoint: Path | str, path: Path | str) -> None:
    """Write a policy file: the part of a checkpoint that acting needs.

    It lacks critics, target networks, optimizers and the environment's state, so it cannot resume
    training and is small enough to be shipped. `load_policy`, `mode=eval` and `mode=demo` accept it
    like a checkpoint.

    Args:
        checkpoint: path as `load_policy` takes it.
        path: path of the new file, `*.safetensors`; its folder is created.

    Raises:
        ConfigurationError: a file cannot be read or written.
    """
    checkpoint = find_policy(checkpoint, best=True)
    state = load_checkpoint(checkpoint)
    kept = ("layout", "agent_name", "interface", "config", "frames", "seconds")
    with reading(checkpoint):
        policy = {**{name: state[name] for name in kept}, "policy": _policy_of(state)}
    save_state(Path(path), policy)


def _policy_of(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the policy networks in the state of a checkpoint or a policy file."""
    if "policy" in state:
        return dict(state["policy"])
    return {
        name.removeprefix(POLICY): tensor
        for name, tensor in state["agent"]["networks"].items()
        if name.startswith(POLICY)
    }
