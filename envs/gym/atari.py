"""Standard preprocessing of Atari environments.

Source: Machado et al., "Revisiting the Arcade Learning Environment", arXiv 1709.06009.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.wrappers import AtariPreprocessing

from torchrl_gpu.errors import ConfigurationError

# Number of frames in a stack (Mnih et al., Nature 518, 2015).
FRAME_STACK = 4

_FRAME_SKIP = 4
_FRAMES_PER_SECOND = 60
# Seconds of the game per environment step.
STEP_SECONDS = _FRAME_SKIP / _FRAMES_PER_SECOND

# Arguments of ALE's vectorized code that choose its threads; single environments lack them.
THREAD_OPTIONS = ("num_threads", "thread_affinity_offset")

# Arguments of `gymnasium.make` for an environment that `Preprocessing` then wraps.
WRAPPED_OPTIONS: dict[str, Any] = {"frameskip": 1, "obs_type": "grayscale"}

# Further arguments of ALE's vectorized code that the preprocessing determines.
_FIXED_OPTIONS = ("maxpool", "grayscale", "img_height", "img_width", "autoreset_mode")


@dataclass(frozen=True)
class Preprocessing:
    """Standard preprocessing: images 84 x 84 in shades of grey, one for every four frames.

    An environment step repeats the action for four frames of the game and observes the maximum of
    the last two. An episode begins with 1 to 30 frames without action. ALE's vectorized code
    computes the same images, rewards and flags as Gymnasium's wrapper, with other random numbers.
    """

    terminal_on_life_loss: bool = False  # ends an episode; the next one is a new game
    noop_max: int = 30  # maximum number of frames without action at the start of an episode

    def __call__(self, env: gymnasium.Env) -> gymnasium.Env:
        """Return an environment with the preprocessing; it is made with `WRAPPED_OPTIONS`."""
        return AtariPreprocessing(
            env,
            noop_max=self.noop_max,
            frame_skip=_FRAME_SKIP,
            terminal_on_life_loss=self.terminal_on_life_loss,
            grayscale_newaxis=True,
        )

    def vectorized_options(self) -> dict[str, Any]:
        """Return arguments of ALE's vectorized code for the same transitions."""
        return {
            "frameskip": _FRAME_SKIP,
            "stack_num": 1,
            "noop_max": self.noop_max,
            "episodic_life": self.terminal_on_life_loss,
            "reward_clipping": False,
            "use_fire_reset": False,
        }


def preprocessing_of(
    name: str,
    wanted: bool | None,
    vectorization: str,
    options: Mapping[str, Any],
    *,
    terminal_on_life_loss: bool,
    training: bool,
) -> Preprocessing | None:
    """Return the preprocessing of an environment, None if it has none; see `GymnasiumEnv`.

    `wanted` is the setting `atari_preprocessing`. Only in training does the loss of a life end an
    episode; other episodes are full games.

    Raises:
        ConfigurationError: the settings do not fit together, or do not fit the environment.
    """
    spec = gymnasium.spec(name.rpartition(":")[2])
    is_atari = str(spec.entry_point).startswith("ale_py.")
    if wanted and not is_atari:
        raise ConfigurationError(
            f"env.atari_preprocessing=true: {spec.id} is not an Atari environment"
        )
    if not is_atari or wanted is False:
        if terminal_on_life_loss:
            raise ConfigurationError(
                "env.terminal_on_life_loss=true: the loss of a life ends an episode only in Atari "
                "environments with env.atari_preprocessing=true"
            )
        if is_atari and vectorization == "vector_entry_point":
            raise ConfigurationError(
                "env.atari_preprocessing=false: ALE's vectorized code always preprocesses; use "
                "env.vectorization=sync or async"
            )
        return None
    preprocessing = Preprocessing(terminal_on_life_loss and training)
    own = WRAPPED_OPTIONS | preprocessing.vectorized_options()
    for option in (*own, *_FIXED_OPTIONS):
        if option in options:
            raise ConfigurationError(
                f"env.options.{option}: the preprocessing of Atari environments sets this "
                "argument; env.atari_preprocessing=false switches it off"
            )
    return preprocessing
