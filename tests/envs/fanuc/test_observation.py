from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from envs.fanuc import ArmObserver, FanucEnv
from envs.fanuc.capabilities import action_elements, observation_elements
from envs.fanuc.geometry import ArmGeometry
from envs.fanuc.observation import ArmEncoder, observation_size
from envs.fanuc.robot import CONTROL_RATE, load_robot
from torchrl_gpu.errors import ConfigurationError

ROBOT = load_robot()


def _encode(state: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Encode states `[N, 2, 6]` and targets in the base frame `[N, 3]`."""
    return ArmEncoder(ROBOT)(state, (target - ROBOT.shoulder).astype(np.float32))


def _random_states(count: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    angles = rng.uniform(ROBOT.lower, ROBOT.upper, (count, 6))
    return np.stack((angles, rng.uniform(-1, 1, (count, 6)) * ROBOT.velocity), 1)


def test_elements_equal_their_documentation() -> None:
    state = _random_states(50)
    target = np.random.default_rng(1).uniform(-0.5, 0.5, (50, 3))
    observation, distance = _encode(state, target)
    angles, speeds = state[:, 0], state[:, 1]
    flange = ArmGeometry(ROBOT).position(torch.from_numpy(angles)).numpy()

    def along_the_arm(position: np.ndarray) -> np.ndarray:
        x, y, z = (position - ROBOT.shoulder).T
        cos, sin = np.cos(angles[:, 0]), np.sin(angles[:, 0])
        return np.stack((cos * x + sin * y, cos * y - sin * x, z), 1)

    error = along_the_arm(target) - along_the_arm(flange)
    length = np.linalg.norm(error, axis=1, keepdims=True)
    expected = np.concatenate(
        (
            2 * (angles - ROBOT.lower) / (ROBOT.upper - ROBOT.lower) - 1,
            speeds / ROBOT.velocity,
            np.sin(angles[:, 1:]),
            np.cos(angles[:, 1:]),
            along_the_arm(flange) / ROBOT.reach,
            along_the_arm(target) / ROBOT.reach,
            error / ROBOT.reach,
            error / (length + 0.05),
            np.exp(-length / 0.05),
            (np.arctan2(target[:, 1:2], target[:, :1]) - angles[:, :1]) / (np.pi + ROBOT.upper[0]),
        ),
        1,
    )
    np.testing.assert_allclose(observation, expected, atol=2e-6)
    np.testing.assert_allclose(distance, length, atol=2e-6)


def test_elements_tell_the_quantities_that_the_numbers_stand_for() -> None:
    state = _random_states(20)
    target = np.random.default_rng(1).uniform(-0.5, 0.5, (20, 3))
    observation, distance = _encode(state, target)
    found = {
        each.name: each.offset + each.scale * observation[:, number]
        for number, each in enumerate(observation_elements(ROBOT))
    }
    assert len(found) == observation_size(ROBOT)
    for joint in range(6):
        angle, speed = found[f"J{joint + 1} angle"], found[f"J{joint + 1} speed"]
        np.testing.assert_allclose(np.stack((angle, speed), 1), state[:, :, joint], atol=1e-5)
    way = np.stack([found[f"target - tool {axis}"] for axis in "xyz"], 1)
    np.testing.assert_allclose(np.linalg.norm(way, axis=1), distance[:, 0], atol=1e-6)


def test_actions_are_described_as_the_arms_move(make_env: Callable[..., FanucEnv]) -> None:
    env = make_env(num_envs=1, curriculum=False)
    root = env.reset()
    action, angles = torch.full((1, 6), 0.2), []
    for _ in range(8):
        root = env.step_and_maybe_reset(root.set("action", action))[1]
        angles.append(env.joint_positions)
    speeds = (angles[-1] - angles[3]) / (4 / CONTROL_RATE)
    scales = torch.tensor([[each.scale for each in action_elements(ROBOT)]])
    torch.testing.assert_close(speeds.float(), scales * action, rtol=0.015, atol=0)


def test_a_real_arm_observes_what_the_environment_does(
    make_env: Callable[..., FanucEnv],
) -> None:
    env = make_env()
    root = env.reset().set("action", torch.full((4, 6), 0.3))
    observed = env.step(root)["next", "observation"]
    observer = ArmObserver(ROBOT)
    ours = observer.observe(env.joint_positions, env.joint_velocities, env.target)
    torch.testing.assert_close(ours, observed, atol=1e-5, rtol=0)
    first = (env.joint_positions[0], env.joint_velocities[0], env.target[0])
    torch.testing.assert_close(observer.observe(*first), ours[0])
    measured = [each.numpy() for each in first]
    torch.testing.assert_close(observer.observe(*measured), ours[0])


@pytest.mark.parametrize("shapes", [((5,), (5,), (3,)), ((6,), (2, 6), (3,)), ((6,), (6,), (1,))])
def test_measurements_of_other_shapes_are_refused(shapes: Sequence[tuple[int, ...]]) -> None:
    with pytest.raises(ConfigurationError, match=r"give (\[\.\.\., [63]\](, )?){3}"):
        ArmObserver(ROBOT).observe(*map(np.zeros, shapes))


def test_turning_arm_and_target_together_changes_only_the_first_angle() -> None:
    state = _random_states(1)
    state[0, 0, 0] = 0.4
    target = np.array([[0.3, 0.2, 0.5]])
    turned_state, turn = state.copy(), 1.1
    turned_state[0, 0, 0] += turn
    cos, sin = np.cos(turn), np.sin(turn)
    turned_target = np.array([[cos * 0.3 - sin * 0.2, sin * 0.3 + cos * 0.2, 0.5]])
    before, after = _encode(state, target)[0], _encode(turned_state, turned_target)[0]
    np.testing.assert_allclose(before[:, 1:], after[:, 1:], atol=1e-6)
    assert before[0, 0] != after[0, 0]


def test_turn_to_a_target_behind_respects_the_limits_of_joint_1() -> None:
    state = _random_states(1)
    state[0, 0, 0] = -2.5  # to the right, almost behind
    behind_to_the_left = np.array([[-0.5, 0.1, 0.5]])
    turn = _encode(state, behind_to_the_left)[0][0, 35] * (np.pi + ROBOT.upper[0])
    np.testing.assert_allclose(turn, np.arctan2(0.1, -0.5) + 2.5, atol=1e-5)  # not a turn of -0.8
