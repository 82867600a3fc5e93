import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs import StepCounter, TransformedEnv, check_env_specs

from envs.fanuc import FanucEnv
from envs.fanuc.reward import ACTION_COST, HOLD_COST, PROGRESS_REWARD, STEP_COST, SUCCESS_REWARD
from envs.fanuc.robot import CONTROL_RATE
from envs.fanuc.worker_pool import WorkerPool
from tests.helpers.environments import trajectory
from tests.helpers.ranks import on_ranks
from torchrl_gpu.acting.collector import BatchCollector
from torchrl_gpu.devices.memory import limited_memory
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.environment import Environment
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.processes import Processes

MakeEnv = Callable[..., FanucEnv]

HOME_FLANGE = torch.tensor([0.395, 0.0, 0.625])


def _act(env: FanucEnv, action: torch.Tensor, tensordict: TensorDict) -> TensorDict:
    return env.step(tensordict.clone().set("action", action))["next"]


def _random_actions(steps: int, num_envs: int, seed: int = 0) -> torch.Tensor:
    noise = torch.rand(steps, num_envs, 6, generator=torch.Generator().manual_seed(seed))
    return 2 * noise - 1


def _counting(env: FanucEnv) -> Environment:
    return as_environment(TransformedEnv(env, StepCounter()))


def _equal(first: TensorDict, second: TensorDict) -> bool:
    return bool((first == second).all())


def _put_targets(env: FanucEnv, arms: list[int], offset: float = 0.0) -> None:
    """Move the targets of some arms to their flanges, raised by `offset` metres."""
    state = env.state_dict()
    lift = torch.tensor([0.0, 0.0, offset])
    state["arms"]["target"][arms] += (env.tool_position + lift - env.target)[arms]
    state["arms"]["distance"][arms] = offset
    env.load_state_dict(state)


@pytest.mark.parametrize("settings", [{}, {"mode": "eval"}, {"robot": "lr_mate_200id"}])
def test_env_satisfies_its_specs(make_env: MakeEnv, settings: dict[str, Any]) -> None:
    env = make_env(num_envs=3, **settings)
    check_env_specs(env)
    assert env.batch_size == (3,)
    assert env.action_spec.shape == (3, 6)
    assert env.observation_spec["observation"].shape == (3, 36)


def test_observations_stay_within_their_spec(make_env: MakeEnv) -> None:
    """Extreme actions, held until arms hit the floor, themselves and their limits."""
    env = make_env(num_envs=8, max_episode_steps=100)
    actions = _random_actions(6, 8).sign().repeat_interleave(25, 0)
    steps = trajectory(env, actions)
    for step in steps:
        assert env.observation_spec.is_in(step["next"].select("observation", "success"))
        assert env.reward_spec.is_in(step["next", "reward"])
    assert steps["next", "done"].any()


def test_rollout_resets_arms_independently(make_env: MakeEnv) -> None:
    env = make_env(max_episode_steps=10)
    hold = torch.zeros(4, 6)
    steps = trajectory(env, hold.expand(3, 4, 6))
    assert not steps["next", "done"].any()
    _put_targets(env, [1])  # reached in the fourth step; the others end at their time limits
    _put_targets(env, [0, 2, 3], offset=0.3)
    steps = trajectory(env, hold.expand(22, 4, 6), env.observe())
    ends = [row.nonzero().squeeze(-1).tolist() for row in steps["next", "done"][..., 0].T]
    assert [ends[arm][:2] for arm in (0, 2, 3)] == [[6, 16]] * 3
    assert ends[1][:3] == [0, 10, 20]


def test_time_limit_truncates_and_does_not_terminate(make_env: MakeEnv) -> None:
    env = make_env(max_episode_steps=3)
    tensordict, hold = env.reset(), torch.zeros(4, 6)
    _put_targets(env, [0, 1, 2, 3], offset=0.3)
    for step in (1, 2, 3):
        after = _act(env, hold, tensordict)
        assert after["truncated"].all() == (step == 3)
        assert after["done"].all() == (step == 3)
        assert not after["terminated"].any()
        assert not after["success"].any()


def test_success_terminates_even_at_the_time_limit(make_env: MakeEnv) -> None:
    env = make_env(max_episode_steps=1)
    tensordict = env.reset()
    _put_targets(env, [0])
    _put_targets(env, [1, 2, 3], offset=0.3)
    after = _act(env, torch.zeros(4, 6), tensordict)
    assert after["success"].squeeze().tolist() == [True, False, False, False]
    assert after["terminated"].squeeze().tolist() == [True, False, False, False]
    assert after["truncated"].squeeze().tolist() == [False, True, True, True]
    assert after["done"].all()


def test_success_depends_on_the_success_radius(make_env: MakeEnv) -> None:
    env = make_env(success_radius=0.05)
    tensordict = env.reset()
    _put_targets(env, [0, 1], offset=0.04)
    _put_targets(env, [2, 3], offset=0.06)
    after = _act(env, torch.zeros(4, 6), tensordict)
    assert after["success"].squeeze().tolist() == [True, True, False, False]


def test_reward_is_the_documented_sum(make_env: MakeEnv) -> None:
    env = make_env()
    tensordict = env.reset()
    _put_targets(env, [0])
    before = (env.target - env.tool_position).norm(dim=-1, keepdim=True)
    action = 0.02 * _random_actions(1, 4)[0]
    after = _act(env, action, tensordict)
    progress = before - (env.target - env.tool_position).norm(dim=-1, keepdim=True)
    expected = PROGRESS_REWARD * progress - STEP_COST + SUCCESS_REWARD * after["success"]
    expected -= ACTION_COST * action.square().mean(-1, keepdim=True)
    assert after["success"].sum() == 1
    torch.testing.assert_close(after["reward"], expected, atol=1e-5, rtol=0)


def test_next_holds_the_last_observation_and_the_root_the_first(make_env: MakeEnv) -> None:
    env = make_env(max_episode_steps=1)
    first = env.reset().set("action", torch.full((4, 6), 0.5))
    step, following = env.step_and_maybe_reset(first)
    speeds = step["next", "observation"][:, 6:12]
    assert (speeds > 0.3).all(), "the arms were moving when the episode ended"
    assert (following["observation"][:, 6:12] == 0).all(), "the arms start the next episode at rest"
    assert not following["done"].any()


def test_partial_reset_leaves_other_arms_unchanged(make_env: MakeEnv) -> None:
    disturbed, calm = make_env(num_envs=8), make_env(num_envs=8)
    actions = _random_actions(20, 8)
    for env in (disturbed, calm):
        trajectory(env, actions[:10])
    mask = torch.zeros(8, 1, dtype=torch.bool)
    mask[3] = True
    before = disturbed.observe()
    after = disturbed.reset(before.clone().set("_reset", mask))
    others = ~mask.squeeze(-1)
    assert torch.equal(after["observation"][others], before["observation"][others])
    assert (after["observation"][3] != before["observation"][3]).any()
    ours = trajectory(disturbed, actions[10:], after)
    theirs = trajectory(calm, actions[10:], calm.observe())
    assert _equal(ours["next"][:, others], theirs["next"][:, others])
    assert not torch.equal(ours["next", "observation"][:, 3], theirs["next", "observation"][:, 3])


def test_reset_of_no_arm_changes_nothing(make_env: MakeEnv) -> None:
    disturbed, calm = make_env(num_envs=2), make_env(num_envs=2)
    before = calm.reset()
    disturbed.reset()
    after = disturbed.reset(before.clone().set("_reset", torch.zeros(2, 1, dtype=torch.bool)))
    assert torch.equal(after["observation"], before["observation"])
    actions = _random_actions(20, 2)
    assert _equal(trajectory(disturbed, actions, after), trajectory(calm, actions, before))


def test_idle_arms_are_left_out_and_change_nothing_for_others(make_env: MakeEnv) -> None:
    env, calm = (_counting(make_env(num_envs=16, max_episode_steps=15)) for _ in range(2))
    actions = _random_actions(30, 16)
    env.reset()
    calm.reset()
    # Two arms share a client: the last worker, one client of another, and half of a client.
    idle = torch.arange(16) >= 5
    env.set_idle(idle)
    ours, theirs = (trajectory(each, actions, each.observe()) for each in (env, calm))
    assert _equal(ours["next"][:, :5], theirs["next"][:, :5])
    left_out = ours["next", "observation"][:14, 6:, :12]
    assert torch.equal(left_out, left_out[:1].expand_as(left_out))
    env.set_seed(5)
    calm.set_seed(5)
    ours, theirs = (trajectory(each, actions) for each in (env, calm))
    assert _equal(ours["next"], theirs["next"])


def test_reset_starts_new_episodes_at_rest(make_env: MakeEnv) -> None:
    env = make_env(num_envs=16, max_episode_steps=5)
    trajectory(env, _random_actions(4, 16))
    env.reset()
    postures, targets = env.joint_positions, env.target
    assert (env.joint_velocities == 0).all()
    env.reset()
    assert (env.joint_positions != postures).any(-1).all()
    assert (env.target != targets).any(-1).all()
    assert not _act(env, torch.zeros(16, 6), env.observe())["truncated"].any()


def test_trajectory_does_not_depend_on_the_workers(make_env: MakeEnv) -> None:
    actions = _random_actions(30, 12)
    common = {"num_envs": 12, "seed": 7, "max_episode_steps": 12}
    first, *others = (
        trajectory(make_env(**common, num_workers=number), actions) for number in (2, 1, 3)
    )
    assert all(_equal(other, first) for other in others)


def test_seed_determines_starts_and_targets(make_env: MakeEnv) -> None:
    env = make_env(seed=1)
    first = env.reset()["observation"]
    assert not torch.equal(env.reset()["observation"], first)
    env.set_seed(1)
    assert torch.equal(env.reset()["observation"], first)
    env.set_seed(2)
    assert not torch.equal(env.reset()["observation"], first)


def test_restored_state_reproduces_the_trajectory(make_env: MakeEnv) -> None:
    settings = {"num_envs": 8, "max_episode_steps": 30}
    # Actions are held, so that some arms touch the floor when the state is saved.
    actions = _random_actions(9, 8).sign().repeat_interleave(10, 0)
    env = make_env(**settings)
    trajectory(env, actions[:55])
    state = env.state_dict()
    carried_on = trajectory(env, actions[55:], env.observe())
    other = make_env(**settings, seed=99)
    other.load_state_dict(state)
    assert _equal(trajectory(other, actions[55:], other.observe()), carried_on)
    other.load_state_dict(state)
    assert _equal(trajectory(other, actions[55:], other.observe()), carried_on)


def test_the_state_is_plain_and_that_of_one_arm_and_number_of_arms(make_env: MakeEnv) -> None:
    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.tolist()
        return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else value

    env, of_another_arm = make_env(), make_env(robot="lr_mate_200id")
    json.dumps(plain(env.state_dict()))
    with pytest.raises(ConfigurationError, match=r"lr_mate_200ic\.urdf: .* is of another arm"):
        env.load_state_dict(of_another_arm.state_dict())
    with pytest.raises(ConfigurationError, match=r"env\.num_envs=5: the saved state has 4 arms"):
        make_env(num_envs=5).load_state_dict(env.state_dict())


def test_curriculum_starts_easy_and_rises_with_success(make_env: MakeEnv) -> None:
    env = make_env(num_envs=64, max_episode_steps=1)
    env.reset()
    assert env.metrics()["curriculum/grade"] == 0.0
    assert ((env.target - HOME_FLANGE).norm(dim=-1) < 0.4).all()
    hold = torch.zeros(64, 6)
    for _ in range(4):
        _put_targets(env, list(range(64)))
        env.step_and_maybe_reset(env.observe().set("action", hold))
    assert env.metrics()["curriculum/grade"] == 1.0
    env.reset()
    assert ((env.target - HOME_FLANGE).norm(dim=-1) > 0.4).any()
    restored = make_env(num_envs=64)
    restored.load_state_dict(env.state_dict())
    assert restored.metrics()["curriculum/grade"] == 1.0


def test_processes_climb_together_whatever_one_of_them_does_alone(make_env: MakeEnv) -> None:
    easy = {"success_radius": 10.0, "grade_ceiling": "medium"}  # every step ends every episode
    envs = [make_env(num_envs=20, seed=rank, **easy) for rank in range(2)]

    def climb(processes: Processes) -> list[float]:
        rank, env = processes.rank, _counting(envs[processes.rank])
        env.join(processes)
        collector = BatchCollector(env, env.device, ["observation"])
        grades = []
        for step in range(8):
            collector.begin(lambda root: root.set("action", torch.zeros(20, 6)))
            if (step, rank) == (1, 1):  # the episodes of its arms do not count
                os.kill(envs[rank].worker_pids[0], signal.SIGKILL)
            collector.finish()
            if (step, rank) == (2, 0):
                collector.restart(torch.arange(20) < 3)
            if (step, rank) == (3, 1):
                collector.load_state_dict(collector.state_dict())
            grades.append(float(env.metrics()["curriculum/grade"]))
        return grades

    assert on_ranks(2, climb) == [[0.0] * 5 + [1.0] * 3] * 2


@pytest.mark.parametrize(
    ("view", "saved"), [(lambda env: env, "state_dict"), (_counting, "progress")]
)
def test_progress_is_restored_by_another_number_of_arms(
    make_env: MakeEnv,
    view: Callable[[FanucEnv], Environment],
    saved: str,
) -> None:
    env, other = (view(make_env(num_envs=number, success_radius=10.0)) for number in (41, 3))
    root = env.reset()
    for _ in range(6):
        root = env.step_and_maybe_reset(root.set("action", torch.zeros(41, 6)))[1]
    other.load_progress(getattr(env, saved)())
    root = other.reset()
    grades = []
    for _ in range(53):
        grades.append(float(other.metrics()["curriculum/grade"]))
        root = other.step_and_maybe_reset(root.set("action", torch.zeros(3, 6)))[1]
    # The window held the 41 episodes of one step: 41 + 53 * 3 = 200.
    assert grades == [1.0] * 53
    assert other.metrics()["curriculum/grade"] == 2.0


@pytest.mark.parametrize(
    ("settings", "grade"),
    [
        ({"mode": "eval"}, 2.0),
        ({"curriculum": False}, 2.0),
        ({"grade_ceiling": "easy"}, 0.0),
        ({"mode": "eval", "grade_ceiling": "medium"}, 1.0),
    ],
)
def test_hardest_grade_depends_on_the_mode(
    make_env: MakeEnv, settings: dict[str, Any], grade: float
) -> None:
    assert make_env(**settings).metrics()["curriculum/grade"] == grade


def test_evaluation_draws_all_grades_equally(make_env: MakeEnv) -> None:
    env = make_env(mode="eval")
    targets = []
    for _ in range(150):
        env.reset()
        targets.append(env.target)
    share = (torch.cat(targets) - HOME_FLANGE).norm(dim=-1) / env.robot.reach
    grades = [(share < 0.45).sum(), ((share >= 0.45) & (share < 0.75)).sum(), (share >= 0.75).sum()]
    assert sum(grades) == 600
    assert all(160 < grade < 240 for grade in grades)


def test_discrete_actions_move_one_joint_fast_or_slowly(make_env: MakeEnv) -> None:
    env = make_env(num_envs=25)
    table = env.discrete_actions
    assert table.shape == (25, 6)
    assert (table.abs() <= 1).all()
    tensordict = env.reset()
    before = env.joint_positions
    for _ in range(3):
        _act(env, table, tensordict)
    moved = env.joint_positions - before
    assert moved[0].abs().max() < 1e-3
    full = 3 * env.robot.velocity / CONTROL_RATE  # rad
    for joint in range(6):
        for row, share in enumerate((1.0, -1.0, 0.2, -0.2), start=4 * joint + 1):
            assert 0.7 < moved[row, joint] / (share * full[joint]) < 1.0  # it accelerates first
            moved[row, joint] = 0
    assert moved.abs().max() < 5e-3


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_reset_heals_an_arm_after_a_non_finite_action(make_env: MakeEnv, value: float) -> None:
    env, calm = make_env(), make_env()
    action = torch.full((4, 6), 0.2)
    root, expected = env.reset(), calm.reset()
    bad = action.clone()
    bad[1, 2] = value
    env.step(root.clone().set("action", bad))
    calm.step(expected.clone().set("action", action))
    for arms in (env, calm):
        arms.set_seed(3)
        arms.reset()
    for _ in range(3):
        ours = _act(env, action, env.observe())
        theirs = _act(calm, action, calm.observe())
        assert _equal(ours, theirs)


def test_holding_demands_rest_at_the_target(make_env: MakeEnv) -> None:
    env = make_env(success="hold", hold_steps=3)
    hold, moving = torch.zeros(4, 6), torch.zeros(4, 6)
    moving[1, 0] = 0.3
    root = env.reset()
    _put_targets(env, [0, 1, 2])
    _put_targets(env, [3], offset=0.3)
    done = []
    for step in range(4):
        if step == 1:
            _put_targets(env, [0, 1, 2])
        after = _act(env, moving if step < 1 else hold, root)
        done.append(after["success"].squeeze(1).tolist())
    assert [row[0] for row in done] == [False, False, True, True]
    assert [row[1] for row in done] == [False, False, False, True], "it moved in the first step"
    assert not any(row[3] for row in done)
    # Nearly at rest, unrest = 1 - exp(-distance / 0.05 m).
    distance = (env.tool_position - env.target).norm(dim=1)
    expected = -HOLD_COST * (1 - torch.exp(-distance / 0.05))
    found = torch.tensor([env.reward_terms(index)["unrest"] for index in range(4)])
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0)


def test_control_rate_sets_the_time_of_a_step(make_env: MakeEnv) -> None:
    moved = []
    for rate in (20, 60, 240):
        env = make_env(control_rate=rate)
        assert env.capabilities.step_seconds == pytest.approx(1 / rate)
        root, before = env.reset(), env.joint_positions
        for _ in range(rate // 10):  # a tenth of a second
            _act(env, torch.full((4, 6), 0.1), root)
        moved.append(env.joint_positions - before)
    for other in moved[1:]:
        torch.testing.assert_close(other, moved[0], atol=5e-3, rtol=0)


def test_a_target_of_the_user_is_checked_and_used(make_env: MakeEnv) -> None:
    env = make_env()
    env.reset()
    wanted = torch.tensor([[0.4, 0.1, 0.5], [0.4, -0.2, 0.6], [0.3, 0.3, 0.4], [0.5, 0.0, 0.5]])
    env.set_target(wanted)
    torch.testing.assert_close(env.target, wanted)
    distance = (env.tool_position - wanted).norm(dim=1)
    torch.testing.assert_close(env.observe()["observation"][:, 34], (-distance / 0.05).exp())
    wanted[2] = torch.tensor([0.0, 0.0, 2.0])
    assert env.is_reachable(wanted).tolist() == [True, True, False, True]
    with pytest.raises(
        ConfigurationError, match=r"target \[0.0, 0.0, 2.0\] of arm 2 cannot be reached"
    ):
        env.set_target(wanted)
    for shape in ((2,), (2, 3), (3, 4)):
        with pytest.raises(ConfigurationError, match=r"give \[3\] or \[4, 3\]"):
            env.set_target(torch.zeros(shape))


def test_noise_moves_targets_by_its_size_at_most_and_keeps_them_reachable(
    make_env: MakeEnv,
) -> None:
    plain, noisy = make_env(num_envs=64), make_env(num_envs=64, target_noise=0.01)
    plain.reset()
    noisy.reset()
    moved = (plain.target - noisy.target).norm(dim=1)
    assert (moved > 0).all()
    assert moved.max() <= 0.01
    assert noisy.is_reachable(noisy.target).all()


def test_a_window_can_be_declined(make_env: MakeEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":4321")
    with pytest.MonkeyPatch.context() as patch:
        asked: list[bool] = []

        def build(_: WorkerPool, *arguments: Any) -> None:
            asked.append(arguments[4])
            raise RuntimeError

        patch.setattr(WorkerPool, "__init__", build)
        for window in (True, False):
            with pytest.raises(RuntimeError):
                make_env(mode="demo", window=window)
    assert asked == [True, False]


def test_an_arm_of_seven_joints(make_env: MakeEnv) -> None:
    env = make_env(urdf="kuka_iiwa/model.urdf", discrete_speeds=[0.5], control_rate=30)
    check_env_specs(env)
    assert env.action_spec.shape == (4, 7)
    assert env.observation_spec["observation"].shape == (4, 40)
    assert env.discrete_actions.shape == (15, 7)
    assert env.discrete_actions.abs().max() == 0.25  # the angle of a step at 60 Hz
    assert {capsule.link for capsule in env.robot.capsules} == set(range(8))


def _chain(joints: int) -> str:
    """Return the URDF of a chain of capsules, 20 cm from joint to joint; every second one bends."""
    body = (
        '<collision><origin xyz="0 0 0.1"/><geometry><capsule radius="0.03" length="0.1"/>'
        "</geometry></collision><inertial><mass value='0.1'/><inertia ixx='1e-3' iyy='1e-3' "
        "izz='1e-3' ixy='0' ixz='0' iyz='0'/></inertial>"
    )
    links = [f"<link name='link_{number}'>{body}</link>" for number in range(joints + 1)]
    limit = "<limit lower='-2.2' upper='2.2' velocity='3' effort='200'/>"
    axes = [f"0 {number % 2} {1 - number % 2}" for number in range(joints)]
    parts = [
        f"<joint name='joint_{number}' type='revolute'><origin xyz='0 0 0.2'/>"
        f"<parent link='link_{number}'/><child link='link_{number + 1}'/>"
        f"<axis xyz='{axis}'/>{limit}</joint>"
        for number, axis in enumerate(axes)
    ]
    return f"<robot name='chain'>{''.join(links + parts)}</robot>"


@pytest.mark.parametrize("joints", [4, 8])
def test_the_smallest_and_the_largest_number_of_joints(
    make_env: MakeEnv, tmp_path: Path, joints: int
) -> None:
    file = tmp_path / "a chain.urdf"
    file.write_text(_chain(joints))
    env = make_env(urdf=str(file), mode="eval")
    check_env_specs(env)
    assert env.observation_spec["observation"].shape == (4, 4 * joints + 12)
    assert env.discrete_actions.shape == (4 * joints + 1, joints)
    assert env.is_reachable(env.target).all()
    action = torch.eye(4, joints)
    start = env.reset()
    before = env.joint_positions
    _act(env, action, start)
    moved = env.joint_positions - before
    torch.testing.assert_close(moved.float(), action * 3 / 60, atol=0.02, rtol=0)


def test_any_number_of_arms(make_env: MakeEnv) -> None:
    env = make_env(num_envs=11, num_workers=3)
    assert env.rollout(2).shape == (11, 2)
    assert len(env.worker_pids) == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_envs": 0}, "num_envs=0"),
        ({"num_workers": 0}, "num_workers=0"),
        ({"robot": "kuka"}, "robot=kuka.*lr_mate_200ic"),
        ({"success_radius": -1}, "success_radius=-1"),
        ({"max_episode_steps": 0}, "max_episode_steps=0"),
        ({"mode": "play"}, "mode=play.*train"),
        ({"grade_ceiling": "extreme"}, "grade_ceiling=extreme"),
        ({"home": [0.0, 0.0]}, r"env\.home=\[0\.0, 0\.0\]: the arm has 6 joints"),
        ({"tool": "gripper"}, r"env\.tool=gripper behind its last joint, but link_6"),
        ({"control_rate": 0}, "control_rate=0"),
        ({"target_noise": 0.5}, "target_noise=0.5"),
        (
            {"robot": "lr_mate_200id", "urdf": "no/such.urdf"},
            r"env\.robot=lr_mate_200id, env\.urdf=no/such\.urdf: both name an arm",
        ),
        ({"hold_steps": 5}, r"^env\.hold_steps=5: without effect; add env\.success=hold"),
        ({"hold_speed": 0.1}, r"^env\.hold_speed=0\.1: without effect; add env\.success=hold"),
        (
            {"success": "hold", "max_episode_steps": 9},
            r"^env\.hold_steps=10: an episode has only env\.max_episode_steps=9",
        ),
        ({"urdf": "no/such.urdf"}, r"urdf=no/such\.urdf: cannot be read"),
    ],
)
def test_invalid_settings_raise_one_line_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        FanucEnv(**settings)


@pytest.mark.parametrize("simulator", ["pybullet", "genesis"])
def test_more_arms_than_memory_holds_are_refused_with_a_number_that_fits(simulator: Any) -> None:
    with (
        limited_memory(torch.device("cpu"), 16 * 1024**3),
        pytest.raises(ConfigurationError, match=r"env\.num_envs=1000000: .*=\d+ would fit"),
    ):
        FanucEnv(num_envs=1_000_000, simulator=simulator)
