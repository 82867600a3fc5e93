"""Demonstrations: their share of every batch, what is learned from them, resume, and bad input."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torchrl.data import Bounded

from agents import DQN, PPO, SAC, Rainbow
from agents.base import OffPolicyAgent
from agents.untrained import RandomAgent
from tests.helpers.agents import (
    CHOICES,
    ENVS,
    Case,
    build_for,
    every_agent_with,
    small_specs,
)
from tests.helpers.datasets import interface_of, random_episodes
from tests.helpers.environments import MatchEnv
from tests.helpers.ranks import on_ranks
from tests.helpers.replay import transition_of
from tests.helpers.training import assert_same_checkpoints, make_trainer, trainer_of
from torchrl_gpu.acting.interface import PolicyInterface
from torchrl_gpu.checkpoints.checkpoint import find_checkpoint
from torchrl_gpu.datasets.dataset import open_dataset, write_dataset
from torchrl_gpu.datasets.demonstrations import load_demonstrations
from torchrl_gpu.environments.capabilities import Capabilities
from torchrl_gpu.environments.specs import ActionKind, action_spec, observation_spec
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.processes import ONE_PROCESS, Processes
from torchrl_gpu.replay.episodes import Episode
from trainers.evaluation.evaluation import evaluate
from trainers.evaluation.record import record
from trainers.run import settings_of
from trainers.training.experience import ReplayExperience, experience_of
from trainers.training.trainer import TorchRLTrainer

pytest.importorskip("minari", "0.5.4")  # needs Python 3.11

every_off_policy_agent = every_agent_with("demonstrations")
TABLE = tuple((float(row),) for row in range(CHOICES))


def dataset(
    folder: Path,
    actions: ActionKind = "continuous",
    change: Callable[[Episode], Episode] = lambda episode: episode,
    table: Any = None,
) -> str:
    """Write episodes that fit `Case.make`; their observations are above 10."""
    observation, action = small_specs(actions)
    spec = observation[0].expand(1)
    acted = action[0].expand(1, *action.shape[1:])
    interface = PolicyInterface(spec, acted, None if table is None else torch.tensor(table))
    episodes = random_episodes(interface, [6, 4, 9])
    for each in episodes:
        each.observations["observation"].abs_().add_(10.0)
    write_dataset(folder, map(change, episodes), interface)
    return str(folder)


def batches_of(experience: Any, agent: Any, steps: int = 30) -> list[Any]:
    found = []
    for _ in range(steps):
        experience.store(transition_of(agent))
        for batch in experience.batches():
            experience.update_priorities(batch, torch.rand(len(batch)))
            found.append(batch)
    return found


@every_off_policy_agent
@pytest.mark.parametrize("share", [0.25, 0.9])
def test_the_share_of_every_batch_is_exact(case: Case, share: float, tmp_path: Path) -> None:
    path = dataset(tmp_path / "data", case.actions)
    settings: Any = {"batch_size": 20, "demonstrations": path, "demonstration_share": share}
    agent = case.make(**settings, n_step=3)
    batches = batches_of(experience_of(agent, ENVS, 500, random_frames=0), agent, steps=12)
    assert batches
    for batch in batches:
        shown = batch["observation"][:, 0] >= 10
        assert shown.tolist() == [False] * (20 - round(20 * share)) + [True] * round(20 * share)
        assert torch.equal(shown, batch["next", "observation"][:, 0] >= 10)
        assert set(batch["steps_to_next_obs"][shown].flatten().tolist()) <= {1, 2, 3}
        agent.update(batch)


def test_all_demonstrations_are_drawn_as_they_were(tmp_path: Path) -> None:
    path = dataset(tmp_path / "data")
    agent = Case(SAC, "continuous").make(batch_size=64, demonstrations=path)
    batches = batches_of(experience_of(agent, ENVS, 500, random_frames=0), agent)
    drawn: Any = torch.cat([batch[batch["observation"][:, 0] >= 10] for batch in batches])
    expected: Any = torch.cat([each.transitions() for each in open_dataset(path)])
    rows = [
        torch.cat((t["observation"], t["action"], t["next", "reward"]), 1)
        for t in (drawn, expected)
    ]
    assert set(map(tuple, rows[0].tolist())) == set(map(tuple, rows[1].tolist()))


def test_priorities_of_demonstrations_are_their_own(tmp_path: Path) -> None:
    path = dataset(tmp_path / "data", "discrete")
    agent = Case(Rainbow, "discrete").make(batch_size=40, utd_ratio=1.0, demonstrations=path)
    experience: Any = experience_of(agent, ENVS, 500, random_frames=0)
    experience.store(transition_of(agent))
    batch = next(experience.batches())
    priorities = torch.where(batch["observation"][:, 0] >= 10, 5.0, 1e-3)
    experience.update_priorities(batch, priorities)
    state = experience.demonstrations.state_dict()
    assert state["max_priority"].item() == pytest.approx(5.0, rel=1e-4)
    own = experience.replay.state_dict()
    assert own["max_priority"].item() == 1.0
    shown = len(batch["place"][priorities == 5.0].unique())
    assert (state["leaves"] > 1.5).sum() == shown


@pytest.mark.slow
@every_off_policy_agent
def test_agents_learn_what_only_the_demonstrations_show(case: Case, tmp_path: Path) -> None:
    env = case.env(num_envs=32)
    random = RandomAgent(observation_spec(env), action_spec(env), torch.device("cpu"))
    shown = record(env, random, torch.device("cpu"), tmp_path, episodes=100, path=tmp_path / "data")
    options = {"demonstrations": str(shown.path), "demonstration_share": 0.9, "utd_ratio": 0.5}
    rare = dict.fromkeys(("evaluation_interval", "checkpoint_interval"), 10**9)
    settings: dict[str, Any] = {"total_frames": 384, **rare}
    trainer = make_trainer(case, tmp_path / "run", options=options, **settings)
    # The agent's own transitions show nothing: all of them have the same reward.
    store = trainer.experience.store

    def blind(transition: Any) -> None:
        transition["next", "reward"].zero_()
        store(transition)

    trainer.experience.store = blind  # type: ignore[method-assign]
    trainer.train()
    learned = evaluate(case.env(), trainer.agent.policy, trainer.agent.device, episodes=64)
    assert learned.mean_return > shown.evaluation.mean_return / 2 + (
        4.0 if case.actions == "discrete" else 0.0
    )


@pytest.mark.parametrize("case", [Case(Rainbow, "discrete"), Case(SAC, "continuous")], ids=str)
def test_a_resumed_run_goes_on_to_the_same_bytes(case: Case, tmp_path: Path) -> None:
    interface = PolicyInterface(*specs_of(case.env(1)))
    torch.manual_seed(1)
    write_dataset(tmp_path / "data", random_episodes(interface, [6, 4, 9]), interface)
    options = {"demonstrations": str(tmp_path / "data"), "n_step": 2}
    whole = make_trainer(case, tmp_path / "whole", options=options)
    whole.train()
    part = make_trainer(case, tmp_path / "part", options=options, total_frames=512)
    part.train()
    resumed = make_trainer(case, tmp_path / "part", seed=5, options=options)
    resumed.load(find_checkpoint(resumed.folder))
    resumed.train()
    assert_same_checkpoints(whole, resumed)


def test_each_process_keeps_the_priorities_of_its_demonstrations(tmp_path: Path) -> None:
    interface = PolicyInterface(*specs_of(MatchEnv(1)))
    write_dataset(tmp_path / "data", random_episodes(interface, [6, 4, 9]), interface)

    def make(processes: Processes, total_frames: int) -> TorchRLTrainer:
        env = MatchEnv(16 // processes.count)
        agent = build_for(env, Rainbow, demonstrations=str(tmp_path / "data"))
        agent.join(processes)
        lengths = {"total_frames": total_frames, "random_frames": 32}
        return trainer_of(env, agent, tmp_path / "run", **lengths)

    def train(processes: Processes) -> dict[str, Any]:
        trainer = make(processes, 256)
        trainer.train()
        assert trainer.experience.demonstrations is not None
        return trainer.experience.demonstrations.state_dict()

    def resume(processes: Processes) -> dict[str, Any]:
        trainer = make(processes, 512)
        trainer.load(tmp_path / "run" / "checkpoints" / "frames_000000000256.safetensors")
        assert trainer.experience.demonstrations is not None
        return trainer.experience.demonstrations.state_dict()

    trained = on_ranks(2, train)
    assert not torch.equal(trained[0]["leaves"], trained[1]["leaves"])
    for saved, resumed in zip(trained, on_ranks(2, resume), strict=True):
        for name in ("leaves", "max_priority"):
            assert torch.equal(saved[name], resumed[name])
    alone = resume(ONE_PROCESS)  # their priorities begin anew
    assert alone["digest"] == trained[0]["digest"]
    assert alone["max_priority"] == 1.0


def specs_of(env: Any) -> Any:
    return observation_spec(env), action_spec(env)


def test_other_demonstrations_begin_anew_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    experiences: list[Any] = []
    for name in ("one", "two"):
        torch.manual_seed(len(name) + ord(name[0]))
        path = dataset(tmp_path / name, "discrete")
        agent = Case(Rainbow, "discrete").make(demonstrations=path)
        experiences.append(experience_of(agent, ENVS, 500, random_frames=0))
    saved, other = (each.demonstrations for each in experiences)
    state = saved.state_dict()
    other.check_state(state)
    other.load_state_dict(state)
    assert "these are others than before; priorities begin anew" in caplog.text
    state["leaves"][0] = float("nan")
    with pytest.raises(ConfigurationError, match="leaves holds NaN"):
        saved.load_state_dict(state)


def test_a_rollout_has_no_demonstrations() -> None:
    agent = Case(PPO, "continuous").make()
    assert experience_of(agent, ENVS, 100, 0).demonstrations is None
    with pytest.raises(ConfigurationError, match=r"agent\.demonstrations: PPO has no such"):
        settings_of("agent=ppo", "env=fanuc", "agent.demonstrations=data")


def test_numbers_of_float64_are_those_of_the_agent(tmp_path: Path) -> None:
    def double(episode: Episode) -> Episode:
        observations = {name: x.double() for name, x in episode.observations.items()}
        return replace(episode, observations=observations, action=episode.action.double())

    observation, action = small_specs("continuous")
    loaded = []
    for name, change in (("single", lambda episode: episode), ("double", double)):
        torch.manual_seed(1)  # of the episodes
        path = dataset(tmp_path / name, change=change)
        loaded.append(load_demonstrations(path, observation, action))
    for one, other in zip(*loaded, strict=True):
        torch.testing.assert_close(one.observations, other.observations, rtol=0.0, atol=0.0)
        torch.testing.assert_close(one.action, other.action, rtol=0.0, atol=0.0)


def wider(episode: Episode) -> Episode:
    return replace(episode, observations={"observation": torch.zeros(len(episode) + 1, 99)})


def nan(episode: Episode) -> Episode:
    episode.observations["observation"][0, 0] = float("nan")
    return episode


BAD: list[tuple[ActionKind, Callable[[Episode], Episode], str]] = [
    ("continuous", wider, r'"observation" has shape \[99\]; the agent.s has \[\d+\]$'),
    ("continuous", nan, 'observation "observation" holds NaN or infinity'),
    ("continuous", lambda e: replace(e, reward=e.reward * torch.inf), "reward holds NaN"),
    ("continuous", lambda e: replace(e, action=e.action * 9), r"outside -1 to 1, the range of"),
    ("continuous", lambda e: replace(e, action=e.action[:, :1]), r"action has shape \[1\]"),
    ("continuous", lambda e: replace(e, action=e.action.long()), "action has dtype torch.int64"),
    ("discrete", lambda e: replace(e, action=e.action + CHOICES), "outside 0 to 2"),
    ("discrete", lambda e: replace(e, action=e.action - 5), "outside 0 to 2"),
    (
        "discrete",
        lambda e: replace(e, action=e.action > 0),
        "and torch.bool; this agent's are",
    ),
]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.uint16, torch.uint64])
def test_discrete_actions_may_be_of_any_integer_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    case = Case(DQN, "discrete")
    states = []
    for saved in (torch.int64, dtype):

        def change(episode: Episode, saved: torch.dtype = saved) -> Episode:
            return replace(episode, action=episode.action.to(saved))

        torch.manual_seed(0)
        agent = case.make(demonstrations=dataset(tmp_path / f"{saved}", "discrete", change))
        demonstrations = experience_of(agent, ENVS, 100, 0).demonstrations
        assert demonstrations is not None
        states.append(demonstrations.state_dict())
    assert states[0] == states[1]


@pytest.mark.parametrize(("actions", "change", "message"), BAD)
def test_a_dataset_that_does_not_fit_is_refused(
    actions: ActionKind, change: Callable[[Episode], Episode], message: str, tmp_path: Path
) -> None:
    case = Case(DQN if actions == "discrete" else SAC, actions)
    agent = case.make(demonstrations=dataset(tmp_path / "data", actions, change))
    with pytest.raises(ConfigurationError, match=message) as error:
        experience_of(agent, ENVS, 100, 0)
    assert str(error.value).startswith(f"agent.demonstrations={tmp_path}")


def test_a_missing_observation_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    interface = interface_of("named")
    write_dataset(tmp_path / "data", random_episodes(interface), interface)
    agent = Case(SAC, "continuous").make(demonstrations=str(tmp_path / "data"))
    agent.observation_spec["objects"] = agent.observation_spec["observation"].clone()
    with pytest.raises(
        ConfigurationError, match=r"no observation objects, .* it has: observation, "
    ):
        experience_of(agent, ENVS, 100, 0)


def test_the_kind_of_action_has_to_be_that_of_the_agent(tmp_path: Path) -> None:
    continuous = dataset(tmp_path / "continuous", "continuous")
    table = dataset(tmp_path / "table", "discrete", table=TABLE)
    dqn = Case(DQN, "discrete").make(demonstrations=continuous)
    with pytest.raises(ConfigurationError, match="this agent's are whole numbers below 3"):
        experience_of(dqn, ENVS, 100, 0)
    with pytest.raises(ConfigurationError, match="not row numbers of the action table"):
        experience_of(dqn, ENVS, 100, 0, can=Capabilities(action_table=TABLE))
    sac = Case(SAC, "continuous").make(demonstrations=table)
    with pytest.raises(ConfigurationError, match="row numbers of a table; this agent's are"):
        experience_of(sac, ENVS, 100, 0)
    dqn = Case(DQN, "discrete").make(demonstrations=table)
    experience_of(dqn, ENVS, 100, 0, can=Capabilities(action_table=TABLE))
    other = Capabilities(action_table=tuple((x[0] + 1,) for x in TABLE))
    with pytest.raises(ConfigurationError, match="not row numbers of the action table"):
        experience_of(dqn, ENVS, 100, 0, can=other)


def test_actions_of_another_range_are_refused(tmp_path: Path) -> None:
    interface = replace(interface_of(), action_spec=Bounded(-0.4, 0.4, (1, 2)))
    write_dataset(tmp_path / "data", random_episodes(interface), interface)
    agent = Case(SAC, "continuous").make(demonstrations=str(tmp_path / "data"))
    match = r"its actions range from -0\.4 to 0\.4; the agent's range from -1 to 1"
    with pytest.raises(ConfigurationError, match=match):
        experience_of(agent, ENVS, 100, 0)


def test_an_edited_table_of_actions_is_refused(tmp_path: Path) -> None:
    path = Path(dataset(tmp_path / "data", "discrete", table=TABLE))
    (file,) = path.rglob("metadata.json")
    content = json.loads(file.read_text())
    agent = Case(DQN, "discrete").make(demonstrations=str(path))
    for about in ("text", {"action_table": [["a"]]}, {"action_table": [[1.0], [1.0, 2.0]]}):
        file.write_text(json.dumps({**content, "torchrl_gpu": about}))
        with pytest.raises(ConfigurationError, match="damaged, or not of this layout"):
            experience_of(agent, ENVS, 100, 0, can=Capabilities(action_table=TABLE))


@pytest.mark.parametrize("share", [0.01, 0.99])
def test_a_share_of_no_transition_is_refused(share: float, tmp_path: Path) -> None:
    path = dataset(tmp_path / "data")
    agent = Case(SAC, "continuous").make(
        batch_size=8, demonstrations=path, demonstration_share=share
    )
    with pytest.raises(ConfigurationError, match=f"agent.demonstration_share={share}: of agent."):
        experience_of(agent, ENVS, 100, 0)


def test_settings_are_refused_before_anything_is_built(tmp_path: Path) -> None:
    path = dataset(tmp_path / "data")
    empty = tmp_path / "empty"
    observation, action = small_specs("continuous")
    write_dataset(empty, [], PolicyInterface(observation, action))
    command = ("agent=sac", "env=fanuc", "device=cpu")
    for setting, message in (
        ("agent.demonstrations=nothing", "demonstrations=nothing: folder not found"),
        (f"agent.demonstrations={empty}", "it has no episodes"),
        (f"agent.demonstrations={tmp_path}", "not a dataset of Minari or LeRobot"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            settings_of(*command, setting)
    for share in ("0", "1", "1.5"):
        with pytest.raises(ConfigurationError, match=r"agent\.demonstration_share"):
            settings_of(*command, f"agent.demonstration_share={share}")
    shares = f"agent.demonstrations={path}", "agent.demonstration_share=.001"
    with pytest.raises(ConfigurationError, match="at least 1 has to be a demonstration"):
        settings_of(*command, *shares)
    assert settings_of(*command, shares[0]).agent.settings["demonstrations"] == path


def test_every_agent_with_a_replay_takes_demonstrations() -> None:
    for case in every_off_policy_agent.args[1]:
        assert issubclass(case.agent_class, OffPolicyAgent)
    assert isinstance(experience_of(Case(DQN, "discrete").make(), ENVS, 100, 0), ReplayExperience)
