"""Long runs are compiled, in bf16 where the processor multiplies it fast; short runs are not."""

import logging
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from agents import DQN, SAC, Agent
from tests.helpers.agents import CPU, Case, every_agent, make_batch, parameters
from tests.stand_in import Abilities
from torchrl_gpu.devices.kinds import Cpu, accelerator_of
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.execution import Execution
from torchrl_gpu.execution.options import CompileMode, GraphMode, PrecisionMode

CASE = Case(DQN, "discrete")
LONG, SHORT = 7_500_000, 7_499_999


@pytest.fixture(autouse=True)
def processor(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A processor with a compiler and with instructions for bfloat16; no code is compiled yet."""
    torch._dynamo.reset()
    monkeypatch.setattr(Cpu, "compile", True)
    monkeypatch.setattr(Cpu, "bfloat16_products", True)
    return monkeypatch


def planned(transitions: int, *modes: Any) -> tuple[str, str]:
    """Return the precision and the compilation of a run that learns from transitions."""
    execution = Execution(CPU, *modes)
    execution.plan(transitions)
    return execution.precision.name, execution.compile_mode


@pytest.mark.parametrize(
    ("transitions", "precision", "compile", "expected"),
    [
        (SHORT, "auto", "auto", ("fp32", "off")),
        (LONG, "auto", "auto", ("bf16", "default")),
        (LONG, "fp32", "auto", ("fp32", "default")),
        (LONG, "auto", "off", ("fp32", "off")),
        (SHORT, "bf16", "auto", ("bf16", "off")),
        (SHORT, "auto", "max-autotune", ("bf16", "max-autotune")),
    ],
)
def test_the_length_of_the_run_decides_where_nothing_is_typed(
    transitions: int, precision: PrecisionMode, compile: CompileMode, expected: tuple[str, str]
) -> None:
    assert planned(transitions, precision, compile) == expected


def test_a_processor_without_bfloat16_compiles_float32(processor: pytest.MonkeyPatch) -> None:
    processor.setattr(Cpu, "bfloat16_products", False)
    assert planned(LONG) == ("fp32", "default")


def test_a_machine_without_a_compiler_stays_eager_and_silent(
    processor: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    processor.setattr(Cpu, "compile", False)
    assert planned(LONG) == ("fp32", "off")
    assert not caplog.records


@pytest.mark.parametrize("accelerator", [Abilities(graphs=True)], indirect=True)
def test_updates_are_captured_where_that_is_known_to_be_faster(
    accelerator: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Derived(CASE.agent_class):  # type: ignore[name-defined]
        """May keep state outside tensors."""

    def captures(agent_class: type[Agent], graphs: GraphMode = "auto") -> bool:
        agent = replace(CASE, agent_class=agent_class).make().to(accelerator)
        execution = Execution(accelerator, graphs=graphs)
        execution.plan(SHORT, accelerator, agent.can_capture)
        return execution.description == "fp32, captured"

    assert not captures(CASE.agent_class)
    monkeypatch.setattr(type(accelerator_of(accelerator)), "captures", True)
    assert captures(CASE.agent_class)
    assert not captures(CASE.agent_class, "off")
    assert not captures(Derived)
    assert captures(Derived, "on")


@pytest.mark.parametrize("accelerator", [Abilities(graphs=True)], indirect=True)
def test_a_planned_execution_runs_on_the_device_of_its_agent(
    accelerator: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(accelerator_of(accelerator)), "captures", True)
    execution, agent = Execution(), CASE.make().to(accelerator)
    execution.plan(SHORT, accelerator, agent.can_capture)
    for _ in range(5):
        execution.update(agent, make_batch(agent))
    assert execution.description == "fp32, captured"


@pytest.mark.parametrize("accelerator", [Abilities(graphs=True)], indirect=True)
def test_an_agent_on_a_device_without_graphs_is_refused(accelerator: torch.device) -> None:
    execution = Execution(accelerator, graphs="on")
    with pytest.raises(ConfigurationError, match="graphs=on: cpu cannot capture graphs"):
        execution.plan(SHORT, torch.device("cpu"), can_capture=True)


@every_agent
def test_captured_are_agents_whose_modules_are_all_of_this_library(case: Case) -> None:
    class Foreign(torch.nn.Linear):
        """May read values back."""

    agent = case.make()
    assert agent.can_capture
    Foreign.__module__ = "my_encoders.vision"
    agent.augmentation = Foreign(1, 1)
    assert not agent.can_capture
    agent.augmentation = None
    agent.policy.add_module("encoder_of_a_user", Foreign(1, 1))
    assert not agent.can_capture


def test_kinds_of_devices_without_measurements_stay_as_they_are() -> None:
    execution = Execution()
    execution.plan(LONG, torch.device("meta"))
    assert (execution.precision.name, execution.compile_mode) == ("fp32", "off")


@pytest.mark.parametrize(("transitions", "device"), [(SHORT, "cpu"), (LONG, "meta")])
def test_a_plan_replaces_the_choices_of_the_one_before(transitions: int, device: str) -> None:
    execution = Execution()
    execution.plan(LONG)
    assert execution.description == "bf16, compiled"
    execution.plan(transitions, torch.device(device))
    assert execution.description == "fp32"


def test_a_resumed_run_goes_on_as_it_was_planned_whatever_its_new_length() -> None:
    execution, resumed = Execution(), Execution()
    execution.plan(LONG)
    resumed.plan(SHORT)
    resumed.load_state_dict(execution.state_dict())
    assert (resumed.precision.name, resumed.compile_mode) == ("bf16", "default")


def test_typed_modes_outlast_a_checkpoint() -> None:
    execution, resumed = Execution(), Execution(CPU, "fp32", "off")
    execution.plan(LONG)
    resumed.load_state_dict(execution.state_dict())
    assert (resumed.precision.name, resumed.compile_mode) == ("fp32", "off")


def test_a_resumed_run_keeps_a_precision_that_was_typed_or_is_refused() -> None:
    execution, resumed = Execution(CPU, "fp16"), Execution()
    execution.plan(SHORT)
    resumed.plan(SHORT)
    resumed.load_state_dict(execution.state_dict())
    assert resumed.precision.name == "fp16"
    with pytest.raises(ConfigurationError, match="precision=tf32: not available on cpu"):
        resumed.load_state_dict(execution.state_dict() | {"format": "tf32"})


class Failing(Execution):
    """Has a compiler that fails, at first or later on."""

    fails = True
    error: Exception = RuntimeError("no such kernel")
    compiles = 0  # that succeeded

    def compiled(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
            if self.fails:
                raise self.error
            self.compiles += 1
            forward: Callable[..., Any] = graph.forward
            return forward

        return torch.compile(loss, backend=backend)


def test_a_loss_that_cannot_be_compiled_runs_eagerly_after_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ends = []
    for execution in (Failing(), Execution(CPU, "fp32", "off")):
        execution.plan(LONG)
        agent = CASE.make()
        for seed in range(3):
            torch.manual_seed(seed)
            execution.update(agent, make_batch(agent, seed))
        ends.append(parameters(agent))
    torch.testing.assert_close(*ends, rtol=0.0, atol=0.0)
    assert [r.message for r in caplog.records if r.levelno == logging.WARNING] == [
        "compile=auto: the update of DQN cannot be compiled and runs eagerly: backend='backend' "
        "raised: RuntimeError: no such kernel"
    ]


def test_a_compiler_that_a_signal_ended_starts_again_with_the_next_update(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent, execution = CASE.make(), Failing()
    execution.plan(LONG)
    execution.error = subprocess.CalledProcessError(-signal.SIGINT, "g++")
    execution.update(agent, make_batch(agent))
    assert execution.compile_mode == "default"
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]
    execution.fails = False
    execution.update(agent, make_batch(agent))
    assert execution.compiles == 1


def test_a_typed_compilation_that_fails_ends_the_run() -> None:
    agent = CASE.make()
    with pytest.raises(RuntimeError, match="no such kernel"):
        Failing(compile="default").update(agent, make_batch(agent))


def test_a_later_compilation_that_fails_changes_to_eager_updates() -> None:
    agent, execution = Case(SAC, "continuous").make(actor_period=2), Failing()
    execution.plan(LONG)
    for seed, mode in enumerate(("default", "off")):
        execution.fails = seed == 1  # the update with the actor
        execution.update(agent, make_batch(agent, seed))
        assert execution.compile_mode == mode


def test_a_normalizer_learns_a_batch_once_where_compiling_fails() -> None:
    agent, execution = CASE.make(normalize_observations=True), Failing()
    execution.plan(LONG)
    execution.update(agent, make_batch(agent))
    expected = CASE.make(normalize_observations=True)
    Execution(CPU, "fp32", "off").update(expected, make_batch(expected))
    found, exact = (each.get_submodule("normalizer").state_dict() for each in (agent, expected))
    torch.testing.assert_close(found, exact)


def test_an_error_of_a_loss_is_not_one_of_the_compiler() -> None:
    class Broken(Execution):
        def compiled(self, loss: Callable[..., Any]) -> Callable[..., Any]:
            return lambda batch, factor: loss(batch["no such entry"], factor)

    agent, execution = CASE.make(), Broken()
    execution.plan(LONG)
    with pytest.raises(KeyError, match="no such entry"):
        execution.update(agent, make_batch(agent))


def test_a_resumed_run_stays_eager_and_exact_without_a_compiler(
    processor: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    execution, resumed = Execution(), Execution()
    execution.plan(LONG)
    processor.setattr(Cpu, "compile", False)
    resumed.load_state_dict(execution.state_dict())
    assert (resumed.precision.name, resumed.compile_mode) == ("fp32", "off")
    assert caplog.messages[-1] == "the run began in bf16, and goes on in fp32"
