from pathlib import Path
from typing import Any

import pytest
import torch

from torchrl_gpu.checkpoints.contents import check_count, check_like, reading
from torchrl_gpu.errors import ConfigurationError, WorkerError

EXPECTED = {
    "tensor": torch.zeros(2, 3),
    "index": torch.zeros(2, dtype=torch.int64),
    "inner": {0: 1, "flag": True},
    "pair": (1, "a"),
    "number": 0.5,
    "any": None,
}
SAVED: dict[str, Any] = {
    "tensor": torch.ones(2, 3).double(),
    "index": torch.ones(2, dtype=torch.int64),
    "inner": {0: 7, "flag": False},
    "pair": (2, "b"),
    "number": 3,
    "any": [1],
}


def test_a_state_of_the_same_structure_is_accepted() -> None:
    check_like(SAVED, EXPECTED)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"tensor": torch.zeros(3, 2)},
            r"tensor has shape \[3, 2\] and .*32, not \[2, 3\] and",
        ),
        ({"tensor": torch.zeros(2, 3).int()}, "tensor has shape .* and torch.int32"),
        ({"index": torch.zeros(2)}, "index has shape .* and torch.float32"),
        ({"index": [0, 0]}, "index is not a tensor"),
        ({"inner": {0: 1}}, "inner lacks flag"),
        ({"inner": {0: True, "flag": True}}, "inner, 0 is not of type int"),
        ({"inner": None}, "inner is not a mapping"),
        ({"pair": [1, "a"]}, "pair is not a tuple of 2 values"),
        ({"number": float("nan")}, "number is NaN or infinite"),
        ({"number": True}, "number is not a number"),
        ({"more": 1}, "has an unknown entry more"),
    ],
)
def test_a_state_of_another_structure_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the saved state.* {said}"):
        check_like({**SAVED, **change}, EXPECTED)


@pytest.mark.parametrize("value", [-1, 1.0, True, None, "1", 10**12])
def test_only_whole_numbers_in_range_count(value: Any) -> None:
    check_count(0, "frames")
    with pytest.raises(ConfigurationError, match=r"^frames=.*: not a whole number from 0 to "):
        check_count(value, "frames")


def test_only_errors_by_the_content_of_a_file_are_called_damage() -> None:
    path = Path("a.safetensors")
    said = r"^checkpoint=a\.safetensors: damaged or edited: "
    with pytest.raises(ConfigurationError, match=said), reading(path):
        raise KeyError("frames")
    for error in (ConfigurationError("as it is"), WorkerError("of a simulator"), MemoryError()):
        with pytest.raises(type(error)) as caught, reading(path):
            raise error
        assert caught.value is error
