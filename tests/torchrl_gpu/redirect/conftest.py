import pytest
import torch


@pytest.fixture(params=["cpu", "accelerator"])
def target(request: pytest.FixtureRequest) -> torch.device:
    """A device that stands for cuda: the CPU, and the stand-in accelerator."""
    if request.param == "cpu":
        return torch.device("cpu")
    device: torch.device = request.getfixturevalue("accelerator")
    return device
