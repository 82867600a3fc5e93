"""Episodes of the world `gym`: the same ones in every autoreset mode and vectorization."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.envs import EnvBase

from envs.gym import GymWorld
from tests.envs.gym.environments import MODULE, TIME_LIMIT
from torchrl_gpu.errors import ConfigurationError

MODES = ("disabled", "same_step", "next_step")
COUNTER = f"{MODULE}:Counter-v0"

Transition = tuple[Any, ...]


@pytest.fixture
def make_world() -> Iterator[Callable[..., GymWorld]]:
    """Build worlds of three counters unless told otherwise, and close them after the test."""
    made: list[GymWorld] = []

    def make(vectorization: Any = "sync", autoreset: Any = "disabled", **settings: Any) -> GymWorld:
        settings = {"name": COUNTER, "num_envs": 3, "seed": 7, **settings}
        if vectorization == "vector_entry_point":
            settings["options"] = {"autoreset": autoreset}
        made.append(GymWorld(vectorization=vectorization, autoreset=autoreset, **settings))
        return made[-1]

    yield make
    for world in made:
        world.close()


def act(tensordict: TensorDictBase) -> TensorDictBase:
    """Act by what is seen and nothing else: rows that are no transitions must not matter."""
    seen = tensordict["observation"].sum(-1).long()
    return tensordict.set("action", seen % 3)


def transitions_by_hand(index: int, count: int) -> list[Transition]:
    """Return the first transitions of one counter, stepped by hand."""
    env = gymnasium.make(COUNTER)
    observation, _ = env.reset(seed=7 + index)
    found: list[Transition] = []
    for _ in range(count):
        action = int(observation.sum()) % 3
        after, reward, terminated, truncated, _ = env.step(action + 5)
        found.append((*observation, action, reward, *after, terminated, truncated))
        observation = env.reset()[0] if terminated or truncated else after
    return found


def transitions_of(rollout: TensorDictBase, index: int) -> list[Transition]:
    """Return the transitions of one environment of a rollout, inactive rows left out."""
    rows = rollout[index]
    if "active" in rows.keys():  # noqa: SIM118
        assert rows["next", "active"].all()
        rows = rows[rows["active"].squeeze(-1)]
    assert rows["next", "done"].equal(rows["next", "terminated"] | rows["next", "truncated"])
    keys = ("observation", "action", ("next", "reward"), ("next", "observation"))
    flags = (("next", "terminated"), ("next", "truncated"))
    table = torch.cat([rows[k].double().reshape(len(rows), -1) for k in (*keys, *flags)], dim=1)
    return [tuple(row) for row in table.tolist()]


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("vectorization", ["sync", "async", "vector_entry_point"])
def test_transitions_are_those_of_gymnasium_stepped_by_hand(
    make_world: Callable[..., GymWorld], vectorization: str, autoreset: str
) -> None:
    world = make_world(vectorization, autoreset)
    rollout = world.rollout(60, act, break_when_any_done=False)
    by_hand = [transitions_by_hand(index, 45) for index in range(3)]
    assert [transitions_of(rollout, index)[:45] for index in range(3)] == by_hand
    flags = {transition[-2:] for transitions in by_hand for transition in transitions}
    assert len(flags) == 4  # terminated, truncated, both at once, neither: all are there


@pytest.mark.parametrize("autoreset", MODES)
def test_its_own_stepping_equals_that_of_torchrl(
    make_world: Callable[..., GymWorld], autoreset: str
) -> None:
    def collect(step: Callable[[GymWorld, TensorDictBase], Any]) -> TensorDictBase:
        world = make_world("sync", autoreset)
        root, steps = world.reset(), []
        for _ in range(40):
            transition, root = step(world, act(root))
            steps.append(transition)
        return torch.stack([*steps, world.step(act(root))])

    own = collect(lambda world, root: world.step_and_maybe_reset(root))
    torchrl = collect(lambda world, root: EnvBase._step_and_maybe_reset(world, root))
    assert set(own.keys(True)) == set(torchrl.keys(True))
    assert (own == torchrl).all()


def test_other_keys_of_a_root_are_kept(make_world: Callable[..., GymWorld]) -> None:
    world = make_world()
    root = act(world.reset()).set("hidden", torch.ones(3, 2))
    _, root = world.step_and_maybe_reset(root)
    assert root["hidden"].equal(torch.ones(3, 2))


def test_a_time_limit_truncates_and_does_not_terminate(
    make_world: Callable[..., GymWorld],
) -> None:
    rollout = make_world().rollout(60, act, break_when_any_done=False)
    after = rollout["next"]
    steps, end = after["observation"][..., 1:], after["observation"][..., :1]
    assert after["truncated"].equal(steps == TIME_LIMIT)
    assert after["terminated"].equal(steps == end)
    only_truncated = after["truncated"] & ~after["terminated"]
    assert only_truncated.any()
    assert after["done"][only_truncated].all()


@pytest.mark.parametrize("autoreset", MODES)
def test_next_is_the_last_observation_and_the_root_after_it_the_first(
    make_world: Callable[..., GymWorld], autoreset: str
) -> None:
    world = make_world("sync", autoreset)
    root = world.reset()
    while True:
        transition, root = world.step_and_maybe_reset(act(root))
        done = transition["next", "done"].squeeze(-1)
        if done.any():
            break
    assert (transition["next", "observation"][done, 1] > 0).all()
    assert not root["done"].any()
    assert not root["terminated"].any()
    assert not root["truncated"].any()
    if autoreset == "next_step":  # the last one is shown until the environment resets itself
        assert root["active"].squeeze(-1).equal(~done)
        assert root["observation"].equal(transition["next", "observation"])
        transition, root = world.step_and_maybe_reset(act(root))
        assert (transition["next", "reward"][done] == 0).all()
        assert not transition["next", "done"][done].any()
        assert root["active"][done].all()
        assert (root["observation"][done] == transition["next", "observation"][done]).all()
    assert (root["observation"][done, 1] == 0).all()


@pytest.mark.parametrize("vectorization", ["sync", "async", "vector_entry_point"])
def test_any_environment_can_begin_anew_where_autoreset_is_disabled(
    make_world: Callable[..., GymWorld], vectorization: str
) -> None:
    world = make_world(vectorization, "disabled")
    state = world.step(act(world.reset()))["next"]
    mask = torch.tensor([[False], [True], [False]])
    root = world.reset(state.exclude("reward").set("_reset", mask))
    assert root["observation"][:, 1].tolist() == [1, 0, 1]
    after = world.step(act(root))["next", "observation"]
    assert after[:, 1].tolist() == [2, 1, 2]
    assert after[[0, 2], 0].equal(state["observation"][[0, 2], 0])


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_an_unfinished_episode_cannot_be_reset_alone_with_autoreset(
    make_world: Callable[..., GymWorld], autoreset: str
) -> None:
    world = make_world("sync", autoreset)
    world.step(act(world.reset()))
    mask = torch.tensor([[False], [True], [False]])
    with pytest.raises(ConfigurationError, match="autoreset=disabled"):
        world.reset(TensorDict({"_reset": mask}, batch_size=[3]))


@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("vectorization", ["sync", "async", "vector_entry_point"])
def test_all_episodes_can_be_reset_at_any_time(
    make_world: Callable[..., GymWorld], vectorization: str, autoreset: str, with_mask: bool
) -> None:
    world = make_world(vectorization, autoreset)
    everything = TensorDict({"_reset": torch.ones(3, 1, dtype=torch.bool)}, batch_size=[3])
    for steps in range(1, 8):  # with and without episodes that have just ended
        root = world.reset(everything.clone()) if with_mask else world.reset()
        assert (root["observation"][:, 1] == 0).all()
        for _ in range(steps):
            _, root = world.step_and_maybe_reset(act(root))
        first = world.rollout(1, act, auto_reset=True)
        assert first["next", "observation"][..., 1].unique().tolist() == [1]
        assert first.get("active", torch.ones(1, dtype=torch.bool)).all()


@pytest.mark.parametrize("vectorization", ["sync", "async", "vector_entry_point"])
def test_the_seed_gives_the_same_transitions(
    make_world: Callable[..., GymWorld], vectorization: str
) -> None:
    world = make_world(vectorization, "same_step")
    first = world.rollout(30, act, break_when_any_done=False)
    going_on = world.rollout(30, act, break_when_any_done=False)
    world.set_seed(7)
    again = world.rollout(30, act, break_when_any_done=False)
    assert (first == again).all()
    assert not (first == going_on).all()
    other = make_world(vectorization, "same_step", seed=8)
    assert not (first == other.rollout(30, act, break_when_any_done=False)).all()


def test_a_seed_waits_for_the_next_full_reset(make_world: Callable[..., GymWorld]) -> None:
    seeded, plain = make_world(), make_world()
    roots = [world.reset() for world in (seeded, plain)]
    seeded.set_seed(99)
    for _ in range(20):
        steps = [
            world.step_and_maybe_reset(act(root))
            for world, root in zip((seeded, plain), roots, strict=True)
        ]
        roots = [root for _, root in steps]
        assert roots[0]["observation"].equal(roots[1]["observation"])
    expected = make_world(seed=99).reset()["observation"]
    assert seeded.reset()["observation"].equal(expected)


@pytest.mark.parametrize("autoreset", MODES)
def test_what_was_handed_out_is_not_overwritten(
    make_world: Callable[..., GymWorld], autoreset: str
) -> None:
    """The vector environment behind reuses its arrays."""
    world = make_world("vector_entry_point", autoreset)
    root, handed_out = world.reset(), []
    for _ in range(20):
        transition, root = world.step_and_maybe_reset(act(root))
        handed_out.append((transition, transition.clone()))
    for tensordict, at_the_time in handed_out:
        assert (tensordict == at_the_time).all()


def test_dict_observations_keep_their_parts_when_an_episode_ends() -> None:
    rollouts = []
    for autoreset in ("disabled", "same_step"):
        world = GymWorld(name=f"{MODULE}:DictCounter-v0", num_envs=3, autoreset=autoreset)
        world.set_seed(3)
        rollouts.append(
            world.rollout(
                30,
                lambda td: td.set("action", td["place"][:, :2] / 10 - 0.5),
                break_when_any_done=False,
            )
        )
        world.close()
    assert rollouts[0]["next", "done"].any()
    assert (rollouts[0] == rollouts[1]).all()
    assert np.isclose(rollouts[0]["next", "camera"].float().mean(), 46, atol=5)
