"""Find a Gymnasium environment by its name and make many copies of it."""

from __future__ import annotations

import difflib
import importlib
import os
import signal
import sys
import warnings
from collections.abc import Mapping
from typing import Any, Literal

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import Error as GymnasiumError
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv

from torchrl_gpu.errors import ConfigurationError

Vectorization = Literal["sync", "async", "vector_entry_point"]
Autoreset = Literal["disabled", "same_step", "next_step"]

_AUTORESET_MODES = {
    "disabled": AutoresetMode.DISABLED,
    "same_step": AutoresetMode.SAME_STEP,
    "next_step": AutoresetMode.NEXT_STEP,
}

# Where Gymnasium keeps the environments that need more than itself, and which extra brings it.
_EXTRAS = {"gymnasium.envs.box2d": "box2d", "gymnasium.envs.mujoco": "mujoco"}

# How long `close` waits for a step that was broken off, by an interrupt or a dead worker.
_SECONDS_TO_FINISH = 2.0

# What this world passes to Gymnasium itself.
_OWN_OPTIONS = ("num_envs", "render_mode", "vectorization_mode", "vector_kwargs", "wrappers")


def registered(name: str) -> str:
    """Return the name of an environment if Gymnasium knows it.

    Args:
        name: its id, version included; `package:Name-v0` imports `package` first, which registers
            the environment.

    Raises:
        ValueError: it does not, or the package cannot be imported.
    """
    package, _, env_id = name.rpartition(":")
    if package:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ValueError(f"{package} cannot be imported ({error})") from None
    if env_id not in gymnasium.registry:
        close = difflib.get_close_matches(env_id, gymnasium.registry, n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise ValueError(f"there is no such Gymnasium environment{hint}")
    return name


def make_vector(
    name: str,
    num_envs: int,
    vectorization: Vectorization,
    autoreset: Autoreset | None,
    options: Mapping[str, Any],
    *,
    render: bool,
) -> VectorEnv:
    """Make a vector environment.

    Args:
        name: as `registered` takes it.
        num_envs: how many copies.
        vectorization: one after the other, a process each, or what the environment itself offers.
        autoreset: how episodes that are over begin anew; None: `disabled`, or with an environment's
            own vectorization as that does it.
        options: for the environment.
        render: whether pictures can be asked for.

    Returns:
        The environment; its `metadata` hold `autoreset_mode`.

    Raises:
        ConfigurationError: the environment cannot be made this way.
    """
    spec = gymnasium.spec(name.rpartition(":")[2])
    arguments = _arguments(spec, vectorization, autoreset, options, render=render)
    try:
        with warnings.catch_warnings():
            # About what `_check` refuses anyway.
            warnings.filterwarnings("ignore", ".*(missing AutoresetMode|possible render_modes)")
            vector = gymnasium.make_vec(
                name, num_envs=num_envs, vectorization_mode=vectorization, **arguments
            )
    except (GymnasiumError, ImportError, TypeError, ValueError) as error:
        raise ConfigurationError(f"name={name}: {_reason(spec, error)}") from error
    try:
        _check(vector, spec.id, autoreset, render=render)
    except ConfigurationError:
        close_vector(vector)
        raise
    return vector


def close_vector(vector: VectorEnv) -> None:
    """End the environments and their processes, however they are; may be called again."""
    if not isinstance(vector, AsyncVectorEnv):
        vector.close()
        return
    try:
        vector.close(timeout=_SECONDS_TO_FINISH)
    except (OSError, EOFError):  # a worker has died
        for process in vector.processes:
            process.terminate()
        vector.closed = True


def _arguments(
    spec: EnvSpec,
    vectorization: Vectorization,
    autoreset: Autoreset | None,
    options: Mapping[str, Any],
    *,
    render: bool,
) -> dict[str, Any]:
    """Return the arguments of `gymnasium.make_vec` for one kind of vectorization."""
    for option in _OWN_OPTIONS:
        if option in options:
            raise ConfigurationError(f"options.{option}: this world sets it itself")
    arguments = dict(options)
    if render:
        arguments["render_mode"] = "rgb_array"
        # Pictures need no window, and SDL, which draws most of them, complains without a display.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if vectorization == "vector_entry_point":
        if spec.vector_entry_point is None:
            raise ConfigurationError(
                f"vectorization=vector_entry_point: {spec.id} has no vectorization of its own; it "
                f"takes sync and async"
            )
        return arguments
    if spec.entry_point is None:
        raise ConfigurationError(
            f"vectorization={vectorization}: {spec.id} takes vector_entry_point only"
        )
    # Observations are copied once, by `Observations`.
    mode = _AUTORESET_MODES[autoreset or "disabled"]
    arguments["vector_kwargs"] = {"autoreset_mode": mode, "copy": False}
    if vectorization == "async":
        # TorchRL makes spawning the default everywhere, and spawned workers import the program that
        # is running, torch and all. On Linux Gymnasium means to fork.
        arguments["vector_kwargs"]["context"] = "fork" if sys.platform == "linux" else None
        arguments["wrappers"] = (_InterruptsLeftToParent(),)
    return arguments


class _InterruptsLeftToParent:
    """Makes a worker process ignore Ctrl-C, which the parent acts upon: it still needs the worker.

    Passed as a wrapper, because that is what Gymnasium calls where the environment will live.
    """

    def __init__(self) -> None:
        self._parent = os.getpid()

    def __call__(self, env: gymnasium.Env) -> gymnasium.Env:
        if os.getpid() != self._parent:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return env


def _check(vector: VectorEnv, env_id: str, autoreset: Autoreset | None, *, render: bool) -> None:
    """Refuse an environment that does not reset itself or draw itself as asked for."""
    modes = {mode: name for name, mode in _AUTORESET_MODES.items()}
    own = modes.get(vector.metadata.get("autoreset_mode"))
    if own is None:
        raise ConfigurationError(
            f"name={env_id}: its vectorization does not say in metadata['autoreset_mode'] how it "
            f"resets itself; use vectorization=sync or async"
        )
    if autoreset not in (None, own):
        raise ConfigurationError(
            f"autoreset={autoreset}: the vectorization of {env_id} itself knows only {own}; "
            f"vectorization=sync and async take every mode"
        )
    render_modes = vector.metadata.get("render_modes") or ()
    if render and "rgb_array" not in render_modes:
        raise ConfigurationError(
            f"mode=demo: {env_id} cannot draw itself, 'rgb_array' is none of its render modes "
            f"({', '.join(render_modes) or 'it has none'})"
        )


def _reason(spec: EnvSpec, error: Exception) -> str:
    """Say in one line why an environment cannot be made."""
    if isinstance(error, GymnasiumError | ImportError):
        for module, extra in _EXTRAS.items():
            if str(spec.entry_point).startswith(module):
                return f'it needs an extra: pip install "torchrl-gpu[{extra}]" ({one_line(error)})'
    return f"it cannot be made: {one_line(error)}"


def one_line(error: Exception) -> str:
    """Return what an error says, without line breaks."""
    return " ".join(str(error).split())
