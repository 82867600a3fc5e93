from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.environments import IdentityEnv
from torchrl_gpu.environments.captions import LINE_HEIGHT, grid, picture_of, write_captions
from torchrl_gpu.errors import ConfigurationError


@pytest.mark.parametrize(
    ("count", "shape"), [(1, (1, 1)), (2, (1, 2)), (4, (2, 2)), (5, (2, 3)), (64, (8, 8))]
)
def test_grid_has_room_for_every_environment(count: int, shape: tuple[int, int]) -> None:
    assert grid(count) == shape


def test_each_caption_stands_above_its_tile() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (200, 400, 3), np.uint8)
    written = write_captions(picture, ["", "distance 12 mm", "", "reached"])
    rows = written.reshape(2, LINE_HEIGHT + 100, 400, 3)
    np.testing.assert_array_equal(rows[:, LINE_HEIGHT:].reshape(picture.shape), picture)
    lines = [rows[row, :LINE_HEIGHT, x : x + 200] for row in (0, 1) for x in (0, 200)]
    assert [bool((line > 200).any()) for line in lines] == [False, True, False, True]


def test_a_long_caption_fits_its_tile() -> None:
    picture = np.zeros((100, 400, 3), np.uint8)
    line = write_captions(picture, ["a caption much longer than the tile " * 3, ""])[:LINE_HEIGHT]
    assert (line[:, :200] > 100).any()
    assert not (line[:, 200:] > 100).any()


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
def test_results_that_are_not_pictures_are_refused(picture: Any, found: str) -> None:
    env = Drawn()
    env.picture = picture
    expected = (
        rf"^env: Drawn\.render has to return a tensor of torch.uint8 \[H, W, 3\], not {found}$"
    )
    with pytest.raises(ConfigurationError, match=expected):
        picture_of(env, 0)
