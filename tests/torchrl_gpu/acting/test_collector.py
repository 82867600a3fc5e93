from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torchrl.envs import (
    CatFrames,
    Compose,
    EnvBase,
    GymEnv,
    PendulumEnv,
    RewardSum,
    SerialEnv,
    StepCounter,
    Transform,
    TransformedEnv,
    VecNormV2,
)
from torchrl.modules import RandomPolicy

from tests.envs.gym.environments import MODULE, Unrepeatable
from tests.helpers.environments import IdentityEnv
from torchrl_gpu.acting.collector import BatchCollector, Simulating
from torchrl_gpu.checkpoints.state_file import load_state, save_state
from torchrl_gpu.environments.action_table import with_action_table
from torchrl_gpu.environments.environment import Environment

pytestmark = pytest.mark.directml

CPU = torch.device("cpu")


def policy() -> TensorDictModule:
    """Return a policy whose action is half of the observation."""
    return TensorDictModule(lambda o: o / 2, in_keys=["observation"], out_keys=["action"])


def collect(collector: BatchCollector, steps: int) -> list[TensorDictBase]:
    return [collector.step(policy()).clone() for _ in range(steps)]


@pytest.fixture(params=["local", "remote"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device of the policy, that of the environment or another one."""
    remote: torch.device | None = None
    if request.param == "remote":
        remote = request.getfixturevalue("accelerator")
    return remote or CPU


def test_transitions_are_consecutive_and_end_with_the_true_last_observation(
    device: torch.device,
) -> None:
    env = IdentityEnv(num_envs=3, max_episode_steps=4)
    transitions = collect(BatchCollector(env, device, ["observation"]), 9)
    for step, (now, later) in enumerate(pairwise(transitions), start=1):
        assert torch.equal(now["action"], now["observation"] / 2)
        ends = step % 4 == 0
        assert now["next", "truncated"].all() == ends
        assert torch.equal(now["next", "observation"], later["observation"]) == (not ends)


@pytest.mark.parametrize("make", [IdentityEnv, lambda: with_action_table(IdentityEnv())])
def test_begin_and_finish_equal_a_step(make: Callable[[], Environment]) -> None:
    whole, halves = (BatchCollector(make(), CPU, ["observation"]) for _ in range(2))
    random = RandomPolicy(whole.env.full_action_spec["action"])
    for seed in range(9):
        torch.manual_seed(seed)
        expected = whole.step(random).clone()
        torch.manual_seed(seed)
        halves.begin(random)
        halves.begin(random)  # the step that has begun stays as it is
        assert (halves.finish() == expected).all()
    assert halves.steps == whole.steps


def test_a_restart_discards_the_step_that_has_begun(device: torch.device) -> None:
    env = IdentityEnv()
    collector = BatchCollector(env, device, ["observation"])
    collector.step(policy())
    collector.begin(policy())
    collector.restart()
    first = env.numbers.clone()
    transition = collector.step(policy())
    assert torch.equal(transition["observation"].cpu(), first)
    assert torch.equal(transition["action"], transition["observation"] / 2)


def transformed(base: EnvBase, inner: Transform, outer: Transform) -> EnvBase:
    return TransformedEnv(TransformedEnv(base, inner), outer, auto_unwrap=False)


def statistics() -> Transform:
    return VecNormV2(in_keys=["observation"])


def saved_and_loaded(state: dict[str, Any], path: Path) -> dict[str, Any]:
    save_state(path / "state.safetensors", state)
    return load_state(path / "state.safetensors")


@pytest.mark.parametrize(
    "make",
    [
        IdentityEnv,
        lambda: TransformedEnv(IdentityEnv(), CatFrames(3, -1, ["observation"])),
        lambda: TransformedEnv(IdentityEnv(), Compose(RewardSum(), StepCounter(5))),
        lambda: transformed(IdentityEnv(), statistics(), RewardSum()),
        lambda: transformed(IdentityEnv(), RewardSum(), statistics()),
        lambda: with_action_table(IdentityEnv()),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_state_of_all_transforms_is_restored(
    make: Callable[[], EnvBase], tmp_path: Path
) -> None:
    first, second = (BatchCollector(make(), CPU, ["observation"]) for _ in range(2))
    random = RandomPolicy(first.env.full_action_spec["action"])
    torch.manual_seed(0)
    for _ in range(7):
        first.step(random)
    state = saved_and_loaded(first.state_dict(), tmp_path)
    torch.manual_seed(1)
    expected = [first.step(random).clone() for _ in range(9)]
    assert second.load_state_dict(state)
    torch.manual_seed(1)
    for left in expected:
        assert (left == second.step(random)).all()


def test_a_step_that_had_begun_is_taken_once_after_a_restore(tmp_path: Path) -> None:
    first, second = (BatchCollector(IdentityEnv(), CPU, ["observation"]) for _ in range(2))
    first.step(policy())
    first.begin(policy())
    assert second.load_state_dict(saved_and_loaded(first.state_dict(), tmp_path))
    for expected in collect(first, 3):
        assert (second.step(policy()) == expected).all()


@pytest.mark.parametrize(("levels", "kind"), [(1, "another_reward"), (2, "another_observation")])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_running_statistics_are_restored_where_new_episodes_start(
    levels: int,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = {"kind": kind, "categorical_action_encoding": True}

    def make() -> EnvBase:
        base = SerialEnv(2, lambda: GymEnv(f"{MODULE}:Unrepeatable-v0", **options))
        if levels == 1:
            return TransformedEnv(base, statistics())
        return transformed(base, statistics(), RewardSum())

    def count(collector: BatchCollector) -> int:
        (saved,) = collector.state_dict()["world"]["transforms"][:1]
        return int(saved["_extra_state"]["count.-|-.observation"])

    collector, again = (BatchCollector(make(), CPU, ["observation"]) for _ in range(2))
    random = RandomPolicy(collector.env.full_action_spec["action"])
    collector.env.set_seed(0)  # an episode that has just begun would have nothing to repeat
    for _ in range(50):
        collector.step(random)
    state = saved_and_loaded(collector.state_dict(), tmp_path)
    monkeypatch.setattr(Unrepeatable, "runs", 1)
    assert not again.load_state_dict(state)
    assert "does not repeat the saved episodes exactly: new episodes begin" in caplog.text
    again.restart()
    assert count(again) == count(collector) + 1
    again.step(random)
    # One observation each from the reset and the step.
    assert count(again) == count(collector) + 2 > 50


class LockedPendulum(PendulumEnv):
    """Pendulum that may keep something outside of its TensorDict."""

    batch_locked = True


def test_environments_without_state_start_new_episodes(tmp_path: Path) -> None:
    def make() -> BatchCollector:
        return BatchCollector(SerialEnv(2, LockedPendulum), CPU, ["th", "thdot"])

    first = make()
    random = RandomPolicy(first.env.full_action_spec["action"])
    for _ in range(5):
        last = first.step(random)["next", "thdot"].clone()
    second = make()
    assert not second.load_state_dict(saved_and_loaded(first.state_dict(), tmp_path))
    assert not second.step(random)["thdot"].equal(last)
    assert not make().load_state_dict({})


def test_collectors_mark_their_own_steps_and_resets() -> None:
    marks = Simulating(), Simulating()
    first, _ = (BatchCollector(IdentityEnv(), CPU, ["observation"], simulating=x) for x in marks)
    collect(first, 3)
    assert [each.calls for each in marks] == [4, 0]
    assert marks[0].env is None
