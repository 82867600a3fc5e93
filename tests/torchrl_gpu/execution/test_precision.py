"""Precisions of an execution: the networks that compute in them, and the float32 values."""

import copy
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from agents import SAC
from agents.base import Agent
from agents.modules.networks import mlp
from tests.helpers.agents import CASES, CPU, Case, every_agent, make_batch
from torchrl_gpu.devices.accelerator import Accelerator
from torchrl_gpu.devices.kinds import Cuda
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.adam import adam
from torchrl_gpu.execution.execution import Execution
from torchrl_gpu.execution.learner import Losses
from torchrl_gpu.execution.options import PrecisionName
from torchrl_gpu.execution.precision import precisions_of

in_half_precision = pytest.mark.parametrize("precision", ["bf16", "fp16"])


def learned(agent: Agent, precision: PrecisionName) -> Losses:
    """Return the losses of one update."""
    loss, seen = agent.loss, []

    def recorded(batch: TensorDictBase) -> Losses:
        seen.append(loss(batch))
        return seen[-1]

    agent.loss = recorded  # type: ignore[method-assign]
    torch.manual_seed(3)
    Execution(precision=precision).update(agent, make_batch(agent))
    return seen[0]


@every_agent
@in_half_precision
def test_half_precision_learns_nearly_like_float32(case: Case, precision: PrecisionName) -> None:
    # In narrow networks, a single ReLU on the other side of 0 changes a gradient by a tenth.
    single, half = (case.make(gamma=0.5, hidden_sizes=[64, 64]) for _ in range(2))
    expected, found = learned(single, "fp32"), learned(half, precision)
    for name, loss in expected.terms.items():
        assert found.terms[name].dtype == torch.float32, name
        torch.testing.assert_close(found.terms[name], loss, rtol=0.03, atol=0.01, msg=name)
    if expected.priorities is not None:
        assert found.priorities is not None
        assert found.priorities.dtype == torch.float32
    for (name, one), other in zip(single.named_parameters(), half.parameters(), strict=True):
        assert other.dtype == torch.float32, name
        if one.grad is not None:
            assert other.grad is not None
            difference = (other.grad - one.grad).norm()
            assert difference <= 0.1 * one.grad.norm() + 1e-3, name
    assert half.training_state()["networks"].keys() == single.training_state()["networks"].keys()


@every_agent
@in_half_precision
def test_half_precision_stays_finite(case: Case, precision: PrecisionName) -> None:
    agent, execution = case.make(), Execution(precision=precision)
    before = [parameter.detach().clone() for parameter in agent.parameters()]
    for seed in range(4):
        update = execution.update(agent, make_batch(agent, seed))
        assert all(value.isfinite() for value in update.metrics.values())
    assert all(value.isfinite().all() for value in agent.state_dict().values())
    assert any(not torch.equal(p, b) for p, b in zip(agent.parameters(), before, strict=True))


@pytest.mark.parametrize("members", [None, 2])
def test_large_outputs_keep_the_digits_of_float32(members: int | None) -> None:
    torch.manual_seed(0)
    network = mlp(4, [16], 1, members=members)
    parameter = list(network.parameters())[-1]
    nn.init.constant_(parameter, 1000.0)
    inputs = torch.randn(2, 8, 4)
    with torch.autocast("cpu", torch.bfloat16):
        found = network(inputs)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, network(inputs), rtol=0.0, atol=0.05)


def test_hidden_layers_compute_in_half_precision() -> None:
    network = mlp(4, [16], None)
    with torch.autocast("cpu", torch.bfloat16):
        assert network(torch.randn(8, 4)).dtype == torch.bfloat16


def check_that_an_overflow_skips_the_step(agent: Agent) -> None:
    """Check it in fp16, and that the scale is halved."""
    execution = Execution(agent.device, "fp16")
    execution.update(agent, make_batch(agent))
    state = execution.state_dict()
    execution.load_state_dict({**state, "precision": state["precision"] | {"scale": 2.0**127}})
    before = [parameter.detach().clone() for parameter in agent.policy.parameters()]
    execution.update(agent, make_batch(agent))
    assert all(torch.equal(p, b) for p, b in zip(agent.policy.parameters(), before, strict=True))
    assert execution.state_dict()["precision"]["scale"] == 2.0**126


@pytest.mark.parametrize("fused", [True, False])
def test_an_overflow_skips_the_step_after_a_move_and_a_load(
    fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step itself skips it only if it is fused, where the agent has moved to."""
    monkeypatch.setattr(Accelerator, "fused_adam", not fused)
    agent = CASES[0].make()
    state = copy.deepcopy(agent.training_state())
    monkeypatch.setattr(Accelerator, "fused_adam", fused)
    check_that_an_overflow_skips_the_step(agent.to(CPU))
    agent.load_training_state(state)
    check_that_an_overflow_skips_the_step(agent)
    groups = [group for each in agent.optimizers().values() for group in each.param_groups]
    assert {bool(group["fused"]) for group in groups} == {fused}


class TwoOptimizers(SAC):
    """SAC whose actor has an optimizer of torch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.optimizer = adam(self.critics.parameters(), 1e-3, self.device)
        actor = [*self.actor.parameters(), self.log_temperature]
        self.actor_optimizer = torch.optim.AdamW(actor, lr=1e-3)

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {"critics": self.optimizer, "actor": self.actor_optimizer}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_an_optimizer_waits_while_the_losses_depend_on_none_of_its_parameters(
    precision: PrecisionName,
) -> None:
    agent: Any = Case(TwoOptimizers, "continuous").make(actor_period=2)
    execution = Execution(precision=precision)
    for update in range(1, 5):
        before = [parameter.detach().clone() for parameter in agent.actor.parameters()]
        execution.update(agent, make_batch(agent, seed=update))
        is_equal = map(torch.equal, before, agent.actor.parameters())
        assert all(is_equal) == (update % 2 == 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"speed": 1}, "has an unknown entry speed"),
        ({"format": "fp8"}, "has an unknown format"),
        ({"products": "mkl"}, "has unknown products"),
    ],
)
def test_the_state_of_another_execution_is_refused(change: dict[str, Any], said: str) -> None:
    execution = Execution(precision="fp16")
    state = execution.state_dict()
    execution.check_state(state)
    with pytest.raises(ConfigurationError, match=said):
        execution.check_state({**state, **change})


def test_a_saved_scale_of_0_or_none_is_refused() -> None:
    execution = Execution(precision="fp16")
    state = execution.state_dict()
    with pytest.raises(ConfigurationError, match="the scale of fp16 is not above 0"):
        execution.check_state({**state, "precision": state["precision"] | {"scale": 0.0}})
    with pytest.raises(ConfigurationError, match="the saved execution lacks"):
        execution.check_state({"format": "fp16"})


def test_the_state_of_one_precision_loads_into_another() -> None:
    scaled, single = Execution(precision="fp16"), Execution(precision="fp32")
    single.load_state_dict(scaled.state_dict())
    scaled.load_state_dict(single.state_dict())
    assert single.precision.state_dict() == {}


class Recording:
    """Policy that records the dtype of its matrix product."""

    dtype: torch.dtype

    def __call__(self, observation: TensorDictBase) -> TensorDictBase:
        seen: Tensor = observation["observation"]
        self.dtype = (seen @ torch.ones(3, 3)).dtype
        return observation


@pytest.mark.parametrize(("rows", "dtype"), [(511, torch.float32), (512, torch.bfloat16)])
def test_policies_act_in_half_precision_where_it_pays(rows: int, dtype: torch.dtype) -> None:
    policy = Recording()
    observation = TensorDict({"observation": torch.randn(rows, 3)}, [rows])
    Execution(precision="bf16").act(policy, observation)
    assert policy.dtype == dtype


def test_a_precision_that_the_device_lacks_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^precision=tf32: not available on cpu; choose fp32 or bf16"
    ):
        Execution(CPU, "tf32")


@pytest.mark.parametrize(("capability", "has_it"), [((7, 5), False), ((8, 0), True)])
def test_gpus_from_ampere_on_have_tf32(
    capability: tuple[int, int], has_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert Cuda(torch.device("cuda", 0)).tf32 == has_it


@pytest.mark.parametrize(("name", "products"), [("tf32", "high"), ("fp32", "highest")])
def test_products_and_convolutions_have_the_precision_in_losses_and_gradients_alone(
    name: PrecisionName, products: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "tf32":
        monkeypatch.setattr(Accelerator, "tf32", True)
        assert precisions_of(CPU)[:2] == ["fp32", "tf32"]
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", name == "fp32")
    seen: list[tuple[str, bool]] = []

    def observe(*_: Any) -> None:
        seen.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))

    agent = CASES[0].make()
    parameter = next(agent.policy.parameters())
    parameter.register_hook(observe)
    agent.policy.actor.register_forward_pre_hook(observe)  # type: ignore[attr-defined]
    execution = Execution(CPU, name)
    before = torch.get_float32_matmul_precision()
    execution.update(agent, make_batch(agent))
    execution.act(agent.policy, make_batch(agent))
    assert set(seen) == {(products, name == "tf32")}
    assert torch.get_float32_matmul_precision() == before
    assert torch.backends.cudnn.allow_tf32 == (name == "fp32")


def test_fp16_needs_float64_for_the_scale_of_its_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "fp16" in precisions_of(CPU)
    monkeypatch.setattr(Accelerator, "float64", False)
    assert "fp16" not in precisions_of(CPU)


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10), reason="torch is newer"
)
@pytest.mark.directml  # the tests of the oldest torch
def test_layers_that_ran_without_gradient_learn_within_the_same_autocast() -> None:
    """See https://github.com/pytorch/pytorch/issues/158232."""
    layer = torch.nn.Linear(4, 4)
    with Execution(precision="bf16").precision.active():
        with torch.no_grad():
            layer(torch.randn(2, 4))
        layer(torch.randn(2, 4)).sum().backward()
    assert layer.weight.grad is not None
