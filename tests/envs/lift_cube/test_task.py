import pytest
import torch
from torch import Tensor

from envs.lift_cube.scene import Scene
from envs.lift_cube.task import TERMS, Judge, Progress, Task


def _scene(height: float, *, touches: tuple[bool, bool] = (True, True), away: float = 0.0) -> Scene:
    cube = torch.tensor([[0.5, 0.0, height]])
    grip = cube + torch.tensor([[away, 0.0, 0.0]])
    nothing, still = torch.zeros(1, 7), torch.zeros(1, 2)
    upright = torch.zeros(1, 3)
    touched = torch.tensor([touches])
    return Scene(nothing, nothing, still, still, grip, upright, cube, cube - grip, touched)


def _flag(value: bool) -> Tensor:
    return torch.tensor([value])


def _term(progress: Progress, name: str) -> float:
    return float(progress.quantities[list(TERMS["lift"]).index(name)]) * TERMS["lift"][name]


NO_CHANGE = torch.zeros(1)
RESTING = torch.tensor([0.015])
LIFT, REACH = Judge("lift", RESTING), Judge("reach", RESTING)


def test_each_stage_of_lifting_is_worth_more_than_the_one_before() -> None:
    stages = [
        _scene(0.015, touches=(False, False), away=0.3),
        _scene(0.015, touches=(False, False)),
        _scene(0.015),
        _scene(0.021),
        _scene(0.079),
        _scene(0.081),
    ]
    rewards = [float(LIFT(s, _flag(False), NO_CHANGE).reward) for s in stages]
    assert rewards == sorted(rewards)
    assert len(set(rewards)) == len(rewards)


@pytest.mark.parametrize("judge", [LIFT, REACH])
def test_the_parts_add_up_to_the_reward(judge: Judge) -> None:
    for scene in (_scene(0.015, touches=(False, False), away=0.3), _scene(0.021), _scene(0.081)):
        progress = judge(scene, _flag(True), torch.ones(1))
        assert sum(judge.parts(progress, 0).values()) == pytest.approx(float(progress.reward))


def test_holding_the_cube_just_below_the_goal_costs_a_fifth_of_doing_nothing() -> None:
    progress = LIFT(_scene(0.0799), _flag(True), NO_CHANGE)
    assert float(progress.reward) == pytest.approx(-1 / 5.25, abs=1e-3)


@pytest.mark.parametrize("resting", [0.012, 0.018])
def test_the_rise_counts_from_the_height_at_which_the_cube_rests(resting: float) -> None:
    def judged(rise: float) -> Progress:
        judge = Judge("lift", torch.tensor([resting]))
        return judge(_scene(resting + rise), _flag(False), NO_CHANGE)

    assert _term(judged(0.0), "grasp") == pytest.approx(0.25)
    assert not judged(0.004).lifted.item()
    assert judged(0.006).lifted.item()
    assert not judged(0.064).success.item()
    assert judged(0.066).success.item()


def test_success_takes_both_pads_and_the_height() -> None:
    assert LIFT(_scene(0.09), _flag(True), NO_CHANGE).success.item()
    one_pad = _scene(0.09, touches=(True, False))
    assert not LIFT(one_pad, _flag(True), NO_CHANGE).success.item()
    assert not LIFT(_scene(0.07), _flag(True), NO_CHANGE).success.item()


def test_letting_a_lifted_cube_go_costs() -> None:
    falling = _scene(0.05, touches=(False, False))
    let_go = LIFT(falling, _flag(True), NO_CHANGE)
    never_held = LIFT(falling, _flag(False), NO_CHANGE)
    assert _term(let_go, "drop") == -2.0
    assert float(let_go.reward) < float(never_held.reward)


def test_reach_succeeds_by_a_touch() -> None:
    touching = _scene(0.015, touches=(False, True))
    assert REACH(touching, _flag(False), NO_CHANGE).success.item()


@pytest.mark.parametrize("change", [0.0, 4.0])
def test_fast_changes_of_the_action_cost_while_lifted(change: float) -> None:
    progress = LIFT(_scene(0.05), _flag(True), torch.tensor([change]))
    assert _term(progress, "smooth") == pytest.approx(-0.01 * change)


@pytest.mark.parametrize(
    ("task", "name", "value"), [("lift", "height", 0.03), ("reach", "distance", 0.2)]
)
def test_progress_of_a_task_is_measured_in_metres(task: Task, name: str, value: float) -> None:
    measured, lengths = Judge(task, RESTING).measure(_scene(0.045, away=0.2))
    assert measured == name
    assert lengths.tolist() == pytest.approx([value])


def test_success_of_reach_is_worth_more_than_waiting_at_the_cube() -> None:
    near = _scene(0.015, touches=(False, False), away=0.01)
    touching = _scene(0.015, touches=(True, False), away=0.02)
    rewards = [float(REACH(scene, _flag(False), NO_CHANGE).reward) for scene in (near, touching)]
    assert rewards[0] < 0 < rewards[1]
