from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Binary, Bounded, Composite, TensorSpec, Unbounded

from agents.encoders import Encoder
from torchrl_gpu.errors import ConfigurationError

CPU = torch.device("cpu")
ENVS = 4

VECTOR = {"observation": Unbounded((ENVS, 3))}
PIXELS = {"pixels": Bounded(0, 255, (ENVS, 3, 16, 24), dtype=torch.uint8)}
SET = {
    "objects": Unbounded((ENVS, 5, 2)),
    "objects_mask": Binary(5, (ENVS, 5), dtype=torch.bool),
}


def spec_of(leaves: dict[str, TensorSpec]) -> Composite:
    return Composite(leaves, shape=(ENVS,))


@pytest.mark.parametrize("leaves", [VECTOR, PIXELS, SET, {**VECTOR, **PIXELS, **SET}])
@pytest.mark.parametrize("batch", [(), (2,), (3, 2)])
def test_every_kind_takes_any_leading_dimensions(
    leaves: dict[str, TensorSpec], batch: tuple[int, ...]
) -> None:
    encoder = Encoder(spec_of(leaves), CPU)
    observation = spec_of(leaves).rand()[0].expand(batch).clone()
    encoded = encoder(observation)
    assert encoded.shape == (*batch, encoder.width)
    assert encoded.dtype == torch.float32
    expected = encoder(observation.flatten()[:1] if batch else observation.unsqueeze(0))
    torch.testing.assert_close(encoded.reshape(-1, encoder.width)[:1], expected)


def test_vectors_are_joined_as_they_are_nested_keys_too() -> None:
    spec = Composite(
        a=Unbounded((ENVS, 3)),
        nested=Composite(b=Unbounded((ENVS, 2)), shape=(ENVS,)),
        shape=(ENVS,),
    )
    observation = TensorDict({"a": torch.ones(ENVS, 3), "nested": {"b": torch.zeros(ENVS, 2)}})
    assert Encoder(spec, CPU)(observation).tolist() == [[1.0, 1.0, 1.0, 0.0, 0.0]] * ENVS


def test_vectors_go_through_a_layer_where_they_are_to() -> None:
    encoder = Encoder(spec_of(VECTOR), CPU, vector_features=8)
    weight, bias = encoder.parameters()
    observation = spec_of(VECTOR).rand()
    expected = (observation["observation"] @ weight.T + bias).clamp(min=0.0)
    torch.testing.assert_close(encoder(observation), expected)
    assert encoder.width == 8


def test_what_is_masked_in_a_set_does_not_matter() -> None:
    encoder = Encoder(spec_of(SET), CPU)
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


def test_gradients_reach_the_encoders_that_have_parameters() -> None:
    encoder = Encoder(spec_of({**VECTOR, **PIXELS, **SET}), CPU)
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
def test_what_no_encoder_reads_is_refused_by_name(leaf: TensorSpec) -> None:
    with pytest.raises(ConfigurationError, match=r"thing.*agents read"):
        Encoder(spec_of({"thing": leaf}), CPU)


def test_a_world_that_shows_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="nothing to observe"):
        Encoder(spec_of({}), CPU)
