import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch import nn

from envs.marinenav import MarineNavEnv
from envs.marinenav.baselines import (
    Baseline,
    ModelPredictive,
    PotentialField,
    RandomPolicy,
    StraightToGoal,
)
from envs.marinenav.curriculum import PAPER_STAGES, Stage
from envs.marinenav.evaluation import evaluate
from envs.marinenav.scenario import (
    check_scenarios,
    draw_scenarios,
    from_sea,
    load_scenarios,
    save_scenarios,
    to_sea,
)
from tests.envs.marinenav.test_env import ALONE, CROSSING
from torchrl_gpu.errors import ConfigurationError


def test_evaluate_reports_all_levels_and_is_deterministic() -> None:
    found = evaluate(StraightToGoal(), episodes=3)
    assert [level.episodes for level in found.levels] == [3] * 6
    assert found.overall.episodes == 18
    assert json.loads(json.dumps(asdict(found)))["overall"]["episodes"] == 18
    assert str(found).count("\n") == 6
    assert str(evaluate(StraightToGoal(), episodes=3)) == str(found)


def test_scores_name_the_levels_of_the_scenarios() -> None:
    scenarios = [{**ALONE, "level": level} for level in (5, 3, 5)]
    found = evaluate(StraightToGoal(), scenarios=scenarios)
    assert [(level.level, level.episodes) for level in found.levels] == [(3, 1), (5, 2)]
    assert re.findall("^[^:]*", str(found), re.MULTILINE) == ["level 3", "level 5", "all"]


def test_time_energy_and_return_of_a_single_vessel_are_exact() -> None:
    """At full thrust from the first step, all figures follow from the number of steps."""

    def full_ahead(robots: TensorDictBase) -> TensorDictBase:
        return robots.set("action", torch.ones_like(robots["observation"][..., :2]))

    found = evaluate(full_ahead, scenarios=[ALONE, ALONE], noise=False).overall
    assert (found.success.mean, found.collision.mean) == (1.0, 0.0)
    assert found.success.low == pytest.approx(0.342, abs=1e-3)  # Wilson, 2 of 2
    steps = found.time.mean / 0.5
    assert steps == round(steps)
    # thrust reaches 500 N after one step and 1,000 N after the next
    assert found.energy.mean == pytest.approx(0.5 * 2 * (500.0 + 1000.0 * (steps - 1)))
    ideal = sum(0.99**step * 3.3 / 2 for step in range(int(steps)))
    assert 10.0 * 0.99**steps < found.discounted_return.mean < ideal + 10.0


def test_arrivals_after_the_time_limit_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def full_ahead(robots: TensorDictBase) -> TensorDictBase:
        return robots.set("action", torch.ones_like(robots["observation"][..., :2]))

    ample = evaluate(full_ahead, scenarios=[ALONE], noise=False).overall
    steps = int(ample.time.mean / 0.5)
    for limit, success in ((steps, 1.0), (steps - 1, 0.0)):
        monkeypatch.setattr("envs.marinenav.env.MAX_STEPS", limit)
        found = evaluate(full_ahead, scenarios=[ALONE], noise=False).overall
        assert found.success.mean == success


def test_a_collision_ends_the_episode_of_all_robots() -> None:
    third = {
        **CROSSING,
        "num_robots": 3,
        "start": [*CROSSING["start"], [50.0, 50.0]],
        "goal": [*CROSSING["goal"], [5.0, 50.0]],
        "theta0": [*CROSSING["theta0"], math.pi],
        "velocity_r0": [[0.0, 0.0, 0.0]] * 3,
        "left_thrust0": [0.0] * 3,
        "right_thrust0": [0.0] * 3,
    }
    found = evaluate(StraightToGoal(), scenarios=[third]).overall
    assert (found.success.mean, found.collision.mean) == (0.0, 1.0)
    assert math.isnan(found.time.mean)
    assert found.discounted_return.mean < 25.0


@pytest.mark.parametrize(
    ("policy", "least"),
    [(StraightToGoal, 1.0), (PotentialField, 0.8), (ModelPredictive, 1.0)],
)
def test_baselines_bring_a_single_vessel_to_its_goal(policy: type[Baseline], least: float) -> None:
    scenarios = draw_scenarios([Stage(0, 1, 0, 30.0)], 10, seed=0)
    assert evaluate(policy(), scenarios=scenarios).overall.success.mean >= least


@pytest.mark.slow
def test_planning_avoids_the_collision_of_the_straight_course() -> None:
    scenarios = [CROSSING] * 2
    assert evaluate(StraightToGoal(), scenarios=scenarios).overall.collision.mean == 1.0
    assert evaluate(ModelPredictive(), scenarios=scenarios).overall.success.mean == 1.0


def test_random_policy_is_determined_by_its_seed() -> None:
    seen = MarineNavEnv.from_scenarios([CROSSING, ALONE]).reset()["robots"]
    actions, again = (RandomPolicy(seed=1)(seen.clone())["action"] for _ in range(2))
    assert torch.equal(actions, again)
    assert ((actions >= -1.0) & (actions <= 1.0)).all()
    assert not torch.equal(actions[0], actions[1])


def test_scenarios_are_determined_by_the_seed_and_survive_saving(tmp_path: Path) -> None:
    drawn = draw_scenarios(PAPER_STAGES, 2, seed=7, num_vortices=2)
    assert drawn == draw_scenarios(PAPER_STAGES, 2, seed=7, num_vortices=2)
    assert drawn != draw_scenarios(PAPER_STAGES, 2, seed=8, num_vortices=2)
    assert [len(scenario.start) for scenario in drawn] == [3, 3, 4, 4, *[5] * 8]
    assert [len(scenario.obstacles.radius) for scenario in drawn[-6:]] == [2, 2, 3, 3, 4, 4]
    save_scenarios(tmp_path / "set.json", drawn)
    assert load_scenarios(tmp_path / "set.json") == drawn


def test_training_and_evaluation_with_equal_seeds_have_different_episodes() -> None:
    env = MarineNavEnv(num_envs=4, min_start_goal_distance=40.0, seed=0)
    env.reset()
    drawn = draw_scenarios(PAPER_STAGES[-1:], 4, seed=0)
    trained = env.sea.motion[:2, 0].T
    evaluated = torch.tensor([scenario.start[0] for scenario in drawn])
    assert not torch.isclose(trained, evaluated).all(1).any()


def _without(key: str) -> dict[str, Any]:
    return {name: value for name, value in CROSSING.items() if name != key}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"{", "set.json: file: invalid JSON"),
        ('{"episodes": "é"}'.encode("latin-1"), "set.json: file: invalid JSON"),
        ([], "should be an object"),
        (
            {"format": "marinenav scenarios", "version": 2, "episodes": []},
            "version: input",
        ),
        (
            {"format": "other", "version": 1, "episodes": []},
            "format: input",
        ),
        ({"episodes": []}, "episodes: list should have at least 1 item"),
        ({"episodes": [CROSSING, _without("goal")]}, "episodes.1.goal: field required"),
        ({"episodes": [{**CROSSING, "num_robots": 3}]}, "start has 2 entries where 3"),
        ({"episodes": [{**CROSSING, "theta0": ["north", 0.0]}]}, "theta0.0"),
        (
            {"episodes": [{**CROSSING, "obstacles": {"position": [[1.0, 2.0]], "radius": []}}]},
            "radius has 0 entries",
        ),
        (
            {"episodes": [{**CROSSING, "goal": [[1e9, 20.0], [5.0, 20.0]]}]},
            "episodes.0.goal.0.0: input should be less than or equal to 2500",
        ),
        (
            {"episodes": [{**CROSSING, "start": [[5.0, 20.0], [7.0, 20.0]]}]},
            "episodes.0: the vessels 0 and 1 overlap at the start; put them at least 2.5 m",
        ),
        (
            {"episodes": [{**CROSSING, "left_thrust0": [0.0, 5000.0]}]},
            "left_thrust0.1: input should be less than or equal to 1000",
        ),
        ({"episodes": [{**CROSSING, "level": 2**63}]}, "episodes.0.level: input should be less"),
        (
            {"format": "marinenav scenarios", "episodes": [{**CROSSING, "levl": 3}]},
            "episodes: unknown field levl; did you mean level?",
        ),
        (
            {"episodes": [{**CROSSING, "vortices": {**CROSSING["vortices"], "core": 1.0}}]},
            "episodes.0.vortices.core: unknown field; leave it out",
        ),
    ],
)
def test_invalid_files_raise_one_line_errors(tmp_path: Path, content: Any, text: str) -> None:
    path = tmp_path / "set.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(ConfigurationError, match=re.escape(text)):
        load_scenarios(path)


def test_a_policy_that_fails_stays_in_train_mode() -> None:
    class Failing(nn.Module):
        def forward(self, observation: TensorDictBase) -> TensorDictBase:
            assert not self.training
            raise RuntimeError("no action")

    policy = Failing()
    with pytest.raises(RuntimeError, match="no action"):
        evaluate(policy, scenarios=[CROSSING])
    assert policy.training


def test_episodes_recorded_with_more_fields_are_read(tmp_path: Path) -> None:
    recorded = {"episodes": [{**CROSSING, "actions": []}], "about": "the reference"}
    (tmp_path / "set.json").write_text(json.dumps(recorded))
    assert load_scenarios(tmp_path / "set.json") == check_scenarios([CROSSING])


@pytest.mark.parametrize(
    ("stages", "episodes", "text"),
    [
        (PAPER_STAGES, 0, "episodes=0: .* greater than"),
        ((), 1, r"stages=\(\): it takes at least 1"),
        ([Stage(0, 0, 0, 30.0)], 1, r"stages=.*robots=0, .*: .* greater than or equal to 1"),
        ([Stage(0, 3, 0, 90.0)], 2, r"the map .* 3 robots .*=90, .* only 0 of 2 random layouts"),
        ([PAPER_STAGES[0], Stage(0, 40, 0, 40.0)], 2, "the map of .* has room for 40 robots"),
    ],
)
def test_no_scenarios_cannot_be_drawn(stages: Sequence[Stage], episodes: int, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{text}"):
        draw_scenarios(stages, episodes, seed=0)


def test_states_after_a_collision_begin_no_episode(tmp_path: Path) -> None:
    sea = to_sea(check_scenarios([CROSSING]), torch.float64, torch.device("cpu"))
    near = sea.motion[:, :1].expand(-1, 2, -1)
    collided = from_sea(sea._replace(motion=near))
    for begin in (check_scenarios, partial(save_scenarios, tmp_path / "set.json")):
        with pytest.raises(ConfigurationError, match=r"^scenarios: episodes\.0: .* overlap"):
            begin(collided)


def test_error_names_a_missing_scenario_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.json"):
        load_scenarios(tmp_path / "nowhere.json")
