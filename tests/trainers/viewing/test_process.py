"""The process beside a training."""

import logging
import time
from pathlib import Path

import gymnasium
import pytest

import tests.envs.gym.environments  # noqa: F401
from tests.trainers.viewing.test_viewer import DrawnEnv
from trainers.modes.viewer_process import viewer_beside
from trainers.run import settings_of


@pytest.mark.slow
def test_a_viewer_that_fails_says_why_and_the_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A system whose locale has no ä, as one of Windows may lack a letter of a path.
    for name, value in {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}.items():
        monkeypatch.setenv(name, value)
    # Only this process has registered the environment.
    gymnasium.register("Zähler-v0", entry_point=gymnasium.spec("Counter-v0").entry_point)
    env = ("env=gym", "env.name='Zähler-v0'", "env.num_envs=2")
    settings = settings_of("agent=dqn", *env, "viewer=web", "viewer_port=0", "device=cpu")
    caplog.set_level(logging.INFO)
    with viewer_beside(settings, DrawnEnv(num_envs=1), tmp_path):
        end = time.monotonic() + 120
        while "the viewer has ended; the training goes on" not in caplog.text:
            assert time.monotonic() < end, caplog.text
            time.sleep(0.05)
    begin, address, problem, _ = [record.message for record in caplog.records]
    assert begin == "the viewer is starting; its address follows"
    assert address.startswith("watch it at http://localhost:")
    assert problem.startswith("viewer: name=Zähler-v0: unknown Gymnasium environment")


def test_a_viewer_that_has_not_begun_by_the_end_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = ("env=gym", "env.name=CartPole-v1", "env.num_envs=2")
    settings = settings_of("agent=dqn", *env, "viewer=web", "viewer_port=0", "device=cpu")
    with viewer_beside(settings, DrawnEnv(num_envs=1), tmp_path):
        pass
    (line,) = [record.message for record in caplog.records]
    assert line == "the viewer had not begun when the training ended"
