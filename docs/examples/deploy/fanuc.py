"""Reach with an arm whose controller takes joint positions every 8 ms, as Stream Motion does.

    python docs/examples/deploy/fanuc.py runs/.../exports/NAME 0.4 0.1 0.5

The policy asks for joint speeds at its own rate. `Stream` turns them into positions within the
limits of position, speed, acceleration and jerk; `to_controller` into the angles that FANUC shows.
The controller here is a mock. Before you replace it: take the limits from your controller, keep its
own checks on, and begin at a low override.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from envs.fanuc.observation import ArmEncoder
from envs.fanuc.robot import Robot, load_robot

Array = NDArray[np.float64]

CYCLE = 0.008  # s
TO_FULL_SPEED, TO_FULL_ACCELERATION = 0.15, 0.05  # s, from rest: yours stand in your controller
OVERRIDE = 0.25  # of the asked speeds; at 1 the arm answers later than in training, and swings
ARRIVED = 0.01  # m, where the arm stops
HOME = (0.0, 0.0, 0.0, 0.0, -1.5708, 0.0)  # rad


def to_controller(q: Array) -> Array:
    """Return the angles in degrees that FANUC shows, for joint angles `[6]` of the URDF in rad.

    FANUC measures J3 from the horizontal, the URDF from the upper arm: J2 moves the one alone.
    """
    shown = np.degrees(q)
    shown[2] -= shown[1]
    return shown


def from_controller(shown: Array) -> Array:
    """Return the joint angles `[6]` of the URDF in rad, for those that FANUC shows in degrees."""
    q = np.radians(shown)
    q[2] += q[1]
    return q


class Stream:
    """Joint positions that follow asked speeds within limits, one of each 8 ms.

    Args:
        q: joint angles at rest `[N]`, rad.
        lower: smallest joint angles `[N]`, rad.
        upper: largest joint angles `[N]`, rad.
        speed: maximum speeds `[N]`, rad/s.
        acceleration: maximum accelerations `[N]`, rad/s^2.
        jerk: maximum jerks `[N]`, rad/s^3.
    """

    def __init__(
        self,
        q: Array,
        lower: Array,
        upper: Array,
        speed: Array,
        acceleration: Array,
        jerk: Array,
    ) -> None:
        self.q, self.v, self.a = q.copy(), np.zeros_like(q), np.zeros_like(q)
        self.lower, self.upper = lower, upper
        self.speed, self.acceleration, self.change = speed, acceleration, jerk * CYCLE
        # Twice the time from full speed to rest: a speed that decays so stops before the limit.
        self.decay = 2 * (speed / acceleration + acceleration / jerk)

    def step(self, asked: Array) -> Array:
        """Return the next positions `[N]`, rad, for asked speeds `[N]`, rad/s."""
        lowest = np.maximum((self.lower - self.q) / self.decay, -self.speed)
        highest = np.minimum((self.upper - self.q) / self.decay, self.speed)
        missing = np.clip(asked, lowest, highest) - self.v
        # An acceleration a that falls by J in each of n cycles to 0 adds (n a - J n (n - 1) / 2) dt
        # to the speed: the largest one that does not pass the asked speed.
        gain = np.abs(missing) / (self.change * CYCLE)
        n = np.maximum(np.ceil((np.sqrt(1 + 8 * gain) - 1) / 2), 1)
        wanted = np.sign(missing) * self.change * (gain / n + (n - 1) / 2)
        wanted = np.clip(wanted, -self.acceleration, self.acceleration)
        self.a = np.clip(wanted, self.a - self.change, self.a + self.change)
        self.v = self.v + self.a * CYCLE
        self.q = self.q + self.v * CYCLE
        return self.q


class MockController:
    """Follows positions exactly, and stops with an error at one that breaks a limit.

    Args:
        stream: stream whose limits hold.
    """

    def __init__(self, stream: Stream) -> None:
        limits = (stream.speed, stream.acceleration, stream.change / CYCLE)
        self.limits = dict(zip(("speed", "acceleration", "jerk"), limits, strict=True))
        self.lower, self.upper = stream.lower - 1e-6, stream.upper + 1e-6
        self.positions = [stream.q] * 4

    def send(self, shown: Array) -> None:
        """Take the positions of the next 8 ms, in degrees as FANUC shows them."""
        q = from_controller(shown)
        if not ((self.lower <= q) & (q <= self.upper)).all():  # nor is NaN within them
            raise RuntimeError(f"position beyond its limit: {q}")
        self.positions = [*self.positions[1:], q]
        derivative = np.array(self.positions)
        for name, limit in self.limits.items():
            derivative = np.diff(derivative, axis=0) / CYCLE
            if (np.abs(derivative) > limit * 1.001 + 1e-3).any():
                raise RuntimeError(f"{name} beyond its limit: {derivative}")


def reach(folder: Path, target: Array, robot: Robot, seconds: float = 5.0) -> tuple[float, Array]:
    """Let the policy reach for a target, m in the base frame; simulated time, no waiting.

    Returns:
        Final distance in m, and the time of each call of the policy in ms.
    """
    contract = json.loads((folder / "contract.json").read_text(encoding="utf-8"))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "policy.onnx", options)
    encode = ArmEncoder(robot, dtype=np.float32)
    goal = (target - robot.shoulder)[None].astype(np.float32)
    acceleration = robot.velocity / TO_FULL_SPEED
    jerk = acceleration / TO_FULL_ACCELERATION
    limits = (robot.lower, robot.upper, robot.velocity, acceleration, jerk)
    stream = Stream(np.array(HOME), *limits)
    controller, latencies = MockController(stream), []
    scale = np.array([element["scale"] for element in contract["action"]["elements"]])  # rad/s
    asked, acts_at, has_arrived = np.zeros_like(stream.q), 0.0, False
    for cycle in range(round(seconds / CYCLE)):
        if cycle * CYCLE >= acts_at:
            acts_at += contract["step_seconds"]
            state = np.stack((stream.q, stream.v))[None].astype(np.float32)
            start = time.perf_counter()
            observation, distance = encode(state, goal)
            (action,) = session.run(["action"], {"observation": observation})
            latencies.append(1000 * (time.perf_counter() - start))
            has_arrived = has_arrived or distance[0, 0] < ARRIVED
            asked = np.zeros_like(asked) if has_arrived else OVERRIDE * scale * action[0]
        controller.send(to_controller(stream.step(asked)))
    return float(distance[0, 0]), np.array(latencies)


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(f"usage: python {sys.argv[0]} EXPORT_FOLDER X Y Z")
    try:
        place = np.array([float(number) for number in sys.argv[2:5]])
    except ValueError:
        place = np.array([np.nan])
    if not np.isfinite(place).all():
        sys.exit("X Y Z: write three finite numbers, the target in the base frame in metres")
    robot = load_robot()
    if np.linalg.norm(place - robot.shoulder) > robot.reach:
        center = " ".join(f"{number:g}" for number in robot.shoulder)
        sys.exit(f"X Y Z: out of reach; stay within {robot.reach:.2f} m of the shoulder, {center}")
    folder = Path(sys.argv[1])
    if not (folder / "contract.json").is_file():
        sys.exit(f"{folder}: not an exported policy; mode=export writes one")
    contract = json.loads((folder / "contract.json").read_text(encoding="utf-8"))
    if len(contract["action"]["elements"] or ()) != len(HOME):
        sys.exit(f"{folder}: not a policy of this arm; export one that was trained with env=fanuc")
    end, milliseconds = reach(folder, place, robot)
    p50, p99, most = np.quantile(milliseconds, (0.5, 0.99, 1))
    print(f"{1000 * end:.1f} mm from the target")
    print(f"latency, ms: p50 {p50:.3f}, p99 {p99:.3f}, most {most:.3f}")
