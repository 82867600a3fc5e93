"""Compiled gradient steps agree with eager ones, for every agent."""

import copy
import importlib
import logging
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch import nn

from agents import DQN, SAC
from tests.helpers.agents import (
    BATCH,
    CPU,
    WITH_ALL_OPTIONS,
    Case,
    every_agent,
    make_batch,
    parameters,
)
from torchrl_gpu.devices.kinds import Cpu, accelerator_of
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.compilation import CHECKS, ISOLATION, TRACES_GRADIENTS, compiled
from torchrl_gpu.execution.execution import Execution
from torchrl_gpu.execution.learner import Losses
from torchrl_gpu.execution.options import Compilation

LossFunction = Callable[[TensorDictBase], Losses]

UPDATES = 16
QUICKEST = Case(DQN, "discrete")


class WholeGraph(Execution):
    """Traces each update as one graph and runs it eagerly: all of `compile` but generated code."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(compile="default", **settings)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        is_whole = TRACES_GRADIENTS
        return torch.compile(
            function, fullgraph=is_whole, backend="eager", options={**CHECKS}, **ISOLATION
        )


class InParts(WholeGraph):
    """Leaves to Python the code that torch cannot trace, as `compile` does."""

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(function, backend="eager", options={**CHECKS}, **ISOLATION)


@pytest.fixture(autouse=True)
def compiler() -> Any:
    """Forget all compiled code, whose number is limited, and the compiler of this machine."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Cpu, "compile", True)
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()


def learn(case: Case, execution: Execution, **settings: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return metrics and parameters after updates from one random state."""
    agent = case.make(**settings)
    torch.manual_seed(1)
    updates = [execution.update(agent, make_batch(agent, seed)) for seed in range(UPDATES)]
    return [update.metrics for update in updates], parameters(agent)


@pytest.mark.slow
@every_agent
def test_a_compiled_update_learns_like_an_eager_one(case: Case) -> None:
    expected = learn(case, Execution(), **WITH_ALL_OPTIONS)
    found = learn(case, WholeGraph(), **WITH_ALL_OPTIONS)
    # The random numbers are those of the eager loss, so they differ from update to update.
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def reading_a_value(loss: LossFunction) -> LossFunction:
    def read(batch: TensorDictBase) -> Losses:
        losses = loss(batch)
        size = float(losses.metrics["dqn/error"])
        return losses._replace(terms={name: size * term for name, term in losses.terms.items()})

    return read


def breaking_the_graph(loss: LossFunction) -> LossFunction:
    def broken(batch: TensorDictBase) -> Losses:
        torch._dynamo.graph_break()
        return loss(batch)

    return broken


def freezing_the_network(loss: LossFunction) -> LossFunction:
    network = loss.__self__.network  # type: ignore[attr-defined]

    def frozen(batch: TensorDictBase) -> Losses:
        network.requires_grad_(False)
        loss(batch)
        network.requires_grad_(True)
        return loss(batch)

    return frozen


def with_hooks(loss: LossFunction) -> LossFunction:
    for parameter in loss.__self__.network.parameters():  # type: ignore[attr-defined]
        parameter.register_hook(lambda gradient: gradient.sign())
    return loss


@pytest.mark.parametrize(
    "change", [reading_a_value, breaking_the_graph, freezing_the_network, with_hooks]
)
@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(BATCH, id="whole"),
        pytest.param(BATCH // 2, id="in parts", marks=pytest.mark.slow),
    ],
)
def test_losses_that_torch_cannot_trace_as_one_graph_learn_like_eager_ones(
    change: Callable[[LossFunction], LossFunction], rows: int
) -> None:
    class InGraphs(Execution):
        def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
            return torch.compile(function, backend="aot_eager")

    ends = []
    for execution in (InGraphs(compile="default"), Execution()):
        agent = QUICKEST.make()
        agent.loss = change(agent.loss)  # type: ignore[assignment, method-assign]
        execution._fitting._size = rows
        for seed in range(4):
            execution.update(agent, make_batch(agent, seed))
        ends.append(parameters(agent))
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-6)
    assert any((ends[0][name] != end).any() for name, end in parameters(QUICKEST.make()).items())


def test_a_later_hook_is_obeyed() -> None:
    execution, agent = WholeGraph(), QUICKEST.make()
    execution.update(agent, make_batch(agent))
    (group,) = agent.optimizers()["adam"].param_groups
    for parameter in group["params"]:
        parameter.register_hook(torch.zeros_like)
    execution.update(agent, make_batch(agent, 1))
    for parameter in group["params"]:
        assert not parameter.grad.any()


@pytest.mark.skipif(not TRACES_GRADIENTS, reason="this torch compiles no hooks of modules")
def test_a_later_hook_of_a_layer_is_obeyed() -> None:
    execution, agent = WholeGraph(), QUICKEST.make()
    execution.update(agent, make_batch(agent))
    layer = agent.policy.actor.get_submodule("network.0")  # type: ignore[attr-defined]
    before = layer.weight.clone()
    layer.register_forward_hook(lambda module, inputs, output: output.detach())
    execution.update(agent, make_batch(agent, 1))
    assert layer.weight.grad is None
    torch.testing.assert_close(layer.weight, before, rtol=0.0, atol=0.0)


@pytest.mark.skipif(not TRACES_GRADIENTS, reason="this torch compiles no hooks of modules")
def test_hooks_that_a_layer_has_from_the_start_are_compiled() -> None:
    execution, agent, calls = WholeGraph(), QUICKEST.make(), list[None]()
    layer = agent.policy.actor.get_submodule("network.0")  # type: ignore[attr-defined]

    def count(module: nn.Module, inputs: Any, output: Any) -> None:
        if not torch.compiler.is_compiling():
            calls.append(None)

    layer.register_forward_hook(count)
    for seed in range(2):
        execution.update(agent, make_batch(agent, seed))
    assert not calls


def test_hooks_of_parameters_that_an_optimizer_has_later_are_obeyed() -> None:
    execution, agent = WholeGraph(), QUICKEST.make()
    execution.update(agent, make_batch(agent))
    layer = agent.policy.actor.get_submodule("network.0")  # type: ignore[attr-defined]
    layer.weight = nn.Parameter(layer.weight.detach().clone())
    agent.optimizer.param_groups[0]["params"].append(layer.weight)
    layer.weight.register_hook(torch.zeros_like)
    execution.update(agent, make_batch(agent, 1))
    assert not layer.weight.grad.any()


@pytest.mark.parametrize(
    "copied",
    [
        pytest.param(copy.deepcopy, marks=pytest.mark.slow),
        lambda pair: pickle.loads(pickle.dumps(pair)),
    ],
)
def test_a_copy_of_agent_and_execution_learns_like_the_original(copied: Any) -> None:
    agent, execution = QUICKEST.make(), WholeGraph()
    execution.update(agent, make_batch(agent))
    pairs = (agent, execution), copied((agent, execution))
    ends = []
    for learner, each in pairs:
        each.update(learner, make_batch(agent, 1))
        ends.append(parameters(learner))
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(not ISOLATION, reason="this torch keeps one form for all entries")
def test_an_entry_of_some_batches_counts_in_them() -> None:
    losses = []
    for execution in (WholeGraph(), Execution()):
        agent, batch = QUICKEST.make(), make_batch(QUICKEST.make())
        for entry in ({"weight": torch.linspace(0, 1, len(batch))}, {}) * 2:
            update = execution.update(agent, batch.exclude("weight").update(entry))
            losses.append(update.metrics)
    torch.testing.assert_close(losses[:4], losses[4:], rtol=1e-4, atol=1e-6)


def test_a_later_setting_is_obeyed() -> None:
    losses = []
    for execution in (WholeGraph(), Execution()):
        agent = QUICKEST.make()
        for agent.gamma in (0.9, 0.0):
            update = execution.update(agent, make_batch(agent))
        losses.append(update.metrics)
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
def test_a_frozen_actor_leaves_the_critic_to_learn(is_compiled: bool) -> None:
    case = Case(SAC, "continuous")
    agent, before = case.make(), parameters(case.make())
    agent.actor.requires_grad_(False)
    (WholeGraph() if is_compiled else Execution()).update(agent, make_batch(agent))
    changed = {name for name, end in parameters(agent).items() if (end != before[name]).any()}
    assert any(name.startswith("critics.") for name in changed)
    assert not any(name.startswith("actor.") for name in changed)


WRONG_LOSSES: dict[str, Callable[[Any], Any]] = {
    "it has to return Losses, not Tensor": lambda losses: losses.terms["loss/value"],
    "it has to return Losses, not dict": lambda losses: losses.terms,
    "terms and metrics have to be dictionaries": lambda losses: losses._replace(metrics=[]),
    "terms is empty": lambda losses: losses._replace(terms={}),
    r"loss/value has to be .* shape \[\], not \[7\]": lambda losses: Losses(
        {name: term * torch.ones(7) for name, term in losses.terms.items()}, {}
    ),
    r"x has to be a tensor \[\], not float": lambda losses: losses._replace(metrics={"x": 0.5}),
    "loss/value depends on no trained parameter": Losses.detached,
    "loss/a, loss/b depend on no": lambda losses: Losses(
        dict.fromkeys(("loss/a", "loss/b"), losses.detached().terms["loss/value"]), {}
    ),
}


def _wrong_losses() -> Iterator[Any]:
    """Yield each problem with both executions; most compiled ones are slow."""
    for number, problem in enumerate(WRONG_LOSSES):
        yield pytest.param(problem, Execution, id=f"{problem}-eager")
        marks = [pytest.mark.slow] if number % 4 else []
        yield pytest.param(problem, InParts, id=f"{problem}-compiled", marks=marks)


@pytest.mark.parametrize(("problem", "execution_class"), _wrong_losses())
def test_wrong_losses_end_the_update(problem: str, execution_class: type[Execution]) -> None:
    agent, execution = QUICKEST.make(), execution_class()
    loss = agent.loss
    agent.loss = lambda batch: WRONG_LOSSES[problem](loss(batch))  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match=f"^agent: DQN.loss: {problem}"):
        execution.update(agent, make_batch(agent))


def test_a_batch_that_is_not_returned_ends_the_update() -> None:
    agent = QUICKEST.make()
    agent.prepare_batch = lambda batch: None  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match=r"prepare_batch has to .* TensorDict, not None"):
        Execution().update(agent, make_batch(agent))


@pytest.mark.parametrize(
    "optimizers", [{}, {"other": torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)}]
)
def test_losses_that_no_optimizer_lowers_end_the_update(
    optimizers: dict[str, torch.optim.Optimizer],
) -> None:
    agent = QUICKEST.make()
    agent.optimizers = lambda: optimizers  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match="it depends on no parameter of an optimizer"):
        Execution().update(agent, make_batch(agent))


@pytest.mark.skipif(not TRACES_GRADIENTS, reason="this torch counts the forms of all agents")
def test_each_agent_of_a_process_is_compiled() -> None:
    graphs: list[None] = []

    def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
        graphs.append(None)
        forward: Callable[..., Any] = graph.forward
        return forward

    execution = Execution(compile="default")
    with pytest.MonkeyPatch.context() as monkeypatch:
        compile = torch.compile
        monkeypatch.setattr(
            torch,
            "compile",
            lambda function, options, **others: compile(function, backend=backend, **others),
        )
        for number in range(3):
            agent = QUICKEST.make()
            with torch._dynamo.config.patch(cache_size_limit=1):
                execution.update(agent, make_batch(agent))
            assert len(graphs) == number + 1


@pytest.mark.slow
@pytest.mark.skipif(not accelerator_of(CPU).compile, reason="no C++ compiler")
def test_generated_code_learns_like_an_eager_loss() -> None:
    options = importlib.import_module("torch._inductor.config")
    with options.patch(fallback_random=True):  # the random numbers of eager execution
        found = learn(QUICKEST, Execution(compile="default"))
    torch.testing.assert_close(found, learn(QUICKEST, Execution()), rtol=1e-4, atol=1e-5)


def test_a_compiled_loss_halves_a_batch_beyond_the_memory() -> None:
    sizes: list[int] = []

    class Small(WholeGraph):
        def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
            compiled = super().compiled(function)

            def run(batch: Any, factor: Any) -> Any:
                sizes.append(len(batch))
                if len(batch) > BATCH // 2:
                    raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
                return compiled(batch, factor)

            return run

    learn(QUICKEST, Small())
    assert sizes == [BATCH] + [BATCH // 2] * 2 * UPDATES


def test_compiling_is_reported_once_with_its_seconds(caplog: pytest.LogCaptureFixture) -> None:
    stages: list[str] = []
    execution = WholeGraph()
    execution.announce = stages.append
    with caplog.at_level(logging.INFO):
        learn(QUICKEST, execution)
    name = QUICKEST.agent_class.__name__
    assert stages == [f"compiling the update of {name}", ""]
    first, last = (record.message for record in caplog.records)
    assert first == f"compile=default: compiling the update of {name}"
    assert last.startswith(f"compiled the update of {name}: ")
    assert last.endswith(" s")


def test_without_a_compiler_updates_run_eagerly_after_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cpu, "compile", False)
    execution = Execution(compile="max-autotune")
    assert [r.message for r in caplog.records] == [
        "compile=max-autotune: no compiler for cpu here; updates run eagerly"
    ]
    found, expected = learn(QUICKEST, execution), learn(QUICKEST, Execution())
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0)


def test_a_loss_that_is_a_new_function_at_each_access_is_compiled_once() -> None:
    agent = QUICKEST.make()
    loss, compiled = agent.loss, []

    class Wrapped(type(agent)):  # type: ignore[misc]
        @property
        def loss(self) -> Callable[..., Any]:
            return lambda batch: loss(batch)

    class Counting(Execution):
        def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
            compiled.append(function)
            return function

    agent.__class__ = Wrapped
    execution = Counting(compile="default")
    for seed in range(3):
        execution.update(agent, make_batch(agent, seed))
    assert len(compiled) == 1


@pytest.mark.parametrize(("mode", "searches"), [("default", False), ("max-autotune", True)])
@pytest.mark.parametrize(("name", "keeps"), [("cpu", True), ("cuda", False)])
def test_the_compiler_keeps_the_layouts_of_convolutions_on_a_cpu_alone(
    monkeypatch: pytest.MonkeyPatch, mode: Compilation, searches: bool, name: str, keeps: bool
) -> None:
    found: dict[str, Any] = {}

    def compile(function: Any, options: dict[str, Any], **others: Any) -> Any:
        found.update(options)
        return function

    monkeypatch.setattr(torch, "compile", compile)
    compiled(lambda batch, factor: Losses({}, {}), mode, torch.device(name))
    assert found.get("layout_optimization", True) != keeps
    assert found.get("max_autotune", False) == searches
