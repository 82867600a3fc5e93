"""Execution of the computations of a run: acting and the gradient step."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.graphs import CapturedFunction
from torchrl_gpu.precision import Precision, PrecisionName

CompileMode = Literal["off", "default", "max-autotune"]
GraphMode = Literal["off", "on"]

# Torch's name of each mode. Its own `max-autotune` would also capture graphs, whose outputs the
# next update overwrites, while metrics are kept until the logging interval.
_TORCH_MODES = {"default": "default", "max-autotune": "max-autotune-no-cudagraphs"}

# A policy converts its weights at every call. From this number of observations on, faster products
# save more time than that costs.
_LEAST_CAST_ROWS = 512

_CPU = torch.device("cpu")

_logger = logging.getLogger(__name__)

Losses = TypeVar("Losses", bound="BatchLosses")


class BatchLosses(Protocol):
    """Losses of one batch, each of them a mean over its rows."""

    @property
    def terms(self) -> dict[str, Tensor]:
        """Scalar losses `[]` with their autograd graph, by name."""
        ...

    def joined(self: Losses, others: Sequence[Losses], shares: Sequence[float]) -> Losses:
        """Return the detached losses of a batch from those of its parts.

        Args:
            others: losses of the parts after this one, in the order of their rows.
            shares: number of rows of each part, this one first, divided by all rows.
        """
        ...


class Execution:
    """Runs policies and gradient steps, in a precision and eagerly or compiled.

    The collector, evaluations, films and the trainer call policies and updates only through an
    execution. A subclass therefore changes in one place how all agents act or learn:

    * `act` and `update` each wrap a whole computation;
    * `gradients` and `step` are the parts of an update: override them, for instance, to reduce
      gradients over several processes;
    * `compiled` chooses the compiler.

    The precision applies to losses, and to policies that act for at least 512 observations at once.
    Networks have their last layer in float32, so that losses, targets and distributions are float32
    in every precision, as are parameters, optimizers and the preparation of rollouts.

    Compiled are the loss and its gradients. Acting, the optimizer and `Agent.after_update` stay
    eager, so that an update may do anything on the host. Captured are policies and whole updates,
    which may then neither read a value back nor keep state outside tensors, but for
    `Agent.advance`.

    A batch whose gradients do not fit into memory is halved until its parts do; the sum of their
    gradients is that of the batch. An execution remembers the size of the parts for all later
    batches, so it serves one training.

    Args:
        device: device of the networks.
        precision: number format of the matrix products and convolutions, see `Precision`.
        compile: compile losses with `torch.compile`: `off`, `default`, or `max-autotune`, which
            also tries several kernels for each operation. Where the machine has no compiler, a
            warning is logged and losses run eagerly.

        graphs: `on` captures policies and whole updates in graphs after their first calls, and
            replays them: the host then queues one piece of work instead of hundreds. With
            `compile`, the graphs hold the compiled code.

    Attributes:
        announce: function that is called with a description of work that takes seconds, such as
            `compiling the update of SAC`, when it begins, and with an empty text when it ends.

    Raises:
        ConfigurationError: the device does not have the precision, or no graphs.
    """

    announce: Callable[[str], object]

    def __init__(
        self,
        device: torch.device = _CPU,
        precision: PrecisionName = "fp32",
        compile: CompileMode = "off",
        graphs: GraphMode = "off",
    ) -> None:
        self.precision = Precision(precision, device)
        if graphs == "on" and not accelerator_of(device).graphs:
            raise ConfigurationError(
                f"graphs=on: {accelerator_of(device).choice} cannot capture graphs; graphs=off"
            )
        self.graph_mode = graphs
        self._device = device
        self._graphs: dict[Hashable, CapturedFunction[Any]] = {}
        self.compile_mode = compile
        if compile != "off" and not accelerator_of(device).compile:
            _logger.warning(
                "compile=%s: no compiler for %s here; losses run eagerly", compile, device
            )
            self.compile_mode = "off"
        self.announce = lambda _: None
        self._compiled: dict[Hashable, Callable[..., Any]] = {}
        # Number of transitions that fit into memory; None while every batch has.
        self._part_size: int | None = None

    def act(
        self, policy: Callable[[TensorDictBase], TensorDictBase], observation: TensorDictBase
    ) -> TensorDictBase:
        """Call a policy.

        Args:
            policy: callable that writes `action` into its TensorDict argument. With graphs, a
                TensorDict module is captured, once for training and once for evaluation; it may
                write other entries as well, its `out_keys`. Other callables run eagerly.
            observation: observations `[*B, ...]` that the policy reads.

        Returns:
            `observation` itself, with `action` added.
        """
        if self.graph_mode == "off" or not isinstance(policy, TensorDictModuleBase):
            return self._call(policy, observation)

        def outputs(inputs: TensorDictBase) -> list[Tensor]:
            with torch.no_grad():
                acted = self._call(policy, inputs)
            return [acted.get(key) for key in policy.out_keys]

        captured = self._captured(
            (policy, policy.training, observation.batch_size), outputs, type(policy).__name__
        )
        results = captured(observation.select(*policy.in_keys))
        for key, result in zip(policy.out_keys, results, strict=True):
            observation.set(key, result.clone())
        return observation

    def _call(
        self, policy: Callable[[TensorDictBase], TensorDictBase], observation: TensorDictBase
    ) -> TensorDictBase:
        """Call a policy eagerly, in the precision where that is worth its time."""
        if self.precision.casts and observation.numel() < _LEAST_CAST_ROWS:
            return policy(observation)
        with self.precision.active():
            return policy(observation)

    def update(self, agent: Any, batch: TensorDictBase) -> Any:
        """Do one gradient step.

        Args:
            agent: agent whose `update(batch, execution)` does the step. With graphs, the update is
                captured, once for each `phase` of the agent.
            batch: transitions `[B]` to learn from.

        Returns:
            The return value of the agent's `update`; with graphs, the next update overwrites its
            tensors.
        """
        if self.graph_mode == "off":
            return agent.update(batch, self)
        update = self._captured(
            (agent, agent.phase, batch.batch_size, tuple(batch.keys())),
            partial(agent.update, execution=self),
            f"the update of {type(agent).__name__}",
        )
        only_replays = update.is_captured
        result = update(batch)
        if only_replays:
            agent.advance()
        return result

    def _captured(
        self, key: Hashable, function: Callable[[TensorDictBase], Any], name: str
    ) -> CapturedFunction[Any]:
        """Return the captured form of a computation with a key, which is the first one's."""
        captured = self._graphs.get(key)
        if captured is None:
            captured = self._graphs[key] = CapturedFunction(function, name, self._device)
        return captured

    def gradients(
        self,
        loss: Callable[[TensorDictBase], Losses],
        batch: TensorDictBase,
        optimizers: Iterable[torch.optim.Optimizer],
    ) -> Losses:
        """Compute the gradients of one gradient step, ready to be clipped.

        Args:
            loss: loss function of an agent.
            batch: transitions `[B]` to learn from.
            optimizers: optimizers of all trained parameters; their old gradients are cleared.

        Returns:
            The losses; detached if memory sufficed for parts of the batch only.

        Raises:
            ConfigurationError: the memory is insufficient for a single transition.
        """
        name, started = _name_of(loss), time.perf_counter()
        is_first = self.compile_mode != "off" and loss not in self._compiled
        if is_first:
            _logger.info("compile=%s: compiling the update of %s", self.compile_mode, name)
            self.announce(f"compiling the update of {name}")
            self._compiled[loss] = self.compiled(loss)
        run = self._compiled.get(loss, loss)
        rows = len(batch)
        size = rows if self._part_size is None else min(rows, self._part_size)
        while True:
            try:
                losses = self._accumulate(run, batch, optimizers, size)
                break
            except (RuntimeError, MemoryError) as error:
                device = _device_of(optimizers)
                accelerator = accelerator_of(device)
                if not accelerator.is_out_of_memory(error) or accelerator.is_capturing:
                    raise
                if size == 1:
                    raise ConfigurationError(
                        f"{device}: the memory is insufficient for the gradients of a single "
                        "transition; smaller networks or observations need less"
                    ) from error
            # Outside the handler, because the error holds the tensors of the failed attempt.
            size = math.ceil(size / 2)
            for optimizer in optimizers:
                optimizer.zero_grad()
            accelerator_of(device).empty_cache()
        if size < rows and size != self._part_size:
            _logger.warning(
                "%s: the memory is insufficient for the gradients of %d transitions at once; they "
                "are accumulated over parts of %d from here on, which gives the same updates",
                _device_of(optimizers),
                rows,
                size,
            )
            self._part_size = size
        self.precision.unscale(optimizers)
        if is_first:
            seconds = time.perf_counter() - started
            _logger.info("compiled the update of %s: %.0f s", name, seconds)
            self.announce("")
        return losses

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the compiled form of a function; override it to compile by another backend."""
        return torch.compile(function, mode=_TORCH_MODES[self.compile_mode])

    def _accumulate(
        self,
        loss: Callable[[TensorDictBase], Losses],
        batch: TensorDictBase,
        optimizers: Iterable[torch.optim.Optimizer],
        size: int,
    ) -> Losses:
        """Compute the gradients of a batch `[B]` in equal parts of at most `size` rows."""
        for optimizer in optimizers:
            optimizer.zero_grad()
        rows = len(batch)
        if size == rows:
            with self.precision.active():
                losses = loss(batch)
            self.precision.backward(list(losses.terms.values()))
            return losses
        parts = batch.split(math.ceil(rows / math.ceil(rows / size)))
        shares = [len(part) / rows for part in parts]
        done: list[Losses] = []
        for part, share in zip(parts, shares, strict=True):
            with self.precision.active():
                losses = loss(part)
            self.precision.backward([share * term for term in losses.terms.values()])
            done.append(losses)
        return done[0].joined(done[1:], shares)

    def step(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Update all trained parameters from their gradients."""
        self.precision.step(optimizers)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs: that of the precision."""
        return {"precision": self.precision.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned, also of an execution in another precision.

        All graphs are forgotten, because loaded optimizers keep their state in other tensors.
        """
        self._graphs.clear()
        self.precision.load_state_dict(state.get("precision", {}))


def _name_of(loss: Callable[..., Any]) -> str:
    """Return the class of the agent whose loss this is, or the name of the function."""
    owner = getattr(loss, "__self__", None)
    return getattr(loss, "__qualname__", "the agent") if owner is None else type(owner).__name__


def _device_of(optimizers: Iterable[torch.optim.Optimizer]) -> torch.device:
    """Return the device of the trained parameters."""
    parameters = (p for o in optimizers for group in o.param_groups for p in group["params"])
    device: torch.device = next(parameters).device
    return device


EAGER = Execution()
