import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.collectors import Collector
from torchrl.envs import check_env_specs
from torchrl.envs.utils import step_mdp

from envs.marinenav import MarineNavEnv
from envs.marinenav.baselines import StraightToGoal
from envs.marinenav.sea_env import SeaEnv
from envs.marinenav.simulator import Simulator
from tests.helpers.environments import (
    check_that_transitions_are_not_overwritten,
    trajectory,
)
from tests.helpers.ranks import on_ranks
from tests.stand_in import Abilities, count_host_reads
from torchrl_gpu.checkpoints.state_file import load_state, save_state
from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.devices.memory import limited_memory
from torchrl_gpu.environments.robots import SharedPolicy
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.graphs import EAGER_CALLS
from torchrl_gpu.execution.options import GraphMode
from torchrl_gpu.processes import Processes

CROSSING: dict[str, Any] = {
    "num_robots": 2,
    "start": [[5.0, 20.0], [35.0, 20.0]],
    "goal": [[35.0, 20.0], [5.0, 20.0]],
    "theta0": [0.0, 3.14159],
    "velocity_r0": [[0.0, 0.0, 0.0]] * 2,
    "left_thrust0": [0.0, 0.0],
    "right_thrust0": [0.0, 0.0],
    "vortices": {"position": [], "clockwise": [], "circulation": [], "core_radius": 0.5},
    "obstacles": {"position": [], "radius": []},
}
ALONE: dict[str, Any] = {
    **{key: value[:1] for key, value in CROSSING.items() if isinstance(value, list)},
    "num_robots": 1,
    "vortices": CROSSING["vortices"],
    "obstacles": CROSSING["obstacles"],
}

# Episodes of the second stage begin after a few steps.
CHANGING = [(0, 3, 0, 30.0), (15, 5, 2, 40.0)]


def _random_actions(env: MarineNavEnv, steps: int, seed: int = 0) -> Tensor:
    shape = (steps, *env.action_spec["robots", "action"].shape)
    return 2.0 * torch.rand(shape, generator=torch.Generator().manual_seed(seed)) - 1.0


def motion(env: SeaEnv) -> Tensor:
    """Return the motion of all robots, `[num_envs, num_robots, 11]`."""
    return env.sea.motion.transpose(0, -1)


def _full_ahead(env: MarineNavEnv, now: TensorDict) -> TensorDict:
    now["robots", "action"] = torch.ones_like(env.action_spec.zero()["robots", "action"])
    return env.step(now)


def _starts(env: MarineNavEnv, episodes: int, steps: int) -> Tensor:
    """Return the motion of all robots at the start of episodes of some steps each."""
    now = env.reset()
    starts = [motion(env)]
    for _ in range(episodes - 1):
        for _ in range(steps):
            now["robots", "action"] = env.action_spec.zero()["robots", "action"]
            _, now = env.step_and_maybe_reset(now)
        starts.append(motion(env))
    return torch.stack(starts)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_robots": 1, "num_obstacles": 0, "normalize": False},
        {"num_robots": 3, "num_vortices": 4, "noise": False, "dtype": torch.float64},
        {"curriculum": True},
    ],
)
def test_env_satisfies_its_specs(settings: dict[str, Any]) -> None:
    env = MarineNavEnv(num_envs=3, **settings)
    check_env_specs(env)
    assert env.batch_size == (3,)
    assert env.discrete_actions.shape == (25, 2)
    assert env.discrete_actions[5 * 3 + 2].tolist() == [0.5, -1.0]


def test_env_from_scenarios_satisfies_its_specs() -> None:
    check_env_specs(MarineNavEnv.from_scenarios([CROSSING, ALONE]))


def test_elements_tell_the_quantities_that_the_numbers_stand_for() -> None:
    scaled, plain = (MarineNavEnv(num_envs=4, normalize=each) for each in (True, False))
    seen, expected = (env.reset()["robots"] for env in (scaled, plain))
    for key in ("observation", "objects"):
        elements = scaled.capabilities.elements[key]
        assert len(elements) == seen[key].shape[-1]
        scale = torch.tensor([each.scale for each in elements])
        torch.testing.assert_close(seen[key] * scale, expected[key])
        assert {each.scale for each in plain.capabilities.elements[key]} == {1.0}


@pytest.mark.parametrize("normalize", [True, False])
def test_observations_and_rewards_stay_within_their_specs(normalize: bool) -> None:
    env = MarineNavEnv(num_envs=64, num_vortices=3, normalize=normalize, max_episode_steps=60)
    actions = _random_actions(env, 10).sign().repeat_interleave(6, 0)
    steps = trajectory(env, actions, env.reset())
    after = steps["next"]
    assert after["done"].any()
    assert after["robots", "terminated"].any()
    keys = ["observation", "objects", "objects_mask", "active", "success"]
    for step in after:
        assert env.observation_spec.is_in(
            TensorDict({"robots": step["robots"].select(*keys), "success": step["success"]}, [64])
        )
        assert env.reward_spec["robots", "reward"].is_in(step["robots", "reward"])
    if normalize:
        assert steps["robots", "objects"][..., :2].abs().max() < 1.2


def test_automatic_reset_keeps_the_last_observation_in_next() -> None:
    env = MarineNavEnv(num_envs=4, max_episode_steps=3)
    steps = trajectory(env, torch.ones(7, 4, 5, 2), env.reset())
    own, after = steps["robots", "observation"], steps["next", "robots"]
    ends = steps["next", "done"][:, 0, 0].tolist()
    assert ends == [False, False, True, False, False, True, False]
    assert (after["observation"][2, ..., 5:] == 1.0).all(), "full thrust at the end of the episode"
    assert (own[3, ..., 5:] == 0.0).all(), "no thrust at the start of the next episode"
    assert not torch.allclose(own[0, ..., :2], own[3, ..., :2])
    torch.testing.assert_close(own[1:3], after["observation"][:2])
    assert after["truncated"][2][after["active"][2]].all()
    assert not after["terminated"][2][after["active"][2]].any()
    assert steps["next", "truncated"][2].all()
    assert not steps["next", "terminated"][2].any()
    assert not steps["done"].any()
    assert not steps["robots", "done"].any()
    assert steps["robots", "active"][3].all()


def test_collision_terminates_both_robots_once_with_the_collision_reward() -> None:
    env = MarineNavEnv.from_scenarios([CROSSING, ALONE], noise=False)
    now = env.reset()
    counted = torch.zeros(2, 2)
    for _ in range(40):
        was_active = now["robots", "active"][..., 0]
        stepped = _full_ahead(env, now)
        after = stepped["next", "robots"]
        ended = was_active & after["terminated"][..., 0]
        counted += ended
        assert (after["reward"][..., 0][~was_active] == 0.0).all()
        if ended[0].any():
            assert ended[0].all()
            assert not after["success"][0].any()
            assert (after["reward"][0] < -3.5).all()
            frozen = motion(env)[0]
        now = step_mdp(stepped)
    assert counted.tolist() == [[1.0, 1.0], [1.0, 0.0]]
    assert after["success"][:, 0, 0].tolist() == [False, True]
    assert stepped["next", "success"].flatten().tolist() == [False, True]
    assert stepped["next", "terminated"].all()
    assert torch.equal(motion(env)[0], frozen)


def test_inactive_robots_are_not_sensed() -> None:
    beside = {**CROSSING, "start": [[5.0, 20.0], [5.0, 30.0]], "goal": [[12.0, 20.0], [5.0, 99.0]]}
    env = MarineNavEnv.from_scenarios([beside], noise=False)
    now = env.reset()
    while not now["robots", "success"][0, 0]:
        assert now["robots", "objects_mask"][0, 1, 0]
        stepped = _full_ahead(env, now)
        assert stepped["next", "robots", "objects_mask"][0, 1, 0], "sensed until arrival"
        now = step_mdp(stepped)
    stepped = _full_ahead(env, now)
    assert not stepped["next", "robots", "objects_mask"][0, 1].any()
    assert not stepped["next", "done"].any()


def test_successive_episodes_differ() -> None:
    env = MarineNavEnv(num_envs=6, max_episode_steps=30)
    begun = _starts(env, 3, 30)[..., :2].flatten(0, 1)
    assert len(begun.unique(dim=0)) == 18


def test_partial_reset_leaves_other_seas_unchanged() -> None:
    env = MarineNavEnv(num_envs=5)
    trajectory(env, _random_actions(env, 6)[:, :5], env.reset())
    before, seen = motion(env), env.observe()
    mask = torch.zeros(5, 1, dtype=torch.bool)
    mask[2] = True
    after = env.reset(seen.clone().set("_reset", mask))
    others = torch.arange(5) != 2
    assert torch.equal(motion(env)[others], before[others])
    assert not torch.equal(motion(env)[2], before[2])
    assert (after["robots", "observation"][2, :, 5:] == 0.0).all()
    same = after["robots", "observation"][others] == seen["robots", "observation"][others]
    assert same.all()


def test_first_reset_starts_all_seas_regardless_of_the_mask() -> None:
    env = MarineNavEnv(num_envs=3)
    mask = torch.tensor([[True], [False], [False]])
    env.reset(TensorDict({"_reset": mask}, batch_size=[3]))
    assert env.sea.active.all()


def test_restored_state_reproduces_the_trajectory(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"num_envs": 6, "num_vortices": 1, "max_episode_steps": 25}
    env = MarineNavEnv(**settings, seed=1)
    actions = _random_actions(env, 60)
    trajectory(env, actions[:20], env.reset())
    now = env.observe()
    save_state(tmp_path / "env.safetensors", env.state_dict())
    expected = trajectory(env, actions[20:], now.clone())
    other = MarineNavEnv(**settings, seed=2)
    other.load_state_dict(load_state(tmp_path / "env.safetensors"))
    assert (other.observe() == now.exclude(("robots", "action"))).all()
    assert (trajectory(other, actions[20:], other.observe()) == expected).all()
    with pytest.raises(ConfigurationError, match="does not fit this environment"):
        MarineNavEnv(num_envs=5).load_state_dict(env.state_dict())


@pytest.mark.parametrize(("name", "value"), [("kind", -1), ("kind", 9), ("tries", -(2**62))])
def test_a_layout_that_nothing_completes_is_refused(name: str, value: int) -> None:
    env = MarineNavEnv(num_envs=2)
    env.reset()
    state = env.state_dict()
    state[f"draft.{name}"][1] = value
    with pytest.raises(ConfigurationError, match="a layout that nothing completes"):
        env.load_state_dict(state)


def test_seas_depend_on_the_seed_and_not_on_their_number() -> None:
    few, many = MarineNavEnv(num_envs=3, seed=5), MarineNavEnv(num_envs=9, seed=4)
    few.reset()
    many.set_seed(5)
    many.reset()
    assert torch.equal(motion(many)[:3], motion(few))
    few.set_seed(6)
    few.reset()
    assert not torch.equal(motion(many)[:3], motion(few))


@pytest.mark.slow
@pytest.mark.parametrize("steps", [30, 3])  # with 3, initial states repeat
def test_later_episodes_do_not_depend_on_the_number_of_seas(steps: int) -> None:
    few, some, many = (
        _starts(MarineNavEnv(num_envs=seas, max_episode_steps=steps, seed=5), 4, steps)
        for seas in (3, 19, 40)
    )
    assert torch.equal(many[:, :3], few)
    assert torch.equal(many[:, :19], some)


@pytest.mark.slow
def test_episodes_depend_on_their_number_and_not_on_their_duration() -> None:
    short, long = (
        _starts(MarineNavEnv(num_envs=6, max_episode_steps=steps, seed=5), 3, steps)
        for steps in (30, 41)
    )
    assert torch.equal(short, long)
    env = MarineNavEnv(num_envs=6, seed=5)
    for expected in short:
        now = env.reset()
        assert torch.equal(motion(env), expected)
        trajectory(env, _random_actions(env, 7), now)


@pytest.mark.parametrize("source", ["drawn", "scenarios"])
def test_reset_heals_a_sea_after_an_infinite_state(source: str) -> None:
    env: SeaEnv
    if source == "drawn":
        env, other = (MarineNavEnv(num_envs=3, num_vortices=2, seed=1) for _ in range(2))
    else:
        env, other = (MarineNavEnv.from_scenarios([CROSSING] * 3) for _ in range(2))
    mask = torch.tensor([[False], [True], [False]])
    for each in (env, other):
        now = each.reset()
        action = each.action_spec.zero()["robots", "action"]
        if each is env:
            action[1] = torch.nan
        now = step_mdp(each.step(now.set(("robots", "action"), action)))
        now = step_mdp(each.step(now.set(("robots", "action"), action)))
        if each is env:
            assert now["robots", "observation"][1].isnan().any()
        each.reset(now.set("_reset", mask))
    state, expected = env.state_dict(), other.state_dict()
    for name, tensor in expected.items():
        torch.testing.assert_close(state[name], tensor, rtol=0, atol=0)
    assert (env.observe() == other.observe()).all()


def test_actions_beyond_the_bounds_act_as_the_bounds() -> None:
    inside, beyond = (MarineNavEnv(num_envs=2, seed=3) for _ in range(2))
    actions = _random_actions(inside, 6).sign()
    expected = trajectory(inside, actions, inside.reset())["next", "robots", "observation"]
    found = trajectory(beyond, 5.0 * actions, beyond.reset())["next", "robots", "observation"]
    assert torch.equal(found, expected)


def test_episodes_begin_in_the_current_stage_of_the_curriculum() -> None:
    """All episodes do that begin two dozen steps or more after the stage, whatever is stored."""
    stages = [(0, 2, 0, 20.0), (1000, 4, 3, 35.0)]  # step 100
    env = MarineNavEnv(
        num_envs=10, num_robots=4, curriculum=True, schedule=stages, max_episode_steps=80
    )
    now = env.reset()
    for step in range(1, 161):
        now["robots", "action"] = env.action_spec.zero()["robots", "action"]
        _, now = env.step_and_maybe_reset(now)
        robots = env.sea.exists.sum(0)
        assert robots.tolist() == [2 if step < 160 else 4] * 10
        assert env.metrics()["curriculum/stage"] == (robots == 4).float().mean()


def test_curriculum_advances_by_frames_within_fixed_shapes() -> None:
    stages = [(0, 2, 0, 20.0), (200, 4, 3, 35.0)]
    settings: dict[str, Any] = {"num_envs": 10, "num_robots": 4, "num_obstacles": 3}
    env = MarineNavEnv(**settings, curriculum=True, schedule=stages, max_episode_steps=10)
    now = env.reset()
    assert env.sea.exists.sum(0).tolist() == [2] * 10
    assert (env.sea.obstacles[2] > 0).sum() == 0
    assert env.metrics() == {"curriculum/stage": 0.0}
    assert now["robots", "active"].sum(1).flatten().tolist() == [2] * 10
    for _ in range(60):
        now["robots", "action"] = torch.zeros(10, 4, 2)
        _, now = env.step_and_maybe_reset(now)
    assert env.metrics() == {"curriculum/stage": 1.0}
    assert env.sea.exists.sum(0).tolist() == [4] * 10
    assert (env.sea.obstacles[2] > 0).sum(0).tolist() == [3] * 10
    far = (env.sea.goal - env.sea.motion[:2]).norm(dim=0)
    assert far.min() > 34.0
    hard = MarineNavEnv(**settings, curriculum=True, schedule=stages, mode="eval")
    hard.reset()
    assert hard.sea.exists.all()


def test_a_mixture_trains_in_all_stages_at_once_and_evaluates_in_the_hardest() -> None:
    stages = [(0, 2, 0, 20.0), (200, 3, 1, 30.0), (400, 4, 3, 35.0)]
    settings: dict[str, Any] = {"num_envs": 7, "num_robots": 4, "num_obstacles": 3}
    env = MarineNavEnv(**settings, mixture=True, schedule=stages, max_episode_steps=10)
    now = env.reset()
    for _ in range(60):  # six episodes
        assert env.sea.exists.sum(0).tolist() == [4, 2, 4, 3, 4, 2, 4]
        assert (env.sea.obstacles[2] > 0).sum(0).tolist() == [3, 0, 3, 1, 3, 0, 3]
        now["robots", "action"] = torch.zeros(7, 4, 2)
        _, now = env.step_and_maybe_reset(now)
    assert env.metrics() == {}
    hard = MarineNavEnv(**settings, mixture=True, schedule=stages, mode="eval")
    hard.reset()
    assert hard.sea.exists.all()


@pytest.mark.parametrize("mixture", [False, True])
def test_processes_train_in_the_stages_of_all_seas_together(mixture: bool) -> None:
    stages = [(0, 2, 0, 20.0), (100, 3, 1, 30.0), (200, 4, 3, 35.0)]
    settings: dict[str, Any] = {"num_robots": 4, "schedule": stages, "max_episode_steps": 10}
    settings |= {"mixture": mixture, "curriculum": not mixture}

    def robots(env: MarineNavEnv) -> list[list[int]]:
        now, counts = env.reset(), []
        for _ in range(60):
            now["robots", "action"] = env.action_spec.zero()["robots", "action"]
            _, now = env.step_and_maybe_reset(now)
            counts.append(env.sea.exists.sum(0).tolist())
        return counts

    def of_share(processes: Processes) -> list[list[int]]:
        env = MarineNavEnv(num_envs=3, seed=processes.rank, **settings)
        env.join(processes)
        return robots(env)

    one, other = on_ranks(2, of_share)
    joined = [first + second for first, second in zip(one, other, strict=True)]
    assert joined == robots(MarineNavEnv(num_envs=6, **settings))
    assert joined[-1] == ([4, 2, 4, 3, 4, 2] if mixture else [4] * 6)


@pytest.mark.parametrize("saved", ["state_dict", "progress"])
def test_progress_is_restored_by_another_number_of_seas(saved: str) -> None:
    stages = [(0, 2, 0, 20.0), (50, 4, 3, 35.0)]
    settings: dict[str, Any] = {"num_robots": 4, "schedule": stages, "curriculum": True}
    env, other = (MarineNavEnv(num_envs=number, **settings) for number in (10, 3))
    env.rollout(5)
    other.reset()
    other.load_progress(getattr(env, saved)())
    other.reset()
    assert other.state_dict()["frames"] == 50
    assert other.sea.exists.sum(0).tolist() == [4] * 3
    with pytest.raises(ConfigurationError, match="the saved frames"):
        other.load_progress({"frames": torch.zeros(2)})


def test_more_seas_than_memory_holds_are_refused_with_a_number_that_fits() -> None:
    with (
        limited_memory(torch.device("cpu"), 16 * 1024**3),
        pytest.raises(ConfigurationError, match=r"^env\.num_envs=1000000: .*=\d+ would fit$"),
    ):
        MarineNavEnv(num_envs=1_000_000)


@pytest.mark.slow
@pytest.mark.parametrize("difficulty", ["curriculum", "mixture"])
def test_steps_with_resets_read_nothing_on_the_host(
    accelerator: torch.device, difficulty: str
) -> None:
    env = MarineNavEnv(
        num_envs=8,
        **{difficulty: True},  # type: ignore[arg-type]
        schedule=[(0, 3, 0, 30.0), (100, 5, 2, 40.0)],
        max_episode_steps=5,
        device=accelerator,
    )
    now = env.reset()
    action = env.rand_action(now)["robots", "action"]
    ends = torch.zeros((), dtype=torch.int64, device=accelerator)
    with count_host_reads() as counter:
        for _ in range(15):
            step, now = env.step_and_maybe_reset(now.set(("robots", "action"), action))
            ends += step["next", "done"].sum()
    assert counter.host_reads == counter.copies == 0, counter.report()
    assert ends.item() >= 3 * 8


@pytest.mark.slow
@pytest.mark.parametrize("accelerator", [Abilities(graphs=True)], indirect=True)
@pytest.mark.parametrize(
    "settings",
    [
        {"max_episode_steps": 6, "curriculum": True, "schedule": CHANGING},
        {"num_robots": 3, "num_vortices": 4, "noise": False, "max_episode_steps": 9},
    ],
)
def test_captured_seas_equal_eager_ones(
    settings: dict[str, Any], accelerator: torch.device
) -> None:
    """Also after resets, new seeds and loaded states and frames, and in the terms of rewards."""
    eager, captured = (
        MarineNavEnv(num_envs=3, seed=3, device=accelerator, graphs=graphs, **settings)
        for graphs in ("off", "on")
    )
    actions = _random_actions(eager, 10).to(accelerator)
    state = eager.state_dict()

    def check(after: str) -> None:
        assert (trajectory(captured, actions) == trajectory(eager, actions)).all(), after
        assert captured.reward_terms(1) == eager.reward_terms(1), after
        torch.testing.assert_close(captured.state_dict(), eager.state_dict(), rtol=0.0, atol=0.0)

    check("the first reset")
    seen = captured.sea.motion.clone()
    last = captured.sea.motion
    check("many steps")
    assert (last == seen).all()
    some = TensorDict({"_reset": torch.tensor([[True], [False], [True]])}, [3]).to(accelerator)
    for after in (
        lambda env: env.reset(some.clone()),
        lambda env: env.set_seed(5),
        lambda env: env.set_seeds([7, 8, 9]),
        lambda env: env.load_state_dict(state),
        lambda env: env.load_progress({"frames": env.progress()["frames"] // 2}),
    ):
        after(captured), after(eager)
        check(str(after))


@pytest.mark.parametrize("accelerator", [Abilities(graphs=True)], indirect=True)
def test_captured_seas_hand_out_copies(accelerator: torch.device) -> None:
    env = MarineNavEnv(num_envs=2, max_episode_steps=4, device=accelerator, graphs="on")
    check_that_transitions_are_not_overwritten(env, env.rand_action, steps=12)


@pytest.mark.parametrize("accelerator", [Abilities(graphs=True)], indirect=True)
def test_seas_are_captured_where_that_is_known_to_be_faster(
    accelerator: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, calls = Simulator.step, []

    def counted(simulator: Simulator, *arguments: Any) -> Any:
        calls.append(simulator)
        return step(simulator, *arguments)

    monkeypatch.setattr(Simulator, "step", counted)

    def captures(graphs: GraphMode) -> bool:
        calls.clear()
        env = MarineNavEnv(num_envs=1, device=accelerator, graphs=graphs)
        trajectory(env, _random_actions(env, EAGER_CALLS + 3).to(accelerator))
        return len(calls) == EAGER_CALLS + 1  # and in one more call to capture

    assert not captures("auto")
    assert captures("on")
    monkeypatch.setattr(type(accelerator_of(accelerator)), "captures", True)
    assert captures("auto")
    assert not captures("off")


@pytest.mark.parametrize("accelerator", [Abilities(graphs=True)], indirect=True)
def test_captured_seas_join_other_processes(accelerator: torch.device) -> None:
    others = Processes()
    others.rank, others.count = 1, 3
    eager, captured = (
        MarineNavEnv(num_envs=2, device=accelerator, graphs=graphs, mixture=True)
        for graphs in ("off", "on")
    )
    actions = _random_actions(eager, EAGER_CALLS + 1).to(accelerator)
    for _ in range(2):
        assert (trajectory(captured, actions) == trajectory(eager, actions)).all()
        assert (captured.progress()["frames"] == eager.progress()["frames"]).all()
        for env in (captured, eager):
            env.join(others)


@pytest.mark.parametrize("accelerator", [Abilities(graphs=True)], indirect=True)
def test_a_copy_of_captured_seas_goes_on_by_itself(accelerator: torch.device) -> None:
    env = MarineNavEnv(num_envs=2, max_episode_steps=3, device=accelerator, graphs="on")
    actions = _random_actions(env, EAGER_CALLS + 1).to(accelerator)
    trajectory(env, actions)
    state, copied = env.state_dict(), copy.deepcopy(env)
    following = trajectory(env, actions, env.observe())
    assert (trajectory(copied, actions, copied.observe()) == following).all()
    env.load_state_dict(state)
    assert (trajectory(env, actions, env.observe()) == following).all()


@pytest.mark.parametrize("accelerator", [Abilities(graphs=True)], indirect=True)
def test_seas_that_cannot_be_captured_name_their_setting(
    accelerator: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = MarineNavEnv(num_envs=1, device=accelerator, graphs="on")
    observe = env._observations
    monkeypatch.setattr(env, "_observations", lambda now: (now.stage.sum().item(), observe(now))[1])
    actions = _random_actions(env, EAGER_CALLS + 1).to(accelerator)
    with pytest.raises(
        ConfigurationError, match=r"^env\.graphs: the step of the seas .*; use env\.graphs=off$"
    ):
        trajectory(env, actions)


def test_steps_compile_to_one_graph() -> None:
    graphs = []

    def keep(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    eager, compiled = (MarineNavEnv(num_envs=3, max_episode_steps=2, seed=3) for _ in range(2))
    now, also_now = eager.reset(), compiled.reset()
    step = compiled.step_and_maybe_reset  # first as it is: it notes the names of the tensors
    for action in _random_actions(eager, 5):
        now["robots", "action"], also_now["robots", "action"] = action, action.clone()
        expected, now = eager.step_and_maybe_reset(now)
        found, also_now = step(also_now)
        assert (found == expected).all()
        assert (also_now == now).all()
        if not graphs:
            step = torch.compile(compiled.step_and_maybe_reset, fullgraph=True, backend=keep)
    assert len(graphs) == 1


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[Callable[..., Any]]:
    """Functions that were compiled; in place of code they give themselves."""
    functions: list[Callable[..., Any]] = []

    def keep(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        functions.append(function)
        return function

    monkeypatch.setattr(torch, "compile", keep)
    return functions


@pytest.mark.parametrize("compile_step", [False, None, True])
@pytest.mark.parametrize("may_compile", [False, True])
@pytest.mark.parametrize("steps", [14_999, 15_000])
def test_seas_are_compiled_for_long_trainings(
    steps: int, may_compile: bool, compile_step: bool | None, compilations: list[Callable[..., Any]]
) -> None:
    env = MarineNavEnv(num_envs=2, compile_step=compile_step)
    before = env.state_dict()
    for _ in range(2):  # as two parts of one training
        env.plan(steps, may_compile)
    is_long = steps == 15_000 and may_compile
    assert len(compilations) == (is_long if compile_step is None else compile_step)
    after = env.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize("compile_step", [None, True])
def test_seas_step_eagerly_where_the_compiler_fails(
    compile_step: bool | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        text = "no memory\nfor the compiler\nSet TORCHDYNAMO_VERBOSE=1 for the internal stack trace"
        raise torch._dynamo.exc.TorchDynamoException(text)

    monkeypatch.setattr(torch, "compile", lambda *_, **__: fail)
    eager = MarineNavEnv(num_envs=2, compile_step=False)
    env = MarineNavEnv(num_envs=2, compile_step=compile_step)
    env.plan(15_000, may_compile=True)
    warning = "the steps of the seas cannot be compiled and run eagerly: no memory for the compiler"
    assert [each.message for each in caplog.records if each.levelname == "WARNING"] == [warning]
    actions = _random_actions(env, 3)
    assert (trajectory(env, actions) == trajectory(eager, actions)).all()


def test_seas_step_eagerly_where_torch_compiles_no_further_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def shared(step: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
        # As before torch 2.13: all environments share the compiled forms of one function.
        left = {n: v for n, v in settings.items() if n not in ("options", "isolate_recompiles")}
        return compile_(step, backend="eager", **left)

    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", shared)
    with torch._dynamo.config.patch(cache_size_limit=1):
        for size in (2, 3):
            env = MarineNavEnv(num_envs=size)
            env.plan(15_000, may_compile=True)
            assert env.rollout(2).batch_size == (size, 2)


@pytest.mark.slow
def test_compiled_seas_are_those_of_eager_steps_within_rounding() -> None:
    eager, compiled = (MarineNavEnv(num_envs=8, compile_step=mode) for mode in (False, True))
    actions = _random_actions(eager, 20)
    found, expected = trajectory(compiled, actions), trajectory(eager, actions)
    torch.testing.assert_close(found.to_dict(), expected.to_dict(), rtol=1e-4, atol=1e-4)


def test_torchrl_collector_collects_from_the_environment() -> None:
    env = MarineNavEnv(num_envs=4, num_robots=2, num_obstacles=0, max_episode_steps=8)
    policy = SharedPolicy(StraightToGoal(), env)
    collector = Collector(env, policy, frames_per_batch=40, total_frames=40, track_traj_ids=False)
    (batch,) = list(collector)
    assert batch.shape == (4, 10)
    assert batch["next", "robots", "reward"].isfinite().all()
    assert batch["next", "done"].sum() == 4
    collector.shutdown()
