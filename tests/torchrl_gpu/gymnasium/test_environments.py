"""The environments of this library in Gymnasium, one at a time and in batches."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from tensordict import TensorDict
from torch import nn

import torchrl_gpu.gymnasium
from tests.helpers.environments import IdentityEnv
from tests.helpers.forks import result_of
from torchrl_gpu.environments.captions import LINE_HEIGHT
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.gymnasium.batched import BatchedEnv

gymnasium.register_envs(torchrl_gpu.gymnasium)

FANUC, MARINENAV = "torchrl_gpu/Fanuc-v0", "torchrl_gpu/MarineNav-v0"
CASES = [
    pytest.param(name, settings, id="-".join([name.partition("/")[2], *settings]))
    for name in (FANUC, MARINENAV)
    for settings in ({}, {"discrete": True})
] + [pytest.param(MARINENAV, {"num_robots": 3}, id="fleet")]


@pytest.fixture
def fleet() -> Iterator[VectorEnv[Any, Any, Any]]:
    envs = gymnasium.make_vec(MARINENAV, num_envs=4, num_robots=3, max_episode_steps=5)
    with closing(envs):
        yield envs


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_gymnasium_accepts_every_environment(name: str, settings: dict[str, Any]) -> None:
    with closing(gymnasium.make(name, **settings)) as env:
        check_env(env.unwrapped)


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_stable_baselines_accepts_every_environment(name: str, settings: dict[str, Any]) -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    with closing(gymnasium.make(name, **settings)) as env:
        checker.check_env(env.unwrapped, warn=False)


def test_an_id_with_the_module_needs_no_import_and_nothing_else_registers() -> None:
    def registered_before_and_made() -> tuple[list[str], str]:
        before = [name for name in gymnasium.registry if name.startswith("torchrl_gpu/")]
        spec = gymnasium.make(f"torchrl_gpu.gymnasium:{MARINENAV}").spec
        assert spec is not None
        return before, spec.id

    # In a process that has imported the environments and no module of these tests.
    assert result_of(registered_before_and_made) == ([], MARINENAV)


def test_settings_are_those_of_the_environment() -> None:
    with pytest.raises(ConfigurationError, match="num_obstacles=-1: input should be greater"):
        gymnasium.make(MARINENAV, num_obstacles=-1)
    with pytest.raises(ConfigurationError, match=r"num_envs: gymnasium.make_vec\(id, "):
        gymnasium.make(MARINENAV, num_envs=2)
    with pytest.raises(ConfigurationError, match="device=warp is not one of auto, cuda, rocm"):
        gymnasium.make(MARINENAV, device="warp")
    with pytest.raises(ConfigurationError, match="did you mean num_obstacles"):
        gymnasium.make_vec(MARINENAV, num_obstacle=2)
    with pytest.raises(ConfigurationError, match="render_mode=ansi: use rgb_array or None"):
        gymnasium.make(MARINENAV, render_mode="ansi")
    with pytest.raises(ConfigurationError, match="seed: 3 seeds for 2 environments"):
        gymnasium.make_vec(MARINENAV, num_envs=2).reset(seed=[1, 2, 3])


@pytest.mark.parametrize("seed", [1.5, "12", -1, [1, None], [0, -1], [1.0, 2.0], np.array(0.5)])
def test_seeds_that_are_not_whole_numbers_are_refused(seed: Any) -> None:
    with (
        closing(gymnasium.make_vec(MARINENAV, num_envs=2)) as envs,
        pytest.raises(ConfigurationError, match=r"^seed=.*: use whole numbers from 0, or None"),
    ):
        envs.reset(seed=seed)


@pytest.mark.parametrize("seed", [[3, 4], np.array([3, 4], np.uint8), np.int64(3), np.array(3)])
def test_seeds_may_be_of_any_integer_dtype(seed: Any) -> None:
    with closing(gymnasium.make_vec(MARINENAV, num_envs=2)) as envs:
        expected, _ = envs.reset(seed=3)
        assert data_equivalence(envs.reset(seed=seed)[0], expected)


@pytest.mark.parametrize("wrong", [-1, 25, 1.7, np.nan])
def test_a_discrete_action_outside_of_the_space_is_refused(wrong: float) -> None:
    envs = gymnasium.make_vec(MARINENAV, num_envs=3, discrete=True)
    envs.reset(seed=1)
    envs.step(np.array([0, 24, 3]))
    with pytest.raises(
        ConfigurationError, match=r"^action=\[.*\]: choose whole numbers from 0 to 24$"
    ):
        envs.step(np.array([0, wrong, 3]))
    envs.close()


@pytest.mark.parametrize("shape", [(2,), (2, 3), (3, 2, 1), (6,)])
def test_actions_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with closing(gymnasium.make_vec(MARINENAV, num_envs=3)) as envs:
        envs.reset(seed=1)
        envs.step(np.zeros((3, 2)))
        with pytest.raises(ConfigurationError, match=r"its shape is .*; use \[3, 2\], one action"):
            envs.step(np.zeros(shape))
    with closing(gymnasium.make(MARINENAV).unwrapped) as env:
        env.reset(seed=1)
        env.step(np.zeros(2))
        with pytest.raises(ConfigurationError, match=r"; use \[1, 2\], one action"):
            env.step(np.zeros(shape[1:]))


def test_instances_without_a_seed_have_different_episodes() -> None:
    def goals(**settings: Any) -> set[bytes]:
        envs = [gymnasium.make(MARINENAV, **settings) for _ in range(3)]
        return {env.reset()[0]["observation"].tobytes() for env in envs}

    assert len(goals()) == 3
    assert len(goals(seed=1)) == 1


@pytest.mark.parametrize("name", [FANUC, MARINENAV])
def test_a_seed_determines_the_episodes_but_not_the_numbers_of_torch(name: str) -> None:
    with closing(gymnasium.make_vec(name, num_envs=3, max_episode_steps=4)) as envs:
        envs.action_space.seed(0)
        actions = [envs.action_space.sample() for _ in range(10)]

        def play(seed: Any) -> list[Any]:
            first = envs.reset(seed=seed)[0]
            return [first, *(envs.step(action)[0] for action in actions)]

        torch.manual_seed(7)
        expected = torch.rand(3)
        torch.manual_seed(7)
        episodes = play(5)
        assert torch.equal(torch.rand(3), expected)
        assert data_equivalence(play([5, 6, 7]), episodes, exact=True)
        assert data_equivalence(play(np.int64(5)), episodes, exact=True)
        assert not data_equivalence(play(6), episodes)


@pytest.mark.parametrize("name", [FANUC, MARINENAV])
def test_a_batch_plays_the_episodes_of_single_environments(name: str) -> None:
    several: Any = {
        "vectorization_mode": "sync",
        "vector_kwargs": {"autoreset_mode": AutoresetMode.SAME_STEP},
    }
    settings = {"num_envs": 3, "max_episode_steps": 4}
    with (
        closing(gymnasium.make_vec(name, **settings)) as envs,
        closing(gymnasium.make_vec(name, **settings, **several)) as singles,
    ):
        assert isinstance(envs, BatchedEnv)
        assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        assert envs.action_space == singles.action_space
        first = envs.reset(seed=5)[0]
        assert data_equivalence(first, singles.reset(seed=5)[0], exact=True)
        envs.action_space.seed(0)
        for step in range(7):
            action = envs.action_space.sample()
            found, expected = envs.step(action), singles.step(action)
            assert data_equivalence(found[0], expected[0], exact=True)
            assert np.array_equal(found[1], np.float32(expected[1]))
            assert all(map(np.array_equal, found[2:4], expected[2:4]))
            assert found[0] in envs.observation_space
            if step == 3:
                assert found[3].all()
                last, final = found[4]["final_obs"], expected[4]["final_obs"]
                assert data_equivalence(list(last), list(final), exact=True)
                assert np.array_equal(found[4]["final_info"]["success"], np.zeros(3))
            else:
                assert "final_obs" not in found[4]
                assert np.array_equal(found[4]["success"], expected[4]["success"])


class _LateSuccess(IdentityEnv):
    """Ends the first of its episodes with success, in its third step."""

    def _step(self, tensordict: TensorDict) -> TensorDict:
        after = super()._step(tensordict)
        reached = (self.steps == 3) & (torch.arange(len(self.steps)) == 0).unsqueeze(1)
        ends = {"success": reached, "terminated": reached, "truncated": reached & False}
        return after.update({**ends, "done": reached.clone()})


def test_success_and_last_observation_are_those_of_the_episode_that_ended() -> None:
    envs = BatchedEnv(_LateSuccess, num_envs=2)  # an environment of the user's own
    envs.reset(seed=1)
    action = np.zeros(envs.action_space.shape, np.float32)
    infos = [envs.step(action)[4] for _ in range(2)]
    assert all(info.keys() == {"success", "_success"} for info in infos)
    observation, _, terminated, truncated, info = envs.step(action)
    assert terminated.tolist() == [True, False]
    assert not truncated.any()
    assert info["_success"].tolist() == [False, True]
    assert info["final_info"]["success"].tolist() == [True, False]
    assert info["_final_obs"].tolist() == [True, False]
    assert info["final_obs"][1] is None
    assert not np.array_equal(info["final_obs"][0], observation[0])


def test_an_environment_of_the_user_may_take_any_setting() -> None:
    def build(num_envs: int, **options: int) -> IdentityEnv:
        assert options == {"size": 3}
        return IdentityEnv(num_envs=num_envs)

    BatchedEnv(build, num_envs=2, size=3).close()
    with pytest.raises(ConfigurationError, match=r"^size: no such setting"):
        BatchedEnv(IdentityEnv, num_envs=2, size=3)


def test_a_fleet_is_one_environment_with_the_reward_of_its_vessels(
    fleet: VectorEnv[Any, Any, Any],
) -> None:
    observation, _ = fleet.reset(seed=1)
    assert observation["observation"].shape == (4, 3, 7)
    assert observation["active"].all()
    assert fleet.single_action_space.shape == (3, 2)
    _, reward, _, _, info = fleet.step(fleet.action_space.sample())
    assert info["rewards"].shape == (4, 3)
    assert np.allclose(info["rewards"].sum(-1), reward)


def test_pictures_are_drawn_of_every_environment() -> None:
    with closing(gymnasium.make_vec(MARINENAV, num_envs=2, render_mode="rgb_array")) as envs:
        envs.reset(seed=0)
        pictures = envs.render()
        assert pictures is not None
        assert [picture.shape for picture in pictures] == [(LINE_HEIGHT + 720, 720, 3)] * 2
        assert not np.array_equal(*pictures)
    with closing(gymnasium.make(MARINENAV)) as env:
        assert env.unwrapped.render() is None


def test_returned_arrays_belong_to_the_caller() -> None:
    with closing(gymnasium.make_vec(FANUC, num_envs=2)) as envs:
        first, _ = envs.reset(seed=3)
        expected = first.copy()
        first[:] = 7.0
        assert np.array_equal(envs.reset(seed=3)[0], expected)


@pytest.mark.parametrize("is_batched", [True, False])
def test_a_loop_in_the_style_of_cleanrl_trains(is_batched: bool) -> None:
    """PPO's calls of the environment as CleanRL makes them, with one epoch of policy gradient."""
    mode: Any = {} if is_batched else {"vectorization_mode": "sync"}
    torch.manual_seed(0)
    with closing(gymnasium.make_vec(FANUC, num_envs=4, max_episode_steps=10, **mode)) as made:
        envs = RecordEpisodeStatistics(made)
        size = int(np.prod(envs.single_observation_space.shape or ()))
        mean = nn.Linear(size, int(np.prod(envs.single_action_space.shape or ())))
        optimizer = torch.optim.Adam(mean.parameters(), 0.01)
        before = mean.weight.detach().clone()
        observation, _ = envs.reset(seed=1)
        returns = []
        for _ in range(3):
            losses = []
            for _ in range(16):
                distribution = torch.distributions.Normal(mean(torch.Tensor(observation)), 0.5)
                action = distribution.sample()
                observation, reward, *_, infos = envs.step(action.numpy())
                log_prob = distribution.log_prob(action).sum(1)
                losses.append(-(log_prob * torch.tensor(reward).view(-1)).mean())
                if "episode" in infos:
                    returns += infos["episode"]["r"][infos["_episode"]].tolist()
            optimizer.zero_grad()
            torch.stack(losses).mean().backward()
            optimizer.step()
        assert len(returns) >= 16
        assert not torch.equal(mean.weight, before)
