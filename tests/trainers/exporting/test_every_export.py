"""Exported files act as their policy does: every agent, kind of observation and of action."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchrl.data import Bounded, Composite

from agents import DQN, PPO, SAC
from agents.base import Agent
from agents.modules.encoders import ObservationEncoderFactory
from tests.helpers.agents import CASES, Case, build, small_specs
from tests.helpers.policies import MANY, exported, random_weights, saved
from torchrl_gpu.acting.interface import PolicyInterface
from torchrl_gpu.environments.capabilities import Capabilities, Element
from torchrl_gpu.errors import ConfigurationError
from trainers import TrainedPolicy
from trainers.exporting.agreement import MAX_DIFFERENCE, agreement
from trainers.exporting.contract import Contract, observations_of, read_contract
from trainers.exporting.session import open_session

pytest.importorskip("onnxscript")

ROWS = 70  # no multiple of a batch
SMALL: dict[str, Any] = {"hidden_sizes": [16, 16]}


def checked(agent: Agent, folder: Path, capabilities: Capabilities | None = None) -> Contract:
    """Export the policy of an agent; check differences, and that the folder is read as written."""
    contract, _ = exported(saved(agent, folder, capabilities), folder, ROWS)
    assert max(contract.agreement.differences.values()) <= MAX_DIFFERENCE
    assert contract.agreement.observations == ROWS
    assert read_contract(folder / "export") == contract
    open_session(folder / "export", contract)
    return contract


def _with_encoders() -> Iterator[Any]:
    """Yield each case with one of the encoders that read small images, in turns."""
    for case, convolutions in zip(CASES, cycle(["strided", "impala", "drqv2"]), strict=False):
        name = f"{case.agent_class.__name__}-{case.actions}-{convolutions}"
        yield pytest.param(case, convolutions, id=name)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "convolutions"), _with_encoders())
def test_every_agent_reads_nested_vectors_sets_and_stacked_images(
    case: Case, convolutions: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    choice: dict[str, Any] = {"convolutions": convolutions, "channels": [2, 2]}
    encoder = ObservationEncoderFactory(**choice)
    action = small_specs(case.actions)[1][:1]
    agent = build(case.agent_class, MANY, action, encoder=encoder, **SMALL)
    random_weights(agent, 0.3)
    contract = checked(agent, tmp_path, Capabilities(frame_stacks={"pixels": 2}))
    if case.actions == "discrete":
        assert contract.action["meaning"] == "one of 3 choices"


@pytest.mark.slow
@pytest.mark.parametrize("agent_class", [SAC, PPO])
def test_a_vector_alone_is_read_and_the_bounds_of_actions_are_kept(
    agent_class: type[Agent], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"normalize_observations": agent_class is PPO, **SMALL}
    agent = build(agent_class, *small_specs("continuous", bounds=(2.0, 6.0)), **settings)
    random_weights(agent)
    for name, value in agent.policy.named_buffers():
        if ".moments." in name:
            value.uniform_(0.5, 2.0)
    contract = checked(agent, tmp_path)
    assert (contract.action["low"], contract.action["high"]) == (2.0, 6.0)


def test_the_nature_encoder_of_images_is_exported(tmp_path: Path) -> None:
    torch.manual_seed(0)
    spec = Composite(pixels=Bounded(0, 255, (1, 3, 40, 40), dtype=torch.uint8), shape=(1,))
    encoder = ObservationEncoderFactory(convolutions="nature", channels=[2, 2, 2])
    agent = build(SAC, spec, small_specs("continuous")[1][:1], encoder=encoder, **SMALL)
    checked(agent, tmp_path)


def test_a_network_that_branches_on_values_is_refused_in_one_line(tmp_path: Path) -> None:
    policy = saved(build(SAC, *small_specs("continuous"), **SMALL), tmp_path)
    for layer in policy.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(lambda *given: given[2] if given[2].sum() > 0 else None)
    with pytest.raises(ConfigurationError, match="cannot trace the networks"):
        exported(policy, tmp_path)
    assert not any(tmp_path.glob("*export*"))


@pytest.mark.parametrize("action_range", [None, ((-3.0, 0.0), (3.0, 1.0))])
def test_a_table_and_a_range_of_actions_are_inside_the_files(
    action_range: Any, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    table = ((-1.0, -1.0), (0.0, 1.0), (0.5, 0.0))
    agent = build(DQN, *small_specs("discrete"), **SMALL)
    random_weights(agent)
    capabilities = Capabilities(
        action_table=table, action_range=action_range, units={"action": "N"}
    )
    contract = checked(agent, tmp_path, capabilities)
    expected = [list(row) for row in table]
    if action_range:
        expected = [[-3.0, 0.0], [0.0, 1.0], [1.5, 0.5]]
    assert contract.action["table"] == expected
    assert contract.action["meaning"] == "a row of the table, in N"


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainedPolicy, Contract, Path]:
    """A policy that moves joints, its contract and its folder."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("moving")
    units = {"observation": "m", "action": "rad/s"}
    agent = build(SAC, *small_specs("continuous"), **SMALL)
    policy = saved(agent, folder, Capabilities(step_seconds=0.02, units=units))
    contract, _ = exported(policy, folder)
    return policy, contract, folder / "export"


def test_the_contract_refuses_an_environment_that_differs(
    moving: tuple[TrainedPolicy, Contract, Path], tmp_path: Path
) -> None:
    policy, contract, _ = moving
    fitting = policy.interface
    contract.check_fits(fitting, tmp_path)
    specs = fitting.observation_spec, fitting.action_spec
    discrete = small_specs("discrete")[1]
    renamed = Composite({"state": specs[0]["observation"]}, shape=specs[0].shape)
    for other, said in (
        (replace(fitting, step_seconds=0.2), "acts every 0.02 s"),
        (replace(fitting, units={}), "the unit m, not None"),
        (replace(fitting, action_spec=discrete), r"action has the shape \[2\], not"),
        (replace(fitting, observation_spec=renamed), "environment has state, action"),
    ):
        with pytest.raises(
            ConfigurationError, match=f"^policy={tmp_path}: does not fit the environment: .*{said}"
        ):
            contract.check_fits(other, tmp_path)


def test_leapp_runs_the_exported_policy(moving: tuple[TrainedPolicy, Contract, Path]) -> None:
    leapp = pytest.importorskip("leapp")
    policy, _, folder = moving
    observation = torch.randn(1, 5)
    pipeline = leapp.InferenceManager(str(folder / "leapp.yaml"))
    assert pipeline.pipeline["configs"] == {"frequency": 50.0}
    found = pipeline.run_policy({"policy/observation": observation})["policy/action"]
    torch.testing.assert_close(found, torch.as_tensor(policy.predict(observation)))


def test_elements_are_described_by_name() -> None:

    interface = PolicyInterface(*small_specs("continuous"))
    elements = {"observation": (Element("J1 angle", "rad", 2.0, 0.5),)}
    (described,) = observations_of(interface, elements)
    expected = {"name": "J1 angle", "unit": "rad", "scale": 2.0, "offset": 0.5}
    assert described["elements"] == [expected]
    assert described["key"] == ["observation"]


def test_differences_are_fractions_of_half_the_range_and_limited_by_rounding() -> None:
    action = {"low": [-2.0, 0.0], "high": [2.0, 0.0]}
    observations = [torch.arange(10.0).unsqueeze(1).expand(-1, 2)]

    def zeros(given: Any) -> torch.Tensor:
        return torch.zeros_like(given[0])

    def rounded(given: Any) -> torch.Tensor:
        return torch.full_like(given[0], 2e-5 / len(given[0]))

    found = agreement(zeros, {"a": lambda given: given[0]}, observations, action, (1, 3))
    assert (found.differences, found.rounding, found.observations) == ({"a": 9.0}, 0.0, 10)
    with pytest.raises(ConfigurationError, match=r"differ .* by 9.0e\+00 .* at most 1.0e-05"):
        found.check()
    nan = agreement(zeros, {"a": lambda given: given[0] * torch.nan}, observations, action)
    assert nan.differences == {"a": 2.0}
    found = agreement(rounded, {"a": zeros}, observations, action, (1, 2))
    assert found.rounding == pytest.approx(1e-5)
    assert found.differences["a"] == pytest.approx(2e-5)
    found.check()
    with pytest.raises(ConfigurationError, match=r"at most 1.0e-05"):
        replace(found, rounding=2e-6).check()
    with pytest.raises(ConfigurationError, match=r"at most 1.0e-04"):
        replace(found, rounding=2.0, differences={"a": 2.0}).check()


def test_an_export_that_fails_leaves_the_older_folder_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = saved(build(SAC, *small_specs("continuous"), **SMALL), tmp_path)
    older, _ = exported(policy, tmp_path, rows=1)  # as of an episode of one step
    assert older.agreement.observations == 1
    assert max(older.agreement.differences.values()) <= MAX_DIFFERENCE

    def check_left(message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            exported(policy, tmp_path)
        names = sorted(path.name for path in tmp_path.iterdir())
        assert names == ["export", "policy.safetensors"]
        assert read_contract(tmp_path / "export") == older

    check_left(r"cannot write .*export: ")  # does not replace another one
    monkeypatch.setattr("trainers.exporting.agreement.MAX_DIFFERENCE", -1.0)
    monkeypatch.setattr("trainers.exporting.agreement._MAX_ROUNDING", -1.0)
    check_left(r"^mode=export: actions of ONNX Runtime differ")
