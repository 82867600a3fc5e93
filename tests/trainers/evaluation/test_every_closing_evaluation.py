"""`mode=eval` repeats the closing evaluation of a run, whatever its environment and precision."""

import json
import shlex
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from envs.genesis import start_genesis
from tests.helpers.agents import CPU
from tests.helpers.environments import IdentityEnv
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.precision import precisions_of
from trainers.run import run


class DriftingEnv(IdentityEnv):
    """One scene for both modes, which each of its steps and a generator of the process change."""

    capabilities = replace(IdentityEnv.capabilities, can_switch_mode=True, has_state=False)
    drift = 0.0

    def set_mode(self, mode: str) -> None:
        """Switch the mode; both have the same episodes."""

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        self.drift += 0.01
        step = super()._step(tensordict)
        return step.set("reward", step["reward"] + self.drift + torch.rand(()))


STEPS = "env.max_episode_steps=20"
PENDULUM = "env=gym env.name=Pendulum-v1 env.options={max_episode_steps:20}"
ENVS = {
    "fanuc": f"env=fanuc env.num_workers=1 {STEPS}",
    "marinenav": f"env=marinenav {STEPS}",
    "gym": PENDULUM,
    "gym in processes": f"{PENDULUM} env.vectorization=async",
    "an environment that drifts": f"env._target_={__name__}.DriftingEnv evaluation.num_envs=8",
    "bf16": f"env=marinenav {STEPS} precision=bf16 evaluation.num_envs=128 evaluation.episodes=128",
    "lift_cube": f"env=lift_cube {STEPS} env.friction=[0.5,2] evaluation.num_envs=3",
}
SMALL = """
    agent=sac experiment=null device=cpu env.num_envs=4
    agent.hidden_sizes=[16] agent.batch_size=16 trainer.total_frames=128 trainer.random_frames=64
    trainer.replay_capacity=256 trainer.evaluation_interval=64 trainer.evaluation_episodes=4
    trainer.loggers=[] trainer.show_progress=false evaluation.episodes=8
"""


@pytest.mark.parametrize(
    "env",
    [pytest.param(env, marks=[pytest.mark.slow] * (env == "lift_cube")) for env in ENVS],
)
def test_evaluation_of_the_checkpoint_repeats_that_of_the_run(env: str, tmp_path: Path) -> None:
    if env == "bf16" and "bf16" not in precisions_of(CPU):
        pytest.skip("this CPU has no bf16")
    if env == "lift_cube":
        try:
            start_genesis(CPU)
        except ConfigurationError as error:
            pytest.skip(str(error))
    runs = f"runs={tmp_path}"
    trained = run(*shlex.split(SMALL), *shlex.split(ENVS[env]), runs)
    torch.rand(3)
    repeated = run("mode=eval", f"checkpoint={trained.folder}", "device=cpu", "trust=tests", runs)
    assert repeated.evaluation == trained.evaluation
    summary = json.loads((trained.folder / "summary.json").read_text())
    assert summary.items() >= asdict(repeated.evaluation).items()
