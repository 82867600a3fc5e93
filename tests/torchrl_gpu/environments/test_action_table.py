from typing import Any

import pytest
import torch
from torchrl.envs import TransformedEnv

from tests.helpers.environments import IdentityEnv
from torchrl_gpu.environments.action_table import with_action_table
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.capabilities import Capabilities
from torchrl_gpu.environments.specs import action_kind
from torchrl_gpu.errors import ConfigurationError

TABLE = torch.tensor([[-0.5], [0.0], [0.25], [1.0]])


@pytest.mark.parametrize("has_begun", [False, True])
def test_an_index_becomes_the_row_of_the_table(has_begun: bool) -> None:
    env = with_action_table(IdentityEnv(num_envs=4, action_dim=1), TABLE)
    assert action_kind(env.action_spec) == "discrete"
    assert env.action_spec.n == len(TABLE)
    state = env.reset()
    if has_begun:  # another step, which that of the root undoes
        env.begin_step(state.copy().set("action", torch.zeros(4, dtype=torch.int64)))
    state["action"] = torch.tensor([0, 3, 2, 1])
    expected = -(TABLE[state["action"]] - state["observation"]).square().sum(-1, keepdim=True)
    transition, _ = env.step_and_maybe_reset(state)
    torch.testing.assert_close(transition["next", "reward"], expected)
    assert transition["action"].tolist() == [0, 3, 2, 1]


def test_a_transform_around_the_view_keeps_its_table() -> None:
    view = with_action_table(IdentityEnv(num_envs=4, action_dim=1), TABLE)
    env = as_environment(TransformedEnv(view))
    assert env.capabilities.action_table == view.capabilities.action_table
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


@pytest.mark.parametrize(
    "table",
    [torch.zeros(0, 1), torch.zeros(3, 2), torch.zeros(3), torch.tensor([[1.0], [1.5]])],
    ids=["empty", "too wide", "without rows", "out of bounds"],
)
def test_another_table_is_refused(table: torch.Tensor) -> None:
    env = IdentityEnv(num_envs=4, action_dim=1)
    problem = r"rows of 1 numbers from \[-1.0\] to \[1.0\]"
    with pytest.raises(ConfigurationError, match=f"^table: .*{problem}"):
        with_action_table(env, table)
    own: Any = table.tolist()
    env.capabilities = Capabilities(discrete_actions=own)
    with pytest.raises(ConfigurationError, match=f"capabilities.discrete_actions: .*{problem}"):
        with_action_table(env)


def test_a_table_of_discrete_actions_is_refused() -> None:
    view = with_action_table(IdentityEnv(num_envs=4, action_dim=1), TABLE)
    with pytest.raises(ConfigurationError, match="IdentityEnv takes discrete actions already"):
        with_action_table(view, TABLE)
