from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Composite, Unbounded

from agents.networks import EnsembleLinear, VectorEncoder, mlp
from torchrl_gpu.errors import ConfigurationError

CPU = torch.device("cpu")


def test_ensemble_members_are_linear_layers_side_by_side() -> None:
    layer = EnsembleLinear(3, 4, 5)
    inputs = torch.randn(3, 7, 4)
    outputs = layer(inputs)
    for member in range(3):
        expected = inputs[member] @ layer.weight[member] + layer.bias[member]
        torch.testing.assert_close(outputs[member], expected)
    assert not torch.equal(layer.weight[0], layer.weight[1])


def test_ensemble_is_initialised_as_a_linear_layer_is() -> None:
    bound = 64**-0.5
    layer = EnsembleLinear(2, 64, 512)
    assert layer.weight.abs().max() <= bound
    assert layer.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_mlp_takes_any_leading_dimensions(layer_norm: bool) -> None:
    network = mlp(3, [8, 8], 2, CPU, layer_norm=layer_norm)
    inputs = torch.randn(5, 4, 3)
    outputs = network(inputs)
    assert outputs.shape == (5, 4, 2)
    torch.testing.assert_close(outputs[2], network(inputs[2]))


def test_vector_encoder_joins_the_keys_of_the_spec() -> None:
    spec = Composite(
        a=Unbounded((4, 3)), nested=Composite(b=Unbounded((4, 2)), shape=(4,)), shape=(4,)
    )
    encoder = VectorEncoder(spec)
    observation = TensorDict({"a": torch.ones(4, 3), "nested": {"b": torch.zeros(4, 2)}}, [4])
    assert encoder.width == 5
    assert encoder(observation).tolist() == [[1.0, 1.0, 1.0, 0.0, 0.0]] * 4


def test_vector_encoder_refuses_pixels() -> None:
    spec = Composite(pixels=Bounded(0, 255, (4, 3, 8, 8), dtype=torch.uint8), shape=(4,))
    with pytest.raises(ConfigurationError, match=r"pixels.*vectors"):
        VectorEncoder(spec)
