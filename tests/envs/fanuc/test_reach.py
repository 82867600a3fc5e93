import pytest
import torch

from envs.fanuc import reach
from envs.fanuc.geometry import ArmGeometry
from envs.fanuc.reach import Reach
from envs.fanuc.robot import load_robot


def test_a_search_that_comes_to_a_singular_posture_finds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in single precision by the last, weak damping, of which rounding left nothing."""
    geometry = ArmGeometry(load_robot())
    posture = torch.zeros(1, 6)
    monkeypatch.setattr(reach, "DAMPING", 0.0)
    monkeypatch.setattr(ArmGeometry, "jacobian", lambda _, joints: torch.zeros(len(joints), 3, 6))
    assert not Reach(geometry, posture).is_reachable(torch.tensor([[0.4, 0.0, 0.4]])).any()
