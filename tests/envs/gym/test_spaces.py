"""Conversion between Gymnasium spaces and tensors."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    Sequence,
    Space,
    Tuple,
)
from numpy.typing import NDArray
from torchrl.data import Bounded, Categorical, Unbounded

from envs.gym import GymnasiumEnv
from envs.gym.actions import actions_of
from envs.gym.observations import Checked, Observations
from envs.gym.wrappers import wrap
from tests.envs.gym.conftest import MakeGym
from tests.envs.gym.environments import MODULE, Counter, DictCounter, NestedChoices
from torchrl_gpu.errors import ConfigurationError
from trainers import load_policy
from trainers.run import run


def test_float_arrays_become_flat_float32_vectors() -> None:
    space = Box(np.array([[-1.0, -2.0, -3.0]] * 2), 5.0, dtype=np.float64)
    observations = Observations(space)
    spec = observations.spec(4)["observation"]
    assert isinstance(spec, Bounded)
    assert spec.dtype == torch.float32
    assert spec.low[0].tolist() == [-1, -2, -3, -1, -2, -3]
    assert spec.high.eq(5).all()
    batch = np.arange(24.0).reshape(4, 2, 3)
    read = observations.read(batch)["observation"]
    assert read.equal(torch.arange(24.0).reshape(4, 6))


@pytest.mark.filterwarnings("error")  # of an overflow
@pytest.mark.parametrize("bound", [np.inf, np.finfo(np.float32).max, np.finfo(np.float64).max])
def test_unbounded_vectors_have_unbounded_specs(bound: float) -> None:
    space = Box(np.array([-1.0, -bound]), np.array([1.0, bound]), dtype=np.float64)
    spec = Observations(space).spec(4)["observation"]
    assert isinstance(spec, Unbounded)
    assert spec.shape == (4, 2)


@pytest.mark.parametrize(
    ("shape", "channels_first"),
    [
        *(((8, 9, 3), False), ((8, 9, 1), False), ((9, 9, 20), False)),
        *(((1, 8, 9), True), ((4, 8, 9), True), ((2, 8, 9), True), ((8, 9, 9), True)),
    ],
)
def test_images_become_channels_first(shape: tuple[int, ...], channels_first: bool) -> None:
    observations = Observations(Box(0, 255, shape, np.uint8))
    batch = np.random.default_rng(0).integers(0, 256, (2, *shape), np.uint8)
    read = observations.read(batch)["pixels"]
    spec = observations.spec(2)["pixels"]
    assert spec.is_in(read)
    expected = batch if channels_first else batch.transpose(0, 3, 1, 2)
    assert np.array_equal(read.numpy(), expected)


def test_an_image_without_channels_has_one() -> None:
    observations = Observations(Box(0, 255, (9, 8), np.uint8))
    batch = np.random.default_rng(0).integers(0, 256, (2, 9, 8), np.uint8)
    read = observations.read(batch)["pixels"]
    assert observations.spec(2)["pixels"].is_in(read)
    assert np.array_equal(read.numpy(), batch[:, None])


@pytest.mark.parametrize(
    "space",
    [
        *(Box(0, 9, (2,), np.int64), Box(0, 255, (3,), np.uint8)),
        *(Box(0, 255, (7, 7, 3), np.uint8), Box(0, 255, (7, 9), np.uint8)),
    ],
)
def test_integers_and_images_too_small_for_convolutions_become_vectors(space: Box) -> None:
    observations = Observations(space)
    batch = np.stack([space.sample() for _ in range(2)])
    read = observations.read(batch)["observation"]
    assert observations.spec(2)["observation"].is_in(read)
    assert np.array_equal(read.numpy(), batch.reshape(2, -1))


def test_discrete_observations_become_one_hot_from_their_start() -> None:
    observations = Observations(Discrete(4, start=2))
    read = observations.read(np.array([2, 5]))["observation"]
    assert read.tolist() == [[1, 0, 0, 0], [0, 0, 0, 1]]
    assert observations.spec(2)["observation"].is_in(read)


@pytest.mark.parametrize(
    ("entry", "value", "said"),
    [
        (
            "camera",
            np.zeros((9, 8, 3), np.float32),
            r"float32 \(9, 8, 3\).* Box of uint8 \(9, 8, 3",
        ),
        ("place", np.zeros(4, np.float32), r"float32 \(4,\); its space is a Box of float32 \(2, 2"),
        ("phase", 1.5, r"float64 \(\); its space is a Discrete space"),
        ("phase", None, r"NoneType \(\); its space is a Discrete space"),
        ("phase", np.int64(1), r"int64 \(\); 1 is not in its space, 2 to 7"),
        ("phase", 8, r"int64 \(\); 8 is not in its space, 2 to 7"),
    ],
)
def test_an_entry_that_does_not_fit_its_space_is_refused_by_name(
    entry: str, value: object, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = DictCounter()
    checked = Checked(env)
    whole, _ = checked.reset()
    assert whole.keys() == env.observation_space.spaces.keys()
    monkeypatch.setattr(env, "observe", lambda: {**whole, entry: value})
    with pytest.raises(
        ConfigurationError, match=f"env.name=DictCounter: reset .* {entry} as {said}"
    ):
        checked.reset()


@pytest.mark.parametrize("reward", [3, np.float32(3), np.array(3), np.array([3.0]), [[3]]])
def test_one_number_in_any_form_is_a_reward(
    reward: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = DictCounter()
    monkeypatch.setattr(env, "reward", lambda _: reward)
    checked = Checked(env)
    checked.reset()
    found = checked.step(0)[1]
    assert type(found) is float
    assert found == 3.0


def test_dict_entries_keep_their_names() -> None:
    space = Dict(joints=Box(-1.0, 1.0, (3,)), camera=Box(0, 255, (9, 8, 3), np.uint8))
    observations = Observations(space)
    spec = observations.spec(2)
    assert set(spec.keys()) == {"joints", "camera"}
    assert spec["camera"].shape == (2, 3, 9, 8)
    read = observations.read({"joints": np.ones((2, 3)), "camera": np.zeros((2, 9, 8, 3))})
    assert read["joints"].dtype == torch.float32
    assert read["camera"].shape == (2, 3, 9, 8)


def test_names_of_nested_dict_entries_are_joined_by_dots() -> None:
    space = Dict(arm=Dict(joints=Box(-1.0, 1.0, (3,)), tool=Dict(kind=Discrete(2))), goal=Box(0, 1))
    observations = Observations(space)
    assert set(observations.spec(2).keys()) == {"arm.joints", "arm.tool.kind", "goal"}
    arm = {"joints": np.full((2, 3), 0.5), "tool": {"kind": np.array([1, 0])}}
    read = observations.read({"arm": arm, "goal": np.zeros((2, 1))})
    assert read["arm.joints"].eq(0.5).all()
    assert read["arm.tool.kind"].tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    "space",
    [
        MultiBinary(3),
        MultiDiscrete([2, 3]),
        Tuple((Discrete(2), Box(-1.0, 1.0, (2,)))),
        Dict(joints=Box(-1.0, 1.0, (3,)), gears=MultiDiscrete([2, 3])),
    ],
)
def test_an_environment_wrapped_as_an_error_advises_is_read(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = Counter()
    monkeypatch.setattr(env, "observation_space", space)
    monkeypatch.setattr(env, "observe", space.sample)
    with pytest.raises(ConfigurationError) as caught:
        Observations(space)
    wrapped = wrap(env, re.findall(r"env\.wrappers=\[(.+)\]$", str(caught.value)))
    observation, _ = Checked(wrapped).reset()
    assert "observation" in Observations(wrapped.observation_space).read(observation[None])


class MissionSpace(Space):
    """A space of another package, which does not say whether it can be flattened."""


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (Sequence(Discrete(2)), "Sequence space are"),
        (Graph(Box(0.0, 1.0, (2,)), None), "Graph space are"),
        (Dict(sight=Box(0.0, 1.0), task=Dict(goal=MissionSpace())), r"Mission space \(task.goal\)"),
    ],
)
def test_spaces_that_cannot_be_flattened_need_another_wrapper(space: Space, said: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{said}.*env.wrappers=\[PACKAGE.CLASS\]$"):
        Observations(space)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_wrappers_are_around_each_copy_from_the_first_to_the_last(
    make_gym: MakeGym, vectorization: str
) -> None:
    flatten = "gymnasium.wrappers.FlattenObservation"
    doubled = f"{MODULE}.Doubled"
    name, ways = f"{MODULE}:TupleAnswer-v0", {"vectorization": vectorization}
    env = make_gym(name, wrappers=[flatten, doubled], **ways)
    assert env.rollout(2)["observation"].sum(-1).eq(4).all()  # two choices, one-hot
    with pytest.raises(ConfigurationError, match="Tuple space"):
        make_gym(name, wrappers=[doubled], **ways)


def test_wrappers_show_the_agent_rendered_images(make_gym: MakeGym) -> None:
    render = "gymnasium.wrappers.AddRenderObservation"
    small = {"_target_": "gymnasium.wrappers.ResizeObservation", "shape": [64, 96]}
    options = {"render_mode": "rgb_array"}
    env = make_gym("CartPole-v1", wrappers=[render, small], options=options)
    assert env.observation_spec["pixels"].shape == (2, 3, 64, 96)
    frames = env.rollout(3)["next", "pixels"]
    assert not frames[:, 0].equal(frames[:, -1]), "the cart moves"


def test_wrappers_take_arguments(make_gym: MakeGym) -> None:
    limit = {"_target_": "gymnasium.wrappers.TimeLimit", "max_episode_steps": 3}
    env = make_gym("CartPole-v1", wrappers=[limit])
    assert env.rollout(9)["next", "truncated"].squeeze(-1).tolist() == [[False, False, True]] * 2


@pytest.mark.parametrize(
    "space",
    [
        Box(-1.0, 1.0, (3,), np.float32),
        Box(0, 255, (1, 8, 9), np.uint8),
        Box(0, 255, (8, 9, 1), np.uint8),
        Box(0, 255, (8, 9), np.uint8),
        Discrete(4),
    ],
)
def test_read_observations_are_copies(space: Space) -> None:
    batch = np.stack([space.sample() for _ in range(2)])
    (read,) = Observations(space).read(batch).values()
    before = read.clone()
    batch[...] = 0 if batch.any() else 1
    assert read.equal(before)


def test_discrete_actions_start_at_zero() -> None:
    actions = actions_of(Discrete(3, start=-1), num_envs=4, levels=3)
    spec = actions.spec
    assert isinstance(spec, Categorical)
    assert spec.shape == (4,)
    assert spec.n == 3
    assert actions.to_env(torch.tensor([0, 1, 2, 0])).tolist() == [-1, 0, 1, -1]


@pytest.mark.parametrize(
    ("space", "number"),
    [
        (MultiDiscrete([2, 3], start=[1, -1]), 6),
        (MultiDiscrete([[2, 3], [1, 2]]), 12),
        (MultiBinary(3), 8),
    ],
)
def test_several_choices_become_the_number_of_a_combination(space: Space, number: int) -> None:
    actions = actions_of(space, num_envs=number, levels=3)
    assert isinstance(actions.spec, Categorical)
    assert actions.spec.n == number
    rows = actions.to_env(torch.arange(number))
    assert all(row in space for row in rows)
    assert actions.choices is not None
    assert np.array_equal(rows.reshape(number, -1), actions.choices)
    assert len({row.tobytes() for row in rows}) == number


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_continuous_actions_are_mapped_to_the_bounds(dtype: type) -> None:
    low, high = np.array([[-2.0, 0.1], [5.0, -9.0]]), np.array([[2.0, 0.3], [6.0, -1.0]])
    space = Box(low.astype(dtype), high.astype(dtype), dtype=dtype)
    actions = actions_of(space, num_envs=3, levels=3)
    rows = torch.tensor([-1.0, 0.0, 1.0]).unsqueeze(1).expand(3, 4)
    assert actions.spec.is_in(rows)
    mapped = actions.to_env(rows)
    assert mapped.dtype == dtype
    assert np.allclose(mapped, np.stack((low, (low + high) / 2, high)))


def test_continuous_actions_stay_within_the_bounds() -> None:
    generator = np.random.default_rng(0)
    low = generator.normal(size=200).astype(np.float32)
    high = low + generator.uniform(1e-6, 3, size=200).astype(np.float32)
    actions = actions_of(Box(low, high), num_envs=4, levels=3)
    extremes = torch.tensor([[-1.0], [1.0], [-1.5], [1.5]]).expand(4, 200)
    assert all(row in Box(low, high) for row in actions.to_env(extremes))


@pytest.mark.parametrize(
    ("dimensions", "levels", "rows"), [(1, 3, 3), (2, 2, 4), (3, 3, 27), (3, 5, 125)]
)
def test_action_table_combines_the_levels_of_few_dimensions(
    dimensions: int, levels: int, rows: int
) -> None:
    table = torch.tensor(actions_of(Box(-2.0, 2.0, (dimensions,)), 1, levels).table)
    assert table.shape == (rows, dimensions)
    assert len(table.unique(dim=0)) == rows
    assert table.unique().allclose(torch.linspace(-1, 1, levels))


@pytest.mark.parametrize(("levels", "rows"), [(3, 9), (2, 9), (5, 17)])
def test_action_table_sets_single_dimensions_of_many(levels: int, rows: int) -> None:
    table = torch.tensor(actions_of(Box(-2.0, 2.0, (4,)), 1, levels).table)
    assert table.shape == (rows, 4)
    assert table[0].eq(0).all()
    assert (table[1:] != 0).sum(1).eq(1).all()
    assert len(table.unique(dim=0)) == rows
    assert set(table[table != 0].tolist()) == set(torch.linspace(-1, 1, levels).tolist()) - {0.0}


def test_only_continuous_action_spaces_have_an_action_table() -> None:
    assert GymnasiumEnv(name="CartPole-v1").capabilities.discrete_actions is None
    table = GymnasiumEnv(name="Pendulum-v1", action_levels=5).discrete_actions
    assert table.tolist() == [[-1.0], [-0.5], [0.0], [0.5], [1.0]]


def test_an_agent_learns_from_nested_observations_by_several_choices(tmp_path: Path) -> None:
    outcome = run(
        *("agent=ppo", "env=gym", f"env.name={MODULE}:NestedChoices-v0", "env.num_envs=2"),
        *("agent.hidden_sizes=[8]", "agent.rollout_length=8", "trainer.total_frames=32"),
        *("trainer.evaluation_episodes=2", "evaluation.episodes=2", "device=cpu"),
        *("observation_keys=[place,sight.inner.phase]", "trainer.loggers=[]", f"runs={tmp_path}"),
    )
    assert outcome.best is not None
    policy = load_policy(outcome.best)
    seen: dict[str, NDArray] = {
        "place": np.zeros((5, 4), np.float32),
        "sight.inner.phase": np.zeros((5, 6)),
    }
    assert all(row in NestedChoices.action_space for row in policy.predict(seen))
    keys = "observation_keys:\n- place\n- sight.inner.phase\n"
    assert keys in (outcome.folder / "config.yaml").read_text()
    saved = (f"checkpoint={outcome.folder}", "device=cpu", "trust=tests")
    assert run("mode=eval", *saved).evaluation == outcome.evaluation
    assert list(run(*saved, "trainer.total_frames=48").evaluations) == [32, 48]


def test_continuous_agents_refuse_several_choices() -> None:
    command = ("agent=sac", "env=gym", f"env.name={MODULE}:NestedChoices-v0", "device=cpu")
    with pytest.raises(ConfigurationError, match="agents that do: dqn, iqn, ppo, rainbow"):
        run(*command)
