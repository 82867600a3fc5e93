"""Registers the environments of this library in Gymnasium, with their own batched code.

Gymnasium loads no plugins: a program imports this module, or names it in the id, as in
`gymnasium.make("torchrl_gpu.gymnasium:torchrl_gpu/Fanuc-v0")`. Nothing else registers them.
"""

from typing import Any, Final

import gymnasium

_VERSION: Final = "v0"

# By name: class of the environment, and settings that differ from its defaults. A seed reproduces
# the episodes, which a curriculum that depends on earlier ones would not.
_ENVIRONMENTS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "Fanuc": ("envs.fanuc:FanucEnv", {"curriculum": False, "window": False}),
    "LiftCube": ("envs.lift_cube:LiftCubeEnv", {}),
    "LiftCubePixels": ("envs.lift_cube:LiftCubeEnv", {"pixels": True}),
    "MarineNav": ("envs.marinenav:MarineNavEnv", {"num_robots": 1}),
}

for _name, (_target, _settings) in _ENVIRONMENTS.items():
    gymnasium.register(
        f"torchrl_gpu/{_name}-{_VERSION}",
        entry_point="torchrl_gpu.gymnasium.single:SingleEnv",
        vector_entry_point="torchrl_gpu.gymnasium.batched:BatchedEnv",
        kwargs={"target": _target, **_settings},
    )
