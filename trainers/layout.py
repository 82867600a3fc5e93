"""The layout of checkpoints and policy files, and how those of former versions are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchrl_gpu.checkpoints.state_file import load_state

LAYOUT = 2


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint of a run or a policy file, whichever version wrote it.

    Args:
        path: of the file.

    Returns:
        The state in the present layout.

    Raises:
        ConfigurationError: see `load_state`.
    """
    state = load_state(path)
    if state.get("layout", 1) < 2:
        _read_first_layout(state)
    return state


def _read_first_layout(state: dict[str, Any]) -> None:
    """Bring a state of layout 1 to layout 2, in place."""
    config = state.get("config") or {}
    agent = config.get("agent", {})
    # The layer for vectors was a setting of the agent.
    if "vector_features" in agent:
        agent["encoder"] = {"vector_features": agent.pop("vector_features")}
    # The presets of PPO named the length of the run as a number, which a longer run outlasted.
    if agent.get("learning_rate_frames") == config.get("trainer", {}).get("total_frames", 0):
        agent["learning_rate_frames"] = "${trainer.total_frames}"
    # Groups of parameters did not name their initial learning rate, which may have adapted.
    for optimizer in state.get("agent", {}).get("optimizers", {}).values():
        for group in optimizer["param_groups"]:
            group.setdefault("initial_lr", agent.get("learning_rate", group["lr"]))
    # PPO kept its learning rate among the networks; its optimizer has it too.
    state.get("agent", {}).get("networks", {}).pop("learning_rate", None)
