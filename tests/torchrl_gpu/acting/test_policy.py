from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.data import Bounded, Categorical, Composite, OneHot, TensorSpec, Unbounded

from tests.stand_in import count_host_reads
from torchrl_gpu.acting.exploration import EpsilonGreedy, GaussianNoise, MixedNoise
from torchrl_gpu.acting.policy import Observations, PolicyWrapper
from torchrl_gpu.acting.schedules import LinearSchedule
from torchrl_gpu.errors import ConfigurationError

pytestmark = pytest.mark.directml

OBSERVATION_SPEC = Composite(observation=Unbounded((4, 2)), shape=(4,))


class Echo(nn.Module):
    """Returns the observation as action, plus 1 when it explores."""

    def act(self, observation: Observations, deterministic: bool) -> Tensor:
        return observation["observation"] + (0.0 if deterministic else 1.0)


class Larger(nn.Module):
    """Chooses the index of the largest component of the observation."""

    def act(self, observation: Observations, deterministic: bool) -> Tensor:
        return observation["observation"].argmax(-1)


def make(low: list[float], high: list[float]) -> PolicyWrapper:
    spec = Bounded(torch.tensor([low] * 4), torch.tensor([high] * 4), (4, 2))
    return PolicyWrapper(Echo(), OBSERVATION_SPEC, spec)


def make_discrete(epsilon: LinearSchedule, actions: int = 5) -> PolicyWrapper:
    spec = Categorical(actions, shape=(4,))
    return PolicyWrapper(Larger(), OBSERVATION_SPEC, spec, EpsilonGreedy(actions, epsilon))


@pytest.mark.parametrize("batch", [(), (4,), (3, 5)])
@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [([0.0, -4.0], [1.0, 8.0], [0.0, 5.0]), ([1.0, -2.0], [3.0, 0.0], [1.0, -0.5])],
)
def test_actions_are_mapped_onto_the_bounds_of_each_dimension(
    low: list[float], high: list[float], expected: list[float], batch: tuple[int, ...]
) -> None:
    policy = make(low, high).eval()
    observation = TensorDict({"observation": torch.tensor([-1.0, 0.5]).expand(*batch, 2)}, batch)
    action = policy(observation)["action"]
    assert action.shape == (*batch, 2)
    torch.testing.assert_close(action, torch.tensor(expected).expand(*batch, 2))
    torch.testing.assert_close(policy.from_bounds(action), observation["observation"])


def test_actions_at_the_ends_of_their_range_stay_within_the_bounds() -> None:
    torch.manual_seed(0)
    low = torch.randn(10_000) * 10.0 ** torch.randint(-2, 4, (10_000,))
    high = low + torch.rand_like(low) * 10.0 ** torch.randint(-2, 4, low.shape)
    policy = PolicyWrapper(Echo(), OBSERVATION_SPEC, Bounded(low.expand(4, -1), high.expand(4, -1)))
    for end in (-1.0, 1.0):
        action = policy.to_bounds(torch.full_like(low, end))
        assert action.ge(low).all()
        assert action.le(high).all()


def test_a_component_with_equal_bounds_has_one_value() -> None:
    policy = make([0.3, -1.0], [0.3, 1.0]).eval()
    observation = TensorDict({"observation": torch.tensor([[-1.0, 0.5], [0.2, 1.0]])}, [2])
    action = policy(observation)["action"]
    assert action[:, 0].tolist() == [pytest.approx(0.3)] * 2
    assert policy.from_bounds(action).tolist() == [[0.0, 0.5], [0.0, 1.0]]


def test_a_loaded_state_brings_its_bounds() -> None:
    unit, wide = make([-1.0, -1.0], [1.0, 1.0]), make([0.0, -4.0], [1.0, 8.0])
    action = torch.tensor([-1.0, 0.5])
    assert torch.equal(unit.to_bounds(action), action)
    state = {name: value.clone() for name, value in unit.state_dict().items()}
    unit.load_state_dict(wide.state_dict())
    assert torch.equal(unit.to_bounds(action), torch.tensor([0.0, 5.0]))
    wide.load_state_dict(state)
    assert torch.equal(wide.from_bounds(action), action)


def test_train_mode_explores_and_eval_mode_does_not() -> None:
    policy = make([-1.0, -1.0], [1.0, 1.0])
    observation = TensorDict({"observation": torch.zeros(4, 2)}, [4])
    assert policy.train()(observation.clone())["action"].eq(1.0).all()
    assert policy.eval()(observation.clone())["action"].eq(0.0).all()


def test_the_state_contains_bounds_and_frames() -> None:
    assert set(make([0.0, 0.0], [1.0, 1.0]).state_dict()) == {
        "action_center",
        "action_half_range",
        "frames",
    }


@pytest.mark.parametrize("batch", [(), (4,), (3, 5)])
def test_discrete_actions_are_integers(batch: tuple[int, ...]) -> None:
    policy = make_discrete(LinearSchedule(0.0, 0.0, 1)).train()
    observation = TensorDict({"observation": torch.tensor([0.0, 1.0]).expand(*batch, 2)}, batch)
    action = policy(observation)["action"]
    assert action.shape == batch
    assert action.dtype == torch.int64
    assert action.eq(1).all()


def test_epsilon_is_the_share_of_random_actions_and_decreases_with_the_frames() -> None:
    torch.manual_seed(0)
    policy = make_discrete(LinearSchedule(1.0, 0.1, 40_000)).train()
    observation = TensorDict({"observation": torch.tensor([0.0, 1.0]).expand(20_000, 2)}, [20_000])

    def share_of_others() -> float:
        return policy(observation.clone())["action"].ne(1).float().mean().item()

    # One in five random actions is the greedy one.
    found = [share_of_others() for _ in range(4)]
    assert found == pytest.approx([0.8 * epsilon for epsilon in (1.0, 0.55, 0.1, 0.1)], abs=0.02)
    policy.eval()
    assert share_of_others() == 0.0
    assert policy.frames == 80_000


def test_a_schedule_without_frames_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least 1 frame, not 0"):
        LinearSchedule(0.3, 0.1, 0)


def test_random_actions_are_drawn_uniformly() -> None:
    torch.manual_seed(0)
    policy = make_discrete(LinearSchedule(1.0, 1.0, 1)).train()
    observation = TensorDict({"observation": torch.zeros(50_000, 2)}, [50_000])
    shares = policy(observation)["action"].bincount(minlength=5) / 50_000
    torch.testing.assert_close(shares, torch.full((5,), 0.2), atol=0.01, rtol=0.0)


def test_noise_decreases_with_the_frames_and_actions_stay_within_the_bounds() -> None:
    torch.manual_seed(0)
    spec = Bounded(torch.full((4, 2), 2.0), torch.full((4, 2), 6.0), (4, 2))
    noise = GaussianNoise(LinearSchedule(0.5, 0.1, 10_000))

    class Middle(nn.Module):
        def act(self, observation: Observations, deterministic: bool) -> Tensor:
            return torch.zeros_like(observation["observation"])

    policy = PolicyWrapper(Middle(), OBSERVATION_SPEC, spec, noise).train()
    observation = TensorDict({"observation": torch.zeros(10_000, 2)}, [10_000])
    first, second = (policy(observation.clone())["action"] for _ in range(2))
    assert first.min() >= 2.0
    assert first.max() <= 6.0
    # Half the range is 2; the bounds clamp about a twentieth of the first draw.
    assert first.std().item() == pytest.approx(2 * 0.5, rel=0.1)
    assert second.std().item() == pytest.approx(2 * 0.1, rel=0.05)
    assert torch.corrcoef(second.T)[0, 1].abs() < 0.05, "each component has its own noise"
    assert policy.eval()(observation)["action"].eq(4.0).all()


@pytest.mark.parametrize("robots", [(), (50,)])
def test_mixed_noise_grows_from_environment_to_environment(robots: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    noise = MixedNoise(0.05, 0.25)
    frames = torch.zeros((), dtype=torch.int64)
    draws = [noise(torch.zeros(3, *robots, 2000), frames) for _ in range(10)]
    found = torch.stack(draws, dim=1).flatten(1).std(dim=1)
    torch.testing.assert_close(found, torch.tensor([0.05, 0.15, 0.25]), rtol=0.05, atol=0.0)
    assert noise(torch.full((3, 2), 9.0), frames).eq(1.0).all()
    # A single environment, with and without a batch dimension.
    for one in (torch.zeros(1, *robots, 20_000), torch.zeros(20_000)):
        assert noise(one, frames).std().item() == pytest.approx(0.15, rel=0.05)


def test_acting_with_normal_noise_needs_no_host_reads(accelerator: torch.device) -> None:
    exploration = GaussianNoise(LinearSchedule(1.0, 0.1, 100))
    spec = Bounded(-1.0, 1.0, (4, 2))
    policy = PolicyWrapper(Echo(), OBSERVATION_SPEC, spec, exploration).train().to(accelerator)
    observation = TensorDict({"observation": torch.zeros(4, 2, device=accelerator)}, [4])
    policy(observation.clone())
    with count_host_reads() as counter:
        policy(observation.clone())
    assert counter.host_reads == counter.copies == 0, counter.report()


def test_a_missing_observation_is_named() -> None:
    robots = TensorDict({"robots": TensorDict({"observation": torch.zeros(4, 3, 2)}, [4, 3])}, [4])
    with pytest.raises(ConfigurationError, match=r"reads observation, .* by SharedPolicy\("):
        make([-1.0, -1.0], [1.0, 1.0])(robots)


class Fixed(nn.Module):
    """Returns the same result for every observation."""

    def __init__(self, result: object) -> None:
        super().__init__()
        self.result = result

    def act(self, observation: Observations, deterministic: bool) -> Any:
        return self.result


@pytest.mark.parametrize(
    ("result", "found"),
    [
        (torch.zeros(4), r"torch.float32 \[4\]"),
        (torch.zeros(2).int(), r"torch.int(32|64) \[2\]"),
        (torch.ones(4) > 0, "torch.bool"),
        (None, "None"),
    ],
)
@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (Bounded(-1.0, 1.0, (4, 2)), r"torch.float32 \[4, 2\]"),
        (Categorical(5, shape=(4,)), r"torch.int64 \[4\]"),
    ],
)
def test_an_actor_that_returns_no_actions_is_refused(
    result: object, found: str, spec: TensorSpec, expected: str
) -> None:
    policy = PolicyWrapper(Fixed(result), OBSERVATION_SPEC, spec)
    with pytest.raises(ConfigurationError, match=f"Fixed.act has to return {expected}, .*{found}"):
        policy(TensorDict({"observation": torch.zeros(4, 2)}, [4]))


def test_an_index_may_be_int32() -> None:
    policy = PolicyWrapper(Fixed(torch.ones(4).int()), OBSERVATION_SPEC, Categorical(5, shape=(4,)))
    action = policy(TensorDict({"observation": torch.zeros(4, 2)}, [4]))["action"]
    assert torch.equal(action, torch.ones(4, dtype=torch.int64))


def test_actions_of_an_actor_in_half_precision_are_float32() -> None:
    actor = Fixed(torch.full((4, 2), 0.5, dtype=torch.bfloat16))
    policy = PolicyWrapper(actor, OBSERVATION_SPEC, Bounded(-1.0, 1.0, (4, 2)))
    action = policy(TensorDict({"observation": torch.zeros(4, 2)}, [4]))["action"]
    torch.testing.assert_close(action, torch.full((4, 2), 0.5))


def test_in_keys_and_out_keys_are_set_for_torchrl() -> None:
    policy = make([0.0, 0.0], [1.0, 1.0])
    assert policy.in_keys == ["observation"]
    assert policy.out_keys == ["action"]


@pytest.mark.parametrize("spec", [Unbounded((4, 2)), OneHot(3, (4, 3))])
def test_other_action_spaces_are_rejected(spec: Unbounded | OneHot) -> None:
    with pytest.raises(ConfigurationError, match=r"neither Bounded.*nor Categorical"):
        PolicyWrapper(Echo(), OBSERVATION_SPEC, spec)
