"""The replay of a run as a dataset, and back."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Composite, Unbounded

from agents import DDPG, PPO, Rainbow
from tests.helpers.agents import CPU, Case
from tests.helpers.datasets import FRAMES, assert_same_episodes, interface_of, random_episodes
from tests.helpers.program import Call
from tests.helpers.training import make_trainer
from torchrl_gpu.datasets.dataset import open_dataset, write_dataset
from torchrl_gpu.errors import START_AGAIN
from torchrl_gpu.replay.buffer import ReplayBuffer
from torchrl_gpu.replay.episodes import Episode, episodes_of, fill, rows_needed
from trainers.runs import replays
from trainers.runs.replays import export_replay

pytest.importorskip("minari", "0.5.4")  # needs Python 3.11

CASES = [Case(DDPG, "continuous"), Case(Rainbow, "discrete")]


def buffer_for(kind: str, capacity: int) -> ReplayBuffer:
    interface = interface_of(kind)
    specs = interface.observation_spec, interface.action_spec
    return ReplayBuffer(capacity, *specs, CPU, frame_stacks=interface.frame_stacks)


@pytest.mark.parametrize("kind", ["vector", "nested", "set", "colour", "stack", "grey stack"])
@pytest.mark.parametrize("format", ["minari", "lerobot"])
def test_episodes_go_through_a_replay_bit_for_bit(kind: str, format: Any, tmp_path: Path) -> None:
    interface = interface_of(kind)
    torch.manual_seed(0)
    episodes = random_episodes(interface, success=False)
    for each in episodes:  # an episode begins with its first frame alone
        for name, frames in interface.frame_stacks.items():
            observed = each.observations[name]
            size = observed.shape[1] // frames
            for step in range(frames - 1):
                for back in range(step + 1, frames):
                    place = (frames - 1 - back) * size
                    observed[step, place : place + size] = observed[0, -size:]
    buffer = buffer_for(kind, rows_needed(episodes, FRAMES))
    fill(buffer, episodes)
    assert len(buffer) == sum(map(len, episodes))
    assert_same_episodes(episodes_of(buffer), episodes)
    write_dataset(tmp_path / "data", episodes_of(buffer), interface, format)
    assert_same_episodes(open_dataset(tmp_path / "data"), episodes)


@pytest.fixture(scope="module", params=CASES, ids=str)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a trainer whose replay is full."""
    folder = tmp_path_factory.mktemp("run")
    trainer = make_trainer(request.param, folder, total_frames=512, replay_capacity=350)
    trainer.train()
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize("format", ["minari", "lerobot"])
def test_the_replay_of_a_run_is_written_whole(trained: Any, format: Any, tmp_path: Path) -> None:
    replay: ReplayBuffer = trained.experience.replay
    export_replay(trained.folder, tmp_path / "data", format)
    found = list(open_dataset(tmp_path / "data"))
    assert_same_episodes(found, list(episodes_of(replay)))
    assert sum(map(len, found)) == len(replay) > 200
    # Every stored transition, whatever the order.
    rows = torch.cat([each.transitions() for each in found])
    steps = [replay.step_of_age(age) for age in range(replay.complete_steps, 0, -1)]
    assert _as_set(rows) == _as_set(torch.cat(steps))


def _as_set(rows: TensorDict) -> set[tuple[float, ...]]:
    keys = ["observation", "action", ("next", "observation"), ("next", "reward")]
    parts = [rows[key].reshape(len(rows), -1).float() for key in keys]
    return set(map(tuple, torch.cat(parts, 1).tolist()))


def test_a_stretch_of_an_episode_ends_without_a_flag() -> None:
    spec = Composite(observation=Unbounded((2, 1)), shape=(2,))
    buffer = ReplayBuffer(100, spec, Bounded(-1, 1, (2, 1)), CPU)
    for step in range(4):
        now, after = torch.full((2, 1), float(step)), torch.full((2, 1), step + 1.0)
        flag = torch.zeros(2, 1, dtype=torch.bool)
        active = torch.tensor([[True], [step != 1]])
        rest = {"reward": now, "terminated": flag, "truncated": flag}
        buffer.extend(
            TensorDict(
                {"observation": now, "action": 0 * now, "active": active}
                | {"next": {"observation": after, **rest}},
                [2],
            )
        )
    found = [each.reward.tolist() for each in episodes_of(buffer)]
    assert sorted(found) == [[0.0], [0.0, 1.0, 2.0, 3.0], [2.0, 3.0]]
    assert not any(each.terminated.any() or each.truncated.any() for each in episodes_of(buffer))


def test_the_command_names_what_it_wrote(tmp_path: Path, program: Call) -> None:
    make_trainer(CASES[0], tmp_path / "run", total_frames=256).train()
    command = ("replay", "checkpoint=run", "path=data", "format=lerobot")
    assert "transitions" in program(*command).report()
    assert open_dataset(tmp_path / "data").num_episodes
    assert "it exists; choose another folder" in program(*command).refusal()


def test_a_signal_leaves_no_part_of_a_dataset(
    tmp_path: Path, program: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(buffer: ReplayBuffer) -> Iterator[Episode]:
        yield next(episodes_of(buffer))
        assert list((tmp_path / "sets").iterdir())
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    make_trainer(CASES[0], tmp_path / "run", total_frames=256).train()
    monkeypatch.setattr(replays, "episodes_of", begin)
    assert program("replay", "checkpoint=run", "path=sets/data").code == START_AGAIN
    assert not (tmp_path / "sets").exists()


@pytest.mark.parametrize(
    ("case", "settings"),
    [(Case(PPO, "discrete"), {}), (CASES[0], {"save_replay": False})],
    ids=["rollout", "not saved"],
)
def test_a_run_without_a_replay_is_refused(
    case: Case, settings: dict[str, Any], tmp_path: Path, program: Call
) -> None:
    make_trainer(case, tmp_path / "run", total_frames=256, **settings).train()
    said = program("replay", "checkpoint=run", "path=data").refusal()
    assert "no replay is saved beside it" in said
    assert not (tmp_path / "data").exists()


def test_a_replay_holds_what_it_can_of_an_episode_that_began_before_it() -> None:
    interface = replace(interface_of("grey stack"))
    (episode,) = random_episodes(interface, [6], success=False)
    buffer = buffer_for("grey stack", rows_needed([episode], FRAMES))
    fill(buffer, [episode])
    (found,) = episodes_of(buffer)
    assert len(found) == len(episode) - (FRAMES - 1)  # without the frames before the first
    for name in ("action", "reward", "truncated"):
        assert torch.equal(getattr(found, name), getattr(episode, name)[FRAMES - 1 :])
