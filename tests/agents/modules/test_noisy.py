import math

import pytest
import torch
from torch import nn
from torchrl.envs.utils import ExplorationType, set_exploration_type

from agents.modules.noisy import NoisyLinear, NoisyMLP


def test_initial_weights_are_those_of_the_paper() -> None:
    layer = NoisyLinear(64, 3, sigma=0.4)
    for mean in (layer.weight, layer.bias):
        assert mean.abs().max() <= 1 / 8
        assert mean.std() > 0.0
    for sigma in (layer.weight_sigma, layer.bias_sigma):
        assert torch.equal(sigma, torch.full_like(sigma, 0.4 / 8))


def test_without_noise_the_layer_applies_its_mean_weights() -> None:
    layer, inputs = NoisyLinear(5, 3), torch.randn(7, 5)
    expected = inputs @ layer.weight.T + layer.bias
    torch.testing.assert_close(layer(inputs, noisy=False), expected)
    torch.testing.assert_close(layer(inputs, noisy=False), layer(inputs, noisy=False))


@pytest.mark.parametrize("exploration_type", [ExplorationType.MEAN, ExplorationType.RANDOM])
@pytest.mark.parametrize("training", [True, False])
def test_every_call_draws_new_noise_in_every_mode(
    exploration_type: ExplorationType, training: bool
) -> None:
    layer, inputs = NoisyLinear(5, 3).train(training), torch.randn(7, 5)
    with set_exploration_type(exploration_type):
        assert not torch.allclose(layer(inputs), layer(inputs))


def test_a_batch_shares_its_noise() -> None:
    outputs = NoisyLinear(5, 3)(torch.randn(5).expand(7, 2, 5))
    assert outputs.shape == (7, 2, 3)
    torch.testing.assert_close(outputs, outputs[:1, :1].expand(7, 2, 3))


def test_noise_is_factorized_with_the_variance_of_the_paper() -> None:
    torch.manual_seed(0)
    layer = NoisyLinear(2, 3)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.zero_()
        layer.weight_sigma.fill_(2.0)
        layer.bias_sigma.fill_(3.0)
        draws = 6_000
        rows = torch.eye(2)
        # The noise of weight [2, 3], plus that of the bias, which is subtracted.
        drawn = torch.stack([layer(torch.cat([rows, torch.zeros(1, 2)])) for _ in range(draws)])
    bias, weight = drawn[:, 2], drawn[:, :2] - drawn[:, 2:]
    # E[f(x)^2] = E|x| = sqrt(2 / pi) of a normal x; a product of two of them for a weight.
    moment = math.sqrt(2 / math.pi)
    torch.testing.assert_close(bias.var(0), torch.full((3,), 9 * moment), rtol=0.1, atol=0.0)
    expected = torch.full((2, 3), 4 * moment**2)
    torch.testing.assert_close(weight.var(0), expected, rtol=0.15, atol=0.0)
    assert drawn.mean(0).abs().max() < 0.15
    # An outer product has rank one.
    determinant = weight[:, 0, 0] * weight[:, 1, 1] - weight[:, 0, 1] * weight[:, 1, 0]
    assert determinant.abs().max() < 1e-4


def test_a_multilayer_perceptron_is_noisy_in_all_layers_or_in_none() -> None:
    network, inputs = NoisyMLP(5, [8, 6], 3), torch.randn(7, 5)
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in layers] == [(5, 8), (8, 6), (6, 3)]
    assert all(isinstance(layer, NoisyLinear) for layer in layers)
    expected = inputs
    for layer in layers[:-1]:
        expected = layer(expected, noisy=False).relu()
    torch.testing.assert_close(network(inputs, noisy=False), layers[-1](expected, noisy=False))
    assert not torch.allclose(network(inputs), network(inputs))
