"""The space of a search: declared beside each setting, narrowed and extended by the user."""

from collections.abc import Mapping
from typing import Any

import optuna
import pytest

from torchrl_gpu.arguments import Search
from torchrl_gpu.errors import ConfigurationError
from trainers.components.choices import learning_agents
from trainers.components.sections import flat
from trainers.run import settings_of
from trainers.tuning.space import Dimension, as_param, as_text, space_of, with_value

AGENTS = sorted(learning_agents())


def space(*arguments: str, unused: Mapping[str, str] | None = None) -> dict[str, Dimension]:
    settings = settings_of("mode=tune", "env=fanuc", "device=cpu", *arguments)
    typed = settings.tune["names"], settings.tune["space"] or {}
    found = space_of(settings, *typed, unused or {})
    return {each.name: each for each in found}


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("preset", [(), ("experiment=null",)], ids=["preset", "defaults"])
def test_every_agent_has_a_space_whose_samples_are_valid(agent: str, preset: tuple[str]) -> None:
    command = (f"agent={agent}", *preset)
    found = space(*command)
    assert {"agent.learning_rate", "agent.batch_size", "agent.gamma", "env.num_envs"} <= set(found)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
    for _ in range(2):
        trial = study.ask()
        drawn = {name: each.draw(trial) for name, each in found.items()}
        typed = [f"{name}={as_text(value)}" for name, value in drawn.items()]
        settings = settings_of(*command, "env=fanuc", "device=cpu", *typed)
        agent_settings = {f"agent.{name}": v for name, v in settings.agent.settings.items()}
        for name, value in drawn.items():
            if name in agent_settings:
                known = agent_settings[name]
                assert (list(known) if isinstance(value, list) else known) == value


@pytest.mark.parametrize("agent", AGENTS)
def test_the_settings_of_the_command_are_the_first_sample(agent: str) -> None:
    found = space(f"agent={agent}")
    study = optuna.create_study()
    study.enqueue_trial({name: as_param(each.value) for name, each in found.items()})
    trial = study.ask()
    for each in found.values():
        value = each.draw(trial)
        assert value == (list(each.value) if isinstance(value, list) else each.value)


def trial_of(dimension: Dimension, value: Any) -> optuna.Trial:
    study = optuna.create_study()
    study.enqueue_trial({dimension.name: as_param(value)})
    return study.ask()


def test_a_number_of_the_command_is_not_rounded_nor_another_one_beyond_the_range() -> None:
    arguments = ("agent=sac", "agent.learning_rate=0.00123456")
    narrow = space(*arguments, "tune.space={agent.learning_rate:[0.0001,0.001999999]}")
    dimension = narrow["agent.learning_rate"]
    assert dimension.draw(trial_of(dimension, dimension.value)) == 0.00123456
    edge, inside = (trial_of(dimension, value) for value in (0.0019999, 0.000123456))
    assert dimension.draw(edge) == 0.0019999, "0.002 is beyond the range"
    assert dimension.draw(inside) == 0.0001235


def test_mappings_are_choices() -> None:
    pendulum = ("env=gym", "env.name=Pendulum-v1", "tune.space={env.options:[{x:1},{x:2}]}")
    options = space("agent=sac", *pendulum)["env.options"]
    assert options.draw(trial_of(options, {"x": 2})) == {"x": 2}


def test_choices_are_as_a_study_keeps_them() -> None:
    lists = [[[0, 1, 0, 20.0]], [[0, 2, 0, 30.0]]]  # which the class takes as tuples
    choices = "tune.space.env.schedule=" + as_param(lists).replace(" ", "")
    assert space("agent=sac", "env=marinenav", choices)["env.schedule"].search.choices == (
        *lists,
        None,
    )


def test_what_is_typed_is_not_searched() -> None:
    assert "agent.gamma" not in space("agent=sac", "agent.gamma=0.9")


@pytest.mark.parametrize(
    ("arguments", "is_searched"),
    [((), True), (("agent.noisy=true",), False), (("tune.space={agent.noisy:null}",), False)],
)
def test_what_has_no_effect_is_not_searched(arguments: tuple[str, ...], is_searched: bool) -> None:
    found = space("agent=rainbow", *arguments, unused={"epsilon_end": "agent.noisy=true"})
    assert ("agent.epsilon_end" in found) == is_searched, "noisy=false would need it"


def test_names_narrow_the_space_and_space_extends_it() -> None:
    names = "tune.names=[agent.gamma,agent.normalize_observations]"
    narrow = space("agent=sac", names)
    assert list(narrow) == ["agent.gamma", "agent.normalize_observations"]
    assert narrow["agent.normalize_observations"].search.choices == (False, True)

    typed = (
        "{agent.gamma:[0.9,0.95],agent.critic:[mean,categorical],agent.n_step:null,"
        "trainer.random_frames:[500,5000],agent.batch_size:[64,128,256]}"
    )
    wide = space("agent=sac", "experiment=null", f"tune.space={typed}")
    assert (wide["agent.gamma"].search.low, wide["agent.gamma"].search.high) == (0.9, 0.95)
    assert wide["agent.gamma"].value == 0.95, "the nearest to that of the command"
    assert wide["agent.critic"].search.choices == ("mean", "categorical")
    assert "agent.n_step" not in wide
    assert wide["trainer.random_frames"].search.log
    assert wide["agent.batch_size"].search.choices == (64, 128, 256)
    dotted = space("agent=sac", "tune.space.agent.critic=[mean,categorical]")
    assert dotted["agent.critic"].search.choices == ("mean", "categorical")


def test_an_empty_mapping_is_a_difference() -> None:
    assert flat({"env": {"options": {}}}) != flat({"env": {"options": None}})


def test_a_setting_without_declared_values_begins_at_that_of_the_command() -> None:
    number = space("agent=sac", "env.num_envs=32", "tune.space={env.num_envs:[16,64]}")
    assert number["env.num_envs"].value == 32
    assert space("agent=sac")["env.num_envs"].search.low == 32
    assert space("agent=sac")["env.num_envs"].search.high == 512


@pytest.mark.parametrize(("value", "low", "high"), [(0.1, 0.05, 0.2), (1, 1, 2), (8, 4, 16)])
def test_multiples_of_the_value_are_tried(value: float, low: float, high: float) -> None:
    search = with_value(Search(high=2, log=True), value)
    assert (search.low, search.high) == (low, high)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("tune.names=[agent.learning_rat]", "no setting agent.learning_rat; did you mean"),
        ("tune.space={agent.gamm:[0.1,0.2]}", "tune.space: no setting agent.gamm; did you mean"),
        ("tune.space={agent.gamma:[0.5,1.5]}", r"agent.gamma=1.5: input should be less than"),
        ("tune.space={agent.gamma:0.5}", r"write agent.gamma:\[low,high\]"),
        ("tune.names=[agent.encoder.shared,agent.target_entropy]", "agent.target_entropy"),
        ("tune.names=[]", "nothing to search"),
    ],
)
def test_what_cannot_be_searched_is_refused(argument: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        space("agent=sac", argument)
