from __future__ import annotations

import torch
from torchrl.envs.utils import check_env_specs

from tests.helpers.environments import IdentityEnv
from torchrl_gpu.environments.action_table import with_action_table
from torchrl_gpu.environments.specs import action_kind


def test_an_index_becomes_the_row_of_the_table() -> None:
    env = IdentityEnv(num_envs=4, action_dim=1)
    table = env.discrete_actions
    discrete = with_action_table(env)
    assert action_kind(discrete.action_spec) == "discrete"
    assert discrete.action_spec.n == len(table)
    state = discrete.reset()
    state["action"] = torch.tensor([0, 1, 2, 1])
    expected = -(table[state["action"]] - state["observation"]).square().sum(-1, keepdim=True)
    transition, _ = discrete.step_and_maybe_reset(state)
    torch.testing.assert_close(transition["next", "reward"], expected)
    assert transition["action"].tolist() == [0, 1, 2, 1]


def test_the_view_passes_check_env_specs() -> None:
    check_env_specs(with_action_table(IdentityEnv(num_envs=4)))
