from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.data import Bounded, Composite, OneHot, Unbounded

from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.policy import PolicyWrapper

CPU = torch.device("cpu")
OBSERVATION_SPEC = Composite(observation=Unbounded((4, 2)), shape=(4,))


class Echo(nn.Module):
    """Acts what it observes; one more when it explores."""

    def act(self, observation: TensorDictBase, deterministic: bool) -> Tensor:
        return observation["observation"] + (0.0 if deterministic else 1.0)


def make(low: list[float], high: list[float]) -> PolicyWrapper:
    spec = Bounded(torch.tensor([low] * 4), torch.tensor([high] * 4), (4, 2))
    return PolicyWrapper(Echo(), OBSERVATION_SPEC, spec, CPU)


@pytest.mark.parametrize("batch", [(), (4,), (3, 5)])
def test_actions_are_mapped_onto_the_bounds_of_each_dimension(batch: tuple[int, ...]) -> None:
    policy = make([0.0, -4.0], [1.0, 8.0]).eval()
    observation = TensorDict({"observation": torch.tensor([-1.0, 0.5]).expand(*batch, 2)}, batch)
    action = policy(observation)["action"]
    assert action.shape == (*batch, 2)
    torch.testing.assert_close(action, torch.tensor([0.0, 5.0]).expand(*batch, 2))
    torch.testing.assert_close(policy.from_bounds(action), observation["observation"])


def test_train_mode_explores_and_eval_mode_does_not() -> None:
    policy = make([-1.0, -1.0], [1.0, 1.0])
    observation = TensorDict({"observation": torch.zeros(4, 2)}, [4])
    assert policy.train()(observation.clone())["action"].eq(1.0).all()
    assert policy.eval()(observation.clone())["action"].eq(0.0).all()


def test_bounds_travel_with_the_module() -> None:
    assert set(make([0.0, 0.0], [1.0, 1.0]).state_dict()) == {
        "action_center",
        "action_half_range",
    }


def test_it_tells_torchrl_what_it_reads_and_writes() -> None:
    policy = make([0.0, 0.0], [1.0, 1.0])
    assert policy.in_keys == ["observation"]
    assert policy.out_keys == ["action"]


@pytest.mark.parametrize("spec", [Unbounded((4, 2)), OneHot(3, (4, 3))])
def test_other_action_spaces_are_refused(spec: Unbounded | OneHot) -> None:
    with pytest.raises(ConfigurationError, match="bounded, continuous"):
        PolicyWrapper(Echo(), OBSERVATION_SPEC, spec, CPU)
