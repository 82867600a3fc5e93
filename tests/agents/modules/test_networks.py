import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Composite, Unbounded

from agents.modules.encoders import DEFAULT_ENCODER
from agents.modules.networks import Critics, EnsembleLinear, frozen, mlp, relu


@pytest.mark.parametrize("outputs", [1, 5])
def test_ensemble_members_are_linear_layers_side_by_side(outputs: int) -> None:
    layer = EnsembleLinear(3, 4, outputs)
    inputs = torch.randn(3, 7, 4)
    found = layer(inputs)
    for member in range(3):
        expected = inputs[member] @ layer.weight[member] + layer.bias[member]
        torch.testing.assert_close(found[member], expected)
    assert not torch.equal(layer.weight[0], layer.weight[1])


def test_ensemble_is_initialized_like_a_linear_layer() -> None:
    bound = 64**-0.5
    layer = EnsembleLinear(2, 64, 512)
    assert layer.weight.abs().max() <= bound
    assert layer.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_mlp_takes_any_leading_dimensions(layer_norm: bool) -> None:
    network = mlp(3, [8, 8], 2, layer_norm=layer_norm)
    inputs = torch.randn(5, 4, 3)
    outputs = network(inputs)
    assert outputs.shape == (5, 4, 2)
    torch.testing.assert_close(outputs[2], network(inputs[2]))


def test_a_frozen_network_passes_gradients_to_its_inputs_only() -> None:
    spec = Composite(observation=Unbounded((4, 3)), shape=(4,))
    critics = Critics(DEFAULT_ENCODER.build(spec), 2, [8], members=1)
    batch = TensorDict({"observation": torch.randn(7, 3)}, [7])
    action = torch.randn(7, 2, requires_grad=True)
    values = frozen(critics, batch, action)
    torch.testing.assert_close(values, critics(batch, action))
    values.sum().backward()
    assert action.grad is not None
    assert all(parameter.grad is None for parameter in critics.parameters())


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
