import pytest
import torch

from envs.fanuc import FanucEnv
from tests.helpers.environments import IdentityEnv
from torchrl_gpu.errors import ConfigurationError
from trainers.components.component import Component, find_class


def test_component_receives_only_arguments_of_its_constructor() -> None:
    component = Component("IdentityEnv", IdentityEnv, {"num_envs": 3})
    env = component.build(mode="eval", device=torch.device("cpu"), seed=1)
    assert env.batch_size == (3,)


def test_evaluation_environment_is_in_its_evaluation_mode() -> None:
    """A metaclass hides the constructor of TorchRL's environments; `mode` must still reach it."""
    component = Component("FanucEnv", FanucEnv, {"num_envs": 1, "num_workers": 1})
    levels = {}
    for mode in ("train", "eval"):
        env = component.build(mode=mode, device=torch.device("cpu"), seed=0)
        levels[mode] = env.metrics()["curriculum/grade"]
        env.close()
    assert levels == {"train": 0.0, "eval": 2.0}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nowhere.Agent", "No module named"),
        ("agents.Nobody", "Nobody"),
        ("Agent", "_target_=Agent: write package.Class"),
        (".agents.SAC", "_target_=.agents.SAC: the 'package' argument is required"),
        ("agents.UntrainedAgent", "abstract; it does not define choose"),
        ("pathlib.Path", "subclass of agents.base.Agent"),
    ],
)
def test_unusable_class_is_refused(path: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        find_class("agent", path)
