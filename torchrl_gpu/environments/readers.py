"""Conversion of observations and actions of any TorchRL spec to those that agents support."""

from collections.abc import Collection, Mapping
from math import prod
from typing import NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn.functional import one_hot
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    OneHot,
    TensorSpec,
    Unbounded,
)

from torchrl_gpu.environments.bookkeeping import Path, path_of
from torchrl_gpu.environments.environment import mask_of
from torchrl_gpu.errors import ConfigurationError

# Minimum height and width of an observation that is treated as a picture; one whose last dimension
# is smaller has its channels there.
MIN_PICTURE_SIZE = 8


class Reader(NamedTuple):
    """Converts one leaf of an observation."""

    path: Path  # key of the leaf
    batch: tuple[int, ...]  # batch size of the TensorDict that contains the leaf
    spec: TensorSpec  # of the converted leaf
    classes: int | None = None  # number of classes of a Categorical leaf, which becomes one-hot
    has_channels_last: bool = False  # a picture `[H, W, C]`, which becomes `[C, H, W]`

    def read(self, tensordict: TensorDictBase) -> Tensor:
        """Return the leaf in the shape and dtype of `spec`."""
        leaf: Tensor = tensordict.get(self.path)
        if self.classes is not None:
            leaf = one_hot(leaf.long(), self.classes)
        if self.has_channels_last:
            leaf = leaf.movedim(-1, -3)
        if self.spec.dtype == torch.uint8 and leaf.is_floating_point():
            leaf = (255.0 * leaf).round().clamp(0.0, 255.0)  # a resize may overshoot
        return leaf.reshape(self.spec.shape).to(self.spec.dtype)


def readers_of(
    spec: Composite, batch_size: torch.Size, unit_pictures: Collection[Path] = ()
) -> list[Reader]:
    """Return a reader for each leaf of an observation.

    Args:
        spec: spec of the observation.
        batch_size: batch size of the environment; its dimensions are flattened into one.
        unit_pictures: keys of pictures of floats from 0 to 1, whatever the bounds of their specs.

    Raises:
        ConfigurationError: a leaf is neither numeric, nor pixels, nor a set.
    """
    leaves = {path_of(key): leaf for key, leaf in spec.items(include_nested=True, leaves_only=True)}
    return [_reader(path, leaves, spec, batch_size, path in unit_pictures) for path in leaves]


def _reader(
    path: Path,
    leaves: Mapping[Path, TensorSpec],
    whole: Composite,
    batch_size: torch.Size,
    is_unit: bool,
) -> Reader:
    spec = leaves[path]
    holder = whole.shape if len(path) == 1 else whole[path[:-1]].shape
    inner = holder if len(holder) > len(batch_size) else batch_size
    batch, shape = (prod(batch_size), *inner[len(batch_size) :]), spec.shape[len(inner) :]
    is_mask = any(path == mask_of(other) for other in leaves)
    dtype, device = spec.dtype, spec.device
    # The flags of `Binary` are int8 by default.
    is_flag = dtype == torch.bool or isinstance(spec, Binary)
    if is_flag and (is_mask or path[-1] in ("success", "active")):
        flags = shape if is_mask else (prod(shape),)
        return Reader(path, batch, Categorical(2, (*batch, *flags), device, torch.bool))
    # Many channels, those of stacked frames, stand beside two equal sides.
    has_channels_last = len(shape) == 3 and (
        shape[2] < MIN_PICTURE_SIZE <= min(shape[:2])
        or shape[0] == shape[1] > shape[2] >= MIN_PICTURE_SIZE
    )
    is_picture = has_channels_last or (len(shape) == 3 and min(shape[1:]) >= MIN_PICTURE_SIZE)
    if is_picture and (dtype == torch.uint8 or is_unit or _is_of_unit_range(spec)):
        pixels = (*shape[2:], *shape[:2]) if has_channels_last else shape
        bounds = Bounded(0, 255, (*batch, *pixels), device, torch.uint8)
        return Reader(path, batch, bounds, has_channels_last=has_channels_last)
    is_set = mask_of(path) in leaves
    if dtype == torch.uint8 and len(shape) == 2 and min(shape) >= MIN_PICTURE_SIZE and not is_set:
        return Reader(path, batch, Bounded(0, 255, (*batch, 1, *shape), device, torch.uint8))
    name = ".".join(path)
    # Channels may be last by accident where the numbers are not bytes.
    is_picture = is_picture and not has_channels_last
    if dtype is None or dtype.is_complex or (is_picture or len(shape) > 3):
        raise ConfigurationError(
            f"observation {name} of shape {list(shape)} and type {dtype}: agents read real numbers "
            "of up to three dimensions, and pixels (C, H, W) or (H, W, C) of uint8, or of floats "
            "bounded by 0 and 1"
        )
    if is_choice(spec) and dtype != torch.bool:
        classes = int(spec.space.n)
        flat = (*batch, prod(shape) * classes)
        return Reader(path, batch, Bounded(0.0, 1.0, flat, device, torch.float32), classes)
    flat = (*batch, *(shape if is_set else (prod(shape),)))
    return Reader(path, batch, _float_spec(spec, flat))


def is_choice(spec: TensorSpec) -> bool:
    """Return whether the numbers of a spec are those of one choice each."""
    return isinstance(spec, Categorical) and not isinstance(spec, MultiCategorical | Binary)


def _is_of_unit_range(spec: TensorSpec) -> bool:
    """Return whether a spec is of floats bounded by 0 and 1, as `ToTensorImage` makes them."""
    space = spec.space
    if spec.dtype is None or not spec.dtype.is_floating_point or not hasattr(space, "low"):
        return False
    return bool((space.low == 0.0).all() and (space.high == 1.0).all())


def is_one_hot(spec: TensorSpec, dimensions: int) -> bool:
    """Return whether an action with that many batch dimensions is one choice `[n]`, one-hot."""
    return type(spec) is OneHot and len(spec.shape) == dimensions + 1


def action_spec_of(spec: TensorSpec, batch: tuple[int, ...], dimensions: int) -> TensorSpec:
    """Return the spec of an action as agents support it.

    Args:
        spec: action spec of the wrapped environment.
        batch: batch size of the agent: environments, or environments and robots.
        dimensions: number of leading dimensions of `spec` that are batch dimensions.

    Returns:
        Bounded float32 `[*batch, D]` or Categorical `[*batch]`; other kinds keep their shape.
    """
    if is_one_hot(spec, dimensions):
        return Categorical(int(spec.space.n), batch, device=spec.device)
    size = prod(spec.shape[dimensions:])
    if isinstance(spec, Bounded) and spec.dtype.is_floating_point:
        return _float_spec(spec, (*batch, size))
    if isinstance(spec, MultiCategorical) and size == 1:
        return Categorical(int(spec.nvec.max()), batch, device=spec.device)
    if is_choice(spec) and size == 1:
        return Categorical(int(spec.space.n), batch, device=spec.device)
    return spec.clone().expand(*batch, *spec.shape[dimensions:])


def _float_spec(spec: TensorSpec, shape: tuple[int, ...]) -> TensorSpec:
    if not isinstance(spec, Bounded):
        return Unbounded(shape, device=spec.device, dtype=torch.float32)
    low, high = (bound.reshape(shape).float() for bound in (spec.space.low, spec.space.high))
    return Bounded(low, high, shape, spec.device, torch.float32)
