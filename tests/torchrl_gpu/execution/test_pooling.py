"""Compiled pooling equals that of torch, gradients included."""

import pytest
import torch
from torch import Tensor, nn

from torchrl_gpu.execution.pooling import MaxPool2d


def pool(layer: nn.Module, images: Tensor, compiled: bool) -> tuple[Tensor, Tensor]:
    """Return pooled images, and the gradient of the images for the sum of the squares."""
    torch._dynamo.reset()
    leaf = images.clone().requires_grad_()
    function = torch.compile(layer, backend="aot_eager", fullgraph=True) if compiled else layer
    pooled = function(leaf)
    pooled.square().sum().backward()
    assert leaf.grad is not None
    return pooled.detach(), leaf.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 2, 1), (2, 2, 0), (3, 1, 0)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_compiled_pooling_equals_that_of_torch(
    kernel: int, stride: int, padding: int, dtype: torch.dtype, layout: torch.memory_format
) -> None:
    images = torch.randint(-9, 9, (4, 3, 12, 10)).to(dtype).contiguous(memory_format=layout)
    expected = pool(nn.MaxPool2d(kernel, stride, padding), images, compiled=False)
    for compiled in (False, True):
        found = pool(MaxPool2d(kernel, stride, padding), images, compiled)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_the_operators_are_as_torch_requires() -> None:
    images, sizes = torch.rand(2, 3, 8, 8), (3, 2, 1)
    operators = torch.ops.torchrl_gpu
    pooled, places = operators.max_pool(images, *sizes)
    torch.library.opcheck(operators.max_pool.default, (images, *sizes))
    operands = torch.ones_like(pooled), images, places
    torch.library.opcheck(operators.max_pool_backward.default, (*operands, *sizes))


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_holds_operators_of_torch_alone(strict: bool) -> None:
    program = torch.export.export(MaxPool2d(3, 2, 1), (torch.rand(1, 1, 8, 8),), strict=strict)
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    assert calls
    assert not any("torchrl_gpu" in str(call.target) for call in calls)


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13),
    reason="this torch takes a compilation for an export",
)
def test_a_compiled_layer_calls_the_operator() -> None:
    targets: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        targets.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(MaxPool2d(3, 2, 1), backend=backend)(torch.rand(1, 1, 8, 8))
    assert any("torchrl_gpu" in target for target in targets)
