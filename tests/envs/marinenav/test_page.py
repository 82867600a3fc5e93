"""The sea in the browser: its physics are those of the environment."""

import json
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torchrl.envs.utils import step_mdp

from envs.marinenav import MarineNavEnv
from envs.marinenav.baselines import StraightToGoal
from envs.marinenav.colregs import give_way_angle
from envs.marinenav.curriculum import Stage
from envs.marinenav.env import MAX_STEPS
from envs.marinenav.page import settings_of, sources
from envs.marinenav.physics import STEP_SECONDS
from envs.marinenav.placement import ROBOT_CLEARANCE
from envs.marinenav.scale import make_units
from envs.marinenav.scenario import Scenario, check_scenarios, draw_scenarios
from envs.marinenav.sea_env import SeaEnv
from tests.helpers.browser import evaluate, open_page

# A policy that steers all vessels straight ahead.
AHEAD = "const act = (observations, rows) => new Float32Array(2 * rows).fill(0.2);"

REPLAY = """
return EPISODES.map(({ scenario, actions }) => {
  const sea = new Sea(scenario);
  const look = () => ({
    motion: sea.vessels.map(({ x, y, heading, velocity, ground, thrust }) =>
      [x, y, heading, ...velocity, ...ground, ...thrust]),
    active: sea.vessels.map(({ active }) => active),
    reached: sea.vessels.map(({ reached }) => reached),
    duty: sea.views.map(giveWayAngle),
    ...Object.fromEntries(Object.entries(sea.observe()).map(([name, row]) => [name, [...row]])),
  });
  const steps = [look()];
  for (const action of actions) {
    sea.step(action);
    steps.push(look());
    if (sea.isOver) break;
  }
  return steps;
});
"""


def sailed(env: SeaEnv, steps: int) -> tuple[list[dict[str, Tensor]], Tensor]:
    """Return what an episode looks like after each step, by the planner and some random actions."""
    planner = StraightToGoal()
    generator = torch.Generator().manual_seed(0)
    state, seen, actions = env.reset(), [], []
    for step in range(steps + 1):
        robots, sea = state["robots"], env.sea
        row = {name: robots[name] for name in ("observation", "objects", "objects_mask")}
        seen.append(
            {
                "motion": sea.motion.permute(2, 1, 0),
                "active": sea.active.T,
                "reached": sea.reached.T,
                "duty": give_way_angle(env._state.now.view).T,
                **{name: values.flatten(1) for name, values in row.items()},
            }
        )
        float32 = robots.select(*planner.in_keys).float()
        float32["objects_mask"] = robots["objects_mask"]
        action = planner(float32)["action"].double()
        noise = torch.rand(action.shape, generator=generator, dtype=torch.float64)
        action = action + (step % 7 == 0) * (noise - 0.5)
        actions.append(action)
        robots["action"] = action
        state = step_mdp(env.step(state))
    return seen, torch.stack(actions[:-1], 1)


def check_agreement(scenarios: list[Scenario], steps: int, folder: Path) -> list[dict[str, Tensor]]:
    """Check every step of episodes in a script, and their ends; return those of the environment."""
    env = MarineNavEnv.from_scenarios(scenarios, "float64", noise=False, normalize=True)
    seen, actions = sailed(env, steps)
    settings = settings_of(40.0, MAX_STEPS, make_units(True, torch.float64, env.device))
    episodes = [
        {"scenario": scenario.model_dump(), "actions": rows[:, : scenario.num_robots].tolist()}
        for scenario, rows in zip(scenarios, actions, strict=True)
    ]
    definitions = f"const SETTINGS = {json.dumps(settings)}; {sources()['sea.js']}"
    definitions += f"const EPISODES = {json.dumps(episodes)};"
    replayed = evaluate(definitions, REPLAY, folder)
    places = env.sea.exists.shape[0]
    for number, (scenario, rows) in enumerate(zip(scenarios, replayed, strict=True)):
        moves = [expected["active"][number].any().item() for expected in seen]
        assert len(rows) == moves.index(False) + 1
        for found, expected in zip(rows, seen, strict=False):
            for name, values in found.items():
                wanted = expected[name][number].double().reshape(places, -1)[: scenario.num_robots]
                given = torch.tensor(values, dtype=torch.float64).reshape(wanted.shape)
                torch.testing.assert_close(given, wanted, rtol=1e-9, atol=1e-9)
    return seen


@pytest.mark.parametrize("vortices", [0, 4])
def test_an_episode_is_the_same_as_in_the_environment(vortices: int, tmp_path: Path) -> None:
    scenarios = draw_scenarios([Stage(0, 5, 4, 40.0), Stage(0, 2, 6, 30.0)], 3, 5, vortices)
    last = check_agreement(scenarios, 150, tmp_path)[-1]
    assert last["reached"].any(), "no vessel arrived"
    assert (~last["active"] & ~last["reached"])[:3].any(), "no vessel collided"


VISIT = """
const result = {};
page.open(SETTINGS.scenarios[0]);  // frames may have passed since the page opened
let drawn = 1;
Math.random = () => (drawn = (drawn * 16807) % 2147483647) / 2147483647;  // the same seas each time
const { sea } = page.voyage;
result.seas = SETTINGS.scenarios.length;
result.about = document.getElementById("about").textContent;
page.touch([27, 27]);
result.placed = sea.obstacles.at(-1);
page.touch([27.5, 27]);
result.buoys = sea.obstacles.length;
page.tool = "vortex";
page.touch([27, 27]);
result.whirl = sea.vortices.length;
page.choose(1);
page.tool = "goal";
page.touch([3, 50]);
result.goals = sea.vessels.map(({ goal }) => goal);
const press = (key) => dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true }));
press("h");
press("ArrowUp");
press("ArrowRight");
page.share = 1;
page.sail(0, 1);
result.thrust = sea.vessels.map(({ thrust }) => thrust);
press(" ");
result.isPaused = page.isPaused;
press("n");
result.number = page.number;
const slide = (kind, count) => {
  page.slider(kind).value = count;
  page.slider(kind).dispatchEvent(new Event("input"));
};
slide("vessels", 3);
slide("obstacles", 2);
slide("vortices", 5);
result.drawn = page.voyage.scenario;
press(" ");
window.requestAnimationFrame = () => 0;
for (let frame = 0; frame < 60; frame++) page.frame((page.last || 0) + 50);
result.steps = page.voyage.sea.steps;
result.status = document.getElementById("status").textContent;
result.rows = document.querySelectorAll("#vessels tr").length;
return result;
"""


def test_a_visitor_places_items_steers_and_draws_seas(tmp_path: Path) -> None:
    env = MarineNavEnv(num_envs=1, num_robots=2, num_obstacles=1, noise=False)
    found = open_page(env.page(AHEAD, "a < b </script>"), VISIT, tmp_path)
    assert found["about"] == "a < b </script>"
    assert found["placed"] == {"x": 27, "y": 27, "radius": 1.0}
    assert (found["buoys"], found["whirl"]) == (1, 1)
    assert found["goals"][1] == [3, 50] != found["goals"][0]
    # The policy asks for a fifth of the maximum rate, the arrows for all of it ahead and a turn.
    assert found["thrust"] == [[pytest.approx(100.0)] * 2, [500.0, 250.0]]
    assert "of 3" in found["status"]
    assert (found["isPaused"], found["number"], found["rows"]) == (True, 1, 3)
    assert found["steps"] == pytest.approx(60 * 0.05 * 8 / STEP_SECONDS, abs=3)
    drawn = found["drawn"]
    assert len(drawn["vortices"]["position"]) == 5
    assert len(drawn["obstacles"]["position"]) == 2
    (scenario,) = check_scenarios([{**drawn, "num_robots": len(drawn["start"])}])
    start, goal = torch.tensor(scenario.start), torch.tensor(scenario.goal)
    assert ((goal - start).norm(dim=1) >= 40.0).all()
    assert torch.pdist(start).min() > ROBOT_CLEARANCE


def test_no_text_about_a_policy_becomes_a_part_of_the_page() -> None:
    about = "<!--<script> </script> /* policy */"
    page = MarineNavEnv(num_envs=1).page(AHEAD, about)
    assert page.count("<script") == page.count("</script") == 5
    assert page.count(AHEAD) == 1
    (text,) = re.findall(r'"about":("[^"]*")', page)
    assert json.loads(text) == about
