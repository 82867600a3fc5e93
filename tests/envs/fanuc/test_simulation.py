from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from envs.fanuc.robot import ASSETS, CONTROL_RATE, SPEED_SHARE, Robot, load_robot
from envs.fanuc.simulation import ArmGroup, ArmSimulation
from envs.fanuc.targets import HOME

# Tolerance for rounding; the limits hold exactly.
TOLERANCE = 1e-12
NUM_ARMS = 8


@pytest.fixture
def simulation(robot: Robot) -> Iterator[ArmSimulation]:
    simulation = ArmSimulation(robot, [ArmGroup(robot, NUM_ARMS, solver_iterations=10)])
    yield simulation
    simulation.close()


def _at_home(simulation: ArmSimulation) -> np.ndarray:
    state = np.zeros((NUM_ARMS, 2, 6))
    state[:, 0] = HOME
    simulation.write(range(NUM_ARMS), state, np.zeros((NUM_ARMS, 3), np.float32))
    return state


@pytest.mark.parametrize("hold", [1, 25])
def test_limits_are_never_exceeded(robot: Robot, simulation: ArmSimulation, hold: int) -> None:
    """Extreme actions, held until arms hit their limits, the floor and themselves."""
    rng = np.random.default_rng(0)
    state = _at_home(simulation)
    touched = np.zeros(6, dtype=bool)
    for step in range(250):
        if step % hold == 0:
            action = np.sign(rng.uniform(-1, 1, (NUM_ARMS, 6))).astype(np.float32)
        before = state.copy()
        simulation.step(state, action)
        angles, speeds = state[:, 0], state[:, 1]
        assert (angles >= robot.lower - TOLERANCE).all()
        assert (angles <= robot.upper + TOLERANCE).all()
        assert (np.abs(speeds) <= robot.velocity + TOLERANCE).all()
        moved = np.abs(angles - before[:, 0])
        assert (moved <= robot.velocity / CONTROL_RATE + TOLERANCE).all()
        touched |= (np.minimum(angles - robot.lower, robot.upper - angles) < 0.01).any(0)
    if hold > 1:
        assert touched[[0, 4]].all(), "the test never drove these joints to their limits"


def test_returned_state_equals_the_simulator_state(robot: Robot, simulation: ArmSimulation) -> None:
    rng = np.random.default_rng(0)
    state = _at_home(simulation)
    for step in range(60):
        if step % 20 == 0:
            action = np.sign(rng.uniform(-1, 1, (NUM_ARMS, 6))).astype(np.float32)
        simulation.step(state, action)
        np.testing.assert_array_equal(simulation.groups[0].read(), state.ravel())


def test_actions_are_fractions_of_the_maximum_speed(
    robot: Robot, simulation: ArmSimulation
) -> None:
    state = _at_home(simulation)
    action = np.full((NUM_ARMS, 6), 0.1, np.float32)
    action[1] *= -1
    for _ in range(6):
        simulation.step(state, action)
    wanted = 0.1 * SPEED_SHARE * robot.velocity
    np.testing.assert_allclose(state[0, 1], wanted, rtol=1e-2)
    np.testing.assert_allclose(state[0, 0] - HOME, wanted * 6 / CONTROL_RATE, rtol=1e-2)
    np.testing.assert_allclose(state[1, 0] - HOME, -wanted * 6 / CONTROL_RATE, rtol=1e-2)


def test_motors_accelerate_by_the_effort_of_the_urdf() -> None:
    """Joint 1 is vertical, so that gravity does not change its speed."""
    robot = replace(load_robot(), effort=np.full(6, 5.0))
    group = ArmGroup(robot, 1, solver_iterations=50)
    group.write(0, HOME, [0.0] * 6)
    inertia = group.client.calculateMassMatrix(group.bodies[0], HOME)[0][0]
    group.step([[3.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    speed = group.read()[6]
    group.close()
    assert speed == pytest.approx(5.0 / CONTROL_RATE / inertia, rel=0.05)


def test_actions_are_clipped_to_their_bounds(simulation: ArmSimulation) -> None:
    state = _at_home(simulation)
    action = np.ones((NUM_ARMS, 6), np.float32)
    action[1] = 50
    simulation.step(state, action)
    np.testing.assert_array_equal(state[1], state[0])


def test_arms_hold_still_against_gravity(simulation: ArmSimulation) -> None:
    state = _at_home(simulation)
    for _ in range(60):
        simulation.step(state, np.zeros((NUM_ARMS, 6), np.float32))
    np.testing.assert_allclose(state[:, 0] - HOME, 0, atol=1e-2)


def test_floor_and_links_stop_the_arm(robot: Robot, simulation: ArmSimulation) -> None:
    """Driven into the floor, the arm stops before its joint limits."""
    state = _at_home(simulation)
    action = np.zeros((NUM_ARMS, 6), np.float32)
    action[:, 1] = 0.3
    for _ in range(120):
        simulation.step(state, action)
    assert (state[:, 0, 1] < robot.upper[1] - 0.2).all()


def test_a_spacer_between_links_does_not_hinder_the_arm(tmp_path: Path) -> None:
    """A body of three links: the links beside a spacer are as near as without it."""
    text = (ASSETS / "lr_mate_200ic.urdf").read_text()
    spaced = text.replace('<parent link="link_1"/>', '<parent link="spacer"/>').replace(
        "</robot>",
        '<link name="spacer"><inertial><mass value="0.1"/><inertia ixx="1e-4" iyy="1e-4" '
        'izz="1e-4" ixy="0" ixz="0" iyz="0"/></inertial></link><joint name="s" type="fixed">'
        '<parent link="link_1"/><child link="spacer"/></joint></robot>',
    )
    (tmp_path / "arm.urdf").write_text(spaced)
    moved = []
    for robot in (load_robot(), load_robot(urdf=str(tmp_path / "arm.urdf"))):
        simulation = ArmSimulation(robot, [ArmGroup(robot, NUM_ARMS, solver_iterations=10)])
        state = _at_home(simulation)
        for _ in range(10):
            simulation.step(state, np.full((NUM_ARMS, 6), 0.1, np.float32))
        moved.append(state[0, 0] - HOME)
        simulation.close()
    np.testing.assert_allclose(moved[1], moved[0], atol=2e-3)


def test_a_tool_frame_without_inertial_has_no_mass(tmp_path: Path) -> None:
    """PyBullet alone would give it 1 kg, and 1 kg m^2, in which joint 6 can hardly turn."""
    text = (
        (ASSETS / "lr_mate_200ic.urdf")
        .read_text()
        .replace(
            "</robot>",
            '<link name="tcp"/><joint name="t" type="fixed"><origin xyz="0 0 0.1"/>'
            '<parent link="link_6"/><child link="tcp"/></joint></robot>',
        )
    )
    (tmp_path / "arm.urdf").write_text(text)
    states = []
    for robot in (load_robot(), load_robot(urdf=str(tmp_path / "arm.urdf"), tool="tcp")):
        simulation = ArmSimulation(robot, [ArmGroup(robot, NUM_ARMS, solver_iterations=10)])
        states.append(_at_home(simulation))
        for sign in (1, -1):
            simulation.step(states[-1], np.full((NUM_ARMS, 6), sign, np.float32))
        simulation.close()
    np.testing.assert_array_equal(states[1], states[0])


def test_arms_of_any_size_stand_out_of_each_others_reach() -> None:
    robot = replace(load_robot(), origins=3 * load_robot().origins)
    group = ArmGroup(robot, 4, solver_iterations=10)
    bases = np.array([group.client.getBasePositionAndOrientation(b)[0] for b in group.bodies])
    group.close()
    gaps = np.linalg.norm(bases[:, None] - bases, axis=-1)[~np.eye(4, dtype=bool)]
    assert gaps.min() > 2 * robot.reach


def test_memory_does_not_grow_over_many_resets() -> None:
    psutil = pytest.importorskip("psutil")
    group = ArmGroup(load_robot(), num_arms=4, solver_iterations=10)
    process = psutil.Process()

    def reset_often(times: int) -> int:
        for _ in range(times):
            for arm in range(4):
                group.write(arm, HOME, [0.0] * 6)
            group.step([[0.5] * 6] * 4)
            group.read()
        return process.memory_info().rss

    before = reset_often(300)
    after = reset_often(2000)
    group.close()
    assert after - before < 2_000_000
