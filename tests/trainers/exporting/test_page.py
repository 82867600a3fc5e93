"""Policies in a page act as in Python: every agent, in a sea and on its own."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchrl.data import Binary, Composite, Unbounded

from agents import DQN, PPO
from envs.marinenav.page import sources
from tests.helpers.agents import CASES, Case, build, small_specs
from tests.helpers.browser import evaluate, open_page
from tests.helpers.policies import MANY, exported, random_weights, saved
from tests.helpers.program import Call
from torchrl_gpu.environments.capabilities import Capabilities
from trainers.exporting.page import INTERPRETER, PAGE

pytest.importorskip("onnxscript")

ROWS = 100
SETS = Composite(
    observation=Unbounded((1, 7)),
    objects=Unbounded((1, 5, 5)),
    objects_mask=Binary(5, (1, 5), dtype=torch.bool),
    shape=(1,),
)
TABLE = ((-1.0, -1.0), (0.0, 1.0), (0.5, 0.0))
# A sea after the other until all have been sailed; the page would do so in real time.
SAIL = """
return SETTINGS.scenarios.map((scenario) => {
  page.open(scenario);
  const { voyage } = page;
  while (!voyage.sea.isOver) voyage.advance();
  page.chart.draw(voyage, voyage.posesAt(0.5), 0, 0.1);
  page.sail(0.1, 1);
  const { arrived, collided, sea } = voyage;
  const text = document.getElementById("status").textContent;
  return { arrived, collided, vessels: sea.vessels.length, steps: sea.steps, text };
});
"""


def scripted(case: Case, spec: Composite, folder: Path, **settings: Any) -> tuple[Any, Any]:
    """Return an exported policy with random weights, and observations of it by name."""
    torch.manual_seed(0)
    discrete = case.actions == "discrete"
    action = small_specs(case.actions, (-1.0, 1.0) if discrete else (2.0, 6.0))[1][:1]
    agent = build(case.agent_class, spec, action, hidden_sizes=[16, 16], **settings)
    random_weights(agent, 0.3)
    policy = saved(agent, folder, Capabilities(action_table=TABLE if discrete else None))
    _, drawn = exported(policy, folder, ROWS, page=lambda script: script)
    return policy, {key: drawn[key] for key in spec.keys(True, True)}


def _cases() -> Iterator[Any]:
    """Yield each case; the networks of those that are not slow have all operators of the others."""
    quick = ("SAC-continuous", "PPO-continuous", "Rainbow-discrete")
    for case in CASES:
        name = f"{case.agent_class.__name__}-{case.actions}"
        yield pytest.param(case, id=name, marks=[] if name in quick else pytest.mark.slow)


@pytest.mark.parametrize("case", _cases())
def test_every_agent_acts_in_a_page_as_in_python(case: Case, tmp_path: Path) -> None:
    normalizers = {"normalize_observations": True} if case.agent_class is PPO else {}
    policy, observations = scripted(case, SETS, tmp_path, **normalizers)
    expected = policy.predict(observations)
    given = {name: values.double().flatten().tolist() for name, values in observations.items()}
    script = (tmp_path / "export" / PAGE).read_text(encoding="utf-8")
    found = evaluate(script, f"return [...act({json.dumps(given)}, {ROWS})];", tmp_path)
    np.testing.assert_allclose(np.reshape(found, expected.shape), expected, rtol=0, atol=1e-5)


def test_a_network_that_a_browser_cannot_run_has_no_page(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        scripted(Case(DQN, "discrete"), MANY, tmp_path)
    operators = "Cast, Conv, LayerNormalization"
    said = f"no {PAGE}: a browser cannot run the operators {operators} of this policy"
    assert said in caplog.messages
    assert not (tmp_path / "export" / PAGE).exists()


@pytest.mark.slow
def test_vessels_of_a_shipped_policy_arrive_in_the_page(tmp_path: Path, program: Call) -> None:
    arguments = ["mode=export", "checkpoint=pretrained:marinenav/ac_iqn", "device=cpu"]
    output = program(*arguments, "evaluation.episodes=4", "env.num_envs=4").report()
    (path,) = tmp_path.rglob(PAGE)
    assert path.as_uri() in output
    page = path.read_text(encoding="utf-8")
    assert "no vortices. This page leaves out its sensor noise." in page
    assert "default-src 'none'" in page, "the page could reach a network"
    seas = open_page(page, SAIL, tmp_path)
    assert len(seas) == 20
    vessels, arrived, collided = (
        sum(sea[name] for sea in seas) for name in ("vessels", "arrived", "collided")
    )
    assert arrived + collided <= vessels
    assert arrived >= 0.9 * vessels
    assert "arrived" in seas[0]["text"]


def test_the_page_of_the_documentation_has_the_scripts_of_today() -> None:
    page = (Path(__file__).parents[3] / "docs" / "sea.html").read_text(encoding="utf-8")
    for name, script in {**sources(), "network.js": INTERPRETER.read_text("utf-8")}.items():
        assert script.strip() in page, f"docs/sea.html has an older {name}; export it anew"
