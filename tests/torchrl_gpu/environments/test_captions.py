import numpy as np
import pytest

from torchrl_gpu.environments.captions import FONT_SIZE, grid, write_captions


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
