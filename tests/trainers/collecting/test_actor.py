"""A collector without Ray, in a separate process."""

import pickle
import time
from pathlib import Path

from tensordict import TensorDict, TensorDictBase

from agents import SAC
from tests.helpers.agents import build_for
from tests.helpers.environments import IdentityEnv
from tests.helpers.forks import result_of
from torchrl_gpu.environments.environment import Environment
from trainers.collecting.actor import CollectorActor


class FailingEnv(IdentityEnv):
    """Fails in every reset."""

    stall_seconds = 1.0

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: object) -> TensorDict:
        raise ArithmeticError("the simulator has failed")


def build_failing(seed: int) -> Environment:
    """Return environments that fail; this function is pickled by its name."""
    return FailingEnv()


def outlive_a_failed_reset() -> str:
    """Return what a collector has raised, later than its watchdog would have ended the process."""
    actor = CollectorActor(cores=1)
    actor.build(str(Path.cwd()), [], pickle.dumps(build_failing), seed=0, number=0, count=1)
    actor.set_policy(pickle.dumps(build_for(FailingEnv(), SAC).policy))
    try:
        actor.restart(seed=0)
    except ArithmeticError as error:
        time.sleep(1.2 * FailingEnv.stall_seconds)
        return str(error)
    return ""


def test_a_collector_whose_environment_has_failed_does_not_end_later() -> None:
    assert result_of(outlive_a_failed_reset) == "the simulator has failed"
