"""The setting observation_keys: command line, saved configuration, checkpoint."""

from pathlib import Path

import pytest

from tests.helpers.program import Call
from torchrl_gpu.checkpoints.checkpoint import find_checkpoint
from trainers.runs.policy_files import load_policy

SHORT = [
    *("agent=sac", "env=marinenav", "experiment=quick", "device=cpu", "agent.hidden_sizes=[8]"),
    *("env.num_envs=2", "env.num_robots=2", "env.max_episode_steps=10", "trainer.total_frames=64"),
    *("trainer.random_frames=32", "trainer.replay_capacity=1000", "trainer.evaluation_episodes=2"),
    "evaluation.episodes=2",
]


def test_observation_keys_are_saved_with_a_run_and_restored(tmp_path: Path, program: Call) -> None:
    assert program(*SHORT, "observation_keys=[observation]").code == 0
    (folder,) = (tmp_path / "runs" / "marinenav" / "sac").iterdir()
    assert "observation_keys:\n- observation" in (folder / "config.yaml").read_text()
    assert program("mode=eval", f"checkpoint={folder}").code == 0
    arguments = [f"checkpoint={folder}", "trainer.total_frames=80"]
    assert program(*arguments).code == 0
    assert load_policy(find_checkpoint(folder)).policy.in_keys == ["observation"]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("[speed]", "there is no observation speed; this environment has: observation, objects"),
        ("observation", "observation_keys=observation: input should be a list; write ["),
        ("[]", "observation_keys=[]: it takes at least 1 value"),
    ],
)
def test_wrong_observation_keys_end_in_a_one_line_error(
    keys: str, said: str, tmp_path: Path, program: Call
) -> None:
    assert said in program(*SHORT, f"observation_keys={keys}").refusal()
    assert not list(tmp_path.iterdir())
