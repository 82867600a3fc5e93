"""Disasters in the middle of a run: its last checkpoint is whole, and one line says the cause."""

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.program import Call
from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder, find_checkpoint
from torchrl_gpu.checkpoints.state_file import load_state

resource = pytest.importorskip("resource")  # of Unix
HARD_LIMIT = resource.getrlimit(resource.RLIMIT_FSIZE)[1]

_WORLD = """
import gymnasium

class World(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0
    disaster = None

    def reset(self, seed=None, options=None):
        return self.observation_space.sample() * 0, {}

    def step(self, action):
        World.steps += 1
        seen, reward = self.observation_space.sample() * 0, 1.0
        if World.steps == 50 and World.disaster:
            seen, reward = World.disaster(seen, reward)
        return seen, reward, False, World.steps % 5 == 0, {}

gymnasium.register("World-v0", World)
"""
SETTINGS = (
    *("agent=dqn", "env=gym", "env.name=disaster_world:World-v0", "env.num_envs=1", "device=cpu"),
    *("agent.hidden_sizes=[8]", "agent.batch_size=8", "trainer.random_frames=8"),
    *("trainer.total_frames=80", "trainer.replay_capacity=100", "trainer.evaluation_episodes=1"),
    *("trainer.checkpoint_interval=20", "trainer.log_interval=20", "evaluation.episodes=1"),
    *("trainer.evaluation_interval=1000", "trainer.show_progress=false"),
)
Run = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Call) -> Iterator[Run]:
    """Train in a world, with a disaster in its step 50; return exit code and lines of errors."""
    (tmp_path / "disaster_world.py").write_text(_WORLD)
    monkeypatch.syspath_prepend(tmp_path)

    def train(disaster: Callable[[Any, float], object], *more: str) -> tuple[int, list[str]]:
        sys.modules.pop("disaster_world", None)
        import disaster_world  # type: ignore[import-not-found]

        disaster_world.World.disaster = staticmethod(disaster)
        try:
            ended = program(*SETTINGS, *more)
        finally:  # before pytest writes to a file
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        return ended.code, ended.err.partition("error: ")[2].splitlines()

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield train
    sys.modules.pop("disaster_world", None)


# Frames of the newest checkpoint, as the save at 40 frames may be under way.
NEWEST = (20, 40)


def check_whole(folder: Path, *frames: int) -> None:
    """Check that the newest checkpoint can be read, and is of one of some numbers of frames."""
    (config,) = folder.glob("runs/**/config.yaml")
    assert load_state(find_checkpoint(config.parent))["frames"] in frames


def test_a_full_disk(run: Run, tmp_path: Path) -> None:
    def fill(seen: Any, reward: float) -> tuple[Any, float]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, HARD_LIMIT))
        return seen, reward

    code, (line,) = run(fill)
    assert code == 2
    # The checkpoint is written while the metrics are.
    assert re.match(r"cannot write (metrics to )?runs/.*: File too large$", line)
    check_whole(tmp_path, *NEWEST)


def test_a_folder_that_becomes_read_only(
    run: Run, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    user, modes = os.geteuid(), {tmp_path: tmp_path.stat().st_mode}

    def restore() -> None:
        os.seteuid(user)
        for path, mode in modes.items():
            path.chmod(mode)

    request.addfinalizer(restore)

    def lock(seen: Any, reward: float) -> tuple[Any, float]:
        modes.update((path, path.stat().st_mode) for path in tmp_path.glob("runs/**/"))
        for path in modes:
            path.chmod(0o555)
        if not user:  # root may write everywhere
            os.seteuid(65534)
        return seen, reward

    code, (line,) = run(lock)
    restore()
    assert code == 2
    assert re.match(r"cannot write (metrics to )?runs/.*: Permission denied$", line)
    check_whole(tmp_path, *NEWEST)


def test_a_folder_that_becomes_unusable(run: Run, tmp_path: Path) -> None:
    kept = tmp_path / "kept"

    def take_away(seen: Any, reward: float) -> tuple[Any, float]:
        (checkpoints,) = tmp_path.glob("runs/*/*/*/*/checkpoints")
        checkpoints.rename(kept)
        checkpoints.write_text("")
        return seen, reward

    code, (line,) = run(take_away)
    assert code == 2
    assert re.match(r"(cannot write )?runs/.*/checkpoints/frames_", line)
    assert load_state(find_checkpoint(kept))["frames"] in NEWEST


def test_a_folder_that_is_removed(run: Run, tmp_path: Path) -> None:
    """The run ends, and its state is saved all the same."""

    def remove(seen: Any, reward: float) -> tuple[Any, float]:
        while not [*tmp_path.glob("runs/**/frames_000000000040.safetensors")]:
            time.sleep(0.01)
        while (tmp_path / "runs").exists():  # older checkpoints may be deleted at the same time
            shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        return seen, reward

    code, (line,) = run(remove)
    assert code == 2
    assert re.match(r"runs/.*/checkpoints was deleted while the run trained$", line)
    (checkpoint,) = tmp_path.glob("runs/**/frames_0000000000??.safetensors")
    assert load_state(checkpoint)["frames"] >= 60
    assert CheckpointFolder(tmp_path).load_replay(checkpoint)


DISASTERS: dict[str, tuple[Callable[[Any, float], object], str]] = {
    "exception": (lambda seen, reward: 1 / 0, r"ZeroDivisionError in .*/disaster_world\.py$"),
    "four values": (lambda seen, reward: (seen, reward, 1, 2), r"ValueError in .*_world\.py$"),
}


SHAPES: dict[str, tuple[Callable[[Any, float], object], str]] = {
    "shape": (
        lambda seen, reward: (seen[:2], reward),
        "observation as float32 (2,); its space is a Box of float32 (3,)",
    ),
    "one number for all": (
        lambda seen, reward: (seen[0], reward),
        "observation as float32 (); its space is a Box of float32 (3,)",
    ),
    "dtype": (
        lambda seen, reward: (seen.astype(complex), reward),
        "observation as complex128 (3,); its space is a Box of float32 (3,)",
    ),
    "nothing": (
        lambda seen, reward: (None, reward),
        "observation as NoneType (); its space is a Box of float32 (3,)",
    ),
    "ragged": (
        lambda seen, reward: ([0.0, [1.0]], reward),
        "observation as list (); its space is a Box of float32 (3,)",
    ),
    "text": (lambda seen, reward: (seen, "much"), "reward as str ()"),
    "two rewards": (lambda seen, reward: (seen, [1.0, 2.0]), "reward as float64 (2,)"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "vectorization"),
    [*((case, "sync") for case in SHAPES), ("ragged", "async"), ("two rewards", "async")],
)
def test_a_step_that_does_not_fit_the_spaces(
    case: str, vectorization: str, run: Run, tmp_path: Path
) -> None:
    disaster, said = SHAPES[case]
    code, (line,) = run(disaster, f"env.vectorization={vectorization}")
    assert code == 2
    assert line.startswith(f"env.name=World-v0: step returned {said}")
    check_whole(tmp_path, 49)


@pytest.mark.parametrize("case", DISASTERS)
def test_a_step_that_fails(case: str, run: Run, tmp_path: Path) -> None:
    disaster, said = DISASTERS[case]
    code, (line, *frames) = run(disaster)
    assert code == 1
    assert re.match(said, line)
    assert frames[0].startswith("Traceback")
    check_whole(tmp_path, 49)
