"""Products by oneDNN equal those of torch, and are chosen where they are faster and as exact."""

import copy
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from agents import DQN
from agents.modules.networks import EnsembleLinear
from tests.helpers.agents import (
    BATCH,
    Case,
    assert_equal,
    every_agent,
    make_batch,
    parameters,
)
from tests.helpers.ranks import on_ranks
from torchrl_gpu.devices.kinds import Cpu
from torchrl_gpu.execution import execution as execution_module
from torchrl_gpu.execution import products
from torchrl_gpu.execution.compilation import TRACES_GRADIENTS
from torchrl_gpu.execution.execution import Execution
from torchrl_gpu.execution.options import CompileMode, Library
from torchrl_gpu.execution.products import Linear, ProductLayer, faster_library
from torchrl_gpu.processes import Processes

pytestmark = pytest.mark.skipif(
    not Cpu(torch.device("cpu")).onednn, reason="this torch does not contain oneDNN"
)

QUICKEST = Case(DQN, "discrete")


def libraries(network: nn.Module) -> set[Library]:
    return {layer.library for layer in network.modules() if isinstance(layer, ProductLayer)}


def learn(case: Case, execution: Execution, updates: int = 6) -> dict[str, Tensor]:
    """Return the parameters after updates from one random state."""
    agent = case.make()
    torch.manual_seed(1)
    for seed in range(updates):
        execution.update(agent, make_batch(agent, seed))
    return parameters(agent)


class WholeGraph(Execution):
    def compiled(self, loss: Any) -> Any:
        return torch.compile(loss, fullgraph=TRACES_GRADIENTS, backend="aot_eager")


@pytest.fixture(autouse=True)
def measures_anew() -> Iterator[None]:
    """Forget the speeds that the process has measured, or that a test has made up."""
    products._measured.cache_clear()
    yield
    products._measured.cache_clear()


@pytest.fixture
def by_onednn(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let oneDNN compute all products of agents, however small."""
    monkeypatch.setattr(products, "_MIN_MULTIPLICATIONS", 1)
    monkeypatch.setattr(products, "_MIN_GAIN", 0.0)
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("inputs", ["rows", "groups of rows", "transposed", "all equal"])
@pytest.mark.parametrize("members", [None, 2])
def test_product_and_gradients_equal_those_of_torch(
    members: int | None, inputs: str, by_onednn: None
) -> None:
    torch.manual_seed(0)
    layer: ProductLayer = Linear(48, 32) if members is None else EnsembleLinear(members, 48, 32)
    shape = [64, 48] if members is None else [members, 64, 48]
    x = {
        "rows": torch.randn(shape),
        "groups of rows": torch.randn(shape if members else [4, 16, 48]),
        "transposed": torch.randn(*shape[:-2], 48, 64).mT,
        "all equal": torch.randn(48).expand(shape),
    }[inputs]
    results = []
    for library in ("torch", "onednn"):
        layer.library = library
        leaf = x.detach().requires_grad_()
        output = layer(leaf)
        gradients = torch.autograd.grad(output.sin().sum(), [leaf, *layer.parameters()])
        results.append([output, *gradients])
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("members", [None, 2])
def test_gradients_can_be_differentiated_again(members: int | None, by_onednn: None) -> None:
    torch.manual_seed(0)
    layer: ProductLayer = Linear(8, 8) if members is None else EnsembleLinear(members, 8, 8)
    inputs = torch.randn([16, 8] if members is None else [members, 16, 8], requires_grad=True)
    results = []
    for library in ("torch", "onednn"):
        layer.library = library
        (slope,) = torch.autograd.grad(layer(inputs).tanh().sum(), inputs, create_graph=True)
        penalty = (slope.norm(dim=-1) - 1.0).square().mean()
        results.append(torch.autograd.grad(penalty, [inputs, *layer.parameters()]))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(8,), (0, 8), (1, 8), (2, 3, 8)], ids=str)
def test_a_layer_takes_all_inputs_of_the_layer_of_torch(
    shape: tuple[int, ...], bias: bool, by_onednn: None
) -> None:
    torch.manual_seed(0)
    layer = Linear(8, 4, bias=bias)
    expected = nn.Linear(8, 4, bias=bias)
    expected.load_state_dict(layer.state_dict())
    layer.library = "onednn"
    inputs = torch.randn(shape, requires_grad=True)
    results = []
    for each in (layer, expected):
        output = each(inputs)
        results.append([output, *torch.autograd.grad(output.sum(), [inputs, *each.parameters()])])
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


def test_a_layer_leaves_the_cpu_after_training_there(by_onednn: None) -> None:
    layer = Linear(8, 8)
    layer.library = "onednn"
    assert layer.to("meta")(torch.ones(4, 8, device="meta")).is_meta


@pytest.mark.parametrize(("rows", "by_onednn"), [(63, False), (64, True)])
@pytest.mark.parametrize("members", [None, 2])
def test_the_size_of_each_product_decides(
    members: int | None, rows: int, by_onednn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[bool] = []

    def product(*operands: Any) -> Tensor:
        called.append(True)
        return products._torch_product(*operands)

    monkeypatch.setattr(products, "_MIN_MULTIPLICATIONS", 64 * 48 * 32)
    monkeypatch.setattr(products, "_onednn_product", product)
    layer: ProductLayer = Linear(48, 32) if members is None else EnsembleLinear(members, 48, 32)
    layer.library = "onednn"
    layer(torch.ones([rows, 48] if members is None else [members, rows, 48]))
    assert called == [True] * by_onednn


@every_agent
def test_every_agent_learns_by_onednn_as_by_torch(case: Case, by_onednn: None) -> None:
    execution = Execution()
    found = learn(case, execution)
    assert execution.products == "onednn"
    expected = learn(case, Execution(products="torch"))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_compiled_losses_learn_by_onednn_as_well(by_onednn: None) -> None:
    execution = WholeGraph(compile="default")
    found = learn(QUICKEST, execution)
    assert execution.products == "onednn"
    expected = learn(QUICKEST, Execution(products="torch"))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_autocast_and_other_dtypes_keep_torchs_products(by_onednn: None) -> None:
    layer = Linear(8, 8)
    layer.library = "onednn"
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.ones(4, 8)).dtype == torch.bfloat16
    layer.double()
    assert layer(torch.ones(4, 8, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        pytest.param({"_torch_product": 2.0, "_onednn_product": 1.0}, "onednn", id="AMD"),
        pytest.param({"_torch_product": 1.0, "_onednn_product": 1.0}, "torch", id="Intel"),
    ],
)
def test_the_faster_library_is_chosen(
    seconds: dict[str, float], expected: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_time", lambda product, *_: seconds[product.__name__])
    gain = seconds["_torch_product"] / seconds["_onednn_product"]
    assert faster_library([Linear(128, 128)], 256) == (expected, gain)


def test_agents_of_all_sizes_choose_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(product: products.Product, operands: Any, gradient: Tensor) -> float:
        # The times of small products are nearly equal, so that chance would choose.
        is_faster = product.__name__ == "_onednn_product" and gradient.shape[-1] >= 256
        return 1.0 if is_faster else 2.0

    monkeypatch.setattr(products, "_time", seconds)
    for width in (128, 512):
        assert faster_library([Linear(width, width)], 256) == ("onednn", 2.0)


def test_an_inexact_library_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def rounded(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return (x.bfloat16() @ weight.bfloat16().mT).float() + bias

    monkeypatch.setattr(products, "_onednn_product", rounded)
    monkeypatch.setattr(products, "_MIN_GAIN", 0.0)
    assert faster_library([Linear(128, 128)], 256)[0] == "torch"


def test_small_products_are_not_measured_and_stay_with_torch() -> None:
    small, large = [Linear(16, 16), Linear(256, 1)], [Linear(64, 64)]  # perhaps behind fractions
    before = torch.get_rng_state()
    assert faster_library(small, 256) == ("torch", None)
    faster_library(large, 256)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_resumed_execution_computes_by_the_same_library(
    by_onednn: None, caplog: pytest.LogCaptureFixture
) -> None:
    execution, agent = Execution(), QUICKEST.make()
    execution.update(agent, make_batch(agent))
    state = execution.state_dict()
    resumed, other = Execution(), QUICKEST.make()
    resumed.load_state_dict(state)
    # Before its first update, too.
    resumed.act(other.policy, make_batch(other).select(*other.policy.in_keys))
    assert libraries(other.policy) == {"onednn"}

    caplog.set_level(logging.WARNING)
    by_torch = Execution(products="torch")
    by_torch.load_state_dict(state)
    assert by_torch.products == "torch"
    assert caplog.messages == ["the run began with products by oneDNN, and goes on with torch's"]


@pytest.mark.parametrize("compile", ["off", "default"])
def test_a_resumed_agent_learns_by_onednn_bit_for_bit(
    compile: CompileMode, by_onednn: None
) -> None:
    wide: dict[str, Any] = {"hidden_sizes": (256, 256)}
    whole, agent = WholeGraph(compile=compile), QUICKEST.make(**wide)
    for seed in range(3):
        whole.update(agent, make_batch(agent, seed))
    resumed, other = WholeGraph(compile=compile), QUICKEST.make(seed=1, **wide)
    other.load_training_state(copy.deepcopy(agent.training_state()))
    resumed.load_state_dict(whole.state_dict())
    for execution, each in ((whole, agent), (resumed, other)):
        for seed in range(3, 6):
            execution.update(each, make_batch(each, seed))
    assert_equal(parameters(other), parameters(agent))


def test_a_run_resumed_with_torchs_products_before_its_first_update_keeps_them(
    by_onednn: None,
) -> None:
    agent, by_torch = QUICKEST.make(), Execution(products="torch")
    by_torch.load_state_dict(Execution().state_dict())
    by_torch.update(agent, make_batch(agent))
    assert by_torch.products == "torch"
    assert libraries(agent) == {"torch"}


@pytest.mark.parametrize("choices", [("onednn", "torch"), ("torch", "onednn")])
def test_all_processes_take_the_library_of_rank_0(
    choices: tuple[Library, Library], monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = [QUICKEST.make(seed) for seed in range(2)]
    batches = [make_batch(agents[0])[: BATCH - rank] for rank in range(2)]
    monkeypatch.setattr(
        execution_module,
        "faster_library",
        lambda layers, transitions: (choices[BATCH - transitions], 1.0),
    )

    def learn(processes: Processes) -> Library | None:
        execution, agent = Execution(), agents[processes.rank]
        agent.join(processes)
        execution.update(agent, batches[processes.rank])
        return execution.products

    assert on_ranks(2, learn) == [choices[0]] * 2
