"""Tasks of the learning benchmark: budgets, target scores, and peers in Stable-Baselines3.

Sources of the targets: scores at these budgets in the papers, RL Zoo and public test suites.
"""

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
    preset: str | None = None


@dataclass(frozen=True)
class Gate:
    """Budget and target of an agent on a task.

    Attributes:
        agent: name of the agent, as in `agent=dqn`.
        task: task to learn.
        frames: budget in environment steps.
        target: score to reach within the budget; None for no target.
        peer: algorithm of Stable-Baselines3 to compare with; None if there is none.
    """

    agent: str
    task: Task
    frames: int
    target: float | None = None
    peer: str | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """Arguments of `python -m trainers.run` that select agent, environment and preset."""
        preset = (f"experiment={self.task.preset}_{self.agent}",) if self.task.preset else ()
        return (f"agent={self.agent}", *self.task.arguments, *preset)


def _gym(name: str, title: str, **settings: Any) -> Task:
    return Task(name, title, ("env=gym", f"env.name={title}"), **settings)


def _robot(name: str, title: str, *arguments: str, **settings: Any) -> Task:
    settings = {"closing_episodes": 500, **settings}
    return Task(name, title, arguments, measure="success", **settings)


CONTINUOUS = ("ppo", "sac", "ddpg", "ac_iqn")
DISCRETE = ("dqn", "iqn", "rainbow")

_TASKS = (
    # Many episodes, to distinguish a policy that never falls from one that seldom does.
    _gym("cartpole", "CartPole-v1", evaluation_episodes=50),
    # Many closing episodes, because the angle at the start decides most of a return: its
    # standard deviation over the episodes of one good policy is 85.
    _gym("pendulum", "Pendulum-v1", closing_episodes=400),
    # Many episodes, because good policies differ by less than the spread between episodes.
    _gym("acrobot", "Acrobot-v1", evaluations=20, evaluation_episodes=50),
    _gym("lunarlander", "LunarLander-v3", seeds=1),
    _gym("lunarlander_continuous", "LunarLanderContinuous-v3", seeds=1),
    # One seed and few episodes, because a million updates take most of an hour.
    _gym("halfcheetah", "HalfCheetah-v5", seeds=1, evaluations=20, evaluation_episodes=5),
    # One seed and few episodes, because an update takes 20 ms and a game a thousand frames.
    _gym(
        "pong",
        "ALE/Pong-v5",
        seeds=1,
        evaluations=16,
        evaluation_episodes=5,
        closing_episodes=20,
        preset="pong_quick",
    ),
    _robot(
        "fanuc",
        "fanuc",
        "env=fanuc",
        seeds=1,
        evaluations=6,
        evaluation_episodes=200,
        closing_episodes=100,
        alone=True,
    ),
    _robot(
        "fanuc_kuka",
        "fanuc, KUKA LBR iiwa",
        "env=fanuc",
        "env.urdf=kuka_iiwa/model.urdf",
        seeds=1,
        evaluations=5,
        evaluation_episodes=100,
        alone=True,
    ),
    _robot("lift_cube", "lift_cube", "env=lift_cube", evaluations=6, evaluation_episodes=96),
    _robot(
        "fanuc_hold",
        "fanuc, success at rest",
        "experiment=fanuc_hold",
        evaluation_episodes=100,
        alone=True,
    ),
    _robot("lift_cube_one_jaw", "lift_cube, arm with one jaw", "experiment=lift_cube_one_jaw"),
    _robot(
        "reach_pixels",
        "lift_cube, reach by images",
        "experiment=reach_pixels",
        evaluations=5,
        evaluation_episodes=48,
        alone=True,
    ),
    _robot(
        "lift_pixels",
        "lift_cube, lift by images",
        "experiment=lift_pixels",
        evaluation_episodes=48,
        alone=True,
    ),
)
TASKS = {task.name: task for task in _TASKS}

# The peer is the nearest algorithm that Stable-Baselines3 has (QR-DQN in sb3-contrib); it has no
# quantile actor-critic, so AC-IQN is compared with DDPG, which has a deterministic actor.
GATES = (
    Gate("ppo", TASKS["cartpole"], 100_000, 475.0, peer="ppo"),
    Gate("dqn", TASKS["cartpole"], 50_000, 475.0, peer="dqn"),
    Gate("iqn", TASKS["cartpole"], 100_000, 475.0, peer="qrdqn"),
    Gate("rainbow", TASKS["cartpole"], 100_000, 475.0, peer="qrdqn"),
    Gate("ppo", TASKS["pendulum"], 100_000, -180.0, peer="ppo"),
    Gate("sac", TASKS["pendulum"], 20_000, -160.0, peer="sac"),
    Gate("ddpg", TASKS["pendulum"], 20_000, -160.0, peer="ddpg"),
    Gate("ac_iqn", TASKS["pendulum"], 30_000, -170.0, peer="ddpg"),
    *(Gate(agent, TASKS["acrobot"], 100_000, -80.0) for agent in DISCRETE),
    *(Gate(agent, TASKS["lunarlander"], 150_000, 200.0) for agent in DISCRETE),
    Gate("ppo", TASKS["lunarlander_continuous"], 1_000_000, 240.0),
    Gate("sac", TASKS["lunarlander_continuous"], 300_000, 250.0),
    Gate("ac_iqn", TASKS["lunarlander_continuous"], 300_000, 230.0),
    Gate("sac", TASKS["halfcheetah"], 1_000_000, 9_600.0),
    Gate("dqn", TASKS["pong"], 160_000, peer="dqn"),
    Gate("rainbow", TASKS["pong"], 160_000, peer="dqn"),
    *(Gate(agent, TASKS["fanuc"], 300_000, 0.9) for agent in (*CONTINUOUS, *DISCRETE)),
    Gate("sac", TASKS["fanuc_hold"], 300_000, 0.98),
    Gate("sac", TASKS["fanuc_kuka"], 150_000, 0.98),
    Gate("sac", TASKS["lift_cube"], 300_000, 0.95),
    Gate("sac", TASKS["lift_cube_one_jaw"], 150_000, 0.95),
    Gate("ddpg", TASKS["reach_pixels"], 40_000, 0.98),
    Gate("sac", TASKS["lift_pixels"], 60_000, 0.95),
)
