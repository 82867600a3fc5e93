from typing import Any, get_args

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Binary, Bounded, Composite, TensorSpec, Unbounded

from agents.modules.encoders import Encoder, ObservationEncoderFactory
from agents.modules.pixels import Convolutions
from torchrl_gpu.errors import ConfigurationError

ENVS = 4

VECTOR = {"observation": Unbounded((ENVS, 3))}
PIXELS = {"pixels": Bounded(0, 255, (ENVS, 3, 16, 24), dtype=torch.uint8)}
SET = {
    "objects": Unbounded((ENVS, 5, 2)),
    "objects_mask": Binary(5, (ENVS, 5), dtype=torch.bool),
}


def spec_of(leaves: dict[str, TensorSpec]) -> Composite:
    return Composite(leaves, shape=(ENVS,))


def build(leaves: dict[str, TensorSpec], **settings: Any) -> Encoder:
    return ObservationEncoderFactory(**settings).build(spec_of(leaves))


def pixel_network(encoder: Encoder) -> nn.Sequential:
    """Return the layers that encode the only observation, of pixels."""
    network = encoder.get_submodule("parts.0.network")
    assert isinstance(network, nn.Sequential)
    return network


@pytest.mark.parametrize("leaves", [VECTOR, PIXELS, SET, {**VECTOR, **PIXELS, **SET}])
@pytest.mark.parametrize("batch", [(), (2,), (3, 2)])
def test_every_observation_kind_takes_any_batch_shape(
    leaves: dict[str, TensorSpec], batch: tuple[int, ...]
) -> None:
    encoder = build(leaves)
    observation = spec_of(leaves).rand()[0].expand(batch).clone()
    encoded = encoder(observation)
    assert encoded.shape == (*batch, encoder.width)
    assert encoded.dtype == torch.float32
    expected = encoder(observation.flatten()[:1] if batch else observation.unsqueeze(0))
    torch.testing.assert_close(encoded.reshape(-1, encoder.width)[:1], expected)


def test_vectors_are_concatenated_unchanged_also_under_nested_keys() -> None:
    spec = Composite(
        a=Unbounded((ENVS, 3)),
        nested=Composite(b=Unbounded((ENVS, 2)), shape=(ENVS,)),
        shape=(ENVS,),
    )
    observation = TensorDict({"a": torch.ones(ENVS, 3), "nested": {"b": torch.zeros(ENVS, 2)}})
    assert (
        ObservationEncoderFactory().build(spec)(observation).tolist()
        == [[1.0, 1.0, 1.0, 0.0, 0.0]] * ENVS
    )


def test_vector_features_add_a_layer_with_relu() -> None:
    encoder = build(VECTOR, vector_features=8)
    weight, bias = encoder.parameters()
    observation = spec_of(VECTOR).rand()
    expected = (observation["observation"] @ weight.T + bias).clamp(min=0.0)
    torch.testing.assert_close(encoder(observation), expected)
    assert encoder.width == 8


def test_masked_elements_of_a_set_have_no_effect() -> None:
    encoder = build(SET)
    observation = TensorDict(
        {
            "objects": torch.randn(1, 5, 2),
            "objects_mask": torch.tensor([[True, True, False, False, False]]),
        },
        [1],
    )
    other = observation.clone()
    other["objects"][:, 2:] = torch.nan
    assert torch.equal(encoder(observation), encoder(other))
    other["objects"][:, 1] += 1.0
    assert not torch.equal(encoder(observation), encoder(other))


def test_gradients_reach_all_parameters_of_the_encoders() -> None:
    encoder = build({**VECTOR, **PIXELS, **SET})
    observation = spec_of({**VECTOR, **PIXELS, **SET}).rand()
    observation["objects_mask"][:] = True
    encoder(observation).square().sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize(
    "leaf",
    [
        Unbounded((ENVS, 5, 2)),
        Unbounded((ENVS, 3, 16, 16)),
        Unbounded((ENVS, 3), dtype=torch.int64),
        Bounded(0, 255, (ENVS, 3, 4, 4), dtype=torch.uint8),
    ],
)
def test_observations_without_an_encoder_are_refused_by_name(leaf: TensorSpec) -> None:
    with pytest.raises(ConfigurationError, match=r"distance.*agents read"):
        build({"distance": leaf})


def test_an_empty_observation_spec_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one observation"):
        build({})


@pytest.mark.parametrize("style", get_args(Convolutions))
def test_every_convolutional_network_encodes_images(style: str) -> None:
    images = {"pixels": Bounded(0, 255, (ENVS, 3, 40, 48), dtype=torch.uint8)}
    encoder = build(images, convolutions=style)
    observation = spec_of(images).rand()
    features = encoder(observation)
    assert features.shape == (ENVS, encoder.width)
    features.square().sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())
    assert not torch.equal(features[0], features[1])


@pytest.mark.parametrize("size", [48, 84])
@pytest.mark.parametrize("style", get_args(Convolutions))
def test_pixels_are_encoded_as_by_the_layers_alone(style: Convolutions, size: int) -> None:
    torch.manual_seed(0)
    leaves = {"pixels": Bounded(0, 255, (ENVS, 3, size, size), dtype=torch.uint8)}
    observation = spec_of(leaves).rand()
    encoder = build(leaves, convolutions=style, channels=[4, 8, 8], pixel_features=8)
    encoded = encoder(observation)
    expected = pixel_network(encoder)(observation["pixels"] / 255.0 - 0.5)
    torch.testing.assert_close(encoded, expected)
    for found, exact in zip(
        *(
            torch.autograd.grad(y.square().sum(), [*encoder.parameters()])
            for y in (encoded, expected)
        ),
        strict=True,
    ):
        assert (found - exact).norm() < 1e-5 * exact.norm()


def test_convolutions_compute_no_outputs_that_none_reads() -> None:
    leaves = {"pixels": Bounded(0, 255, (ENVS, 3, 48, 48), dtype=torch.uint8)}
    encoder = build(leaves, convolutions="nature")
    shapes = []
    pixel_network(encoder)[0].register_forward_hook(
        lambda layer, inputs, outputs: shapes.append(outputs.shape[2:])
    )
    encoder(spec_of(leaves).rand())
    assert shapes == [(10, 10)]  # the second layer reads no more, of 11 x 11


def test_residual_blocks_have_the_channels_last_on_a_cpu() -> None:
    encoder = build(PIXELS, convolutions="impala")
    layouts = []
    pixel_network(encoder)[2].register_forward_hook(
        lambda block, inputs, outputs: layouts.append(
            outputs.is_contiguous(memory_format=torch.channels_last)
        )
    )
    encoder(spec_of(PIXELS).rand())
    assert layouts == [True]


@pytest.mark.parametrize("style", get_args(Convolutions))
def test_channels_and_features_of_pixels_are_settings(style: str) -> None:
    images = {"pixels": Bounded(0, 255, (ENVS, 3, 40, 48), dtype=torch.uint8)}
    encoder = build(images, convolutions=style, channels=[4, 8, 12], pixel_features=20)
    assert encoder.width == 20
    outputs = [p.shape[0] for p in encoder.parameters() if p.ndim == 4]
    assert list(dict.fromkeys(outputs)) == [4, 8, 12]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"convolutions": "vgg"}, "convolutions=vgg"),
        (
            {"convolutions": "nature"},
            "agent.encoder.convolutions=nature: images of 16 x 24 pixels are too small",
        ),
        ({"convolutions": "nature", "channels": [8, 8]}, "convolutions=nature takes three numbers"),
        ({"channels": []}, "channels"),
        ({"channels": [0]}, "channels"),
        ({"pixel_features": 0}, "pixel_features=0"),
        ({"set_features": 0}, "set_features=0"),
        ({"vector_features": 0}, "vector_features=0"),
        ({"random_shift": -1}, "random_shift=-1"),
        ({"random_shift": 16}, "random_shift=16: the images have 16 x 24 pixels; use less than 16"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build(PIXELS, **settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("convolutions", "nature"),
        ("channels", [4, 4]),
        ("pixel_features", 8),
        ("random_shift", 4),
    ],
)
def test_settings_of_pixels_are_refused_without_pixels(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"agent\.encoder\.{name}=.* no pixels"):
        build({"observation": Unbounded((ENVS, 3))}, **{name: value})
