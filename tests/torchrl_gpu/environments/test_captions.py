from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.environments import IdentityEnv
from torchrl_gpu.environments.captions import FONT_SIZE, grid, picture_of, write_captions
from torchrl_gpu.errors import ConfigurationError


@pytest.mark.parametrize(
    ("count", "shape"), [(1, (1, 1)), (2, (1, 2)), (4, (2, 2)), (5, (2, 3)), (64, (8, 8))]
)
def test_grid_has_room_for_every_environment(count: int, shape: tuple[int, int]) -> None:
    assert grid(count) == shape


def test_each_caption_is_written_into_its_own_tile() -> None:
    picture = np.zeros((200, 400, 3), np.uint8)
    written = write_captions(picture, ["", "distance 12 mm", "", "reached"])
    tiles = [written[y : y + 100, x : x + 200] for y in (0, 100) for x in (0, 200)]
    assert [bool(tile.any()) for tile in tiles] == [False, True, False, True]
    assert not picture.any(), "the given picture stays unchanged"
    assert not tiles[1][3 * FONT_SIZE :].any()


def test_a_long_caption_fits_its_tile() -> None:
    picture = np.zeros((100, 400, 3), np.uint8)
    written = write_captions(picture, ["a caption much longer than the tile " * 3, ""])
    assert written[:, :200].any()
    assert not written[:, 200:].any()


class Drawn(IdentityEnv):
    picture: Any

    def render(self, index: Any = 0) -> Any:
        return self.picture


@pytest.mark.parametrize(
    ("picture", "found"),
    [
        (np.zeros((4, 4, 3), np.uint8), "ndarray"),
        (torch.zeros(4, 4, 3), r"one of torch.float32 \[4, 4, 3\]"),
        (torch.zeros(3, 4, 4, dtype=torch.uint8), r"one of torch.uint8 \[3, 4, 4\]"),
        (torch.zeros(4, 4, dtype=torch.uint8), r"one of torch.uint8 \[4, 4\]"),
    ],
)
def test_what_is_not_a_picture_is_refused(picture: Any, found: str) -> None:
    env = Drawn()
    env.picture = picture
    expected = (
        rf"^env: Drawn\.render has to return a tensor of torch.uint8 \[H, W, 3\], not {found}$"
    )
    with pytest.raises(ConfigurationError, match=expected):
        picture_of(env, 0)
