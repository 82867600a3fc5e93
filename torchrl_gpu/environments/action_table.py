"""View that replaces continuous actions of an environment by the row numbers of a table."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Categorical
from torchrl.envs import EnvBase

from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.environment import Environment, name_of
from torchrl_gpu.environments.robots import Robots
from torchrl_gpu.environments.specs import action_bounds, action_kind, action_spec
from torchrl_gpu.environments.view import EnvironmentView
from torchrl_gpu.errors import ConfigurationError


def single_moves(dimensions: int, values: Sequence[float]) -> tuple[tuple[float, ...], ...]:
    """Return a table of discrete actions, each with at most one number that is not 0.

    Row 0 is zero. The next rows set the first dimension to each of the values, and so on.
    """
    moves = (
        tuple(value if dimension == moved else 0.0 for dimension in range(dimensions))
        for moved in range(dimensions)
        for value in values
    )
    return ((0.0,) * dimensions, *moves)


class _DiscreteEnvironment(EnvironmentView):
    """View of an environment with discrete actions that keeps its fast step."""

    def __init__(self, env: Environment, table: Tensor) -> None:
        super().__init__(env, tuple(env.batch_size), env.device)
        self.capabilities = replace(
            env.capabilities,
            discrete_actions=None,
            action_table=tuple(map(tuple, table.tolist())),
        )
        # The row numbers of the step that has begun, and its root in the wrapped environment.
        self._begun: tuple[Tensor, TensorDictBase] | None = None
        self._action_key = Robots(env).action_key
        self.observation_spec = env.observation_spec.clone()
        self.full_reward_spec = env.full_reward_spec.clone()
        self.full_done_spec = env.full_done_spec.clone()
        actions = env.full_action_spec.clone()
        action = actions[self._action_key]
        self._table = table.to(device=env.device, dtype=action.dtype)
        actions[self._action_key] = Categorical(
            len(table), shape=action.shape[:-1], device=action.device
        )
        self.full_action_spec = actions

    def begin_step(self, tensordict: TensorDictBase) -> None:
        """Begin a step of the wrapped environment: see `Environment.begin_step`."""
        root = self._with_row(tensordict)
        self._begun = tensordict.get(self._action_key), root
        self.env.begin_step(root)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        begun, self._begun = self._begun, None
        if begun is not None and begun[0] is tensordict.get(self._action_key):
            return self.env._step(begun[1])
        return self.env._step(self._with_row(tensordict))

    def _with_row(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return a copy of a root with the continuous action in place of the row number."""
        row = self._table[tensordict.get(self._action_key)]
        return tensordict.copy().set(self._action_key, row)

    def _root_after(self, after: TensorDictBase) -> TensorDictBase:
        return self.env._root_after(after)

    def _reset(self, tensordict: TensorDictBase | None = None, **arguments: Any) -> TensorDictBase:
        return self.env._reset(tensordict, **arguments)

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Start new episodes where episodes ended, as the wrapped environment does."""
        return self.env.maybe_reset(tensordict)


def with_action_table(env: EnvBase, table: Tensor | None = None) -> Environment:
    """Return a view of a continuous environment that takes the row numbers of a table as actions.

    An agent with discrete actions chooses a row, `[*B]` int64, and the environment receives the
    values of that row as its continuous action. The view keeps the fast step and the capabilities
    of the environment.

    Args:
        env: any TorchRL environment with continuous actions.
        table: continuous actions `[A, action_dim]`, within the bounds of the environment; None for
            the table of its capabilities.

    Raises:
        ConfigurationError: the environment has no table of discrete actions, or the table does not
            hold actions of the environment.
    """
    env = as_environment(env)
    setting = "table"
    if table is None:
        setting, table = f"{name_of(env)}.capabilities.discrete_actions", env.discrete_actions
    spec = action_spec(env)
    if action_kind(spec) != "continuous":
        raise ConfigurationError(f"{setting}: {name_of(env)} takes discrete actions already")
    low, high = action_bounds(spec)
    rows = table.to(low)
    fits = len(rows) > 0 and rows.shape[1:] == low.shape
    if not fits or not ((rows >= low) & (rows <= high)).all():
        raise ConfigurationError(
            f"{setting}: it needs rows of {len(low)} numbers from {low.tolist()} to "
            f"{high.tolist()}, not {table.tolist()}"
        )
    return _DiscreteEnvironment(env, table)
