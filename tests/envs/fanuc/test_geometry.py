from collections.abc import Iterator

import pytest
import torch

from envs.fanuc.bullet import pybullet
from envs.fanuc.geometry import ArmGeometry, segment_distance
from envs.fanuc.robot import MIN_BODIES_APART, Robot, load_robot
from envs.fanuc.simulation import ArmGroup

POSE = [0.3, 0.4, -0.5, 0.6, -0.7, 0.8]


@pytest.fixture
def group(robot: Robot) -> Iterator[ArmGroup]:
    group = ArmGroup(robot, num_arms=1, solver_iterations=10)
    yield group
    group.close()


def _random_joints(robot: Robot, count: int) -> torch.Tensor:
    lower, upper = torch.tensor(robot.lower), torch.tensor(robot.upper)
    noise = torch.rand(count, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return lower + (upper - lower) * noise


@pytest.mark.parametrize(
    ("name", "joints", "flange"),
    [
        ("lr_mate_200ic", [0.0] * 6, [0.475, 0.0, 0.705]),
        ("lr_mate_200ic", POSE, [0.442519, 0.106426, 0.327904]),
        ("lr_mate_200id", POSE, [0.408770, 0.095987, 0.318922]),
    ],
)
def test_flange_of_known_postures(name: str, joints: list[float], flange: list[float]) -> None:
    reached = ArmGeometry(load_robot(name)).position(torch.tensor(joints))
    torch.testing.assert_close(reached, torch.tensor(flange), atol=2e-6, rtol=0)


def test_flange_agrees_with_the_simulator(robot: Robot, group: ArmGroup) -> None:
    geometry = ArmGeometry(robot)
    joints = _random_joints(robot, 20)
    frames = geometry.link_frames(joints)
    flanges = geometry.position(joints)
    for index, angles in enumerate(joints.tolist()):
        group.write(0, angles, [0.0] * 6)
        states = group.client.getLinkStates(
            group.bodies[0], group.joints, computeForwardKinematics=True
        )
        expected = torch.tensor([state[4] for state in states])
        torch.testing.assert_close(frames[index, 1:, :3, 3], expected, atol=2e-6, rtol=0)
        torch.testing.assert_close(flanges[index], expected[-1], atol=2e-6, rtol=0)
        turned = torch.tensor(pybullet.getMatrixFromQuaternion(states[-1][5])).view(3, 3)
        torch.testing.assert_close(frames[index, -1, :3, :3], turned, atol=1e-5, rtol=0)


def test_batch_shape_is_kept() -> None:
    geometry = ArmGeometry(load_robot())
    joints = _random_joints(load_robot(), 12)
    batched = geometry.position(joints.view(3, 4, 6))
    torch.testing.assert_close(batched.view(12, 3), geometry.position(joints))
    assert geometry.link_frames(joints.view(3, 4, 6)).shape == (3, 4, 7, 4, 4)


def test_flange_stays_within_reach(robot: Robot) -> None:
    flange = ArmGeometry(robot).position(_random_joints(robot, 2000))
    from_shoulder = (flange - torch.tensor(robot.shoulder)).norm(dim=-1)
    assert from_shoulder.max() <= robot.reach


def test_clearance_agrees_with_the_simulator(robot: Robot, group: ArmGroup) -> None:
    joints = _random_joints(robot, 60)
    clearance = ArmGeometry(robot).clearance(joints)
    links = [-1, *group.joints]
    for angles, expected in zip(joints.tolist(), clearance.tolist(), strict=True):
        group.write(0, angles, [0.0] * 6)
        gaps = []
        for first in range(len(links)):
            for second in range(first + MIN_BODIES_APART, len(links)):
                points = group.client.getClosestPoints(
                    group.bodies[0], group.bodies[0], 10.0, links[first], links[second]
                )
                gaps += [point[8] for point in points]
        for link in links[2:]:
            points = group.client.getClosestPoints(group.bodies[0], 0, 10.0, link, -1)
            gaps += [point[8] for point in points]
        assert min(gaps) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize(
    ("second", "distance"),
    [
        ([[0.0, 1, 0], [1, 1, 0]], 1.0),  # parallel
        ([[0.5, -1, 2], [0.5, 1, 2]], 2.0),  # crossing above
        ([[4.0, 4, 0], [5, 5, 0]], 5.0),  # end to end
        ([[0.5, 0, 3], [0.5, 0, 3]], 3.0),  # a point
        ([[0.2, 0, 0], [0.8, 0, 0]], 0.0),  # on the same line
    ],
)
def test_segment_distance(second: list[list[float]], distance: float) -> None:
    p1, q1 = torch.tensor([0.0, 0, 0]), torch.tensor([1.0, 0, 0])
    p2, q2 = torch.tensor(second)
    assert segment_distance(p1, q1, p2, q2).item() == pytest.approx(distance, abs=1e-6)
    assert segment_distance(p2, q2, p1, q1).item() == pytest.approx(distance, abs=1e-6)
