"""Tasks of the learning benchmark: budgets, target scores, and peers in Stable-Baselines3.

Sources of the targets: scores at these budgets in the papers, RL Zoo and public test suites.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Task:
    """An environment to learn in, and the rules of its runs.

    Attributes:
        name: name of the task in `task=...`.
        title: name of the environment; for a Gymnasium environment its id.
        arguments: arguments of `python -m trainers.run` that select the environment.
        measure: unit of the score: mean return, or success rate from 0 to 1.
        seeds: default number of seeds.
        evaluations: number of evaluations during training; the best checkpoint is the result.
        evaluation_episodes: number of episodes of each evaluation during training.
        closing_episodes: number of episodes of the evaluation that gives the score.
        alone: True if one run keeps all cores busy.
        has_peer: True if Stable-Baselines3 runs on this task as well.
        peer: algorithm of Stable-Baselines3 that all agents are compared with; None for the one
            nearest to each agent.
        preset: name of the presets `PRESET_AGENT` of the runs; None for the environment's own.
    """

    name: str
    title: str
    arguments: tuple[str, ...]
    measure: Literal["return", "success"] = "return"
    seeds: int = 3
    evaluations: int = 10
    evaluation_episodes: int = 20
    closing_episodes: int = 100
    alone: bool = False
    has_peer: bool = False
    peer: str | None = None
    preset: str | None = None


@dataclass(frozen=True)
class Gate:
    """Budget and target of an agent on a task.

    Attributes:
        agent: name of the agent, as in `agent=dqn`.
        task: task to learn.
        frames: budget in environment steps.
        target: score to reach within the budget; None for no target.
    """

    agent: str
    task: Task
    frames: int
    target: float | None

    @property
    def name(self) -> str:
        """Name of the folder of the runs."""
        return f"{self.agent}_{self.task.name}"

    @property
    def peer(self) -> str | None:
        """Algorithm of Stable-Baselines3 to compare with; None if there is none."""
        return (self.task.peer or PEERS[self.agent]) if self.task.has_peer else None

    @property
    def arguments(self) -> tuple[str, ...]:
        """Arguments of `python -m trainers.run` that select agent, environment and preset."""
        preset = (f"experiment={self.task.preset}_{self.agent}",) if self.task.preset else ()
        return (f"agent={self.agent}", *self.task.arguments, *preset)


def _gym(name: str, title: str, **settings: Any) -> Task:
    return Task(name, title, ("env=gym", f"env.name={title}"), **settings)


TASKS = {
    task.name: task
    for task in (
        # Many episodes, to distinguish a policy that never falls from one that seldom does.
        _gym("cartpole", "CartPole-v1", has_peer=True, evaluation_episodes=50),
        # Many closing episodes, because the angle at the start decides most of a return: its
        # standard deviation over the episodes of one good policy is 85.
        _gym("pendulum", "Pendulum-v1", has_peer=True, closing_episodes=400),
        # Many episodes, because good policies differ by less than the spread between episodes.
        _gym("acrobot", "Acrobot-v1", evaluations=20, evaluation_episodes=50),
        _gym("lunarlander", "LunarLander-v3", seeds=1),
        _gym("lunarlander_continuous", "LunarLanderContinuous-v3", seeds=1),
        # One seed and few episodes, because an update takes 20 ms and a game a thousand frames.
        _gym(
            "pong",
            "ALE/Pong-v5",
            seeds=1,
            evaluation_episodes=5,
            evaluations=16,
            closing_episodes=20,
            has_peer=True,
            peer="dqn",
            preset="pong_quick",
        ),
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
        Task(
            "lift_cube",
            "lift_cube",
            ("env=lift_cube",),
            measure="success",
            evaluations=6,
            evaluation_episodes=96,
            closing_episodes=500,
        ),
        Task(
            "reach_pixels",
            "lift_cube, reach by images",
            ("experiment=reach_pixels",),
            measure="success",
            evaluations=5,
            evaluation_episodes=48,
            closing_episodes=500,
        ),
    )
}

# The nearest algorithm that Stable-Baselines3 has (QR-DQN in sb3-contrib); it has no quantile
# actor-critic, so AC-IQN is compared with DDPG, which has a deterministic actor.
PEERS = {
    "ppo": "ppo",
    "sac": "sac",
    "ddpg": "ddpg",
    "ac_iqn": "ddpg",
    "dqn": "dqn",
    "iqn": "qrdqn",
    "rainbow": "qrdqn",
}

# Budget in environment steps and target of each agent on each task.
_FRAMES_AND_TARGETS: dict[str, dict[str, tuple[int, float | None]]] = {
    "cartpole": {
        "ppo": (100_000, 475.0),
        "dqn": (50_000, 475.0),
        **dict.fromkeys(("iqn", "rainbow"), (100_000, 475.0)),
    },
    "pendulum": {
        "ppo": (100_000, -180.0),
        **dict.fromkeys(("sac", "ddpg"), (20_000, -160.0)),
        "ac_iqn": (30_000, -170.0),
    },
    "acrobot": dict.fromkeys(("dqn", "iqn", "rainbow"), (100_000, -80.0)),
    "lunarlander": dict.fromkeys(("dqn", "iqn", "rainbow"), (150_000, 200.0)),
    "lunarlander_continuous": {
        "ppo": (1_000_000, 240.0),
        "sac": (300_000, 250.0),
        "ac_iqn": (300_000, 230.0),
    },
    "pong": dict.fromkeys(("dqn", "rainbow"), (160_000, None)),
    "fanuc": {
        **dict.fromkeys(("ppo", "sac", "ddpg", "ac_iqn"), (300_000, 0.9)),
        **dict.fromkeys(("dqn", "iqn", "rainbow"), (300_000, None)),
    },
    "lift_cube": {"sac": (300_000, 0.95)},
    "reach_pixels": {"ddpg": (30_000, 0.9)},
}

GATES = tuple(
    Gate(agent, TASKS[task], frames, target)
    for task, agents in _FRAMES_AND_TARGETS.items()
    for agent, (frames, target) in agents.items()
)
