import gzip
import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from agents import PPO, SAC
from agents.base import Agent
from tests.helpers.agents import assert_equal, build_for, parameters
from tests.helpers.clock import Clock
from tests.helpers.environments import IdentityEnv
from tests.helpers.training import before_each, metric_rows, trainer_of
from tests.stand_in import count_host_reads
from torchrl_gpu.timers import PARTS
from trainers.training.summary import transfers, transfers_line
from trainers.training.trainer import TorchRLTrainer

CPU = torch.device("cpu")
PARTS_AND_REST = [*PARTS, "other"]


def make_trainer(
    folder: Path,
    agent_class: type[Agent] = SAC,
    device: torch.device = CPU,
    **settings: Any,
) -> TorchRLTrainer:
    torch.manual_seed(0)
    env = IdentityEnv()
    agent = build_for(env, agent_class, device, rollout_length=4)
    lengths = {"total_frames": 320, "random_frames": 160}
    defaults = {**lengths, "log_interval": 80, "evaluation_episodes": 16}
    return trainer_of(env, agent, folder, **{**defaults, **settings})


def test_each_second_counts_for_the_part_that_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, evaluated = Clock(), IdentityEnv()
    monkeypatch.setattr(time, "perf_counter", clock)
    trainer = make_trainer(tmp_path, evaluation_env=evaluated, profile=True)
    before_each(trainer.agent, "after_update", lambda: clock.sleep(4.0))
    trainer.agent.policy.register_forward_hook(lambda *_: clock.sleep(1.0))
    for env in (trainer.env, evaluated):
        before_each(env, "_step", lambda: clock.sleep(2.0))
    trainer.train()
    profile = trainer.profiler
    assert profile is not None
    assert profile.amount == (clock.now, 320, trainer.updates)
    # 20 steps, the last 10 of them by the policy; one evaluation of 8 steps, of 2 + 1 s each.
    expected = {"simulate": 40.0, "act": 10.0, "update": 4.0 * trainer.updates, "evaluate": 24.0}
    assert profile.seconds() == {part: expected.get(part, 0.0) for part in PARTS_AND_REST}
    rows = metric_rows(tmp_path)[:4]
    assert [float(row["time/simulate"]) for row in rows[:2]] == [1.0, 1.0]
    for row in rows:
        assert sum(float(row[f"time/{part}"]) for part in PARTS_AND_REST) == pytest.approx(1.0)
    header, _, *lines, whole = profile.table().splitlines()
    assert header.split()[:3] == ["part", "seconds", "share"]
    assert [line.split()[0] for line in lines] == PARTS_AND_REST
    assert "4 s" in next(line for line in lines if line.startswith("update"))
    assert whole.split()[:3] == ["all", f"{clock.now:.2f}", "100.0%"]


@pytest.mark.parametrize("agent_class", [SAC, PPO])
def test_profile_and_trace_change_nothing_but_what_is_written(
    agent_class: type[Agent], tmp_path: Path
) -> None:
    plain = make_trainer(tmp_path / "plain", agent_class)
    watched = make_trainer(tmp_path / "watched", agent_class, profile=True, trace=3)
    for trainer in (plain, watched):
        torch.manual_seed(1)
        trainer.train()
    assert_equal(parameters(plain.agent), parameters(watched.agent))
    assert plain.updates == watched.updates


def test_trace_names_the_parts_of_each_step(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, trace=3)
    trainer.train()
    assert trainer.tracer is not None
    assert trainer.tracer.path is not None
    assert trainer.tracer.path.parent == tmp_path
    with gzip.open(trainer.tracer.path) as file:
        names = [event["name"] for event in json.load(file)["traceEvents"]]
    assert sum(name.startswith("ProfilerStep") for name in names) == 3
    assert {"simulate", "act", "store", "sample", "update"} <= set(names)


def test_training_without_a_step_to_trace_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(tmp_path, total_frames=176, trace=3)
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert "no trace" in caplog.text


def test_profile_waits_for_the_accelerator_and_reports_copies(
    accelerator: torch.device, tmp_path: Path
) -> None:
    trainer = make_trainer(
        tmp_path, device=accelerator, total_frames=160, random_frames=80, profile=True
    )
    with count_host_reads() as traffic:
        trainer.train()
    waits = sum(n for event, n in traffic.events.items() if event.kind == "synchronize")
    # At both ends of simulating, acting, storing and two copies, in each of the 10 steps.
    assert waits >= 10 * 2 * 5
    assert trainer.profiler is not None
    assert trainer.profiler.seconds()["copy"] > 0.0
    to_device, to_host = transfers(trainer.collector).values()
    assert to_device["copies_per_step"] == to_host["copies_per_step"] == 1.0
    # Two floats for each of the 16 actions.
    assert to_host["bytes_per_step"] == 128
    assert "1 to the device" in transfers_line(trainer.collector)
    assert "1 to the host (128 B)" in transfers_line(trainer.collector)
