import pytest
import torch
from tensordict import TensorDict

from agents.modules.augmentation import RandomShift, shift_randomly
from tests.stand_in import count_host_reads


def images(count: int) -> torch.Tensor:
    """Return images `[count, 2, 5, 6]` with a different value at every pixel."""
    pixels = torch.arange(2 * 5 * 6, dtype=torch.uint8).reshape(1, 2, 5, 6)
    return pixels.expand(count, -1, -1, -1)


def test_images_shift_by_whole_pixels_and_borders_fill_the_gaps() -> None:
    torch.manual_seed(0)
    padded = torch.nn.functional.pad(images(1).float(), (2, 2, 2, 2), mode="replicate")[0]
    crops = {
        tuple(padded[:, row : row + 5, column : column + 6].flatten().tolist())
        for row in range(5)
        for column in range(5)
    }
    shifted = shift_randomly(images(500), 2)
    assert shifted.dtype == torch.uint8
    # All 25 shifts occur, and no other image.
    assert {tuple(image.flatten().float().tolist()) for image in shifted} == crops


def test_images_of_both_steps_shift_and_other_entries_stay() -> None:
    torch.manual_seed(0)
    vector = torch.randn(64, 3)
    batch = TensorDict(
        {
            "pixels": images(64),
            "observation": vector,
            "next": {"pixels": images(64), "observation": vector},
        },
        [64],
    )
    before = batch.clone()
    shifted = RandomShift(["pixels"], 2)(batch)
    assert (batch == before).all()
    for place in ("pixels", ("next", "pixels")):
        moved = (shifted[place] != before[place]).flatten(1).any(1)
        assert 0.8 < moved.float().mean() < 1.0
    assert not torch.equal(shifted["pixels"], shifted["next", "pixels"])
    assert torch.equal(shifted["next", "observation"], vector)


def test_a_batch_without_next_observations_is_shifted_too() -> None:
    shifted = RandomShift([("group", "pixels")], 1)(
        TensorDict({"group": {"pixels": images(8)}}, [8])
    )
    assert shifted["group", "pixels"].shape == (8, 2, 5, 6)


@pytest.mark.parametrize("pixels", [1, 4])
def test_shift_reads_nothing_back_to_the_host(pixels: int, accelerator: torch.device) -> None:
    batch = images(4).clone().to(accelerator)
    shift_randomly(batch, pixels)
    with count_host_reads() as counter:
        shift_randomly(batch, pixels)
    assert counter.host_reads == counter.copies == 0, counter.report()
