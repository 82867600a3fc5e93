"""Captions above pictures of environments: the layout of several in one picture, and the text."""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from torchrl_gpu.environments.environment import Environment, name_of
from torchrl_gpu.errors import ConfigurationError

FONT_SIZE: Final = 16  # px
PADDING: Final = 6  # px around the text
LINE_HEIGHT: Final = 28  # px; even, because videos have even sides
BACKGROUND: Final = (20, 28, 38)
TEXT: Final = (240, 244, 248)


def grid(count: int) -> tuple[int, int]:
    """Return the number of rows and columns of a picture that shows 1 or more environments.

    The environments fill the tiles of the picture row by row. All tiles have the same size.
    """
    columns = math.isqrt(count - 1) + 1
    return -(-count // columns), columns


def picture_of(env: Environment, index: int | list[int]) -> NDArray[np.uint8]:
    """Return the picture `[H, W, 3]` of `Environment.render`; refuse anything else."""
    picture: Any = env.render(index)
    found = type(picture).__name__
    if isinstance(picture, Tensor):
        if picture.dtype == torch.uint8 and picture.ndim == 3 and picture.shape[2] == 3:
            return picture.cpu().numpy()
        found = f"one of {picture.dtype} {list(picture.shape)}"
    raise ConfigurationError(
        f"env: {name_of(env)}.render has to return a tensor of torch.uint8 [H, W, 3], not {found}"
    )


def write_captions(picture: NDArray[np.uint8], captions: Sequence[str]) -> NDArray[np.uint8]:
    """Add a line with a caption above every tile of a picture.

    A text wider than its tile is written in smaller letters.

    Args:
        picture: picture `[H, W, 3]` of `len(captions)` environments in the layout of `grid`.
        captions: one caption for each environment.

    Returns:
        A new picture, `LINE_HEIGHT` pixels higher for each row of tiles.
    """
    rows, columns = grid(len(captions))
    height, width = picture.shape[0] // rows, picture.shape[1] // columns
    tiles = np.empty((rows, LINE_HEIGHT + height, columns, width, 3), np.uint8)
    tiles[:, :LINE_HEIGHT] = BACKGROUND
    whole = picture[: rows * height, : columns * width]
    tiles[:, LINE_HEIGHT:] = whole.reshape(rows, height, columns, width, 3)
    image = Image.fromarray(tiles.reshape(-1, columns * width, 3))
    pen = ImageDraw.Draw(image)
    for slot, caption in enumerate(captions):
        font = ImageFont.load_default(FONT_SIZE)
        excess = font.getlength(caption) / max(1, width - 2 * PADDING)
        if excess > 1.0:
            font = ImageFont.load_default(max(1.0, FONT_SIZE / excess))
        left = slot % columns * width + PADDING
        middle = slot // columns * (LINE_HEIGHT + height) + LINE_HEIGHT // 2
        pen.text((left, middle), caption, TEXT, font, anchor="lm")
    return np.array(image)
