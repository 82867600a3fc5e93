"""Sizes that the user leaves to the program: `env.num_envs=auto` and `agent.batch_size=auto`.

They become plain numbers before anything is built, so that constructors and saved configurations
hold numbers only.
"""

import logging
from collections.abc import Mapping

import torch

from agents.base import OnPolicyAgent
from torchrl_gpu.devices.host import num_cores
from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.devices.memory import free_memory, human_bytes
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.tables import counted
from trainers.components.component import Component
from trainers.components.pairing import capabilities_of
from trainers.components.sections import AUTOMATIC

# Number of environments on an accelerator that simulates them all together.
_ENVS_ON_ACCELERATOR = 1024

# A gradient step of a small network takes an accelerator nearly the same time for a batch four
# times as large, and a larger one would change what the other defaults of an agent learn.
_BATCH_FACTOR_ON_ACCELERATOR = 4

# Estimate of the memory that one transition takes in a gradient step, for networks on images.
_TRANSITION_MEMORY = 2**20

# The rest of the free memory is left to the replay, the networks and other users.
_SHARE_OF_FREE_MEMORY = 0.5

_logger = logging.getLogger(__name__)


def resolve_sizes(
    components: Mapping[str, Component],
    automatic: set[str],
    device: torch.device,
    limit: int | None,
    processes: int = 1,
    remote_cores: int | None = None,
) -> dict[str, Component]:
    """Return the components with numbers for the `automatic` groups; announce each number.

    `limit` is that of the memory of the device in bytes, and `remote_cores` the number of cores
    elsewhere that simulate, None if this machine and the device do.
    """
    resolved = dict(components)
    for group, name in AUTOMATIC.items():
        if group not in automatic:
            continue
        component = components[group]
        if not isinstance(component.settings.get(name), int):
            raise ConfigurationError(
                f"{group}.{name}=auto: {component.target.__name__} has no such setting with a "
                "default"
            )
        if group == "env":
            number, reason = _num_envs(resolved, device, limit, remote_cores)
            if number % processes:
                number += processes - number % processes
                reason += f"; a multiple of {processes} processes"
        else:
            number, reason = _batch_size(resolved, device, limit)
        _logger.info("%s.%s=auto: %d (%s)", group, name, number, reason)
        resolved[group] = component.replaced(**{name: number})
    return resolved


def _num_envs(
    components: Mapping[str, Component],
    device: torch.device,
    limit: int | None,
    remote_cores: int | None,
) -> tuple[int, str]:
    """Return the number of environments, and the reason for it."""
    env = components["env"]
    number: int = env.settings["num_envs"]
    default = f"the default of {env.target.__name__}"
    capabilities = capabilities_of(env, torch.device("cpu") if remote_cores else device)
    simulator, per_core = capabilities.simulator_device, capabilities.envs_per_core
    if simulator is None:
        return number, f"{default}, which does not depend on the machine"
    if per_core is not None:
        cores = remote_cores or num_cores()
        number, reason = cores * per_core, f"{counted(cores, 'core')}, {per_core} for each"
    elif accelerator_of(simulator).kind == "cpu":
        reason = f"{default}, which simulates them together on the CPU"
    else:
        number, reason = _ENVS_ON_ACCELERATOR, f"simulated together on {simulator}"
    if remote_cores:  # whose machines have a memory of their own
        return number, reason
    free = free_memory(simulator, limit if simulator == device else None)
    fits = number
    while (
        free is not None and fits > 1 and capabilities.memory(fits) > _SHARE_OF_FREE_MEMORY * free
    ):
        fits //= 2
    if fits < number:
        reason += (
            f"; {number} would take more than half of the {human_bytes(free or 0)} that are free"
        )
    return fits, reason


def _batch_size(
    components: Mapping[str, Component], device: torch.device, limit: int | None
) -> tuple[int, str]:
    """Return the number of transitions per gradient step, and the reason for it."""
    agent = components["agent"]
    num_envs = components["env"].settings.get("num_envs", 1)
    default: int = agent.settings["batch_size"]
    wish, reason = default, f"the default of {agent.target.__name__}"
    free = free_memory(device, limit)
    if accelerator_of(device).kind != "cpu" and free is not None:
        fits = int(_SHARE_OF_FREE_MEMORY * free / _TRANSITION_MEMORY)
        factor = max(1, min(_BATCH_FACTOR_ON_ACCELERATOR, fits // default))
        if factor > 1:
            wish, reason = factor * default, f"{factor} times {reason} on {device}"
    rollout_length = agent.settings.get("rollout_length")
    if issubclass(agent.target, OnPolicyAgent) and rollout_length is not None:
        size = _part_of_rollout(rollout_length, num_envs, wish)
        of_rollout = f"a rollout of {rollout_length} steps of {num_envs} environments"
        return size, f"{reason}, {wish}, to divide {of_rollout}"
    multiple = num_envs * max(1, round(wish / num_envs))
    if multiple > _BATCH_FACTOR_ON_ACCELERATOR * wish:
        return wish, f"{reason}; {num_envs} environments are too many to divide it"
    return multiple, f"{reason}, {wish}, as a multiple of {num_envs} environments"


def _part_of_rollout(rollout_length: int, num_envs: int, max_size: int) -> int:
    """Return a divisor of the rollout of at most `max_size` rows, of whole steps if possible."""
    steps = [k for k in range(1, rollout_length + 1) if rollout_length % k == 0]
    whole = [k * num_envs for k in steps if k * num_envs <= max_size]
    rows = rollout_length * num_envs
    return max(whole) if whole else max(k for k in range(1, max_size + 1) if rows % k == 0)
