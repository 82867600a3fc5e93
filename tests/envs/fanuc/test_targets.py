from pathlib import Path

import pytest
import torch

from envs.fanuc.geometry import ArmGeometry
from envs.fanuc.robot import load_robot
from envs.fanuc.targets import (
    EASY_BELOW,
    HOME,
    MEDIUM_BELOW,
    MIN_AXIS_SHARE,
    MIN_CLEARANCE,
    START_NOISE,
    ReachableTargets,
    home_of,
    load_targets,
)
from torchrl_gpu.errors import ConfigurationError

PER_GRADE = 500


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHRL_GPU_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _equal(first: ReachableTargets, second: ReachableTargets) -> bool:
    return all(torch.equal(vars(first)[name], vars(second)[name]) for name in vars(first))


@pytest.mark.parametrize("name", ["lr_mate_200ic", "lr_mate_200id"])
def test_every_target_is_reached_by_a_collision_free_posture_within_the_limits(name: str) -> None:
    robot = load_robot(name)
    geometry = ArmGeometry(robot)
    targets = load_targets(robot, per_grade=PER_GRADE)
    joints = targets.joints
    torch.testing.assert_close(geometry.position(joints), targets.positions)
    assert (joints >= torch.tensor(robot.lower) - 1e-6).all()
    assert (joints <= torch.tensor(robot.upper) + 1e-6).all()
    assert (geometry.clearance(joints) > MIN_CLEARANCE).all()
    assert (geometry.clearance(targets.starts) > MIN_CLEARANCE).all()
    # In both models the axis of joint 1 is the z axis of the base.
    assert (targets.positions[:, :2].norm(dim=-1) >= MIN_AXIS_SHARE * robot.reach).all()


def test_grades_are_bands_of_distance_of_equal_size() -> None:
    robot = load_robot()
    targets = load_targets(robot, per_grade=PER_GRADE)
    home = ArmGeometry(robot).position(torch.tensor(HOME))
    share = ((targets.positions - home).norm(dim=-1) / robot.reach).view(3, PER_GRADE)
    assert (share[0] < EASY_BELOW).all()
    assert ((share[1] >= EASY_BELOW) & (share[1] < MEDIUM_BELOW)).all()
    assert (share[2] >= MEDIUM_BELOW).all()


def test_starts_are_spread_around_home() -> None:
    offset = load_targets(load_robot(), per_grade=PER_GRADE).starts - torch.tensor(HOME)
    assert offset.abs().max() <= START_NOISE + 1e-6
    assert (offset.std(0) > START_NOISE / 3).all()


def test_cached_targets_equal_new_ones(cache: Path) -> None:
    fresh = load_targets(load_robot(), per_grade=PER_GRADE)
    assert len(list(cache.iterdir())) == 1
    written = next(cache.iterdir()).stat().st_mtime_ns
    assert _equal(load_targets(load_robot(), per_grade=PER_GRADE), fresh)
    assert next(cache.iterdir()).stat().st_mtime_ns == written


def test_targets_differ_between_seeds_and_arms(cache: Path) -> None:
    first = load_targets(load_robot(), seed=0, per_grade=PER_GRADE)
    assert not _equal(load_targets(load_robot(), seed=1, per_grade=PER_GRADE), first)
    assert not _equal(load_targets(load_robot("lr_mate_200id"), per_grade=PER_GRADE), first)
    assert len(list(cache.iterdir())) == 3


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"\xff" * 4096])
def test_damaged_cache_is_replaced(cache: Path, damage: bytes) -> None:
    fresh = load_targets(load_robot(), per_grade=PER_GRADE)
    file = next(cache.iterdir())
    whole = file.read_bytes()
    file.write_bytes(damage or whole[: len(whole) // 2])
    assert _equal(load_targets(load_robot(), per_grade=PER_GRADE), fresh)
    assert file.read_bytes() == whole


def test_cache_that_cannot_be_written_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TORCHRL_GPU_CACHE", str(tmp_path / "file"))
    assert len(load_targets(load_robot(), per_grade=PER_GRADE).starts) == PER_GRADE
    assert "not kept" in caplog.text


def test_thick_bars_without_a_free_posture_are_named_with_their_gap() -> None:
    with pytest.raises(ConfigurationError, match=r"is 23 mm at most.*lower env\.bar_radius"):
        home_of(load_robot(urdf="xarm/xarm6_robot.urdf"))
    robot = load_robot(urdf="xarm/xarm6_robot.urdf", bar_radius=0.04)
    home = torch.tensor([home_of(robot)])
    assert ArmGeometry(robot).clearance(home) > 2 * MIN_CLEARANCE
