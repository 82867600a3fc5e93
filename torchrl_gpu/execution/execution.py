"""Execution of the computations of a run: acting and the gradient step."""

import logging
import time
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar, get_args

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from torchrl_gpu.checkpoints.contents import check_like
from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.compilation import (
    compiled,
    compiler_problem,
    is_interrupted,
    with_traced_gradients,
)
from torchrl_gpu.execution.fitting import Fitting, enough_memory
from torchrl_gpu.execution.graphs import CapturedFunction
from torchrl_gpu.execution.learner import Differentiation, Learner, Replay, Update
from torchrl_gpu.execution.options import (
    Compilation,
    CompileMode,
    GraphMode,
    Library,
    PrecisionMode,
    PrecisionName,
    ProductMode,
)
from torchrl_gpu.execution.precision import Precision
from torchrl_gpu.execution.products import ProductLayer, faster_library
from torchrl_gpu.execution.step import differentiation, gradient_step, prepare

Policy = Callable[[TensorDictBase], TensorDictBase]
Result = TypeVar("Result")

# Transitions in all batches of a run. A run of fewer would not earn the seconds of compiling.
_MIN_COMPILED_TRANSITIONS = 7_500_000

# A policy converts its weights at every call. From this number of observations on, faster products
# save more time than that costs.
_MIN_CAST_ROWS = 512

_CPU = torch.device("cpu")
_NOTHING = TensorDict({}, batch_size=[])

_logger = logging.getLogger(__name__)


class Execution:
    """Runs policies and gradient steps in a precision: eagerly, compiled or captured.

    The collector, evaluations, films and the trainer call policies and gradient steps only through
    an execution, and the trainer draws batches through it. A subclass therefore changes in one
    place how all agents act (`act`), draw (`draw`), learn (`update`) or are compiled (`compiled`).

    The precision applies to losses, and to policies that act for at least 512 observations at once.
    Networks have their last layer in float32, so that losses, targets and distributions are float32
    in every precision, as are parameters and optimizers.

    Compiled are the loss and its gradients, as one function, with the global variables of its first
    call. Acting, the optimizer and `after_update` of the agent stay eager, so that an update may do
    anything on the host. Captured are policies, whole updates and uniform draws, which may then
    neither read a value back nor keep state outside tensors; only `advance` of the agent may.

    A batch whose gradients do not fit into memory is learned from in parts. An execution remembers
    their size for all later batches, so it serves one training.

    Args:
        device: device of the networks.
        precision: number format of the matrix products and convolutions, see `Precision`; `auto`
            for float32 unless `plan` chooses another.
        compile: compile losses and gradients by `torch.compile`: `off`, `default`, or
            `max-autotune`, which also tries several kernels for each operation. On a machine
            without a compiler, a warning is logged and updates run eagerly. `auto` for `off` unless
            `plan` chooses otherwise.
        graphs: `on` captures policies and whole updates in graphs after their first calls, and
            replays them: the host then queues one piece of work instead of hundreds. With
            `compile`, the graphs hold the compiled code. `auto` for `off` unless `plan` chooses
            otherwise.
        products: library of the float32 products of the layers on a CPU: `auto` for oneDNN where
            the first update finds it faster, or `torch`, see `faster_library`.

    Attributes:
        products: the chosen library; None before the first update.
        announce: function that is called with a description of work that takes seconds, such as
            `compiling the update of SAC`, when it begins, and with an empty text when it ends.

    Raises:
        ConfigurationError: the device does not have the precision, or cannot capture graphs.
    """

    announce: Callable[[str], object]

    def __init__(
        self,
        device: torch.device = _CPU,
        precision: PrecisionMode = "auto",
        compile: CompileMode = "auto",
        graphs: GraphMode = "auto",
        products: ProductMode = "auto",
    ) -> None:
        self._chooses_precision = precision == "auto"
        self._chooses_compilation = compile == "auto"
        self.precision = Precision("fp32" if precision == "auto" else precision, device)
        self._chooses_capture = graphs == "auto"
        self.captures = graphs == "on"
        self._device = device
        self._check_capture()
        # Captured policies and updates.
        self._captured: dict[Hashable, CapturedFunction[Any]] = {}
        self.compile_mode: Compilation = "off"
        if compile != "auto":
            self._set_compilation(compile)
        self._product_mode = products
        self.products: Library | None = None if products == "auto" else "torch"
        # Networks whose layers know the library.
        self._informed: set[nn.Module] = set()
        self.announce = _ignore
        # Compiled functions, by learner, precision and entries of the batch.
        self._compiled: dict[Hashable, Differentiation] = {}
        self._fitting = Fitting("the gradients")

    def plan(
        self, transitions: int, device: torch.device = _CPU, can_capture: bool = False
    ) -> None:
        """Choose precision, compilation and capture, where left to choose, for a whole run.

        Args:
            transitions: number of transitions in all batches of the run. From 7.5 million on, its
                updates are compiled where that is known to be faster.
            device: device of the agent, on which the execution runs from now on. Compiled updates
                are in bf16 where that is known to be faster.
            can_capture: whether captured updates of the agent equal eager ones; they are captured
                where that is known to be faster.

        Raises:
            ConfigurationError: the device does not have the precision, or cannot capture graphs.
        """
        self._device = device
        typed: PrecisionName = "fp32" if self._chooses_precision else self.precision.name
        self.precision = Precision(typed, device)
        self._set_compilation("off" if self._chooses_compilation else self.compile_mode)
        accelerator = accelerator_of(device)
        is_long = transitions >= _MIN_COMPILED_TRANSITIONS and accelerator.compiles_long_runs
        if self._chooses_compilation and is_long and accelerator.compile:
            self.compile_mode = "default"
        if self._chooses_precision and self._suits_bf16():
            self.precision = Precision("bf16", device)
        if self._chooses_capture:
            self.captures = can_capture and accelerator.captures
        self._check_capture()

    def _check_capture(self) -> None:
        if self.captures and not accelerator_of(self._device).graphs:
            choice = accelerator_of(self._device).choice
            raise ConfigurationError(f"graphs=on: {choice} cannot capture graphs; use graphs=off")

    def _suits_bf16(self) -> bool:
        return self.compile_mode != "off" and accelerator_of(self._device).bfloat16_products

    @property
    def may_compile(self) -> bool:
        """Whether to compile is left to choose, or chosen; false for `compile=off`."""
        return self._chooses_compilation or self.compile_mode != "off"

    @property
    def description(self) -> str:
        """Way of the updates in words, such as `fp32, products by oneDNN`."""
        parts = {
            self.precision.name: True,
            "compiled": self.compile_mode != "off",
            "captured": self.captures,
            "products by oneDNN": self.products == "onednn" and not self.precision.casts,
        }
        return ", ".join(part for part, holds in parts.items() if holds)

    def _set_compilation(self, mode: Compilation) -> None:
        """Compile updates in a mode, or leave them eager on a machine without a compiler."""
        self.compile_mode = mode
        if mode != "off" and not accelerator_of(self._device).compile:
            text = "compile=%s: no compiler for %s here; updates run eagerly"
            _logger.warning(text, mode, self._device)
            self.compile_mode = "off"

    def act(self, policy: Policy, observation: TensorDictBase) -> TensorDictBase:
        """Call a policy, and return `observation` `[*B, ...]`, to which it has added `action`.

        With graphs, a TensorDict module is captured, once for training and once for evaluation; it
        may write other entries as well, its `out_keys`. Other callables run eagerly.
        """
        if not self.captures or not isinstance(policy, TensorDictModuleBase):
            return self._call(policy, observation)

        def outputs(inputs: TensorDictBase) -> list[Tensor]:
            with torch.no_grad():
                acted = self._call(policy, inputs)
            return [acted.get(key) for key in policy.out_keys]

        key = policy, policy.training, observation.batch_size
        captured = self._capture(key, outputs, type(policy).__name__)
        results = captured(observation.select(*policy.in_keys))
        for key, result in zip(policy.out_keys, results, strict=True):
            observation.set(key, result.clone())
        return observation

    def _call(self, policy: Policy, observation: TensorDictBase) -> TensorDictBase:
        """Call a policy eagerly, in the precision if that saves time."""
        self._inform(policy)
        rows = observation.numel()
        casts = not self.precision.casts or rows >= _MIN_CAST_ROWS
        work, advice = f"the actions of {rows} environments or robots", "a smaller env.num_envs"
        with (
            enough_memory(observation.device or self._device, work, advice),
            self.precision.active() if casts else nullcontext(),
        ):
            return policy(observation)

    def draw(self, replay: Replay, batch_size: int) -> TensorDictBase:
        """Draw a batch of transitions `[batch_size]`, see `ReplayBuffer.sample`.

        With graphs, the draw is captured where the replay allows it; the next one overwrites the
        batch.
        """
        if not self.captures or not replay.can_capture:
            return replay.sample(batch_size)
        key, name = (replay, batch_size), "the draw of a batch"
        return self._capture(key, lambda _: replay.sample(batch_size), name)(_NOTHING)

    def update(self, learner: Learner, batch: TensorDictBase) -> Update:
        """Take one gradient step with a batch of transitions `[B]`, see `gradient_step`.

        With graphs, the step is captured once for each `phase` of the agent.

        Returns:
            Metrics and new priorities; with graphs, the next update overwrites them.
        """
        if not self.captures:
            return self._step(learner, batch)
        key = learner, learner.phase, batch.batch_size, tuple(batch.keys())
        step, name = partial(self._step, learner), f"the update of {type(learner).__name__}"
        update = self._capture(key, step, name)
        only_replays = update.is_captured
        result = update(batch)
        if only_replays:
            learner.advance()
        return result

    def _step(self, learner: Learner, batch: TensorDictBase) -> Update:
        """Take one gradient step, eager or compiled."""
        if self.products is None:
            self._choose_products(learner, transitions=len(batch))
        self._inform(learner)
        prepared = prepare(learner, batch)
        if self.compile_mode != "off":
            try:
                return self._compiled_step(learner, prepared)
            except Exception as error:
                problem = compiler_problem(error)
                if not self._chooses_compilation or problem is None:
                    raise
                if not is_interrupted(error):  # else the next update compiles again
                    work = f"the update of {type(learner).__name__}"
                    text = "compile=auto: %s cannot be compiled and runs eagerly: %s"
                    _logger.warning(text, work, problem)
                    self.compile_mode = "off"
                    if self._chooses_precision:
                        self.precision = Precision("fp32", self._device)
        eager = differentiation(learner, self.precision)
        return gradient_step(learner, prepared, eager, self.precision, self._fitting)

    def _compiled_step(self, learner: Learner, batch: TensorDictBase) -> Update:
        """Take one compiled gradient step with a prepared batch, and report the first one."""
        started, work = time.perf_counter(), f"the update of {type(learner).__name__}"
        # Torch does not notice an optional entry, such as a weight, that later batches have.
        key = learner, self.precision, frozenset(batch.keys())
        if is_first := key not in self._compiled:
            _logger.info("compile=%s: compiling %s", self.compile_mode, work)
            self.announce(f"compiling {work}")
            eager = differentiation(learner, self.precision)
            self._compiled[key] = with_traced_gradients(self.compiled(eager), eager, learner)
        differentiate = self._compiled[key]
        try:
            update = gradient_step(learner, batch, differentiate, self.precision, self._fitting)
        finally:
            if is_first:
                self.announce("")
        if is_first:
            _logger.info("compiled %s: %.0f s", work, time.perf_counter() - started)
        return update

    def _choose_products(self, learner: Learner, transitions: int) -> None:
        """Choose the library of the products of an agent, for all later updates."""
        if not accelerator_of(learner.device).onednn:
            self.products = "torch"
            return
        layers = [module for module in learner.modules() if isinstance(module, ProductLayer)]
        choice, gain = faster_library(layers, transitions)
        # All processes take that of rank 0, whose checkpoint a resumed run loads.
        by_onednn = learner.processes.broadcast(torch.tensor(choice == "onednn"))
        self.products = "onednn" if by_onednn else "torch"
        if gain is not None:
            name = {"torch": "PyTorch", "onednn": "oneDNN"}[self.products]
            ratio = f"oneDNN has {gain:.1f} times the speed of PyTorch's"
            _logger.info("float32 products by %s: %s", name, ratio)

    def active(self, learner: Learner) -> AbstractContextManager[object]:
        """Return a context in which the networks of an agent compute as in its updates."""
        self._inform(learner)
        return self.precision.active()

    def _inform(self, network: object) -> None:
        """Tell the layers of a network the library of their products, if it is chosen."""
        if self.products is None or not isinstance(network, nn.Module) or network in self._informed:
            return
        for module in network.modules():
            if isinstance(module, ProductLayer):
                module.library = self.products
        self._informed.add(network)

    def compiled(self, function: Differentiation) -> Differentiation:
        """Return the compiled form of a function; override it to compile by another backend.

        The function takes a batch `[B]` and the factor `[]` of its losses, adds their gradients to
        those of the parameters, and returns the detached losses.
        """
        return compiled(function, self.compile_mode, self._device)

    def _capture(
        self, key: Hashable, function: Callable[[TensorDictBase], Result], name: str
    ) -> CapturedFunction[Result]:
        """Return the captured form of the first function that was given with a key."""
        if key not in self._captured:
            self._captured[key] = CapturedFunction(function, name, self._device)
        return self._captured[key]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out compiled and captured functions, which hold the agents of this execution."""
        return self.__dict__ | {"_compiled": {}, "_captured": {}}

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs: of the precision, and all choices."""
        return {
            "precision": self.precision.state_dict(),
            "format": self.precision.name,
            "compile": self.compile_mode,
            "products": self.products,
        }

    def check_state(self, state: Any) -> None:
        """Refuse a state that `state_dict` cannot have returned; nothing changes."""
        check_like(state, dict.fromkeys(self.state_dict()), "the saved execution")
        if scale := state["precision"]:
            check_like(scale, torch.amp.GradScaler("cpu").state_dict(), "the scale of fp16")
            if min(scale.values()) < 0 or not scale["scale"]:
                raise ConfigurationError("the scale of fp16 is not above 0")
        for name, kind in (("format", PrecisionName), ("compile", Compilation)):
            if state[name] not in get_args(kind):
                raise ConfigurationError(f"the saved execution has an unknown {name}")
        if state["products"] not in (*get_args(Library), None):
            raise ConfigurationError("the saved execution has unknown products")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned, even of an execution in another precision.

        Choices left to the execution are those of the saved run; where the device has no compiler,
        or gains nothing by bf16, the updates run without it. All graphs are dropped, because loaded
        optimizers keep their state in other tensors.

        Raises:
            ConfigurationError: the device does not have the precision of the saved run.
        """
        self._captured.clear()
        self._compiled.clear()
        if self._chooses_compilation:
            self._set_compilation(state["compile"])
        if self._chooses_precision:
            saved: PrecisionName = state["format"]
            if saved == "bf16" and not self._suits_bf16():
                _logger.warning("the run began in bf16, and goes on in fp32")
                saved = "fp32"
            self.precision = Precision(saved, self._device)
        self.precision.load_state_dict(state["precision"])
        products: Library | None = state["products"]
        if self._product_mode == "torch" or not accelerator_of(self._device).onednn:
            if products == "onednn":
                _logger.warning("the run began with products by oneDNN, and goes on with torch's")
            products = "torch"
        self.products = products
        self._informed.clear()


def _ignore(work: str) -> None:
    # A function of the module, because agents keep an execution and can be pickled.
    pass


EAGER = Execution()
