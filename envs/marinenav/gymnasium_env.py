"""One vessel in one sea as a Gymnasium environment."""

from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from tensordict import TensorDictBase
from torchrl.envs.utils import step_mdp

from envs.marinenav.env import MarineNavEnv
from envs.marinenav.physics import STEP_SECONDS
from envs.marinenav.sea_env import GROUP
from torchrl_gpu.arguments import checked
from torchrl_gpu.environments.captions import write_captions

_OBSERVED = ("observation", "objects", "objects_mask")


class MarineNavGymnasium(gymnasium.Env[dict[str, npt.NDArray[Any]], Any]):
    """Gymnasium interface of `MarineNavEnv` with one robot in one sea.

    Args:
        discrete: actions are indices of the paper's 25 actions; False for two thrust rates.
        render_mode: `rgb_array` for images `[720, 720, 3]`, None for no images.
        settings: settings of `MarineNavEnv`, except `num_envs`, `num_robots`, `dtype` and `device`.
            Without `seed` the episodes differ from those of every other instance.

    Raises:
        ConfigurationError: an argument is out of range, or the map has no room for the robot,
            vortices and obstacles.
    """

    metadata: ClassVar[dict[str, Any]] = {
        "render_modes": ["rgb_array"],
        "render_fps": round(1.0 / STEP_SECONDS),
    }

    @checked
    def __init__(
        self,
        *,
        discrete: bool = False,
        render_mode: Literal["rgb_array"] | None = None,
        **settings: Any,
    ) -> None:
        settings.setdefault("seed", int(np.random.SeedSequence().generate_state(1)[0]))
        # The spaces of Gymnasium are those of one float32 vessel on the host.
        self.env = MarineNavEnv(num_envs=1, num_robots=1, dtype="float32", device="cpu", **settings)
        self.render_mode = render_mode
        self._table = self.env.discrete_actions if discrete else None
        group = self.env.observation_spec[GROUP]
        boxes = {}
        for key in _OBSERVED[:2]:
            low, high = (bound[0, 0].numpy() for bound in (group[key].low, group[key].high))
            boxes[key] = Box(low, high, dtype=np.float32)
        self.observation_space = Dict({**boxes, "objects_mask": MultiBinary(5)})
        self.action_space = (
            Box(-1.0, 1.0, (2,), np.float32) if self._table is None else Discrete(len(self._table))
        )
        self._state: TensorDictBase = self.env.reset()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Start an episode.

        Args:
            seed: random seed that determines the sea; None to continue the random sequence.
            options: unused.
        """
        super().reset(seed=seed)
        if seed is not None:
            self.env.set_seed(seed)
        self._state = self.env.reset()
        return _observation(self._state), {"success": False}

    def step(
        self, action: Any
    ) -> tuple[dict[str, npt.NDArray[Any]], float, bool, bool, dict[str, Any]]:
        """Act for 0.5 s.

        Args:
            action: two thrust rates in [-1, 1], or the index of a discrete action.
        """
        wanted = np.asarray(action, np.float32)
        rates = self.env.action_spec.zero()
        rates[GROUP, "action"][0, 0] = (
            rates[GROUP, "action"].new_tensor(wanted)
            if self._table is None
            else self._table[int(action)]
        )
        stepped = self.env.step(self._state.update(rates))
        self._state = step_mdp(stepped)
        after = stepped["next"]
        return (
            _observation(after),
            float(after[GROUP, "reward"]),
            bool(after["terminated"]),
            bool(after["truncated"]),
            {"success": bool(after["success"])},
        )

    def render(self) -> npt.NDArray[np.uint8] | None:
        """Return an image of the sea with its caption; None without a `render_mode`."""
        if self.render_mode is None:
            return None
        return write_captions(self.env.render(0).numpy(), [self.env.caption(0)])

    def close(self) -> None:
        """Close the environment; may be called again."""
        self.env.close(raise_if_closed=False)


def _observation(state: TensorDictBase) -> dict[str, npt.NDArray[Any]]:
    observed = {key: state[GROUP, key][0, 0].numpy() for key in _OBSERVED}
    return {**observed, "objects_mask": observed["objects_mask"].astype(np.int8)}
