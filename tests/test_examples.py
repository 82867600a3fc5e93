"""Examples of docs/examples, run as their readers run them."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from envs.fanuc import FanucEnv
from envs.fanuc.robot import load_robot
from envs.marinenav import MarineNavEnv
from trainers import load_policy
from trainers.evaluation.evaluation import Evaluation
from trainers.exporting.writing import export_policy

pytest.importorskip("onnxscript")

DEPLOY = Path(__file__).parents[1] / "docs" / "examples" / "deploy"
FANUC: dict[str, Any] = runpy.run_path(str(DEPLOY / "fanuc.py"))
ROBOT = load_robot()


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Exported folders of shipped policies, by environment."""
    folder = tmp_path_factory.mktemp("exports")
    result = Evaluation.of(2, {"episode/return": 0.0, "episode/length": 1.0})
    known: dict[str, Any] = {"agent": "SAC", "frames": 0, "evaluation": result, "config": {}}
    for name, env in (("fanuc", FanucEnv), ("marinenav", MarineNavEnv)):
        policy = load_policy(f"pretrained:{name}/sac")
        spec = policy.interface.observation_spec
        drawn = torch.cat([spec.rand() for _ in range(3)])
        observations = [drawn[key] for key in spec.keys(True, True)]
        elements = env.capabilities_of({}, torch.device("cpu")).elements
        export_policy(policy, folder / name, observations, elements=elements, **known)
    return {name: folder / name for name in ("fanuc", "marinenav")}


def run_script(*arguments: str) -> str:
    """Run a script and check that it does not import torch; return its output."""
    script = f"import runpy, sys; sys.argv = {[*arguments]!r}; " + (
        "runpy.run_path(sys.argv[0], run_name='__main__'); print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=DEPLOY.parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *lines, has_torch = done.stdout.splitlines()
    assert has_torch == "False"
    return "\n".join(lines)


@pytest.mark.parametrize("name", ["fanuc", "marinenav"])
def test_the_loop_acts_at_the_rate_of_the_policy_without_torch(
    name: str, exports: dict[str, Path]
) -> None:
    steps = {"fanuc": "30", "marinenav": "2"}[name]
    said = run_script(str(DEPLOY / "loop.py"), str(exports[name]), steps)
    number = r"(\d+\.\d{3})"
    found = re.fullmatch(rf"latency, ms: p50 {number}, p99 {number}, most {number}", said)
    assert found
    assert 0 < float(found[1]) <= float(found[2]) <= float(found[3])


def test_the_loop_leaves_out_the_steps_that_it_misses(
    exports: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = [0.0]

    def sleep(seconds: float) -> None:
        moments.append(moments[-1] + seconds + (10.25 * period if len(moments) == 4 else 0))

    period = json.loads((exports["fanuc"] / "contract.json").read_text("utf-8"))["step_seconds"]
    monkeypatch.setattr("time.perf_counter", lambda: moments[-1])
    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr(sys, "argv", ["loop.py", str(exports["fanuc"]), "7"])
    runpy.run_path(str(DEPLOY / "loop.py"), run_name="__main__")
    assert np.divide(moments[1:], period) == pytest.approx([0, 1, 2, 13.25, 14, 15, 16])


def test_the_loop_ends_at_a_sensor_that_reads_nan(
    exports: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("numpy.zeros", lambda shape, dtype: np.full(shape, np.nan, dtype))
    monkeypatch.setattr(sys, "argv", ["loop.py", str(exports["fanuc"]), "7"])
    with pytest.raises(SystemExit, match="step 0: observation observation holds NaN or infinity"):
        runpy.run_path(str(DEPLOY / "loop.py"), run_name="__main__")


def test_the_shipped_policy_reaches_within_the_limits_of_the_controller(
    exports: dict[str, Path],
) -> None:
    said = run_script(str(DEPLOY / "fanuc.py"), str(exports["fanuc"]), "0.4", "0.1", "0.5")
    assert float(said.split(" mm")[0]) < 15
    assert "latency, ms: p50 " in said


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("9 9 9", "X Y Z: out of reach; stay within 0.85 m of the shoulder, 0 0 0.33"),
        ("0 0 inf", "X Y Z: write three finite numbers"),
        ("0 0 1.1", "export: not an exported policy"),
    ],
)
def test_a_target_that_no_policy_reaches_is_refused(
    target: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["fanuc.py", "export", *target.split()])
    with pytest.raises(SystemExit, match=said):
        runpy.run_path(str(DEPLOY / "fanuc.py"), run_name="__main__")


def test_a_policy_of_another_environment_is_refused(
    exports: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["fanuc.py", str(exports["marinenav"]), "0.4", "0.1", "0.5"])
    with pytest.raises(SystemExit, match="marinenav: not a policy of this arm"):
        runpy.run_path(str(DEPLOY / "fanuc.py"), run_name="__main__")


def test_fanuc_shows_the_angle_of_j3_from_the_horizontal() -> None:
    shown = FANUC["to_controller"](np.radians([10.0, 30.0, 50.0, 0.0, -90.0, 5.0]))
    np.testing.assert_allclose(shown, [10, 30, 20, 0, -90, 5])
    q = np.random.default_rng(0).uniform(ROBOT.lower, ROBOT.upper)
    np.testing.assert_allclose(FANUC["from_controller"](FANUC["to_controller"](q)), q)


def limited(**factors: float) -> Any:
    """Return a stream of the arm, its limits multiplied, those of the position by infinity."""
    factors = {"lower": np.inf, "upper": np.inf, **factors}
    limits = {
        "lower": ROBOT.lower,
        "upper": ROBOT.upper,
        "speed": ROBOT.velocity,
        "acceleration": ROBOT.velocity / 0.2,
        "jerk": ROBOT.velocity / 0.01,
    }
    scaled = {name: limit * factors.get(name, 1.0) for name, limit in limits.items()}
    return FANUC["Stream"](np.zeros(6), **scaled)


def follow(controller: Any, stream: Any, asked: Any, cycles: int) -> None:
    """Send the positions of a stream for a speed that is asked for a number of cycles."""
    for _ in range(cycles):
        controller.send(FANUC["to_controller"](stream.step(asked)))


def test_random_speeds_stay_within_the_limits_and_are_reached() -> None:
    stream, generator = limited(), np.random.default_rng(0)
    controller = FANUC["MockController"](stream)
    for cycle in range(2_000):
        if cycle % 40 == 0 or cycle % 61 == 0:
            asked = generator.uniform(-1.5, 1.5, 6) * ROBOT.velocity
        follow(controller, stream, asked, cycles=1)
    follow(controller, stream, 0.5 * ROBOT.velocity, cycles=100)
    np.testing.assert_allclose(stream.v, 0.5 * ROBOT.velocity)
    np.testing.assert_allclose(stream.a, 0, atol=1e-9)


def test_joints_stop_at_the_limits_of_their_positions() -> None:
    stream, generator = limited(lower=1, upper=1), np.random.default_rng(0)
    controller = FANUC["MockController"](stream)
    for asked in generator.choice([-2.0, 2.0], (50, 6)) * ROBOT.velocity:
        follow(controller, stream, asked, cycles=int(generator.integers(1, 200)))
    follow(controller, stream, -ROBOT.velocity, cycles=800)
    np.testing.assert_allclose(stream.q, ROBOT.lower, atol=1e-3)


def test_an_asked_speed_is_reached_without_overshoot() -> None:
    stream = limited()
    speeds = []
    for _ in range(100):
        stream.step(ROBOT.velocity)
        speeds.append(stream.v)
    assert (np.diff(speeds, axis=0) >= -1e-12).all()
    np.testing.assert_allclose(speeds[-1], ROBOT.velocity)


@pytest.mark.parametrize("name", ["speed", "acceleration", "jerk"])
def test_the_controller_stops_at_each_limit(name: str) -> None:
    controller = FANUC["MockController"](limited())
    stream = limited(**{name: 1.5})
    with pytest.raises(RuntimeError, match=rf"^{name} beyond its limit"):
        follow(controller, stream, 2 * ROBOT.velocity, cycles=200)


@pytest.mark.parametrize("q", [ROBOT.upper + 0.01, ROBOT.lower - 0.01, np.full(6, np.nan)])
def test_the_controller_stops_at_a_position_that_no_joint_can_have(q: Any) -> None:
    controller = FANUC["MockController"](limited(lower=1, upper=1))
    with pytest.raises(RuntimeError, match=r"^position beyond its limit"):
        controller.send(FANUC["to_controller"](q))
