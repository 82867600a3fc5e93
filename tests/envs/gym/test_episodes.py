"""Episodes of `GymnasiumEnv`, equal in every autoreset mode and vectorization."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.envs import EnvBase

from envs.gym import GymnasiumEnv
from tests.envs.gym.conftest import MakeGym
from tests.envs.gym.environments import MODULE
from tests.helpers.environments import check_that_transitions_are_not_overwritten, trajectory
from torchrl_gpu.errors import ConfigurationError

MODES = ("disabled", "same_step", "next_step")
COUNTER = f"{MODULE}:Counter-v0"

Transition = tuple[Any, ...]


@pytest.fixture
def make_gym(make_gym: MakeGym) -> MakeGym:
    """Build environments with three counters by default."""

    def make(
        vectorization: Any = "sync", autoreset: Any = "disabled", **settings: Any
    ) -> GymnasiumEnv:
        settings = {"name": COUNTER, "num_envs": 3, "seed": 7, **settings}
        if vectorization == "vector_entry_point":
            settings["options"] = {"autoreset": autoreset}
        return make_gym(vectorization=vectorization, autoreset=autoreset, **settings)

    return make


def act(tensordict: TensorDictBase) -> TensorDictBase:
    """Choose actions from observations alone, so that reset steps cannot influence them."""
    total = tensordict["observation"].sum(-1).long()
    return tensordict.set("action", total % 3)


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
    """Return the transitions of one environment of a rollout, without inactive rows."""
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
def test_transitions_equal_those_of_gymnasium(
    make_gym: MakeGym, vectorization: str, autoreset: str
) -> None:
    env = make_gym(vectorization, autoreset)
    rollout = env.rollout(60, act, break_when_any_done=False)
    by_hand = [transitions_by_hand(index, 45) for index in range(3)]
    assert [transitions_of(rollout, index)[:45] for index in range(3)] == by_hand
    flags = {transition[-2:] for transitions in by_hand for transition in transitions}
    assert len(flags) == 4  # terminated, truncated, both, neither


@pytest.mark.parametrize(
    ("vectorization", "autoreset", "kind"),
    [
        ("sync", "disabled", "numpy"),
        ("sync", "same_step", "number"),
        ("sync", "next_step", "array"),
        ("async", "disabled", "number"),
        ("async", "same_step", "array"),
        ("async", "next_step", "numpy"),
    ],
)
def test_success_is_that_of_the_info_of_each_step(
    make_gym: MakeGym, vectorization: str, autoreset: str, kind: str
) -> None:
    ways = {"success": "solved", "options": {"kind": kind}}
    env = make_gym(vectorization, autoreset, name=f"{MODULE}:Solver-v0", **ways)
    rollout = env.rollout(60, act, break_when_any_done=False)
    if autoreset == "next_step":
        rollout = rollout[rollout["active"].squeeze(-1)]
    after = rollout["next"]
    solved = after["observation"][..., 1:] % 3 == 0
    assert after["success"].equal(solved)
    assert {*after["success"][after["done"]].tolist()} == {True, False}
    assert not env.reset()["success"].any(), "of an episode that begins"


@pytest.mark.parametrize("autoreset", MODES)
def test_an_info_without_success_is_refused_at_the_end_of_an_episode(
    make_gym: MakeGym, autoreset: str
) -> None:
    env = make_gym("sync", autoreset, name=f"{MODULE}:Solver-v0", success="is_success")
    with pytest.raises(ConfigurationError, match=r"^env.success=is_success: .*; it has solved$"):
        env.rollout(6, act, break_when_any_done=False)


@pytest.mark.parametrize("kind", ["dictionary", "list", "nan", "two", "word"])
def test_success_of_another_kind_is_refused(make_gym: MakeGym, kind: str) -> None:
    ways = {"success": "solved", "options": {"kind": kind}}
    env = make_gym("sync", "same_step", name=f"{MODULE}:Solver-v0", **ways)
    with pytest.raises(ConfigurationError, match=r"^env.success=solved: .* not one bool or number"):
        env.rollout(6, act, break_when_any_done=False)


def test_success_of_vectorized_code_needs_no_mask(make_gym: MakeGym) -> None:
    env = make_gym("vector_entry_point", "next_step", success="solved")
    after = env.rollout(12, act, break_when_any_done=False)["next"]
    assert after["success"].equal(after["observation"][..., 1:] == 3)


@pytest.mark.parametrize("autoreset", MODES)
def test_step_and_maybe_reset_equals_that_of_torchrl(make_gym: MakeGym, autoreset: str) -> None:
    def collect(step: Callable[[GymnasiumEnv, TensorDictBase], Any]) -> TensorDictBase:
        env = make_gym("sync", autoreset)
        root, steps = env.reset(), []
        for _ in range(40):
            transition, root = step(env, act(root))
            steps.append(transition)
        return torch.stack([*steps, env.step(act(root))])

    own = collect(lambda env, root: env.step_and_maybe_reset(root))
    torchrl = collect(lambda env, root: EnvBase._step_and_maybe_reset(env, root))
    assert set(own.keys(True)) == set(torchrl.keys(True))
    assert (own == torchrl).all()


@pytest.mark.parametrize("autoreset", MODES)
def test_next_holds_the_last_observation_and_the_root_the_first(
    make_gym: MakeGym, autoreset: str
) -> None:
    env = make_gym("sync", autoreset)
    root = env.reset()
    while True:
        transition, root = env.step_and_maybe_reset(act(root))
        done = transition["next", "done"].squeeze(-1)
        if done.any():
            break
    assert (transition["next", "observation"][done, 1] > 0).all()
    assert not root["done"].any()
    assert not root["terminated"].any()
    assert not root["truncated"].any()
    if autoreset == "next_step":  # the last observation remains until the environment resets itself
        assert root["active"].squeeze(-1).equal(~done)
        assert root["observation"].equal(transition["next", "observation"])
        transition, root = env.step_and_maybe_reset(act(root))
        assert (transition["next", "reward"][done] == 0).all()
        assert not transition["next", "done"][done].any()
        assert root["active"][done].all()
        assert (root["observation"][done] == transition["next", "observation"][done]).all()
    assert (root["observation"][done, 1] == 0).all()


@pytest.mark.parametrize("vectorization", ["sync", "async", "vector_entry_point"])
def test_any_environment_can_be_reset_with_autoreset_disabled(
    make_gym: MakeGym, vectorization: str
) -> None:
    env = make_gym(vectorization, "disabled")
    state = env.step(act(env.reset()))["next"]
    mask = torch.tensor([[False], [True], [False]])
    root = env.reset(state.exclude("reward").set("_reset", mask))
    assert root["observation"][:, 1].tolist() == [1, 0, 1]
    after = env.step(act(root))["next", "observation"]
    assert after[:, 1].tolist() == [2, 1, 2]
    assert after[[0, 2], 0].equal(state["observation"][[0, 2], 0])


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_single_running_episode_cannot_be_reset_with_autoreset(
    make_gym: MakeGym, autoreset: str
) -> None:
    env = make_gym("sync", autoreset)
    env.step(act(env.reset()))
    mask = torch.tensor([[False], [True], [False]])
    with pytest.raises(ConfigurationError, match="autoreset=disabled"):
        env.reset(TensorDict({"_reset": mask}, batch_size=[3]))


@pytest.mark.parametrize("autoreset", MODES)
def test_a_reset_of_no_environment_changes_nothing(make_gym: MakeGym, autoreset: str) -> None:
    env = make_gym("sync", autoreset)
    nothing = torch.zeros(3, 1, dtype=torch.bool)
    root = env.reset()
    for _ in range(3):
        same = env.reset(root.clone().set("_reset", nothing))
        assert same["observation"].equal(root["observation"])
        _, root = env.step_and_maybe_reset(act(same))


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("vectorization", ["sync", "async", "vector_entry_point"])
def test_all_environments_can_be_reset_at_any_time(
    make_gym: MakeGym, vectorization: str, autoreset: str
) -> None:
    env = make_gym(vectorization, autoreset)
    everything = TensorDict({"_reset": torch.ones(3, 1, dtype=torch.bool)}, batch_size=[3])
    for with_mask in (False, True):
        for steps in range(1, 8):  # with and without episodes that have just ended
            root = env.reset(everything.clone()) if with_mask else env.reset()
            assert (root["observation"][:, 1] == 0).all()
            for _ in range(steps):
                _, root = env.step_and_maybe_reset(act(root))
            first = env.rollout(1, act, auto_reset=True)
            assert first["next", "observation"][..., 1].unique().tolist() == [1]
            assert first.get("active", torch.ones(1, dtype=torch.bool)).all()


@pytest.mark.parametrize("vectorization", ["sync", "async", "vector_entry_point"])
def test_seed_determines_the_transitions(make_gym: MakeGym, vectorization: str) -> None:
    env = make_gym(vectorization, "same_step")
    first = env.rollout(30, act, break_when_any_done=False)
    going_on = env.rollout(30, act, break_when_any_done=False)
    env.set_seed(7)
    again = env.rollout(30, act, break_when_any_done=False)
    assert (first == again).all()
    assert not (first == going_on).all()
    other = make_gym(vectorization, "same_step", seed=8)
    assert not (first == other.rollout(30, act, break_when_any_done=False)).all()


def test_seed_takes_effect_at_the_next_full_reset(make_gym: MakeGym) -> None:
    seeded, plain = make_gym(), make_gym()
    roots = [env.reset() for env in (seeded, plain)]
    seeded.set_seed(99)
    for _ in range(20):
        steps = [
            env.step_and_maybe_reset(act(root))
            for env, root in zip((seeded, plain), roots, strict=True)
        ]
        roots = [root for _, root in steps]
        assert roots[0]["observation"].equal(roots[1]["observation"])
    expected = make_gym(seed=99).reset()["observation"]
    assert seeded.reset()["observation"].equal(expected)


@pytest.mark.parametrize("autoreset", MODES)
def test_returned_tensors_are_not_overwritten(make_gym: MakeGym, autoreset: str) -> None:
    """The vector environment reuses its arrays."""
    env = make_gym("vector_entry_point", autoreset)
    check_that_transitions_are_not_overwritten(env, act, 20)


@pytest.mark.parametrize(
    ("name", "camera"), [("DictCounter", "camera"), ("NestedChoices", "sight.camera")]
)
def test_dict_observations_keep_their_entries_at_the_end_of_an_episode(
    name: str, camera: str
) -> None:
    rollouts = []
    for autoreset in ("disabled", "same_step"):
        env = GymnasiumEnv(name=f"{MODULE}:{name}-v0", num_envs=3, autoreset=autoreset)
        env.set_seed(3)
        generator = torch.Generator().manual_seed(0)
        spec = env.action_spec
        actions = torch.randint(6, (30, 3), generator=generator)
        if spec.dtype.is_floating_point:
            actions = actions.unsqueeze(-1).expand(30, 3, 2) / 10 - 0.5
        rollouts.append(trajectory(env, actions))
        env.close()
    assert rollouts[0]["next", "done"].any()
    assert (rollouts[0] == rollouts[1]).all()
    assert np.isclose(rollouts[0]["next", camera].float().mean(), 109, atol=5)
