"""The whole life of an agent on the command line: trained, saved, evaluated and resumed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.program import call
from tests.helpers.training import metric_rows
from torchrl_gpu.arguments import parameters_of
from torchrl_gpu.checkpoints.checkpoint import find_checkpoint
from torchrl_gpu.checkpoints.state_file import load_state
from torchrl_gpu.devices.kinds import accelerator_of
from trainers.components.choices import learning_agents

EPISODE = 4
_FRAMES, _ALL_FRAMES = 16, 32

# Settings of small agents, of which each takes those that it has.
_SMALL: dict[str, Any] = {
    "hidden_sizes": "[8,8]",
    "head_sizes": "[8]",
    "batch_size": 8,
    "rollout_length": 4,
    "epochs": 1,
    "utd_ratio": 0.125,
    "acting_fractions": 4,
    "atoms": 5,
}
_TRAINER = (
    *("trainer.random_frames=8", "trainer.replay_capacity=100", "trainer.log_interval=8"),
    *("trainer.evaluation_interval=32", "trainer.checkpoint_interval=16"),
    *("trainer.evaluation_episodes=4", "trainer.show_progress=false", "evaluation.episodes=4"),
)


def live(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    agent: str,
    device: torch.device,
    *env: str,
    whole: bool = False,
) -> None:
    """Train an agent in a few steps, and resume it; as a `whole`, also evaluate and film it.

    The further arguments choose an environment; episodes of `EPISODE` steps cost least.
    """
    monkeypatch.setattr("trainers.evaluation.evaluation._STEPS_BETWEEN_READS", EPISODE)

    def run(*arguments: str) -> None:
        assert call(monkeypatch, folder, f"device={device.type}", *arguments) == 0

    known = parameters_of(learning_agents()[agent])
    small = [f"agent.{name}={value}" for name, value in _SMALL.items() if name in known]
    choices = ("experiment=null", f"agent={agent}", *env)
    speed = ["graphs=on"] if accelerator_of(device).graphs else []
    run(*choices, *small, *_TRAINER, *speed, f"trainer.total_frames={_FRAMES}")
    (made,) = (path.parent for path in folder.glob("runs/**/config.yaml"))
    before = _networks(made)
    trained = (f"checkpoint={made}", "trust=tests")
    run(*trained, f"trainer.total_frames={_ALL_FRAMES}")
    after = _networks(made)
    assert any(not torch.equal(before[name], value) for name, value in after.items())
    assert all(value.isfinite().all() for value in after.values())
    assert int(metric_rows(made)[-1]["frames"]) == _ALL_FRAMES
    assert json.loads((made / "summary.json").read_text())["episodes"] == 4
    if whole:
        run("mode=eval", *trained)
        (result,) = made.glob("evaluations/*.json")
        assert json.loads(result.read_text())["episodes"] == 4
        run("mode=demo", *trained, "demo.episodes=1")
        (film,) = made.glob("videos/*.mp4")
        assert film.stat().st_size > 500


def _networks(run: Path) -> dict[str, torch.Tensor]:
    networks: dict[str, torch.Tensor] = load_state(find_checkpoint(run))["agent"]["networks"]
    return networks
