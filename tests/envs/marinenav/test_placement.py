import re

import pytest
import torch

from envs.marinenav import MarineNavEnv
from envs.marinenav.placement import Contents, Size, begin_drafts, complete_drafts
from envs.streams import seed_streams
from torchrl_gpu.errors import ConfigurationError

CPU = torch.device("cpu")


def _distances(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the distances between points `[2, P, N]` and `[2, Q, N]`."""
    return (first[:, :, None] - second[:, None]).norm(dim=0)


def test_layouts_satisfy_all_minimum_distances() -> None:
    size, seas = Size(6, 8, 8), 128
    contents = Contents(
        torch.tensor([[6], [8], [8]]), torch.tensor([30.0], dtype=torch.float64), torch.tensor([0])
    )
    draft, _ = complete_drafts(begin_drafts(contents, size, seas), seed_streams(0, seas, CPU))
    (start, goal), vortices, buoys = draft.ends, draft.vortices, draft.obstacles
    assert start.isfinite().all()
    assert vortices.isfinite().all()
    assert buoys.isfinite().float().mean() > 0.98
    assert ((draft.ends >= 2.0) & (draft.ends <= 53.0)).all()
    assert (start - goal).norm(dim=0).min() >= 30.0
    pairs = torch.triu(torch.ones(6, 6, dtype=torch.bool), 1)
    for ends in (start, goal):
        assert _distances(ends, ends)[pairs].min() > 10.0
        assert _distances(ends, buoys).nan_to_num(99.0).min() > 11.0
        assert _distances(ends, vortices[:2]).min() > 10.5
    assert _distances(vortices[:2], buoys).nan_to_num(99.0).min() > 1.5
    assert ((vortices[:2] >= 0.5) & (vortices[:2] <= 54.5)).all()
    pairs = torch.triu(torch.ones(8, 8, dtype=torch.bool), 1)
    assert _distances(buoys, buoys)[pairs].nan_to_num(99.0).min() >= 2.0
    apart = _distances(vortices[:2], vortices[:2])[pairs]
    alike = (vortices[2][:, None] == vortices[2][None])[pairs]
    assert apart[alike].min() >= 3.0
    assert ((apart[~alike] >= 1.625) | (apart[~alike] <= 1.0)).all()
    assert vortices[2].mean().abs() < 0.1


def test_first_robot_is_uniform_over_the_allowed_starts_and_goals() -> None:
    """The fraction of long distances equals that of plain rejection sampling."""
    contents = Contents(torch.tensor([[1], [0], [0]]), torch.tensor([30.0]), torch.tensor([0]))
    seas = 4096
    draft, _ = complete_drafts(
        begin_drafts(contents, Size(1, 0, 0), seas), seed_streams(1, seas, CPU)
    )
    start, goal = draft.ends[:, :, 0]
    generator = torch.Generator().manual_seed(0)
    ends = 2.0 + 51.0 * torch.rand(2, 2, 100_000, generator=generator)
    plain = (ends[0] - ends[1]).norm(dim=0)
    plain = plain[plain >= 30.0]
    drawn = (start - goal).norm(dim=0)
    for quantile in (0.25, 0.5, 0.9):
        expected = plain.quantile(quantile).item()
        assert drawn.quantile(quantile).item() == pytest.approx(expected, abs=0.6)
    assert start.mean().item() == pytest.approx(27.5, abs=0.7)


def test_stages_can_differ_between_seas() -> None:
    counts = torch.tensor([[3, 5], [0, 0], [0, 4]])
    contents = Contents(counts, torch.tensor([30.0, 40.0]), torch.arange(2))
    draft, _ = complete_drafts(begin_drafts(contents, Size(5, 0, 4), 2), seed_streams(0, 2, CPU))
    assert draft.ends[0, 0].isfinite().sum(0).tolist() == [3, 5]
    assert draft.obstacles[0].isfinite().sum(0).tolist() == [0, 4]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"num_robots": 20, "min_start_goal_distance": 50.0}, "20 robots"),
        ({"min_start_goal_distance": 80.0}, "min_start_goal_distance=80"),
        ({"num_robots": 0}, "num_robots=0"),
        ({"num_obstacles": -1}, "num_obstacles=-1"),
        ({"num_envs": 0}, "num_envs=0"),
        ({"dtype": "float16"}, "dtype=float16"),
        ({"curriculum": True, "num_robots": 4}, "num_robots=4"),
        ({"curriculum": True, "schedule": [(10, 3, 0, 30.0)]}, "frame 0"),
        ({"curriculum": True, "schedule": [(0, 3, 0, 30.0)] * 2}, "increase"),
        ({"curriculum": True, "schedule": [(0, 3, 9, 30.0)]}, "num_obstacles=4"),
        ({"mixture": True, "num_robots": 4}, "num_robots=4"),
        ({"mixture": True, "curriculum": True}, "set one"),
        ({"schedule": [(0, 3, 0, 30.0)]}, "env.schedule: without effect; add env.curriculum=true"),
        ({"graphs": "on"}, "env.graphs=on: cpu cannot capture graphs; use env.graphs=off"),
    ],
)
def test_invalid_settings_raise_one_line_errors(settings: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(text)):
        MarineNavEnv(**settings)  # type: ignore[arg-type]
