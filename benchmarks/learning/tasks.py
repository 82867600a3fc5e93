"""What the learning benchmark holds agents to: tasks, budgets, scores, and whom they stand beside.

Sources of the scores: what the papers, the RL Zoo and public test suites publish at these budgets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Task:
    """A world to learn in.

    Attributes:
        name: what the benchmark's argument calls it.
        title: what the world calls itself; for a Gymnasium environment its id.
        arguments: of `python -m trainers.run`, to choose it.
        measure: what is judged: the mean return, or the share of successful episodes.
        seeds: how many seeds a result is the mean of, where no other number is asked for.
        evaluations: how often a run is evaluated on the way; the best checkpoint is the result.
        evaluation_episodes: episodes of each of these.
        alone: whether one run keeps all cores busy.
        has_peer: whether Stable-Baselines3 runs beside.
    """

    name: str
    title: str
    arguments: tuple[str, ...]
    measure: Literal["return", "success"] = "return"
    seeds: int = 3
    evaluations: int = 10
    evaluation_episodes: int = 20
    alone: bool = False
    has_peer: bool = False


@dataclass(frozen=True)
class Gate:
    """What an agent has to reach on a task.

    Attributes:
        agent: its name, as in `agent=dqn`.
        task: where.
        frames: environment steps it has for that.
        target: the score to reach; None where the score is only told.
    """

    agent: str
    task: Task
    frames: int
    target: float | None

    @property
    def name(self) -> str:
        """What its files are called."""
        return f"{self.agent}_{self.task.name}"

    @property
    def peer(self) -> str | None:
        """The algorithm of Stable-Baselines3 to stand beside, if any."""
        return PEERS[self.agent] if self.task.has_peer else None


def _gym(name: str, title: str, **settings: Any) -> Task:
    return Task(name, title, ("env=gym", f"env.name={title}"), **settings)


TASKS = {
    task.name: task
    for task in (
        # It takes many episodes to tell a policy that never falls from one that seldom does.
        _gym("cartpole", "CartPole-v1", has_peer=True, evaluation_episodes=50),
        _gym("pendulum", "Pendulum-v1", has_peer=True),
        # Good policies lie within the spread of a single episode here: it takes many to tell.
        _gym("acrobot", "Acrobot-v1", evaluations=20, evaluation_episodes=50),
        _gym("lunarlander", "LunarLander-v3", seeds=1),
        _gym("lunarlander_continuous", "LunarLanderContinuous-v3", seeds=1),
        Task(
            "fanuc",
            "fanuc",
            ("env=fanuc",),
            measure="success",
            seeds=1,
            evaluations=6,
            evaluation_episodes=200,
            alone=True,
        ),
    )
}

# The nearest algorithm that Stable-Baselines3 has (QR-DQN in sb3-contrib); it has no quantile
# actor-critic, so AC-IQN stands beside the one with a deterministic actor.
PEERS = {
    "ppo": "ppo",
    "sac": "sac",
    "ddpg": "ddpg",
    "ac_iqn": "ddpg",
    "dqn": "dqn",
    "iqn": "qrdqn",
    "rainbow": "qrdqn",
}

_FRAMES_AND_TARGETS: dict[str, dict[str, tuple[int, float | None]]] = {
    "cartpole": {
        "ppo": (100_000, 475.0),
        "dqn": (50_000, 475.0),
        "iqn": (100_000, 475.0),
        "rainbow": (100_000, 475.0),
    },
    "pendulum": {
        "ppo": (100_000, -180.0),
        "sac": (20_000, -160.0),
        "ddpg": (20_000, -160.0),
        "ac_iqn": (30_000, -170.0),
    },
    "acrobot": {
        "dqn": (100_000, -80.0),
        "iqn": (100_000, -80.0),
        "rainbow": (100_000, -80.0),
    },
    "lunarlander": {
        "dqn": (150_000, 200.0),
        "iqn": (150_000, 200.0),
        "rainbow": (150_000, 200.0),
    },
    "lunarlander_continuous": {
        "ppo": (1_000_000, 240.0),
        "sac": (300_000, 250.0),
        "ac_iqn": (300_000, 230.0),
    },
    "fanuc": {
        "ppo": (300_000, 0.9),
        "sac": (300_000, 0.9),
        "ddpg": (300_000, 0.9),
        "ac_iqn": (300_000, 0.9),
        "dqn": (300_000, None),
        "iqn": (300_000, None),
        "rainbow": (300_000, None),
    },
}

GATES = tuple(
    Gate(agent, TASKS[task], frames, target)
    for task, agents in _FRAMES_AND_TARGETS.items()
    for agent, (frames, target) in agents.items()
)
