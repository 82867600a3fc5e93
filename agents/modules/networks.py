"""Networks that several agents use."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

from agents.modules.encoders import Encodable, Encoder, features_of
from torchrl_gpu.acting.policy import Observations
from torchrl_gpu.execution.products import Linear, ProductLayer

# Bound of the initial weights of the last layer: the first actions lie near 0, where tanh is steep
# (Lillicrap et al., arXiv 1509.02971, section 7).
_LAST_LAYER_BOUND = 3e-3


def relu(inputs: Tensor) -> Tensor:
    """Return max(0, x) elementwise.

    Where only the gradient of the inputs is needed, a compiler keeps a mask of booleans for it. On
    a CPU its code writes and reads such masks so slowly that a compiled update of SAC takes 25 %
    longer than with the outputs kept instead.
    """
    if torch.compiler.is_compiling() and inputs.is_cpu:
        return _KeepsOutputs.apply(inputs)
    return inputs.relu()


class ReLU(nn.Module):
    """Layer of `relu`."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return max(0, x) elementwise."""
        return relu(inputs)


class _KeepsOutputs(torch.autograd.Function):
    """ReLU whose gradient is a function of its outputs alone, without comparisons."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        outputs = inputs.relu()
        ctx.save_for_backward(outputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (outputs,) = ctx.saved_tensors
        # Outputs are at least 0, so that their sign is the derivative.
        return gradient * outputs.sign()


Activation = Literal["relu", "tanh", "elu", "leaky_relu", "silu", "gelu"]
ACTIVATIONS: Final[dict[Activation, Callable[[], nn.Module]]] = {
    "relu": ReLU,
    "tanh": nn.Tanh,
    "elu": nn.ELU,
    "leaky_relu": nn.LeakyReLU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


class EnsembleLinear(ProductLayer):
    """`members` linear layers of one shape, computed as one batched matrix product.

    Each member is initialized as `nn.Linear` is, with its own random draw.
    """

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs))
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map `[members, B, inputs]` to `[members, B, outputs]`."""
        if self.weight.shape[-1] == 1:
            # A batched product with vectors is several times slower than this sum on a CPU.
            return (inputs * self.weight.mT).sum(dim=-1, keepdim=True) + self.bias
        return self.product(inputs, self.weight.mT, self.bias)


class InFloat32(nn.Module):
    """Mixin of a layer that computes in float32 also under autocast, for float32 outputs.

    Heads have it: the last layers of networks, whose outputs losses and distributions read. In
    bfloat16 a value of 100 would be rounded to the next half, more than most errors of a target.
    """

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """Return the output of the layer for its own arguments, the first of them the input."""
        inputs, *rest = arguments
        device_type = inputs.device.type
        if not torch.is_autocast_enabled(device_type):
            return super().forward(*arguments, **options)
        with torch.autocast(device_type, enabled=False):
            return super().forward(inputs.to(torch.float32), *rest, **options)


class Head(InFloat32, Linear):
    """The last layer of a network."""


class EnsembleHead(InFloat32, EnsembleLinear):
    """The last layer of an ensemble."""


def mlp(
    inputs: int,
    hidden_sizes: Sequence[int],
    outputs: int | None,
    members: int | None = None,
    layer_norm: bool = False,
    activation: Activation = "relu",
) -> nn.Sequential:
    """Build a multilayer perceptron.

    Args:
        inputs: width of the input.
        hidden_sizes: widths of the hidden layers.
        outputs: width of the output, which is float32 also under autocast; None for hidden layers
            alone, as a part of a larger network.
        members: number of networks side by side, `[members, B, inputs] -> [members, B, outputs]`;
            None for one network, `[*B, inputs] -> [*B, outputs]`.
        layer_norm: apply layer normalization before each activation.
        activation: function behind each hidden layer.
    """
    hidden_layer: Callable[[int, int], nn.Module] = Linear
    last_layer: Callable[[int, int], nn.Module] = Head
    if members is not None:
        hidden_layer, last_layer = partial(EnsembleLinear, members), partial(EnsembleHead, members)
    layers: list[nn.Module] = []
    width = inputs
    for hidden in hidden_sizes:
        layers.append(hidden_layer(width, hidden))
        if layer_norm:
            layers.append(nn.LayerNorm(hidden))
        layers.append(ACTIVATIONS[activation]())
        width = hidden
    if outputs is not None:
        layers.append(last_layer(width, outputs))
    return nn.Sequential(*layers)


class EncodedMLP(nn.Module):
    """An `mlp` behind an encoder of the observations."""

    def __init__(
        self,
        encoder: Encoder,
        outputs: int,
        hidden_sizes: Sequence[int],
        layer_norm: bool = False,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.network = mlp(
            encoder.width, hidden_sizes, outputs, layer_norm=layer_norm, activation=activation
        )

    def forward(self, observation: Encodable) -> Tensor:
        """Return `[*B, outputs]`."""
        return self.network(features_of(self.encoder, observation))


class DeterministicActor(EncodedMLP):
    """mu(s): a network that outputs one action, squashed into [-1, 1] by tanh.

    `outputs` is the number of action dimensions.
    """

    def __init__(
        self,
        encoder: Encoder,
        outputs: int,
        hidden_sizes: Sequence[int],
        activation: Activation = "relu",
    ) -> None:
        super().__init__(encoder, outputs, hidden_sizes, activation=activation)
        for parameter in self.network[-1].parameters():
            nn.init.uniform_(parameter, -_LAST_LAYER_BOUND, _LAST_LAYER_BOUND)

    def forward(self, observation: Encodable) -> Tensor:
        """Return actions `[*B, action_dim]` in [-1, 1]."""
        return self.raw(observation).tanh()

    def raw(self, observation: Encodable) -> Tensor:
        """Return actions before tanh, `[*B, action_dim]`."""
        return super().forward(observation)

    def act(self, observation: Observations, deterministic: bool) -> Tensor:
        """Return `forward` in both modes: the policy wrapper adds the exploration noise."""
        return self(observation)


class Critics(nn.Module):
    """Q(s, a), or its distribution, by `members` networks side by side, behind one encoder.

    The other arguments are those of `mlp`; `outputs` is 1 for values.
    """

    def __init__(
        self,
        encoder: Encoder,
        action_dim: int,
        hidden_sizes: Sequence[int],
        members: int,
        layer_norm: bool = False,
        outputs: int = 1,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        self.members = members
        self.encoder = encoder
        inputs = self.encoder.width + action_dim
        self.network = mlp(inputs, hidden_sizes, outputs, members, layer_norm, activation)

    def forward(self, observation: Encodable, action: Tensor) -> Tensor:
        """Return values `[members, B, outputs]` for actions `[B, action_dim]` in [-1, 1]."""
        inputs = torch.cat([features_of(self.encoder, observation), action], dim=-1)
        return self.network(inputs.expand(self.members, -1, -1))


def frozen(network: nn.Module, *inputs: object) -> Tensor:
    """Evaluate a network so that gradients reach its inputs but not its parameters."""
    parameters = {name: parameter.detach() for name, parameter in network.named_parameters()}
    return torch.func.functional_call(network, parameters, inputs)
