"""Agents that do not learn, in mode=eval and mode=demo of the command line."""

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from torchrl.data import Bounded
from torchrl.envs import PendulumEnv, StepCounter, TransformedEnv

from tests.envs.gym.environments import MODULE
from tests.helpers.environments import IdentityEnv, MatchEnv
from tests.helpers.files import names
from tests.helpers.program import Call
from tests.trainers.evaluation.test_film import DrawnEnv
from torchrl_gpu.environments.action_table import with_action_table
from trainers.components.choices import choices_of, class_of, learning_agents

UNTRAINED = [name for name in choices_of("agent") if name not in learning_agents()]
every_untrained_agent = pytest.mark.parametrize("agent", UNTRAINED)

THIS = "tests.trainers.test_untrained"
GYM = f"env.name={MODULE}:"


class Pendulum(TransformedEnv):
    """TorchRL's pendulum, without a batch size, with a time limit."""

    def __init__(self) -> None:
        super().__init__(PendulumEnv(), StepCounter(5))


class Table(TransformedEnv):
    """Discrete actions by a table."""

    def __init__(self, num_envs: int = 2) -> None:
        super().__init__(with_action_table(IdentityEnv(num_envs)))


class Thrust(IdentityEnv):
    """Actions between bounds of their own."""

    def __init__(self, num_envs: int = 2) -> None:
        super().__init__(num_envs)
        self.action_spec = Bounded(0.2, 0.7, self.action_spec.shape)


FANUC = ["env=fanuc", "env.num_envs=2", "env.num_workers=1", "env.max_episode_steps=3"]
MARINENAV = ["env=marinenav", "env.num_robots=2", "env.max_episode_steps=3"]
ENVIRONMENTS = {
    "fanuc": FANUC,
    "marinenav": MARINENAV,
    "gym, continuous": ["env=gym", "env.name=Pendulum-v1"],
    "gym, discrete": ["env=gym", "env.name=CartPole-v1"],
    "gym, pixels and numbers": ["env=gym", f"{GYM}DictCounter-v0"],
    "custom, continuous": [f"env._target_={THIS}.Thrust"],
    "custom, discrete": [f"env._target_={MatchEnv.__module__}.MatchEnv"],
    "custom, table": [f"env._target_={THIS}.Table"],
    "of TorchRL": [f"env._target_={THIS}.Pendulum"],
}
DRAWN = {
    **{name: ENVIRONMENTS[name] for name in ("fanuc", "marinenav")},
    "gym, continuous": ["env=gym", f"{GYM}DictCounter-v0"],
    "gym, discrete": ["env=gym", f"{GYM}Counter-v0"],
    "custom": [f"env._target_={DrawnEnv.__module__}.DrawnEnv", "env.step_seconds=0.05"],
}


def evaluate(program: Call, folder: Path, agent: str, *arguments: str) -> dict[str, Any]:
    """Call mode=eval in a new folder and return the content of the file that it wrote."""
    folder.mkdir()
    assert program("mode=eval", f"agent={agent}", "device=cpu", *arguments, folder=folder).code == 0
    (written,) = folder.glob(f"runs/**/{agent}/evaluations/*.json")
    content: dict[str, Any] = json.loads(written.read_text())
    return content


@pytest.mark.parametrize(("agent", "env"), zip(cycle(UNTRAINED), ENVIRONMENTS, strict=False))
def test_eval_works_in_every_environment(
    agent: str, env: str, tmp_path: Path, program: Call
) -> None:
    arguments = [*ENVIRONMENTS[env], "evaluation.episodes=2", "device=cpu"]
    output = program("mode=eval", f"agent={agent}", *arguments).report()
    assert output.startswith(f"agent={agent} env=")
    assert "None" not in output
    (printed,) = [line.split()[-1] for line in output.splitlines() if "written to" in line]
    assert f"/{agent}/evaluations/" in printed
    written = json.loads((tmp_path / printed).read_text())
    assert written["agent"] == agent
    assert written["env"]["_target_"]
    assert written["episodes"] == 2


@pytest.mark.parametrize(("agent", "env"), zip(cycle(UNTRAINED), DRAWN, strict=False))
def test_demo_films_every_environment_that_can_draw(
    agent: str, env: str, program: Call, tmp_path: Path
) -> None:
    arguments = [f"agent={agent}", *DRAWN[env], "demo.episodes=1", "device=cpu"]
    title, *_, path = program("mode=demo", *arguments).report().splitlines()
    assert title.startswith(f"Filmed agent={agent} env=")
    (film,) = tmp_path.glob(f"runs/**/{agent}/videos/*.mp4")
    assert tmp_path / path.strip() == film
    assert film.stat().st_size > 500
    assert names(tmp_path) == ["runs"]


def test_returns_are_those_of_the_actions(tmp_path: Path, program: Call) -> None:
    # 8 steps return -5.3 for the action 0, and -10.7 for uniformly random ones.
    env = f"env._target_={IdentityEnv.__module__}.IdentityEnv"
    for agent, expected in (("zero", -16 / 3), ("random", -32 / 3)):
        result = evaluate(program, tmp_path / agent, agent, env, "evaluation.episodes=500")
        assert result["mean_return"] == pytest.approx(expected, abs=0.4)


def test_a_seed_repeats_an_evaluation_of_random_actions(tmp_path: Path, program: Call) -> None:
    arguments = [*ENVIRONMENTS["gym, continuous"], "evaluation.episodes=3"]
    results = [
        evaluate(program, tmp_path / folder, "random", *arguments, f"seed={seed}")
        for folder, seed in (("first", 3), ("again", 3), ("other", 4))
    ]
    assert results[0] == results[1]
    assert results[0]["mean_return"] != results[2]["mean_return"]


def test_evaluations_of_several_seeds_write_a_file_each(program: Call, tmp_path: Path) -> None:
    arguments = ["mode=eval", "agent=random", "env=gym", "env.name=CartPole-v1", "-m"]
    assert program(*arguments, "seed=1,2,3", "evaluation.episodes=1").code == 0
    files = tmp_path.glob("runs/gym/CartPole-v1/random/evaluations/*.json")
    assert sorted(json.loads(file.read_text())["seed"] for file in files) == [1, 2, 3]


@every_untrained_agent
def test_agent_is_named_by_its_class_as_well(agent: str, program: Call, tmp_path: Path) -> None:
    target = class_of("agent", agent)
    named = f"agent._target_=agents.{target.__name__}"
    arguments = ["mode=eval", named, "env=gym", "env.name=CartPole-v1", "evaluation.episodes=2"]
    assert program(*arguments).code == 0
    assert names(tmp_path / "runs" / "gym" / "CartPole-v1") == [target.__name__]


REPOSITORY = Path(__file__).parents[2]
POLICY = REPOSITORY / "pretrained" / "marinenav" / "ddpg.safetensors"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["agent=zero"], "agent=zero does not learn; use mode=demo, mode=eval or mode=record"),
        (
            ["agent._target_=agents.untrained.RandomAgent"],
            "agent=RandomAgent does not learn; use mode=demo, mode=eval or mode=record",
        ),
        (
            ["agent=random", "mode=eval", f"checkpoint={POLICY}"],
            f"agent=random: {POLICY} was trained with agent=ddpg",
        ),
        (
            ["agent._target_=agents.untrained.ZeroAgent", "mode=demo", f"checkpoint={POLICY}"],
            f"agent=ZeroAgent does not learn; leave out checkpoint={POLICY}",
        ),
        (
            ["agent=random", "mode=eval", "agent.gamma=0.9"],
            "agent.gamma: RandomAgent has no such setting",
        ),
    ],
)
def test_unfitting_use_is_refused_in_one_line_before_anything_is_built(
    arguments: list[str], said: str, program: Call, tmp_path: Path
) -> None:
    assert program(*arguments, "env=marinenav").refusal().startswith(said)
    assert names(tmp_path) == []


def test_help_shows_agents_that_do_not_learn_apart(program: Call) -> None:
    output = program("--help", "agent=random").report()
    assert f"{', '.join(learning_agents())}; random, zero (not for mode=train)" in output
    assert max(map(len, output.splitlines())) <= 100
