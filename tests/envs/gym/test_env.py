"""`GymnasiumEnv`: specs, rendering, invalid settings, and closing."""

import multiprocessing
import os
import signal
import sys
from ctypes.util import find_library
from pathlib import Path

import gymnasium
import pytest
import torch
from gymnasium.envs.registration import EnvSpec
from torchrl.envs.utils import check_env_specs

from envs.gym import GymnasiumEnv
from tests.envs.gym import environments
from tests.envs.gym.conftest import MakeGym
from tests.envs.gym.environments import MODULE
from tests.helpers.program import Call
from torchrl_gpu.arguments import check_settings
from torchrl_gpu.errors import ConfigurationError


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"autoreset": "same_step"}),
        ("CartPole-v1", {"vectorization": "vector_entry_point"}),
        ("Pendulum-v1", {"autoreset": "next_step"}),
        ("Acrobot-v1", {"vectorization": "async"}),
        (f"{MODULE}:DictCounter-v0", {}),
        (f"{MODULE}:DictCounter-v0", {"autoreset": "next_step"}),
        (f"{MODULE}:NestedChoices-v0", {"vectorization": "async"}),
        (f"{MODULE}:Image-v0", {"autoreset": "same_step"}),
        (f"{MODULE}:ChannelsFirst-v0", {"vectorization": "async"}),
        (f"{MODULE}:Number-v0", {}),
    ],
)
def test_env_satisfies_its_specs(make_gym: MakeGym, name: str, settings: dict) -> None:
    env = make_gym(name, **settings)
    check_env_specs(env)
    rollout = env.rollout(12, break_when_any_done=False)
    for key, spec in env.observation_spec.items():
        assert spec.is_in(rollout["next", key][:, 0]), key
        assert rollout["next", key].shape[2:] == spec.shape[1:]


def test_mujoco_environments_run(
    make_gym: MakeGym, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)  # where MuJoCo writes its log
    rollout = make_gym("HalfCheetah-v5").rollout(5, break_when_any_done=False)
    assert rollout["next", "observation"].isfinite().all()


@pytest.mark.skipif(
    sys.platform != "linux" or find_library("EGL") is None, reason="needs EGL on Linux"
)
def test_mujoco_is_drawn_without_a_display(
    make_gym: MakeGym, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mujoco")
    for name in ("DISPLAY", "MUJOCO_GL"):
        monkeypatch.setenv(name, "")  # so that both are restored
        monkeypatch.delenv(name)
    env = make_gym("Hopper-v5", num_envs=1, mode="demo")
    env.reset()
    robot = env._vector.envs[0].unwrapped
    for metres in (0.0, 40.0):  # the camera follows a robot that walks
        robot.init_qpos[0] = metres
        robot.set_state(robot.init_qpos, robot.init_qvel)
        red, green, _ = env.render().int().unbind(-1)
        assert (red > green + 20).sum() > 1000  # of the robot: floor and sky are green and blue


def test_options_reach_the_environment(make_gym: MakeGym) -> None:
    env = make_gym("CartPole-v1", options={"max_episode_steps": 3, "sutton_barto_reward": True})
    after = env.rollout(3)["next"]
    assert after["truncated"].squeeze(-1).tolist() == [[False, False, True]] * 2
    assert (after["reward"] == 0).all()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_demo_mode_renders_images(make_gym: MakeGym, vectorization: str) -> None:
    env = make_gym(f"{MODULE}:Counter-v0", mode="demo", vectorization=vectorization)
    state = env.reset()
    for steps in range(3):
        picture = env.render(1)
        assert picture.dtype == torch.uint8
        assert picture.equal(torch.full((4, 6, 3), steps, dtype=torch.uint8))
        _, state = env.step_and_maybe_reset(env.rand_action(state))
    with pytest.raises(ConfigurationError, match=r"^render\(9\): choose one of the environments"):
        env.render(9)
    assert env.capabilities.step_seconds == pytest.approx(1 / 20)


def test_cart_pole_renders(make_gym: MakeGym) -> None:
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    required, _, _ = project.partition("[project.optional-dependencies]")
    assert "gymnasium[classic-control]" in required, "the README films it after a plain install"
    env = make_gym("CartPole-v1", mode="demo", num_envs=1)
    env.reset()
    assert env.render().shape == (400, 600, 3)


def test_rendering_needs_demo_mode(make_gym: MakeGym) -> None:
    env = make_gym("CartPole-v1", mode="eval")
    env.reset()
    with pytest.raises(ConfigurationError, match='mode="demo"'):
        env.render()


def test_error_names_a_missing_package_for_rendering(
    make_gym: MakeGym, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make_gym("CartPole-v1", mode="demo")
    env.reset()
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(ConfigurationError, match=r"gymnasium\[classic-control\]"):
        env.render()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"name": "CartPol-v1"}, "name=CartPol-v1: .*did you mean CartPole-v1"),
        ({"name": "LunarLander-v2"}, "did you mean LunarLander-v3"),
        ({"name": "gymnasium:CartPol-v1"}, "did you mean gymnasium:CartPole-v1"),
        ({"name": "Maze-v7"}, "if another package registers it, write PACKAGE:Maze-v7$"),
        ({"name": "no_such_package:Thing-v0"}, "no_such_package cannot be imported"),
        ({"name": ".package:Thing-v0"}, ".package cannot be imported"),
        ({"name": "CartPole-v1", "num_envs": 0}, "num_envs=0"),
        ({"name": "CartPole-v1", "success": ""}, "success=: "),
        (
            {"name": "CartPole-v1", "options": {"gravitas": 1}},
            r"^env\.name=CartPole-v1: .*argument 'gravitas'",
        ),
        (
            {"name": "CartPole-v1", "options": {"render_mode": "human"}},
            r"^env\.options\.render_mode=human: use rgb_array",
        ),
        (
            {"name": "Pendulum-v1", "vectorization": "vector_entry_point"},
            "use sync or async",
        ),
        (
            {
                "name": "CartPole-v1",
                "vectorization": "vector_entry_point",
                "wrappers": ["gymnasium.wrappers.FlattenObservation"],
            },
            "env.wrappers wrap single environments; use sync or async",
        ),
        *(
            ({"name": "CartPole-v1", "wrappers": [wrapper]}, f"{wrapper} {reason}")
            for wrapper, reason in (
                ("gymnasium.wrappers.Flat", "cannot be imported .*; write PACKAGE.CLASS"),
                ("nowhere.Flat", "cannot be imported"),
                ("FlattenObservation", "cannot be imported"),
                ("os.path.join", "is not a class of gymnasium.Wrapper"),
            )
        ),
        *(
            ({"name": "CartPole-v1", "wrappers": [wrapper]}, reason)
            for wrapper, reason in (
                ("gymnasium.wrappers.TimeLimit", "'max_episode_steps'; write {_target_: gymnasium"),
                (
                    {"_target_": "gymnasium.wrappers.TimeLimit", "steps": 3},
                    "_steps: VALUE}",
                ),
                ({"_target_": "gymnasium.wrappers.Autoreset", "a": 1}, "argument 'a'; write {_tar"),
                ({"max_episode_steps": 3}, "a wrapper without a name; write {_target_: PACKAGE"),
                ({"_target_": 3}, "a wrapper without a name"),
            )
        ),
        *(
            (
                {
                    "name": f"{MODULE}:Solver-v0",
                    "wrappers": [f"{MODULE}.Cropped"],
                    "options": options,
                },
                r"^env\.name=.*Cropped raised AssertionError: no image$",
            )
            for options in (None, {"kind": "number"})
        ),
        (
            {"name": f"{MODULE}:VectorOnly-v0"},
            r"^env\.vectorization=sync: VectorOnly-v0 supports vector_entry_point only",
        ),
        (
            {
                "name": "CartPole-v1",
                "vectorization": "vector_entry_point",
                "autoreset": "same_step",
            },
            "autoreset=same_step: .*only next_step",
        ),
        (
            {
                "name": f"{MODULE}:Counter-v0",
                "vectorization": "vector_entry_point",
                "options": {"autoreset": None},
            },
            r"use env\.vectorization=sync or async",
        ),
        ({"name": f"{MODULE}:Undrawable-v0", "mode": "demo"}, r"cannot render.*\(ansi\)"),
        ({"name": f"{MODULE}:Unfound-v0"}, "cannot be made: File robot.xml does not exist"),
        ({"name": f"{MODULE}:TupleAnswer-v0"}, "Tuple space .*FlattenObservation"),
        ({"name": f"{MODULE}:TakenName-v0"}, "an entry 'reward'"),
        ({"name": f"{MODULE}:TwoNames-v0"}, r"two entries .* have the name 'arm\.joints'"),
        ({"name": f"{MODULE}:Words-v0"}, r"actions of a Text space.*wrappers\.TransformAction"),
        ({"name": f"{MODULE}:ManySwitches-v0"}, r"2,048 combinations.*wrappers\.TransformAction"),
        ({"name": f"{MODULE}:Unbounded-v0"}, "no finite bounds"),
        ({"name": "CartPole-v1", "action_levels": 1}, "action_levels=1"),
        ({"name": "CartPole-v1", "action_levels": 5}, "levels=5: its actions are discrete; leave"),
        ({"name": "CartPole-v1", "frame_stack": 101}, "frame_stack=101"),
        ({"name": "CartPole-v1", "options": {"id": "Acrobot-v1"}}, r"env\.options\.id: Gym"),
        (
            {"name": "FrozenLake-v1", "options": {"map_name": "foo"}},
            r"^env\.options: FrozenLake-v1 cannot be made with map_name=foo: KeyError: 'foo'$",
        ),
        ({"name": "Blackjack-v1", "options": {"sab": True}}, "a Tuple space are not supported"),
        *(
            (
                {"name": "Pendulum-v1", "options": {"g": "foo"}, "vectorization": way},
                r"^env\.options: Pendulum-v1 cannot be stepped with g=foo: TypeError: unsupported",
            )
            for way in ("sync", "async")
        ),
    ],
)
def test_invalid_settings_raise_one_line_errors(settings: dict, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        GymnasiumEnv(**settings)


class Unlucky(gymnasium.Env):
    """Fails when it is built, for a reason that another environment does not have."""

    def __init__(self, kind: str = "odd") -> None:
        raise KeyError(kind)


def test_an_exception_of_an_environment_without_options_is_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(gymnasium.registry, "Unlucky-v0", EnvSpec("Unlucky-v0", Unlucky))
    with pytest.raises(KeyError, match="odd"):
        GymnasiumEnv(name="Unlucky-v0")
    with pytest.raises(ConfigurationError, match=r"with kind=even: KeyError: 'even'$"):
        GymnasiumEnv(name="Unlucky-v0", options={"kind": "even"})


@pytest.mark.parametrize(
    ("name", "package", "module", "extra"),
    [
        ("LunarLander-v3", "Box2D", "gymnasium.envs.box2d", "box2d"),
        ("HalfCheetah-v5", "mujoco", "gymnasium.envs.mujoco", "mujoco"),
    ],
)
def test_error_names_a_missing_extra(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str, module: str, extra: str
) -> None:
    for loaded in list(sys.modules):
        if loaded.startswith((module, package)):
            monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigurationError, match=rf'pip install "torchrl-gpu\[{extra}\]"'):
        GymnasiumEnv(name=name)


def test_name_is_required_and_checked_before_construction() -> None:
    with pytest.raises(ConfigurationError, match=r"env\.name: GymnasiumEnv needs this setting"):
        check_settings(GymnasiumEnv, {}, "env")
    with pytest.raises(ConfigurationError, match=r"env\.name=CartPol-v1: .*CartPole-v1"):
        check_settings(GymnasiumEnv, {"name": "CartPol-v1"}, "env")


def test_close_ends_the_processes_and_can_be_repeated(make_gym: MakeGym) -> None:
    env = make_gym(f"{MODULE}:Counter-v0", vectorization="async")
    env.rollout(2)
    processes = env._vector.processes
    assert all(process.is_alive() for process in processes)
    env.close()
    env.close()
    assert not any(process.is_alive() for process in processes)


def test_unsupported_spaces_leave_no_processes() -> None:
    before = _children()
    with pytest.raises(ConfigurationError):
        GymnasiumEnv(name=f"{MODULE}:TupleAnswer-v0", vectorization="async")
    assert _children() <= before


def test_ctrl_c_is_left_to_the_parent(make_gym: MakeGym) -> None:
    env = make_gym(f"{MODULE}:Counter-v0", vectorization="async")
    for process in env._vector.processes:
        os.kill(process.pid, signal.SIGINT)
    try:
        assert env.rollout(3).shape == (2, 3)
    except KeyboardInterrupt:  # Gymnasium reraises the error of a worker here
        pytest.fail("a worker has taken the interrupt for its own")


def test_workers_compute_on_one_thread(make_gym: MakeGym) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        env = make_gym(f"{MODULE}:ThreadCounter-v0", vectorization="async")
    finally:
        torch.set_num_threads(threads)
    assert env.reset()["observation"][:, 0].tolist() == [1.0, 1.0]


def _children() -> set[int]:
    return {child.pid for child in multiprocessing.active_children() if child.pid is not None}


@pytest.mark.parametrize(
    ("vectorization", "more"), [("sync", []), ("async", []), ("sync", ["-m", "seed=3"])]
)
def test_an_exception_of_the_environment_is_printed_without_the_frames_of_the_program(
    vectorization: str,
    more: list[str],
    caplog: pytest.LogCaptureFixture,
    recwarn: pytest.WarningsRecorder,
    program: Call,
) -> None:
    name = (f"env.name={MODULE}:Broken-v0", f"env.vectorization={vectorization}")
    ended = program("agent=dqn", "env=gym", *name, "device=cpu", *more)
    assert ended.code == 1
    _, heading, text = ended.err.partition("error: KeyError in ")
    assert (
        "to resume from the newest checkpoint:\n  python -m trainers.run checkpoint=" in caplog.text
    )
    file, first, *lines = text.splitlines()
    assert heading
    assert Path(file).samefile(environments.__file__)
    assert first == "Traceback (most recent call last):"
    assert [line.split(",")[-1] for line in lines if "File " in line] == [" in step", " in reward"]
    assert lines[-1] == "KeyError: 'the third joint is broken'"
    assert not [each for each in recwarn if "Worker" in str(each.message)]
