from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch
from pydantic import Field

from torchrl_gpu.arguments import (
    CheckedFields,
    check_settings,
    checked,
    descriptions_of,
)
from torchrl_gpu.errors import ConfigurationError


class Simulator:
    """Stores the arguments of its constructor."""

    @checked
    def __init__(
        self,
        *,
        num_envs: Annotated[int, Field(ge=1)] = 64,
        robot: Literal["200ic", "200id"] = "200ic",
        tolerance: Annotated[float, Field(gt=0, le=1)] = 0.015,
        render: bool = False,
        limits: list[float] | None = None,
        path: Path | None = None,
    ) -> None:
        self.settings = {
            "num_envs": num_envs,
            "robot": robot,
            "tolerance": tolerance,
            "render": render,
            "limits": limits,
            "path": path,
        }


class Agent:
    @checked
    def __init__(  # type: ignore[no-untyped-def]
        self,
        module: torch.nn.Module,
        sizes: tuple[int, ...] = (256, 256),
        untyped=None,
        **settings: Any,
    ) -> None:
        self.module = module
        self.sizes = sizes
        self.untyped = untyped
        self.settings = settings


# Constructors


def test_valid_arguments_and_defaults_are_unchanged() -> None:
    assert Simulator().settings["num_envs"] == 64
    assert Simulator(num_envs=1, robot="200id", tolerance=1.0).settings == {
        "num_envs": 1,
        "robot": "200id",
        "tolerance": 1.0,
        "render": False,
        "limits": None,
        "path": None,
    }


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_arrays_are_taken_for_tuples(kind: Callable[..., Any]) -> None:
    agent = Agent(torch.nn.Identity(), sizes=kind([32, 16]))
    assert agent.sizes == (32, 16)
    assert all(type(size) is int for size in agent.sizes)


def test_values_are_converted_where_no_information_is_lost() -> None:
    settings = Simulator(num_envs=8.0, tolerance=1).settings  # type: ignore[arg-type]
    assert (type(settings["num_envs"]), type(settings["tolerance"])) == (int, float)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("num_envs", 0, "greater than or equal to 1"),
        ("num_envs", 2.5, "valid integer"),
        ("num_envs", "many", "valid integer"),
        ("num_envs", None, "valid integer"),
        ("robot", "200ie", "'200ic' or '200id'"),
        ("tolerance", 0, "greater than 0"),
        ("tolerance", float("nan"), ""),
        ("render", "perhaps", "valid boolean"),
        ("limits", [0.1, "far"], "valid number"),
        ("limits", 0.1, "write [0.1]"),
        ("path", 3, "input should be a path"),
    ],
)
def test_an_invalid_argument_is_named_with_the_reason(name: str, value: Any, reason: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Simulator(**{name: value})
    assert str(caught.value).startswith(f"{name}={value}: ")
    assert reason in str(caught.value)


def test_objects_pass_unchanged_and_their_type_is_checked() -> None:
    module = torch.nn.Linear(1, 1)
    agent = Agent(module, untyped="anything", gamma=0.9)
    assert agent.module is module
    assert agent.untyped == "anything"
    assert agent.settings == {"gamma": 0.9}
    with pytest.raises(ConfigurationError, match="module=3: "):
        Agent(3)  # type: ignore[arg-type]


def test_a_device_is_whatever_torch_takes_for_one() -> None:
    @checked
    def place(device: torch.device, other: torch.device | None = None) -> torch.device:
        return device

    cpu: Any = "cpu"
    assert place(cpu) == place(torch.device("cpu")) == torch.device("cpu")
    wrong: Any
    for wrong in ("quantum", None, 1.5):
        with pytest.raises(ConfigurationError, match=f"^device={wrong}: not a device of PyTorch"):
            place(wrong)


def test_a_value_of_several_lines_is_named_by_its_type() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(1, 1))
    with pytest.raises(ConfigurationError) as caught:
        Simulator(robot=module)  # type: ignore[arg-type]
    assert str(caught.value) == "robot=Sequential: input should be '200ic' or '200id'"


def test_a_checked_function_keeps_its_name_and_signature() -> None:
    assert Simulator.__init__.__name__ == "__init__"
    with pytest.raises(TypeError, match=r"^Simulator: got .* 'num_env'; did you mean num_envs\?$"):
        Simulator(num_env=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^Agent: missing a required argument: 'module'$"):
        Agent(sizes=(1,))  # type: ignore[call-arg]


# Settings of a component


def test_a_setting_that_the_program_provides_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match=r"^agent\.module: "):
        check_settings(Agent, {"module": 3}, "agent", provided=["module"])


def test_a_constructor_with_keyword_arguments_accepts_any_name() -> None:
    settings = check_settings(Agent, {"gamma": 0.9}, "agent", provided=["module"])
    assert settings["gamma"] == 0.9


def test_settings_are_checked_together_unless_a_subclass_lacks_one() -> None:
    class Both(Simulator):
        @classmethod
        def check_combination(cls, settings: Mapping[str, Any]) -> None:
            if settings["num_envs"] > 1 and settings["path"] is not None:
                raise ConfigurationError("env.num_envs, env.path: set one")

    class Lacking(Both):
        def __init__(self, num_envs: int = 2) -> None:
            super().__init__(num_envs=num_envs)

    with pytest.raises(ConfigurationError, match=r"env\.path: set one"):
        check_settings(Both, {"num_envs": 2, "path": "arm.urdf"}, "env")
    assert check_settings(Lacking, {}, "env") == {"num_envs": 2}


# Descriptions of arguments

Share = Annotated[float, Field(ge=0.0, le=1.0, description="share of the frames")]


def described(
    share: Share = 0.5,
    own: Share = 0.5,
    rate: Annotated[float, Field(gt=0.0, description="rate of Adam; the initial one")] = 1.0,
    end: Annotated[Annotated[int, Field(ge=1)] | None, Field(description="end; None for none")] = 1,
    plain: int = 0,
    ranged: Annotated[int, Field(ge=1)] = 1,
    unnamed: Annotated[int, Field(ge=1)] = 1,
) -> None:
    """Have arguments of every kind.

    Args:
        own: of this function.
        ranged: number of steps. It is counted; 1 for one.
        plain: number in
            two lines.
    """


def test_an_argument_is_described_by_its_annotation_and_by_the_docstring() -> None:
    assert descriptions_of(described) == {
        "share": "share of the frames, 0 to 1",
        "own": "share of the frames, 0 to 1; of this function",
        "ranged": "number of steps, at least 1. It is counted; 1 for one",
        "rate": "rate of Adam, above 0; the initial one",
        "end": "end, at least 1; None for none",
        "plain": "number in two lines",
    }


class Walker(CheckedFields):
    """Has an argument that its subclasses may change.

    Args:
        name: name of the walker.
        share: of its steps.
    """

    name: str = field(kw_only=False)
    share: Share = 0.5
    steps: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.steps = []


class Runner(Walker):
    """States another default for an inherited argument, and adds one.

    Args:
        share: of the run.
    """

    share: Share = 0.75
    rate: Annotated[float, Field(gt=0.0, description="rate of Adam")]


def test_fields_are_arguments_that_subclasses_inherit() -> None:
    assert vars(Runner("a", rate=2)) == {"name": "a", "share": 0.75, "rate": 2.0, "steps": []}
    assert vars(Walker("b")) == {"name": "b", "share": 0.5, "steps": []}
    assert descriptions_of(Runner) == {
        "name": "name of the walker",
        "share": "share of the frames, 0 to 1; of the run",
        "rate": "rate of Adam, above 0",
    }


@pytest.mark.parametrize("wrong", [{"share": 1.5}, {"rate": 0.0}, {"rate": "fast"}])
def test_fields_are_checked(wrong: dict[str, Any]) -> None:
    name, value = next(iter(wrong.items()))
    with pytest.raises(ConfigurationError, match=f"^{name}={value}: "):
        Runner("a", **{"rate": 1.0, **wrong})


def test_another_default_without_annotation_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Half\.share: another default needs the annotation"):

        class Half(Walker):
            share = 0.25


def test_a_constructor_of_its_own_replaces_the_fields() -> None:
    class Standing(Walker):
        def __init__(self) -> None:
            super().__init__("c", share=0.25)

    assert vars(Standing()) == {"name": "c", "share": 0.25, "steps": []}
