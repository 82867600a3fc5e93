"""Convolutional networks that encode pixels, most of them named after their paper."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.pooling import MaxPool2d
from torchrl_gpu.execution.products import Linear

Convolutions = Literal["strided", "nature", "impala", "drqv2"]


class Style(NamedTuple):
    """One way to encode pixels."""

    channels: tuple[int, ...]  # default output channels of each convolution or residual block
    features: int  # default width of the linear layer behind the convolutions
    convolve: Callable[[int, Sequence[int]], list[nn.Module]]  # from input and output channels
    layer_norm: bool  # behind the linear layer
    activation: type[nn.Module] = nn.ReLU  # the last layer
    channels_last: bool = False  # in the layout of images, on devices that prefer it


class PixelEncoder(nn.Module):
    """Encodes pixels of shape C, H, W by convolutions of a style and a linear layer.

    Without numbers of output channels, or a width of the linear layer, those of the style apply.

    Raises:
        ConfigurationError: the images are too small for the convolutions.
    """

    observes = "pixels"

    def __init__(
        self,
        shape: tuple[int, int, int],
        style: Convolutions,
        channels: Sequence[int] | None,
        features: int | None,
    ) -> None:
        super().__init__()
        inputs, height, width = shape
        chosen = STYLES[style]
        self.width = features or chosen.features
        self._channels_last = chosen.channels_last
        self.network = nn.Sequential(*chosen.convolve(inputs, channels or chosen.channels))
        convolutions = [layer for layer in self.network if isinstance(layer, nn.Conv2d)]
        self._rows, self._columns = (_pixels_read(convolutions, size) for size in (height, width))
        try:
            outputs = self.network(torch.zeros(1, *shape)).numel()
        except RuntimeError as error:
            raise ConfigurationError(
                f"agent.encoder.convolutions={style}: images of {height} x {width} pixels are too "
                "small for these convolutions"
            ) from error
        self.network.extend([nn.Flatten(), Linear(outputs, self.width)])
        if chosen.layer_norm:
            self.network.append(nn.LayerNorm(self.width))
        self.network.append(chosen.activation())

    def forward(self, pixels: Tensor) -> Tensor:
        """Return `[*B, width]` for pixels `[*B, C, H, W]` of values 0 to 255."""
        # Scaled to [-0.5, 0.5] here, so that pixels stay bytes until they reach the network.
        # In place, because the copy to floats is new and each further one costs as much.
        images = pixels.reshape(-1, *pixels.shape[-3:])[..., : self._rows, : self._columns]
        images = images.to(torch.float32).mul_(1.0 / 255.0).sub_(0.5)
        if self._channels_last and accelerator_of(images.device).channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return self.network(images).reshape(*pixels.shape[:-3], self.width)


class ResidualBlock(nn.Module):
    """Two convolutions whose output is added to their input `[B, channels, H, W]`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Return `[B, channels, H, W]`."""
        return inputs + self.layers(inputs)


def _plain(
    kernels: Sequence[int], strides: Sequence[int], padding: int = 0
) -> Callable[[int, Sequence[int]], list[nn.Module]]:
    """Return a builder of convolutions with ReLU; the last kernel and stride repeat."""

    def convolve(inputs: int, channels: Sequence[int]) -> list[nn.Module]:
        layers: list[nn.Module] = []
        for number, outputs in enumerate(channels):
            kernel, stride = (sizes[min(number, len(sizes) - 1)] for sizes in (kernels, strides))
            convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding)
            layers += [convolution, nn.ReLU()]
            inputs = outputs
        return layers

    return convolve


def _pixels_read(convolutions: Sequence[nn.Conv2d], size: int) -> int:
    """Return how many of the first `size` rows or columns determine the output of convolutions.

    A stride can leave out the last outputs of the layer before: with images of 48 x 48, 17 % of
    those of the first layer of `nature`.
    """
    if any(convolution.padding != (0, 0) for convolution in convolutions):
        return size
    outputs, read = [], size
    for convolution in convolutions:
        read = (read - convolution.kernel_size[0]) // convolution.stride[0] + 1
        outputs.append(read)
    for convolution in reversed(convolutions):
        used = read
        read = (read - 1) * convolution.stride[0] + convolution.kernel_size[0]
    # Pixels that the first layer leaves out itself cost nothing.
    return size if used == outputs[0] else read


def _impala(inputs: int, channels: Sequence[int]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for outputs in channels:
        layers += [
            nn.Conv2d(inputs, outputs, 3, padding=1),
            MaxPool2d(3, stride=2, padding=1),
            ResidualBlock(outputs),
            ResidualBlock(outputs),
        ]
        inputs = outputs
    return [*layers, nn.ReLU()]


STYLES: dict[Convolutions, Style] = {
    # Convolutions that each halve the image.
    "strided": Style((32, 64, 64, 64), 256, _plain([3], [2], padding=1), layer_norm=True),
    # Mnih et al., "Human-level control through deep reinforcement learning", Nature 518, 2015.
    "nature": Style((32, 64, 64), 512, _plain([8, 4, 3], [4, 2, 1]), layer_norm=False),
    # Espeholt et al., "IMPALA", arXiv 1802.01561: the larger network, without its LSTM.
    "impala": Style((16, 32, 32), 256, _impala, layer_norm=False, channels_last=True),
    # Yarats et al., "Mastering Visual Continuous Control", arXiv 2107.09645.
    "drqv2": Style((32, 32, 32, 32), 50, _plain([3], [2, 1]), layer_norm=True, activation=nn.Tanh),
}
