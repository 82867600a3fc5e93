from __future__ import annotations

import pytest
import torch

from agents.modules.relu import relu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_compiled_relu_has_the_gradient_of_torch(dtype: torch.dtype) -> None:
    inputs = torch.tensor([-2.0, -0.0, 0.0, 1e-30, 3.0], dtype=dtype, requires_grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(relu, backend="aot_eager", fullgraph=True)(inputs)
    eager = relu(inputs)
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=dtype)
    (found,) = torch.autograd.grad(compiled, inputs, weights)
    (expected,) = torch.autograd.grad(eager, inputs, weights)
    assert torch.equal(compiled, torch.relu(inputs))
    assert torch.equal(eager, torch.relu(inputs))
    assert torch.equal(found, expected)
