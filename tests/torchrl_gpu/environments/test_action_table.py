from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torchrl.envs import EnvBase, TransformedEnv
from torchrl.envs.utils import check_env_specs

from tests.helpers.environments import IdentityEnv
from torchrl_gpu.environments.action_table import ActionTable, rows_of
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.discrete import with_action_table
from torchrl_gpu.environments.specs import action_kind
from torchrl_gpu.errors import ConfigurationError

TABLE = torch.tensor([[-0.5], [0.0], [0.25], [1.0]])


def transformed(env: IdentityEnv) -> EnvBase:
    return TransformedEnv(env, ActionTable(TABLE))


def view(env: IdentityEnv) -> EnvBase:
    return with_action_table(env, TABLE)


@pytest.mark.parametrize("discrete", [transformed, view])
def test_an_index_becomes_the_row_of_the_table(discrete: Callable[[IdentityEnv], EnvBase]) -> None:
    env = discrete(IdentityEnv(num_envs=4, action_dim=1))
    assert action_kind(env.action_spec) == "discrete"
    assert env.action_spec.n == len(TABLE)
    state = env.reset()
    state["action"] = torch.tensor([0, 3, 2, 1])
    expected = -(TABLE[state["action"]] - state["observation"]).square().sum(-1, keepdim=True)
    transition, _ = env.step_and_maybe_reset(state)
    torch.testing.assert_close(transition["next", "reward"], expected)
    assert transition["action"].tolist() == [0, 3, 2, 1]


@pytest.mark.parametrize("discrete", [transformed, view])
def test_discrete_actions_pass_check_env_specs(discrete: Callable[[IdentityEnv], EnvBase]) -> None:
    check_env_specs(discrete(IdentityEnv(num_envs=4, action_dim=1)))


def test_the_adapter_declares_the_table_that_a_transform_applies() -> None:
    env = as_environment(transformed(IdentityEnv(num_envs=4, action_dim=1)))
    assert env.capabilities.action_table == rows_of(TABLE)
    with pytest.raises(ConfigurationError, match="IdentityEnv has no table of discrete actions"):
        _ = env.discrete_actions


def test_the_view_declares_the_table_that_it_applies() -> None:
    env = IdentityEnv(num_envs=4, action_dim=1)
    assert with_action_table(env, TABLE).capabilities.action_table == (
        (-0.5,),
        (0.0,),
        (0.25,),
        (1.0,),
    )
    own = with_action_table(env).capabilities
    assert own.action_table == env.capabilities.discrete_actions
    assert own.discrete_actions is None
