"""Adapter that converts any TorchRL environment to an `Environment`."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, unravel_key
from torch import Tensor
from torch.nn.functional import one_hot
from torch.utils._pytree import tree_map_only
from torchrl.data import Composite, TensorSpec, Unbounded
from torchrl.envs import ActionMask, EnvBase, VecGymEnvTransform

from torchrl_gpu.environments.bookkeeping import (
    Path,
    bookkeeping_keys,
    path_of,
    transforms_of,
    unit_pictures,
)
from torchrl_gpu.environments.capabilities import Capabilities
from torchrl_gpu.environments.environment import (
    DONE_NAMES,
    Environment,
    EpisodesLostError,
    base_of,
    group_of,
)
from torchrl_gpu.environments.first_calls import check_first_calls
from torchrl_gpu.environments.open_episodes import OpenEpisodes
from torchrl_gpu.environments.readers import action_spec_of, is_one_hot, readers_of
from torchrl_gpu.environments.view import EnvironmentView
from torchrl_gpu.errors import ConfigurationError

logger = logging.getLogger(__name__)


def as_environment(env: EnvBase) -> Environment:
    """Convert any TorchRL environment to an `Environment`.

    An `Environment` is returned unchanged, unless it has floats that are not float32. Any other
    environment is wrapped with its transforms:

    * The batch dimensions become one, `[num_envs]`; an environment without a batch becomes `[1]`.
    * Numeric observations of any shape and dtype become float32 vectors `[*B, D]`; Categorical
      observations become one-hot vectors. Pixels become uint8 `[*B, C, H, W]`, also those with the
      channels last, floats bounded by 0 and 1, and those of `ToTensorImage`. Sets (`[*B, K, F]`
      with a mask `[*B, K]`) keep their shape.
    * A one-hot action becomes an index.
    * Rewards and continuous actions are float32; `done`, `terminated` and `truncated` always exist.
      A reward or done flag of a whole group of robots is repeated for each robot.
    * Keys of transforms that count steps or sum up rewards (`RewardSum`, `StepCounter`,
      `InitTracker`) are added to `outcome_keys`: agents do not observe them.

    The wrapper keeps everything else that the environment needs between two steps, so a TensorDict
    with the action is sufficient to step it. It has the capabilities of an `Environment` beneath
    the transforms, except `frame_stacks` and `elements`, because transforms may change the frames
    and the numbers, `can_overlap`, and `action_range` if a transform changes the actions. The state
    of the wrapper contains that of all transforms, so running statistics are restored even where
    the environment starts new episodes. TorchRL's own environments have `has_state` as far as their
    episodes are known, see `torchrl_gpu.environments.open_episodes`.

    An observation `pixels`, as of `GymEnv(..., from_pixels=True)`, is the picture that `render`
    returns.

    The next reset and step of the environment beneath compare their results with its specs.

    Raises:
        ConfigurationError: it is not an `EnvBase`, has several action keys, has observations or
            rewards that no agent can read, loses the last observation of an episode, or masks
            actions.
    """
    if not isinstance(env, EnvBase):
        raise ConfigurationError(
            f"env: a {type(env).__name__} is not an environment of TorchRL; for one of "
            "Gymnasium, use envs.GymnasiumEnv or TorchRL's GymWrapper"
        )
    is_ready = isinstance(env, Environment) and _floats_of(env) <= {torch.float32}
    adapted = env if is_ready else AdaptedEnvironment(env)
    check_first_calls(base_of(env))
    return adapted


class AdaptedEnvironment(EnvironmentView):
    """Wraps a TorchRL environment as an `Environment`; see `as_environment`."""

    def __init__(self, env: EnvBase) -> None:
        _check_transforms(env)
        group = group_of(env)
        device = env.device or next(iter(env.full_action_spec.values(True, True))).device
        super().__init__(env, (prod(env.batch_size),), device)
        self._dimensions = len(env.batch_size)
        # Path of the group of robots, empty without one.
        self._group: Path = () if group is None else (group,)
        # Shapes of rewards and done flags, at the root and in the group.
        self._shapes: dict[Path, tuple[int, ...]] = {(): (*self.batch_size, 1)}
        if group is not None:
            robots = env.observation_spec[group].shape[self._dimensions :]
            self._shapes[self._group] = (*self.batch_size, *robots, 1)
        self._action_path, self._reward_path = (*self._group, "action"), (*self._group, "reward")
        self._readers = readers_of(env.observation_spec, env.batch_size, unit_pictures(env))
        # Batch sizes of the TensorDicts nested in the root.
        self._nested = {path: shape[:-1] for path, shape in self._shapes.items() if path}
        self._nested |= {
            reader.path[:depth]: reader.batch
            for reader in self._readers
            for depth in range(1, len(reader.path))
        }
        leaves = {reader.path: reader.spec for reader in self._readers}
        self._inner_action = env.full_action_spec[env.action_keys[0]]
        self._inner_done = frozenset(path_of(key) for key in env.done_keys)
        # Robots that end one by one stand still until the root ends: those steps do not count.
        ends_alone = group is not None and (*self._group, "done") in self._inner_done
        self._adds_active = ends_alone and (*self._group, "active") not in leaves
        self._check_reward(env)
        pixels, is_other = leaves.get(("pixels",)), not isinstance(base_of(env), Environment)
        self._shows_pixels = is_other and pixels is not None and pixels.dtype == torch.uint8
        self._episodes = OpenEpisodes(env)
        self._root: TensorDictBase | None = None
        self._has_failed = False  # within a step
        self.capabilities = self._adapted_capabilities(leaves)
        self._make_specs(leaves)

    def _adapted_capabilities(self, leaves: Mapping[Path, TensorSpec]) -> Capabilities:
        """Return the capabilities of the wrapped environment that its transforms leave to it."""
        can, hidden, depth = self.capabilities, bookkeeping_keys(self.env), len(self._group)
        outcomes = (
            path[depth:] for path in leaves if path in hidden and path[:depth] == self._group
        )
        takes_values = self._inner_action.dtype.is_floating_point
        changed = {key for transform in transforms_of(self.env) for key in transform.in_keys_inv}
        keeps_actions = changed.isdisjoint(base_of(self.env).action_keys)
        return replace(
            can,
            discrete_actions=can.discrete_actions if takes_values else None,
            outcome_keys=(*can.outcome_keys, *map(unravel_key, outcomes)),
            action_range=can.action_range if keeps_actions else None,
            frame_stacks={},
            elements={},
            can_overlap=False,
            can_render=can.can_render or self._shows_pixels,
            has_state=can.has_state or self._episodes.are_known,
        )

    def _make_specs(self, leaves: dict[Path, TensorSpec]) -> None:
        shape = self._shapes[self._group]
        if self._adds_active:
            leaves[(*self._group, "active")] = self._spec_of_flag(*shape[1:])
        self.observation_spec = self._spec(leaves)
        dimensions = self._dimensions + len(shape) - 2
        self._takes_one_hot = is_one_hot(self._inner_action, dimensions)
        action = action_spec_of(self._inner_action, shape[:-1], dimensions)
        self.full_action_spec = self._spec({self._action_path: action})
        reward = Unbounded(shape, device=self.device)
        self.full_reward_spec = self._spec({self._reward_path: reward})
        flags = {path: self._spec_of_flag(*shape[1:]) for path, shape in self._shapes.items()}
        self.full_done_spec = self._spec(
            {(*path, name): flag for path, flag in flags.items() for name in DONE_NAMES}
        )

    def _spec(self, leaves: Mapping[Path, TensorSpec]) -> Composite:
        spec = Composite(shape=self.batch_size, device=self.device)
        for path, leaf in leaves.items():
            for depth in range(1, len(path)):
                if path[:depth] not in spec.keys(True):
                    shape = self._nested[path[:depth]]
                    spec[path[:depth]] = Composite(shape=shape, device=self.device)
            spec[path] = leaf
        return spec

    def _check_reward(self, env: EnvBase) -> None:
        keys = env.reward_keys
        numbers = [env.full_reward_spec[key].shape.numel() for key in keys]
        expected = {prod(shape) for shape in self._shapes.values()}
        if len(keys) != 1 or numbers[0] not in expected:
            raise ConfigurationError(
                f"env: an agent learns from one scalar reward per step; this environment has "
                f"{', '.join(map(str, keys))} with {numbers} values per step"
            )
        self._inner_reward_key: NestedKey = keys[0]

    def observe(self) -> TensorDict:
        """Return the observations and done flags after the last step or reset."""
        assert self._root is not None, "the environment was not reset yet"
        return self._converted(self._root)

    def render(self, index: Any = 0) -> Tensor:
        """Return the picture of the wrapped environment, or its `pixels`; of a stack the newest."""
        if not self._shows_pixels:
            return super().render(index)
        pixels = self.observe()["pixels"][self._checked_index(index)]
        colours = pixels[-3:] if len(pixels) % 3 == 0 else pixels[-1:].expand(3, -1, -1)
        return colours.movedim(0, -1)

    def _step_and_maybe_reset(
        self, tensordict: TensorDictBase
    ) -> tuple[TensorDictBase, TensorDictBase]:
        if not self._knows(tensordict):
            return super()._step_and_maybe_reset(tensordict)
        self._has_failed = True  # until the step has succeeded
        transition, self._root = self.env.step_and_maybe_reset(self._with_action(tensordict))
        self._has_failed = False
        return tensordict.set("next", self._converted_next(transition)), self.observe()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        transition = self.env.step(self._with_action(tensordict))
        self._root = self.env.step_mdp(transition)
        return self._converted_next(transition)

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None or self._root is None:
            self._root = self.env.reset()
            self._has_failed = False
        elif bool(mask.any()):
            root = self._root.copy()
            for key in self.env.reset_keys:
                done = self.env.full_done_spec[(*path_of(key)[:-1], "done")]
                shape = (*mask.shape[:1], *[1] * (len(done.shape) - self._dimensions))
                chosen = mask.reshape(shape).expand(len(mask), *done.shape[self._dimensions :])
                root.set(key, chosen.reshape(done.shape))
            # With its state, an environment such as `PendulumEnv` would go on from there.
            self._root = self.env.reset(root, select_reset_only=True)
        return self.observe()

    def _with_action(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the root of the wrapped environment with the action added."""
        assert self._root is not None, "the environment was not reset yet"
        action = tensordict.get(self._action_path)
        if self._takes_one_hot:
            action = one_hot(action, self._inner_action.space.n)
        action = action.reshape(self._inner_action.shape).to(self._inner_action.dtype)
        return self._root.copy().set(self.env.action_keys[0], action)

    def _converted_next(self, transition: TensorDictBase) -> TensorDict:
        """Return observations, done flags and reward of the `next` entry of a step."""
        after, shape = transition.get("next"), self._shapes[self._group]
        reward = _spread(after.get(self._inner_reward_key), shape).to(torch.float32)
        if self._adds_active:
            # A team may go on to reward robots that stand still.
            over = _spread(self._dones(transition, self._group)[0], shape)
            reward = reward.masked_fill(over, 0.0)
        return self._converted(after).set(self._reward_path, reward)

    def _converted(self, tensordict: TensorDictBase) -> TensorDict:
        """Return observations and done flags of a root or a `next` entry."""
        entries: dict[Path, dict[str, Any]] = {path: {} for path in ((), *self._nested)}
        for reader in self._readers:
            leaf = reader.read(tensordict).to(self.device)
            entries[reader.path[:-1]][reader.path[-1]] = leaf
        for path, shape in self._shapes.items():
            flags = (_spread(flag, shape).to(self.device) for flag in self._dones(tensordict, path))
            entries[path] |= zip(DONE_NAMES, flags, strict=True)
        if self._group:
            # The end of the root begins new episodes for the robots that go on as well.
            group, over = entries[self._group], entries[()]["done"]
            over = _spread(over, self._shapes[self._group]) & ~group["done"]
            group["done"], group["truncated"] = group["done"] | over, group["truncated"] | over
            if self._adds_active:
                group["active"] = ~group["done"]
        for path in sorted(self._nested, key=len, reverse=True):
            nested = self._batch(entries[path], *self._nested[path][1:])
            entries[path[:-1]][path[-1]] = nested
        return self._batch(entries[()])

    def _dones(self, tensordict: TensorDictBase, path: Path) -> tuple[Tensor, Tensor, Tensor]:
        """Return `done`, `terminated` and `truncated` for the root or the group."""
        # Flags may exist only at the root, which ends all robots, or only in the group, where the
        # root ends once all robots have ended.
        if (*path, "done") not in self._inner_done:
            path = next(other for other in self._shapes if other != path)
        done, terminated = (tensordict.get((*path, name)) for name in DONE_NAMES[:2])
        if (*path, "truncated") in self._inner_done:
            return done, terminated, tensordict.get((*path, "truncated"))
        return done, terminated, done & ~terminated

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Return the state of all transforms and of the base environment."""
        if self._root is None:
            return {}
        state = {"transforms": self._transform_states(), "base": base_of(self.env).state_dict()}
        # A step that failed may have left some of the environments before it and some after it.
        if self.capabilities.has_state and not (self._has_failed and self._episodes.are_many):
            state["root"] = self._root.to_dict()
            state["episodes"] = self._episodes.state_dict()
        # The copy shares no memory with the transforms.
        return tree_map_only(Tensor, Tensor.clone, state)

    def load_state_dict(self, state_dict: Mapping[str, Any], *_: Any, **__: Any) -> None:
        """Restore `state_dict()`; without `has_state`, reset the environment before the next step.

        Raises:
            ConfigurationError: the state was saved with other transforms.
            EpisodesLostError: everything but the open episodes is restored.
        """
        if not state_dict:
            return
        episodes = state_dict.get("episodes") if self.capabilities.has_state else None
        # A reset allocates the buffers of transforms and has the batch sizes of nested TensorDicts.
        root = self._episodes.reset(episodes)
        self._root = None
        self._load_transforms(state_dict["transforms"])
        base_of(self.env).load_state_dict(state_dict["base"])
        if self.capabilities.has_state:
            if episodes is None:
                raise EpisodesLostError("the open episodes were not saved")
            self._episodes.load_state_dict(episodes)
            saved = TensorDict(state_dict["root"], batch_size=self.env.batch_size)
            self._root = root.update(saved.to(self.device))

    def progress(self) -> Mapping[str, Any]:
        """Return the state of all transforms, and the progress of the base environment."""
        if self._root is None:
            return {}
        state = {"transforms": self._transform_states(), "base": super().progress()}
        return tree_map_only(Tensor, Tensor.clone, state)

    def load_progress(self, state_dict: Mapping[str, Any]) -> None:
        """Restore running statistics of transforms, and the progress of the base environment.

        A transform whose state has a row for each environment begins anew if their number differs.
        """
        if not state_dict:
            return
        self._root = None
        self.env.reset()  # it allocates the buffers of transforms
        self._load_transforms(state_dict["transforms"], of_any_number=True)
        super().load_progress(state_dict["base"])

    def _transform_states(self) -> list[dict[str, Any]]:
        # One by one: the state of a `Compose` lacks the count of a `TrajCounter` in it.
        return [each.state_dict() for each in transforms_of(self.env)]

    def _load_transforms(
        self, states: Sequence[Mapping[str, Any]], *, of_any_number: bool = False
    ) -> None:
        try:
            for transform, saved in zip(transforms_of(self.env), states, strict=True):
                if of_any_number and _shapes(saved) != _shapes(transform.state_dict()):
                    name = type(transform).__name__
                    logger.warning("%s has a state of each environment, which begins anew", name)
                else:
                    transform.load_state_dict(saved)
        except (RuntimeError, ValueError) as error:
            raise ConfigurationError(
                f"the saved transforms do not match those of this environment: {error}"
            ) from error


def _check_transforms(env: EnvBase) -> None:
    """Refuse transforms from which no agent can learn."""
    for transform in transforms_of(env):
        if isinstance(transform, VecGymEnvTransform):
            raise ConfigurationError(
                "env: a GymEnv with num_envs loses the last observation of every episode; "
                "batch it by SerialEnv or ParallelEnv, or use envs.gym.GymnasiumEnv"
            )
        if isinstance(transform, ActionMask):
            raise ConfigurationError(
                "env: agents do not read the masks of ActionMask; leave it out, and let the "
                "environment answer illegal actions with a low reward"
            )


def _shapes(state: Mapping[str, Any]) -> Any:
    """Return a state with the shapes of tensors in their place."""
    return tree_map_only(Tensor, lambda tensor: tensor.shape, dict(state))


def _floats_of(env: EnvBase) -> set[torch.dtype]:
    """Return the floating-point types of observations, actions and rewards."""
    specs = (env.observation_spec, env.full_action_spec, env.full_reward_spec)
    leaves = (leaf for spec in specs for leaf in spec.values(True, True))
    return {
        leaf.dtype for leaf in leaves if leaf.dtype is not None and leaf.dtype.is_floating_point
    }


def _spread(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Reshape values to `[*B, 1]`: repeat one for all robots, or reduce theirs by `all`."""
    if values.numel() > prod(shape):
        values = values.reshape(*shape[:1], -1).all(1)
    if values.numel() == prod(shape):
        return values.reshape(shape)
    return values.reshape(*shape[:1], *[1] * len(shape[1:])).expand(shape)
