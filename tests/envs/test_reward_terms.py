"""The terms of a reward add up to the reward, also after an episode has ended."""

from collections.abc import Callable

import pytest

from envs import FanucEnv, MarineNavEnv
from torchrl_gpu.environments.action_table import with_action_table
from torchrl_gpu.environments.environment import Environment
from torchrl_gpu.environments.robots import Robots

CASES: dict[str, Callable[[], Environment]] = {
    "fanuc": lambda: FanucEnv(num_envs=2, num_workers=1, max_episode_steps=20),
    "fanuc, hold": lambda: FanucEnv(num_envs=2, num_workers=1, success="hold"),
    "marinenav": lambda: MarineNavEnv(num_envs=2, seed=1, max_episode_steps=20),
    "action table": lambda: with_action_table(MarineNavEnv(num_envs=2)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_terms_add_up_to_the_reward(name: str) -> None:
    env = CASES[name]()
    key = Robots(env).reward_key
    state = env.reset()
    for _ in range(40):
        step, state = env.step_and_maybe_reset(env.rand_action(state))
        for index in range(env.num_envs):
            terms = env.reward_terms(index)
            assert len(terms) > 3
            reward = float(step["next", key][index].mean())
            assert sum(terms.values()) == pytest.approx(reward, abs=1e-5)
    env.close()
