"""Layout of checkpoints and policy files, and conversion of files of earlier versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchrl_gpu.checkpoints.state_file import load_state

LAYOUT = 4

# Classes that layout 2 knows by another path.
_RENAMED = {
    "envs.gym.GymWorld": "envs.gym.GymnasiumEnv",
    "trainers.trainer.TorchRLTrainer": "trainers.TorchRLTrainer",
}


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint or a policy file of any version.

    Args:
        path: path of the file.

    Returns:
        State in the present layout.

    Raises:
        ConfigurationError: the file cannot be read, see `load_state`.
    """
    state = load_state(path)
    if state.get("layout", 1) < 2:
        _read_first_layout(state)
    if state.get("layout", 1) < 4:
        _read_second_layout(state)
    return state


def _read_first_layout(state: dict[str, Any]) -> None:
    """Convert a state of layout 1 to layout 2, in place."""
    config = state.get("config") or {}
    agent = config.get("agent", {})
    # In layout 1, the width of the layer for vectors was a setting of the agent.
    if "vector_features" in agent:
        agent["encoder"] = {"vector_features": agent.pop("vector_features")}
    # In layout 1, PPO's presets gave the length of the run as a number; a longer run outlasts it.
    if agent.get("learning_rate_frames") == config.get("trainer", {}).get("total_frames", 0):
        agent["learning_rate_frames"] = "${trainer.total_frames}"
    # In layout 1, parameter groups lacked their initial learning rate, and `lr` may have adapted.
    for optimizer in state.get("agent", {}).get("optimizers", {}).values():
        for group in optimizer["param_groups"]:
            group.setdefault("initial_lr", agent.get("learning_rate", group["lr"]))
    # In layout 1, PPO saved its learning rate among the networks as well as in the optimizer.
    state.get("agent", {}).get("networks", {}).pop("learning_rate", None)


def _read_second_layout(state: dict[str, Any]) -> None:
    """Convert a state of layout 2 to layout 3, in place."""
    for group in ("env", "trainer"):
        section = (state.get("config") or {}).get(group, {})
        if section.get("_target_") in _RENAMED:
            section["_target_"] = _RENAMED[section["_target_"]]
