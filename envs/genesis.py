"""The simulator Genesis: initialized once per process, quiet, on the backend of the device."""

import dataclasses
import importlib
import importlib.util
import logging
from collections.abc import Mapping
from typing import Any, Final

import torch

from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.errors import ConfigurationError, one_line
from torchrl_gpu.extras import check_extra
from torchrl_gpu.signals import stop_signals_deferred

# Bytes that Genesis takes with its kernels, measured on the CPU.
GENESIS_MEMORY: Final = 900 * 2**20
OPENGL = (
    "it needs OpenGL: on Debian and Ubuntu, apt install libegl1 libgl1-mesa-dri; without a display "
    "and its libraries, also export PYGLET_HEADLESS=1 PYOPENGL_PLATFORM=egl"
)


def simulator_device(device: torch.device) -> torch.device:
    """Return the device on which Genesis simulates for a policy on `device`.

    Raises:
        ConfigurationError: it is a GPU other than the first one, which Genesis cannot use.
    """
    if accelerator_of(device).genesis_backend == "cpu":
        return torch.device("cpu")
    if device.index:
        raise ConfigurationError(
            f"device={device}: Genesis simulates on the first visible GPU; write device="
            f"{device.type} after CUDA_VISIBLE_DEVICES={device.index}, on AMD GPUs "
            f"HIP_VISIBLE_DEVICES={device.index}"
        )
    return device


def start_genesis(device: torch.device) -> Any:
    """Return the package `genesis`, initialized for the compute device of the policy.

    Raises:
        ConfigurationError: Genesis is not installed, cannot run on this device, or already runs on
            another backend in this process.
    """
    check_extra("env", "genesis", "genesis")
    logging.getLogger("OpenGL").setLevel(logging.WARNING)
    # torch.compile needs setuptools, which cannot be imported once Genesis has imported Python's
    # distutils.
    if importlib.util.find_spec("setuptools") is not None:
        importlib.import_module("setuptools")
    try:
        with stop_signals_deferred():  # some of the packages that it imports catch every exception
            gs = importlib.import_module("genesis")
    except Exception as error:  # each platform of OpenGL fails in its own way
        raise ConfigurationError(
            f"Genesis cannot be imported: {one_line(error)}; {OPENGL}"
        ) from error
    name = accelerator_of(device).genesis_backend
    backend = getattr(gs.constants.backend, name)
    if not gs._initialized:
        try:
            gs.init(backend=backend, logging_level="error")
        except gs.GenesisException as error:
            raise ConfigurationError(
                f"Genesis cannot use its backend {name}: {one_line(error)}"
            ) from None
        # Genesis switches subnormal numbers off for the whole process.
        torch.set_flush_denormal(False)
    elif gs.backend != backend:
        raise ConfigurationError(
            f"Genesis already simulates on {gs.backend.name} in this process; restart to change it"
        )
    return gs


def scene_state(scene: Any) -> dict[str, Any]:
    """Return the complete state of a built scene as tensors."""
    state = scene.__getstate__().sim
    return {
        "steps": torch.as_tensor(state.steps),
        "solvers": {
            solver: {name: torch.as_tensor(array) for name, array in record.arrays.items()}
            for solver, record in state.solvers.items()
        },
    }


def restore_scene(scene: Any, state: Mapping[str, Any], device: torch.device) -> None:
    """Restore a state from `scene_state` of an equal scene, bit for bit, on the simulator's device.

    Raises:
        ConfigurationError: the state belongs to another scene.
    """
    current = scene.__getstate__()
    for solver, record in current.sim.solvers.items():
        saved = state["solvers"].get(solver, {})
        if {n: tuple(a.shape) for n, a in saved.items()} != {
            n: tuple(a.shape) for n, a in record.arrays.items()
        }:
            raise ConfigurationError(
                "the simulator's state belongs to another arm, number of environments, env.mass or "
                "version of Genesis"
            )
        for name, array in record.arrays.items():
            on_device = torch.is_tensor(array)
            record.arrays[name] = saved[name].to(device) if on_device else saved[name].numpy()
    sim = dataclasses.replace(current.sim, steps=state["steps"].to(device))
    scene.__setstate__(dataclasses.replace(current, sim=sim))
