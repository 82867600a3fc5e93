"""Stop each training at a random moment, resume it, and compare it with one that never stopped.

    python -m benchmarks.resume
    python -m benchmarks.resume environments=Pendulum-v1,fanuc agents=sac

Every agent trains in every environment that it can act in, with small networks. Weights, optimizer,
replay, metrics and everything else of the last checkpoint have to be the same bytes.
"""

import csv
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field
from torch.utils._pytree import tree_map
from torchrl.envs import PendulumEnv, RewardSum, SerialEnv, StepCounter, TransformedEnv, VecNormV2

from agents.base import Agent
from benchmarks.fixture import Training, build_agent, stop_after
from benchmarks.report import Figures, FiguresError, main, print_machine, print_table
from tests.helpers.training import differences
from torchrl_gpu.arguments import parameters_of
from torchrl_gpu.checkpoints.state_file import load_state
from torchrl_gpu.devices.seeding import seed_everything
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.specs import action_spec, observation_spec
from torchrl_gpu.errors import ConfigurationError
from trainers.components.choices import learning_agents
from trainers.training.trainer import TorchRLTrainer

ENVS, STEPS, RANDOM_STEPS = 4, 120, 20
EPISODE = 35  # steps, so that episodes of all environments end before and after the stop

# Settings of small agents; each agent takes those that it has.
SMALL: dict[str, Any] = {
    "hidden_sizes": [32, 32],
    "batch_size": 32,
    "utd_ratio": 0.25,
    "rollout_length": 16,
    "epochs": 2,
}
TRAINER: dict[str, Any] = {
    "total_frames": ENVS * STEPS,
    "random_frames": ENVS * RANDOM_STEPS,
    "replay_capacity": ENVS * STEPS // 2,  # the replay overwrites its first half
    "log_interval": ENVS * 30,
    "evaluation_interval": ENVS * 70,
    "evaluation_episodes": ENVS,
    "save_replay": True,
    "loggers": ["csv"],
}

PARTS = ("weights", "optimizer", "replay", "metrics", "rest")
# Beginnings of the columns of the metrics that measure time, or the machine.
TIMES = ("seconds", "frames_per_second", "system/")


@dataclass(frozen=True)
class Case:
    """An environment to train in.

    Attributes:
        arguments: arguments of the main program; none for TorchRL's pendulum, built by a script.
        actions: kinds of actions of the agents that can act there.
    """

    arguments: Sequence[str] = ()
    actions: frozenset[str] = field(default=frozenset({"continuous", "discrete"}))


def _gym(name: str, *arguments: str, actions: Sequence[str] = ("continuous", "discrete")) -> Case:
    limit = f"env.options.max_episode_steps={EPISODE}"
    return Case(("env=gym", f"env.name={name}", limit, *arguments), frozenset(actions))


CASES = {
    "fanuc": Case(("env=fanuc",)),
    "marinenav": Case(("env=marinenav",)),
    "lift_cube": Case(("env=lift_cube",)),
    "Pendulum-v1": _gym("Pendulum-v1"),
    "CartPole-v1 in processes": _gym(
        "CartPole-v1", "env.vectorization=async", actions=["discrete"]
    ),
    "BipedalWalker-v3": _gym("BipedalWalker-v3"),
    "Hopper-v5": _gym("Hopper-v5"),
    "ALE/Pong-v5": _gym("ALE/Pong-v5", "env.vectorization=sync", actions=["discrete"]),
    "TorchRL's Pendulum": Case(actions=frozenset({"continuous"})),
}


def _training(case: Case, name: str, agent: type[Agent]) -> Training:
    """Return a new training, as a new process would build it."""
    seed_everything(0)
    known = parameters_of(agent)
    small = {setting: value for setting, value in SMALL.items() if setting in known}
    if case.arguments:
        settings = [f"agent.{setting}={value}".replace(" ", "") for setting, value in small.items()]
        # The choice of the library for products depends on measured times.
        shared = ("seed=0", "products=torch", f"env.num_envs={ENVS}")
        length = [f"trainer.{key}={TRAINER[key]}" for key in ("total_frames", "random_frames")]
        arguments = (f"agent={name}", *case.arguments, *shared, *length, *settings)
        return Training.of(arguments, **TRAINER)
    env = as_environment(
        TransformedEnv(
            SerialEnv(ENVS, lambda: TransformedEnv(PendulumEnv(), StepCounter(EPISODE))),
            RewardSum(),
        ).append_transform(VecNormV2(in_keys=["reward"]))
    )
    return Training(
        env, build_agent(agent, observation_spec(env), action_spec(env), **small), **TRAINER
    )


def _final_state(trainer: TorchRLTrainer) -> dict[str, Any]:
    """Return the newest checkpoint, the whole replay and the rows of metrics, by part."""
    path = trainer.checkpoints.latest()
    assert path is not None, "every training ends with a checkpoint"
    state = load_state(path)
    del state["seconds"]
    agent = state.pop("agent")
    # Its files hold parts of it, which depend on the saves before.
    stored = tree_map(lambda x: x.clone(), trainer.experience.part(()).state)
    return {
        "weights": agent.pop("networks"),
        "optimizer": agent,
        "replay": [state.pop("experience"), stored],
        "rest": state,
        "metrics": _rows(trainer),
    }


def _rows(trainer: TorchRLTrainer) -> list[dict[str, str]]:
    """Return the logged metrics as they are printed, without times and empty cells."""
    trainer.close()
    path = trainer.folder / "metrics.csv"
    if not path.exists():
        return []
    with path.open() as file:
        return [
            {name: text for name, text in row.items() if text and not name.startswith(TIMES)}
            for row in csv.DictReader(file)
        ]


def compare(case: Case, name: str, agent: type[Agent], stop: int) -> dict[str, list[str]]:
    """Train once without a stop and once with one; return the names that differ, by part."""
    with closing(_training(case, name, agent)) as whole:
        whole.trainer.train()
        expected = _final_state(whole.trainer)
    with closing(_training(case, name, agent)) as first:
        stop_after(first.trainer, ENVS * stop)
        first.trainer.train()
        before = _rows(first.trainer)
        with closing(_training(case, name, agent)) as second:
            saved = first.trainer.checkpoints.latest()
            assert saved is not None, "a stopped training ends with a checkpoint"
            second.trainer.load(saved)
            second.trainer.train()
            resumed = _final_state(second.trainer)
    resumed["metrics"] = before + resumed["metrics"]
    return {part: sorted(differences(expected[part], resumed[part])) for part in PARTS}


def measure(
    *, environments: str = "", agents: str = "", seed: Annotated[int, Field(ge=0)] = 0
) -> Figures:
    """Stop and resume a training of every agent in every environment that it can act in.

    It ends with 1 if anything differs from the training that never stopped.

    Args:
        environments: names of the environments in the table, separated by commas; all if empty.
        agents: names of the agents, separated by commas; all of them if empty.
        seed: seed of the moments at which the trainings stop (0).
    """
    learners = learning_agents()
    chosen = [_chosen(environments, CASES), _chosen(agents, learners)]
    print_machine()
    moments = random.Random(seed)
    rows: list[Sequence[str]] = []
    same: dict[str, bool] = {}
    for title, case in CASES.items():
        for name, agent in learners.items():
            stop = moments.randint(RANDOM_STEPS // 2, STEPS - 10)
            fits = not case.actions.isdisjoint(agent.actions)
            if not (fits and title in chosen[0] and name in chosen[1]):
                continue
            started = time.perf_counter()
            found = compare(case, name, agent, stop)
            seconds = time.perf_counter() - started
            for differing in (differing for part in PARTS for differing in found[part][:1]):
                print(f"{title}, {name}: {differing} differs", flush=True)
            marks = [f"{len(names)} differ" if (names := found[part]) else "same" for part in PARTS]
            rows.append((f"{title}, {name}", f"{stop}/{STEPS}", *marks, f"{seconds:.1f} s"))
            same[f"{title}/{name}"] = not any(found.values())
    print_table(("training", "stopped after step", *PARTS, "time"), rows)
    figures = {"same": sum(same.values()), "trainings": len(same), "each": same}
    print(f"{figures['same']} of {len(same)} trainings resume to the same bytes\n")
    if not all(same.values()):
        raise FiguresError(figures)
    return figures


def _chosen(names: str, known: Mapping[str, object]) -> set[str]:
    chosen = set(filter(None, names.split(",")))
    if unknown := chosen - known.keys():
        raise ConfigurationError(f"{', '.join(sorted(unknown))}: choose from {', '.join(known)}")
    return chosen or set(known)


if __name__ == "__main__":
    main(measure)
