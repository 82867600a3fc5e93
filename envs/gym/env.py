"""The environment `gym` in TorchRL: a batch of copies of one Gymnasium environment."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Unbounded

from envs.gym.actions import actions_of
from envs.gym.atari import FRAME_STACK, STEP_SECONDS, preprocessing_of
from envs.gym.episodes import NextStepEpisodes, episodes_of
from envs.gym.observations import Observations
from envs.gym.processes import WatchedVectorEnv
from envs.gym.stacks import ImageStacks
from envs.gym.vector import Autoreset, Vectorization, make_vector, registered, try_options
from envs.gym.wrappers import known_wrapper
from envs.settings import Mode, NumEnvs, StepTimeout, with_defaults
from torchrl_gpu.arguments import checked
from torchrl_gpu.environments.capabilities import Capabilities
from torchrl_gpu.environments.environment import STEP_TIMEOUT, Environment, EpisodesLostError
from torchrl_gpu.errors import ConfigurationError, one_line

# Frames per second of environments whose metadata lack `render_fps`.
_USUAL_FPS = 30
_ACTION_LEVELS = 3


class GymnasiumEnv(Environment):
    """Copies of a Gymnasium environment, stepped as one batch on the host.

    The keys are those of the specs:

    * `observation`: float32 `[num_envs, D]`, from a Box of numbers (flattened) or a Discrete space
      (one-hot); `pixels`: uint8 `[num_envs, C, H, W]`, from an image; from a Dict space its
      entries, each under its own name; names of nested entries are joined by dots. Values are not
      rescaled. With `frame_stack`, the channels of the last images follow one another,
      `[num_envs, frame_stack * C, H, W]`.
    * `action`: int64 `[num_envs]` for a Discrete space, and for a MultiDiscrete or MultiBinary
      space the number of a combination, a row of `capabilities.action_table`, of up to 1,024; for a
      Box float32 `[num_envs, D]` in [-1, 1], mapped to the bounds of the Box.
    * `reward`, `terminated`, `truncated`, `done` `[num_envs, 1]`: values of Gymnasium, with rewards
      clipped by `clip_rewards`. A time limit truncates. `next` holds the true last observation of
      an episode.
    * `success` `[num_envs, 1]`, bool, with the argument `success` only.
    * `active` `[num_envs, 1]`, bool, with `next_step` autoreset only: false where the next step
      resets the environment. That step ignores the action, has reward 0 and is not a transition.

    `state_dict()` holds a record of the open episodes: the state of the random numbers at their
    beginning, and their actions. `load_state_dict` plays them again, and raises `EpisodesLostError`
    where the simulator does not come to the same rewards and observations. Modes other than
    `train`, and `vector_entry_point`, save nothing. Only mode `demo` can `render`.

    Args:
        name: Gymnasium id with version, such as `CartPole-v1`; `package:Name-v0` imports `package`
            first.
        vectorization: execution of the copies: `sync` steps them one after the other, `async` in
            one process each, `vector_entry_point` by the vectorized code of the environment.
        autoreset: start of new episodes: `disabled` on a reset by TorchRL, `same_step` in the step
            that ends an episode, `next_step` in the step after; None for `disabled`, or with
            `vector_entry_point` for the mode of the environment.
        action_levels: number of values per dimension in the table of discrete actions of a
            continuous action space. For up to three dimensions the table has all combinations of
            evenly spaced values (3: -1, 0, 1). For more, row 0 is zero and each other row sets a
            single dimension.
        frame_stack: number of last images that the agent observes together; the first image of an
            episode is repeated. None for 4 in preprocessed Atari environments, else 1.
        clip_rewards: clip rewards to [-1, 1] in mode `train`; evaluation counts the true rewards.
            None to clip in preprocessed Atari environments only.
        atari_preprocessing: preprocess the images of an Atari environment (`ALE/Pong-v5`): 84 x 84
            in shades of grey, the maximum of two frames, one environment step for four frames of
            the game, 1 to 30 frames without action at the start of an episode. None for true in
            Atari environments.
        terminal_on_life_loss: in mode `train`, end an episode of a preprocessed Atari environment
            at the loss of a life; the next episode is a new game.
        wrappers: wrappers of Gymnasium around each copy, the first one innermost, by the names of
            their classes, as in `gymnasium.wrappers.FlattenObservation`, or, with arguments, as
            `{_target_: gymnasium.wrappers.FilterObservation, filter_keys: [image]}`. Not with
            `vector_entry_point`.
        success: entry of Gymnasium's `info` that says whether the task is solved, such as
            `is_success`; at the last step of an episode it is the success of the episode. None to
            judge by returns.
        seed: random seed of the first reset; copy i uses seed + i.
        options: keyword arguments of `gymnasium.make`; None for no further arguments. With them,
            the copies take one random step before the first episode, to refuse wrong ones early.

    Raises:
        ConfigurationError: an argument is out of range, or the environment is unknown, lacks a
            package, fails with these options, or has spaces that are not listed above.
    """

    counters = frozenset({"workers/lost_episodes"})

    @checked
    def __init__(
        self,
        *,
        name: Annotated[str, AfterValidator(registered)],
        num_envs: NumEnvs = 8,
        mode: Mode = "train",
        vectorization: Vectorization = "sync",
        autoreset: Autoreset | None = None,
        action_levels: Annotated[int, Field(ge=2)] = _ACTION_LEVELS,
        frame_stack: Annotated[int, Field(ge=1, le=100)] | None = None,
        clip_rewards: bool | None = None,
        atari_preprocessing: bool | None = None,
        terminal_on_life_loss: bool = False,
        wrappers: Sequence[Annotated[str | dict[str, Any], AfterValidator(known_wrapper)]] = (),
        success: Annotated[str, Field(min_length=1)] | None = None,
        step_timeout: StepTimeout = STEP_TIMEOUT,
        seed: Annotated[int, Field(ge=0)] = 0,
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(device="cpu", batch_size=[num_envs])
        preprocessing = preprocessing_of(
            name,
            atari_preprocessing,
            vectorization,
            options or {},
            terminal_on_life_loss=terminal_on_life_loss,
            training=mode == "train",
        )
        is_atari = preprocessing is not None
        self._vector = make_vector(
            name,
            num_envs,
            vectorization,
            autoreset,
            options or {},
            mode=mode,
            step_timeout=step_timeout,
            preprocessing=preprocessing,
            wrappers=wrappers,
        )
        try:
            observations = Observations(self._vector.single_observation_space)
            self._actions = actions_of(self._vector.single_action_space, num_envs, action_levels)
            self._stacks = ImageStacks(
                observations.images, frame_stack or (FRAME_STACK if is_atari else 1)
            )
            if frame_stack is not None and frame_stack > 1 and not observations.images:
                raise ConfigurationError(
                    f"env.frame_stack={frame_stack}: it has no images to stack"
                )
            if action_levels != _ACTION_LEVELS and self._actions.table is None:
                raise ConfigurationError(
                    f"env.action_levels={action_levels}: its actions are discrete; leave it out"
                )
        except ConfigurationError as error:
            self._vector.close()
            raise ConfigurationError(f"env.name={name}: {error}") from None
        if options:
            try_options(self._vector, name, options)
        self._episodes = episodes_of(self._vector, observations, seed, success)
        self._begun: Tensor | None = None  # the actions of the step in flight
        self._has_failed = False
        self._processes = self._vector if isinstance(self._vector, WatchedVectorEnv) else None
        self.stall_seconds = step_timeout if self._processes is None else None
        metadata = self._vector.metadata
        step_seconds = 1.0 / (metadata.get("render_fps") or _USUAL_FPS)
        settings = {"num_envs": num_envs, "vectorization": vectorization}
        self.capabilities = replace(
            self.capabilities_of(settings, self.device),
            discrete_actions=self._actions.table,
            action_table=self._actions.choices,
            frame_stacks=self._stacks.counts,
            step_seconds=STEP_SECONDS if is_atari else step_seconds,
            action_range=self._actions.bounds,
            has_state=mode == "train" and vectorization != "vector_entry_point",
            can_render=is_atari or "rgb_array" in (metadata.get("render_modes") or ()),
        )
        clips = is_atari if clip_rewards is None else clip_rewards
        self._clips_rewards = clips and mode == "train"

        spec = self._stacks.spec(observations.spec(num_envs))
        if isinstance(self._episodes, NextStepEpisodes):
            spec["active"] = Binary(1, (num_envs, 1), dtype=torch.bool)
        if success is not None:
            spec["success"] = Binary(1, (num_envs, 1), dtype=torch.bool)
        self.observation_spec = spec
        self.action_spec = self._actions.spec
        self.reward_spec = Unbounded((num_envs, 1), dtype=torch.float32)
        self.full_done_spec = self._spec_of_dones()

    def begin_step(self, tensordict: TensorDictBase) -> None:
        """Let the processes begin a step: see `Environment.begin_step`."""
        if self.capabilities.can_overlap:
            action = tensordict.get("action")
            self._vector.step_async(self._actions.to_env(action))
            self._begun = action

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict.get("action")
        self._has_failed = True  # until the step has succeeded
        if self._begun is None:
            after = self._episodes.step(self._actions.to_env(action))
        elif self._begun is action:
            after = self._episodes.step(None)
        else:
            raise RuntimeError("a step with other actions has begun: reset the environment first")
        self._begun, self._has_failed = None, False
        if self._clips_rewards:
            after["reward"].clamp_(-1.0, 1.0)
        return self._batch(self._stacks.step(after))

    def _root_after(self, after: TensorDictBase) -> TensorDictBase:
        over = self._episodes.over
        if over.any():
            return self._restarted(over)
        return self._batch({key: leaf for key, leaf in after.items() if key != "reward"})

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        self._discard_begun()
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is not None:
            return self._restarted(mask.reshape(-1).numpy())
        observations = self._episodes.begin()
        self._has_failed = False
        return self._batch(self._stacks.restart(observations, np.ones(self.num_envs, np.bool_)))

    def _restarted(self, chosen: NDArray[np.bool_]) -> TensorDictBase:
        """Return the root after new episodes have begun in chosen environments."""
        has_failed, self._has_failed = self._has_failed, True  # until the reset has succeeded
        observations = self._episodes.restart(chosen)
        self._has_failed = has_failed
        return self._batch(self._stacks.restart(observations, chosen))

    def _discard_begun(self) -> None:
        if self._begun is not None:
            self._episodes.discard()
            self._begun = None

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Return the state of all episodes, before a step that has begun.

        Raises:
            EpisodesLostError: a step or reset has failed, which some of the environments may have
                taken, or a process has been lost since the last step.
        """
        if not (self.capabilities.has_state and self._episodes.started):
            return {}
        if self._has_failed:
            raise EpisodesLostError("a step or reset of the environment has failed")
        try:
            episodes = self._episodes.state_dict(has_begun=self._begun is not None)
        except Exception as error:  # of the step that has begun
            raise EpisodesLostError(one_line(error)) from error
        return {"episodes": episodes, "stacks": self._stacks.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any], *_: Any, **__: Any) -> None:
        """Restore `state_dict()`, by playing the open episodes again.

        Raises:
            EpisodesLostError: the simulator does not repeat them, or the settings differ.
        """
        if not (self.capabilities.has_state and state_dict):
            return
        self._discard_begun()
        self._episodes.load_state_dict(state_dict["episodes"])
        self._stacks.load_state_dict(state_dict["stacks"])

    def _set_seed(self, seed: int | None) -> None:
        self._episodes.seed = seed

    @classmethod
    def capabilities_of(cls, settings: Mapping[str, Any], device: torch.device) -> Capabilities:
        """Return the capabilities that follow from settings: see `Environment.capabilities_of`.

        The others follow from the spaces and metadata of Gymnasium's environment. It is not made to
        ask for them: that may take long, and some simulators allow one instance per process.
        """
        settings = with_defaults(GymnasiumEnv, settings)
        if settings["vectorization"] != "async":
            return Capabilities(can_render=None, has_state=settings["vectorization"] == "sync")
        return Capabilities(
            can_render=None,
            has_state=True,
            can_overlap=True,
            max_evaluation_envs=settings["num_envs"],
            envs_per_core=1,
            simulator_device=torch.device("cpu"),
        )

    def metrics(self) -> dict[str, float | Tensor]:
        """Return the number of episodes of lost processes since the last call."""
        if self._processes is None:
            return {}
        lost, self._processes.lost_episodes = self._processes.lost_episodes, 0
        return {"workers/lost_episodes": lost}

    def render(self, index: int = 0) -> Tensor:
        """Draw the current state of one environment, `[H, W, 3]`, uint8.

        Raises:
            ConfigurationError: `mode` is not `demo`, there is no environment of this index, or
                rendering fails, for instance because a package or a display is missing.
        """
        if self._vector.render_mode is None:
            raise ConfigurationError('a GymnasiumEnv renders only with mode="demo"')
        index = self._checked_index(index)
        try:
            frames = self._vector.render()
        except Exception as error:
            raise ConfigurationError(
                f"the environment cannot be rendered: {one_line(error)}"
            ) from error
        return torch.from_numpy(np.array(frames[index], np.uint8, order="C"))

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the environments and end their processes; may be called again."""
        self._vector.close()
        super().close(raise_if_closed=False)
