"""Find a Gymnasium environment by its name and make a vector environment of it."""

import difflib
import importlib
import importlib.util
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import Error as GymnasiumError
from gymnasium.vector import AutoresetMode, VectorEnv

from envs.gym.atari import THREAD_OPTIONS, WRAPPED_OPTIONS, Preprocessing
from envs.gym.observations import Checked
from envs.gym.processes import WatchedVectorEnv
from envs.gym.wrappers import wrap
from envs.processes import end_with, parent_of_workers, wake_without_preempting
from torchrl_gpu.devices.host import compute_on_one_thread
from torchrl_gpu.environments.environment import Mode
from torchrl_gpu.environments.recording import Recorder
from torchrl_gpu.errors import ConfigurationError, WorkerError, one_line, shortened
from torchrl_gpu.signals import ignore_stop_signals

Vectorization = Literal["sync", "async", "vector_entry_point"]
Autoreset = Literal["disabled", "same_step", "next_step"]  # Gymnasium's, in lower case

# Modules of environments that need further packages, and the extras that install them.
_EXTRAS = {"gymnasium.envs.box2d": "box2d", "gymnasium.envs.mujoco": "mujoco", "ale_py": "atari"}

# Modules between a worker process and the code of the user.
_OF_WORKERS = re.compile(r"(gymnasium|envs\.gym|torchrl_gpu\.environments)(\.|$)")

# Errors of Gymnasium, or of wrong arguments.
_ERRORS_OF_MAKING = (GymnasiumError, ImportError, OSError, TypeError, ValueError)

# Arguments of MuJoCo's environments that place the camera.
_CAMERA_OPTIONS = frozenset(("camera_id", "camera_name", "default_camera_config"))

# Arguments of Gymnasium that `GymnasiumEnv` sets itself.
_OWN_OPTIONS = ("id", "num_envs", "vectorization_mode", "vector_kwargs", "wrappers")


def registered(name: str) -> str:
    """Return the name of an environment, a Gymnasium id with version, if it is registered.

    `package:Name-v0` imports `package` first, which registers the environment; `ALE/...` needs no
    such prefix.

    Raises:
        ValueError: the id is not registered, or the package cannot be imported.
    """
    package, _, env_id = name.rpartition(":")
    if package:
        try:
            importlib.import_module(package)
        except (ImportError, SyntaxError, TypeError, ValueError) as error:
            raise ValueError(f"{package} cannot be imported ({error})") from None
    if env_id.rpartition("/")[0] == "ALE" and env_id not in gymnasium.registry:
        if importlib.util.find_spec("ale_py") is None:
            raise ValueError(_needs_extra(_EXTRAS["ale_py"]))
        gymnasium.register_envs(importlib.import_module("ale_py"))
    if env_id not in gymnasium.registry:
        found = difflib.get_close_matches(env_id, gymnasium.registry, n=3)
        close = [name.removesuffix(env_id) + each for each in found]
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        if not (close or package):
            hint = f"; if another package registers it, write PACKAGE:{env_id}"
        raise ValueError(f"unknown Gymnasium environment{hint}")
    return name


def make_vector(
    name: str,
    num_envs: int,
    vectorization: Vectorization,
    autoreset: Autoreset | None,
    options: Mapping[str, Any],
    *,
    mode: Mode,
    step_timeout: float | None,
    preprocessing: Preprocessing | None,
    wrappers: Sequence[str | dict[str, Any]],
) -> VectorEnv:
    """Make a vector environment whose `metadata` hold `autoreset_mode`, see `GymnasiumEnv`.

    In mode `demo` it can render images, in mode `train` a `Recorder` of the open episodes is around
    each copy, except with `vector_entry_point`. `preprocessing` is that of an Atari environment;
    the wrappers of `wrap` come next.

    Raises:
        ConfigurationError: the environment cannot be made with these arguments.
    """
    spec = gymnasium.spec(name.rpartition(":")[2])
    if preprocessing is not None and mode == "demo" and vectorization == "vector_entry_point":
        # ALE's vectorized code cannot render; its transitions are those of the other ways.
        vectorization = "sync"
        options = {name: value for name, value in options.items() if name not in THREAD_OPTIONS}
    arguments = _arguments(
        spec, vectorization, autoreset, options, preprocessing, mode, tuple(wrappers)
    )
    try:
        with warnings.catch_warnings():
            # `_check` raises errors for the conditions of these warnings.
            warnings.filterwarnings("ignore", ".*(missing AutoresetMode|possible render_modes)")
            if vectorization == "async":
                vector = _make_processes(name, num_envs, step_timeout, **arguments)
            else:
                vector = gymnasium.make_vec(
                    name, num_envs=num_envs, vectorization_mode=vectorization, **arguments
                )
    except _ERRORS_OF_MAKING as error:
        raise ConfigurationError(f"env.name={name}: {_reason(spec, error)}") from error
    except Exception as error:
        if not options:  # it is the environment's own
            raise
        raise _refused(name, "made", options, error) from error
    try:
        _check(vector, spec.id, autoreset, mode)
    except ConfigurationError:
        vector.close()
        raise
    return vector


def try_options(vector: VectorEnv, name: str, options: Mapping[str, Any]) -> None:
    """Take a first step: an environment may read an option only there.

    Raises:
        ConfigurationError: the environment fails; it is closed.
    """
    vector.action_space.seed(0)
    try:
        vector.reset(seed=0)
        vector.step(vector.action_space.sample())
    except Exception as error:
        vector.close()
        if isinstance(error, ConfigurationError):
            raise
        raise _refused(name, "stepped", options, error) from error


def _refused(
    name: str, done: str, options: Mapping[str, Any], error: Exception
) -> ConfigurationError:
    values = ", ".join(f"{option}={value}" for option, value in options.items())
    reason = f"{type(error).__name__}: {one_line(error)}"
    if isinstance(error, WorkerError):  # whose text ends with that of the exception
        reason = str(error).splitlines()[-1]
    return ConfigurationError(
        f"env.options: {name} cannot be {done} with {values}: {shortened(reason, 200)}"
    )


def _make_processes(
    name: str,
    num_envs: int,
    step_timeout: float | None,
    *,
    vector_kwargs: Mapping[str, Any],
    wrappers: Iterable[Callable[[gymnasium.Env], gymnasium.Env]],
    **options: Any,
) -> WatchedVectorEnv:
    """Make a vector environment of processes, as `gymnasium.make_vec` makes others.

    A process is limited to one thread and ignores signals, which the program handles.
    """
    parent, program = parent_of_workers(), os.getpid()

    def make() -> gymnasium.Env:
        if os.getpid() != program:  # Gymnasium also makes one here, for its spaces
            end_with(parent)
            wake_without_preempting()
            ignore_stop_signals()
            compute_on_one_thread()
        env = gymnasium.make(name, **options)
        for wrapper in wrappers:
            env = wrapper(env)
        return env

    return WatchedVectorEnv([make] * num_envs, step_timeout=step_timeout, **vector_kwargs)


def _arguments(
    spec: EnvSpec,
    vectorization: Vectorization,
    autoreset: Autoreset | None,
    options: Mapping[str, Any],
    preprocessing: Preprocessing | None,
    mode: Mode,
    wrapped: tuple[str | dict[str, Any], ...],
) -> dict[str, Any]:
    """Return the keyword arguments of `gymnasium.make_vec`."""
    for option in _OWN_OPTIONS:
        if option in options:
            raise ConfigurationError(
                f"env.options.{option}: GymnasiumEnv sets this argument itself"
            )
    arguments = dict(options)
    if options.get("render_mode") not in (None, "rgb_array"):
        raise ConfigurationError(
            f"env.options.render_mode={options['render_mode']}: use rgb_array, which wrappers such "
            "as AddRenderObservation need; mode=demo makes films without it"
        )
    if mode == "demo":
        arguments["render_mode"] = "rgb_array"
    if "render_mode" in arguments:
        # SDL, which draws most environments, warns without a display although none is needed.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        if sys.platform == "linux" and not os.environ.get("DISPLAY"):
            # The library that MuJoCo's environments try first needs a display.
            os.environ.setdefault("MUJOCO_GL", "egl")
        is_of_mujoco = str(spec.entry_point).startswith("gymnasium.envs.mujoco")
        if is_of_mujoco and _CAMERA_OPTIONS.isdisjoint((*options, *spec.kwargs)):
            # By default, Gymnasium 1.4 looks at one place, which a robot that walks soon leaves.
            # Models without a camera of this name have robots that stay there.
            arguments["camera_name"] = "track"
    if vectorization == "vector_entry_point":
        if spec.vector_entry_point is None:
            raise ConfigurationError(
                f"env.vectorization=vector_entry_point: {spec.id} has no `vector_entry_point`; use "
                f"sync or async"
            )
        if wrapped:
            raise ConfigurationError(
                "env.vectorization=vector_entry_point: env.wrappers wrap single environments; use "
                "sync or async"
            )
        if preprocessing is not None:
            if autoreset == "disabled":
                raise ConfigurationError(
                    "env.autoreset=disabled: ALE's vectorized code supports same_step and "
                    "next_step; env.vectorization=sync and async support every mode"
                )
            arguments |= preprocessing.vectorized_options()
            arguments["autoreset_mode"] = AutoresetMode[(autoreset or "next_step").upper()]
        return arguments
    if spec.entry_point is None:
        raise ConfigurationError(
            f"env.vectorization={vectorization}: {spec.id} supports vector_entry_point only"
        )
    # `Observations` makes the only copy.
    autoreset_mode = AutoresetMode[(autoreset or "disabled").upper()]
    arguments["vector_kwargs"] = {"autoreset_mode": autoreset_mode, "copy": False}
    wrappers: list[Callable[[gymnasium.Env], gymnasium.Env]] = []
    if preprocessing is not None:
        arguments |= WRAPPED_OPTIONS
        wrappers.append(preprocessing)
    wrappers += [partial(wrap, wrappers=wrapped), Checked]
    if mode == "train":
        wrappers.append(partial(Recorder, resets_within=autoreset_mode is AutoresetMode.SAME_STEP))
    if vectorization == "async":
        # TorchRL sets spawn as the default start method, and spawned workers import the main module
        # and torch. Gymnasium's default on Linux is fork.
        arguments["vector_kwargs"]["context"] = "fork" if sys.platform == "linux" else None
        wrappers.append(_Traced)
    return arguments | {"wrappers": tuple(wrappers)}


class _Traced(gymnasium.Wrapper):
    """Raises exceptions as `WorkerError`: Gymnasium passes them on without their traceback."""

    def step(self, action: Any) -> Any:
        try:
            return self.env.step(action)
        except Exception as error:
            raise _as_worker_error(error) from None

    def reset(self, **options: Any) -> Any:
        try:
            return self.env.reset(**options)
        except Exception as error:
            raise _as_worker_error(error) from None


def _as_worker_error(error: Exception) -> Exception:
    if isinstance(error, ConfigurationError):  # is one line for the user
        return error
    frames = error.__traceback__
    while frames is not None and _OF_WORKERS.match(frames.tb_frame.f_globals.get("__name__", "")):
        frames = frames.tb_next
    frames = frames or error.__traceback__
    assert frames is not None
    text = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
    file = frames.tb_frame.f_code.co_filename
    return WorkerError(f"{type(error).__name__} in {file}\n{text}")


def _check(vector: VectorEnv, env_id: str, autoreset: Autoreset | None, mode: Mode) -> None:
    """Check that an environment supports the requested autoreset mode and rendering."""
    autoreset_mode = vector.metadata.get("autoreset_mode")
    if not isinstance(autoreset_mode, AutoresetMode):
        raise ConfigurationError(
            f"env.name={env_id}: its vectorization lacks metadata['autoreset_mode']; use "
            f"env.vectorization=sync or async"
        )
    own = autoreset_mode.name.lower()
    if autoreset not in (None, own):
        raise ConfigurationError(
            f"env.autoreset={autoreset}: the vectorization of {env_id} supports only {own}; "
            f"env.vectorization=sync and async support every mode"
        )
    render_modes = vector.metadata.get("render_modes") or ()
    if mode == "demo" and "rgb_array" not in render_modes:
        raise ConfigurationError(
            f"mode=demo: {env_id} cannot render images: 'rgb_array' is not among its render modes "
            f"({', '.join(render_modes) or 'none'})"
        )


def _reason(spec: EnvSpec, error: Exception) -> str:
    """Return the reason why an environment cannot be made, in one line."""
    if isinstance(error, GymnasiumError | ImportError):
        for module, extra in _EXTRAS.items():
            if str(spec.entry_point).startswith(module):
                return f"{_needs_extra(extra)} ({one_line(error)})"
    return f"it cannot be made: {shortened(one_line(error), 300)}"


def _needs_extra(extra: str) -> str:
    return f'it needs an extra: pip install "torchrl-gpu[{extra}]"'
