"""Short runs whose files are damaged by seed, and the ways in which the library reads them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from importlib import import_module
from pathlib import Path
from random import Random

import torch

from tests.helpers.agents import parameters
from tests.helpers.mutations import mutate_state, mutate_text
from torchrl_gpu.checkpoints.checkpoint import find_checkpoint, replay_path
from torchrl_gpu.errors import ConfigurationError
from trainers.modes.building import evaluator_of, training_env
from trainers.modes.train import build_trainer
from trainers.run import run, settings_of
from trainers.runs.loggers import MetricLogger
from trainers.runs.policy_files import load_policy, save_policy
from trainers.training.trainer import TorchRLTrainer

_SEA = (
    *("env=marinenav", "env.num_envs=2", "env.num_robots=2", "env.num_obstacles=0"),
    "env.max_episode_steps=6",
)
_SMALL = ("experiment=null", "device=cpu", "agent.hidden_sizes=[8]", "agent.batch_size=8")
_LENGTH = "trainer.total_frames=24"
_SHORT = (
    *("trainer.random_frames=8", "trainer.replay_capacity=40", "trainer.evaluation_episodes=1"),
    _LENGTH,
    *("trainer.log_interval=8", "trainer.loggers=[csv]", "trainer.show_progress=false"),
)
_OFF_POLICY = ("agent.utd_ratio=0.5",)

# Off-policy, on-policy in the middle of a rollout, and prioritized.
AGENTS: dict[str, tuple[str, ...]] = {
    "sac": ("agent=sac", *_SEA, *_SMALL, *_SHORT, *_OFF_POLICY),
    "ppo": (*("agent=ppo", *_SEA, *_SMALL, *_SHORT), *("agent.rollout_length=8", "agent.epochs=1")),
    "rainbow": (
        *("agent=rainbow", "env=gym", "env.name=CartPole-v1", "env.num_envs=1", *_SMALL, *_SHORT),
        *("agent.atoms=5", *_OFF_POLICY),
    ),
}
_CLOSING = ("evaluation.episodes=1", "evaluation.num_envs=1")

# Bytes beside the file: stack of the thread that saves, Python's objects, one piece of the file.
_MORE_MEMORY = 16 * 2**20


@dataclass(frozen=True)
class DamagedRun:
    """A copy of a run with one damaged file."""

    agent: str
    folder: Path
    file: Path
    kind: str

    def __str__(self) -> str:
        """Return the damaged file, and the kind of damage."""
        return f"{self.agent} {self.file.name}: {self.kind}"


class DamagedRuns:
    """Trains the agents in an empty folder, and damages their runs."""

    def __init__(self, folder: Path) -> None:
        self._work = folder / "work"
        self._runs: dict[str, Path] = {}
        for agent, arguments in AGENTS.items():
            outcome = run(*arguments, *_CLOSING, f"runs={folder / 'runs'}")
            newest = find_checkpoint(outcome.folder)
            save_policy(newest, outcome.folder / "policy.safetensors")
            self._runs[agent] = outcome.folder
        self._trainers = {agent: self._trainer_of(agent) for agent in AGENTS}

    def whole(self, agent: str = "sac") -> DamagedRun:
        """Return a copy of a run, which replaces the one returned before, without damage."""
        shutil.rmtree(self._work, ignore_errors=True)
        folder = self._work / "run"
        shutil.copytree(self._runs[agent], folder)
        return DamagedRun(agent, folder, find_checkpoint(folder), "none")

    def damaged(self, seed: int, way: str) -> DamagedRun:
        """Return a run with a damaged file that a way reads; the one before is replaced."""
        random = Random(seed)
        agent, other = random.sample([*self._runs], 2)
        _, folder, state, _ = astuple(self.whole(agent))
        best = folder / "checkpoints" / "best.json"
        if way in ("load", "resume"):
            states = [state, state, replay_path(state)]
            texts = [best, folder / "metrics.csv", folder / "config.yaml"]
        else:
            states, texts = [state, folder / "policy.safetensors"], [best]
        is_state = random.random() < 0.9
        file = random.choice(states if is_state else texts)
        spare = self._runs[other] / file.relative_to(folder)
        mutate = mutate_state if is_state else mutate_text
        mutation = mutate(file.read_bytes(), spare.read_bytes(), random)
        file.write_bytes(mutation.content)
        return DamagedRun(agent, folder, file, mutation.kind)

    def load(self, damaged: DamagedRun) -> None:
        """Load everything into a trainer that exists already, and train for an update.

        Raises:
            AssertionError: the run was refused after parts of it had been loaded.
        """
        checkpoint = find_checkpoint(damaged.folder)
        find_checkpoint(damaged.folder, best=True)
        MetricLogger(damaged.folder, ["csv"]).resume_from(16)
        trainer = self._trainers[damaged.agent]
        before = parameters(trainer.agent)
        try:
            trainer.load(checkpoint)
        except Exception:
            for name, value in parameters(trainer.agent).items():
                # Earlier loads may have let parameters become NaN.
                is_same = torch.equal(value.nan_to_num(), before[name].nan_to_num())
                assert is_same, f"half loaded: {name}"
            raise
        updates = trainer.updates
        for _ in range(4):  # to the end of a rollout
            trainer.experience.store(trainer.collect())
            trainer._learn()
            if trainer.updates > updates:
                break

    def resume(self, damaged: DamagedRun) -> None:
        """Resume the run in its folder by the program."""
        frames = ("trainer.total_frames=32", "trainer.evaluation_episodes=1")
        run(f"checkpoint={damaged.folder}", "device=cpu", *frames, *_CLOSING)

    def evaluate(self, damaged: DamagedRun) -> None:
        """Evaluate a policy by the program."""
        runs = f"runs={damaged.folder / 'evaluated'}"
        run("mode=eval", f"checkpoint={self._file(damaged)}", "device=cpu", runs, *_CLOSING)

    def film(self, damaged: DamagedRun) -> None:
        """Film a policy by the program."""
        runs = f"runs={damaged.folder / 'filmed'}"
        size = ("demo.num_envs=1", "demo.episodes=1")
        run("mode=demo", f"checkpoint={self._file(damaged)}", "device=cpu", runs, *size)

    def act(self, damaged: DamagedRun) -> None:
        """Load a policy without an environment, and act."""
        policy = load_policy(self._file(damaged))
        policy.predict(policy.interface.observation_spec.rand().to_dict())

    @property
    def ways(self) -> dict[str, Callable[[DamagedRun], None]]:
        """Ways to read a run, by name; the last three are those of the program."""
        return {
            "load": self.load,
            "load_policy": self.act,
            "resume": self.resume,
            "mode=eval": self.evaluate,
            "mode=demo": self.film,
        }

    def _file(self, damaged: DamagedRun) -> Path:
        """Return the damaged file if it holds a policy, otherwise the run."""
        is_policy = damaged.file.suffix == ".safetensors" and "_replay" not in damaged.file.name
        return damaged.file if is_policy else damaged.folder

    def _trainer_of(self, agent: str) -> TorchRLTrainer:
        settings, folder = settings_of(*AGENTS[agent]), self._work.parent / agent
        return build_trainer(settings, training_env(settings), evaluator_of(settings), folder)


@contextmanager
def memory_limited_to(more: int) -> Iterator[None]:
    """Let the process take no more memory in the block than it has and some bytes more."""
    status = Path("/proc/self/status")
    if not status.exists():  # not Linux
        yield
        return
    resource = import_module("resource")
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    (taken,) = re.findall(r"^VmData:\s+(\d+) kB$", status.read_text(), re.MULTILINE)
    resource.setrlimit(resource.RLIMIT_DATA, (1024 * int(taken) + more, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limits)


def refusal(way: Callable[[DamagedRun], None], damaged: DamagedRun) -> str | None:
    """Return the line in which a run is refused; None if it is loaded.

    Raises:
        BaseException: the run ends otherwise than in one short line, or takes more memory than the
            size of the file and 16 MiB.
    """
    try:
        with memory_limited_to(damaged.file.stat().st_size + _MORE_MEMORY):
            way(damaged)
    except ConfigurationError as error:
        line = str(error)
        assert line.isprintable(), f"not one line: {line!r}"
        assert len(line) <= 1000, f"{len(line)} characters"
        return line
    return None
