import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Binary, Composite, Unbounded

from agents.base import OffPolicyAgent
from agents.modules.normalization import (
    ObservationNormalizer,
    RewardNormalizer,
    RunningMoments,
    weighted_moments,
)
from tests.helpers.agents import Case, every_agent_that, losses_of, make_batch


def test_moments_of_batches_equal_those_of_all_samples() -> None:
    torch.manual_seed(0)
    samples = 3.0 + 2.0 * torch.randn(4, 100, 3)
    moments = RunningMoments(3)
    for piece in (samples[:1], samples[1:2], samples[2:]):
        moments.update(piece)
    whole = samples.flatten(0, 1)
    torch.testing.assert_close(moments.mean, whole.mean(dim=0))
    torch.testing.assert_close(moments.variance, whole.var(dim=0, unbiased=False))
    assert moments.count == 400


def test_rows_of_weight_zero_have_no_effect() -> None:
    torch.manual_seed(0)
    samples = torch.randn(50, 2)
    counts = (torch.arange(50) % 3 > 0).unsqueeze(-1)
    with_garbage = torch.where(counts, samples, 1e6)
    moments, expected = RunningMoments(2), RunningMoments(2)
    moments.update(with_garbage, counts.float())
    expected.update(samples[counts[:, 0]])
    torch.testing.assert_close(moments.state_dict(), expected.state_dict())
    number, mean, variance = weighted_moments(with_garbage, counts.float())
    assert number == counts.sum()
    torch.testing.assert_close(mean, samples[counts[:, 0]].mean(dim=0))
    torch.testing.assert_close(variance, samples[counts[:, 0]].var(dim=0, correction=0))


def test_a_batch_of_weight_zero_changes_no_moment() -> None:
    moments = RunningMoments(2)
    moments.update(torch.full((5, 2), 9.0), torch.zeros(5, 1))
    assert moments.mean.tolist() == [0.0, 0.0]
    assert moments.variance.tolist() == [1.0, 1.0]


def test_vectors_are_normalized_and_other_observations_pass() -> None:
    torch.manual_seed(0)
    spec = Composite(
        vector=Unbounded((2, 3)),
        pixels=Unbounded((2, 3, 8, 8), dtype=torch.uint8),
        objects=Unbounded((2, 4, 5)),
        objects_mask=Binary(4, (2, 4), dtype=torch.bool),
        robot=Composite(speed=Unbounded((2, 1)), shape=(2,)),
        shape=(2,),
    )
    normalizer = ObservationNormalizer(spec)
    observation = spec.expand(200, 2).rand()
    observation["vector"] = 5.0 + 0.1 * observation["vector"]
    before = observation.clone()
    normalizer.update(observation, None)
    normalized = normalizer(observation)
    for key in ("vector", ("robot", "speed")):
        flat = normalized[key].flatten(0, 1)
        torch.testing.assert_close(flat.mean(dim=0), torch.zeros(flat.shape[1]), atol=1e-4, rtol=0)
        torch.testing.assert_close(
            flat.std(dim=0, unbiased=False), torch.ones(flat.shape[1]), atol=1e-3, rtol=0
        )
    for key in ("pixels", "objects", "objects_mask"):
        assert torch.equal(normalized[key], before[key])
    assert (observation == before).all()


def test_outliers_are_clipped_to_ten_standard_deviations() -> None:
    spec = Composite(observation=Unbounded((1, 1)), shape=(1,))
    normalizer = ObservationNormalizer(spec)
    far = TensorDict({"observation": torch.tensor([[1e9], [-1e9]])}, [2])
    assert normalizer(far)["observation"].tolist() == [[10.0], [-10.0]]


@pytest.mark.parametrize("cut", [1, 3, 8])
def test_rewards_are_divided_by_the_std_of_the_discounted_return(cut: int) -> None:
    torch.manual_seed(0)
    steps, envs, gamma = 8, 3, 0.9
    reward = torch.randn(steps, envs, 1)
    done = torch.rand(steps, envs, 1) < 0.3
    returns, running = [], torch.zeros(envs, 1)
    for t in range(steps):
        running = reward[t] + gamma * running
        returns.append(running)
        running = torch.where(done[t], 0.0, running)
    deviation = torch.stack(returns).flatten().std(unbiased=False)

    normalizer = RewardNormalizer(torch.Size([envs]), gamma)
    for start in range(0, steps, cut):  # statistics continue from call to call
        piece = slice(start, start + cut)
        normalized = normalizer(reward[piece], done[piece])
    torch.testing.assert_close(normalized, reward[piece] / deviation, rtol=1e-4, atol=1e-5)


def test_a_first_reward_after_zeros_is_clipped() -> None:
    reward = torch.zeros(400, 1, 1)
    reward[-1] = 10.0
    normalized = RewardNormalizer(torch.Size([1]), 0.99)(reward, torch.zeros_like(reward).bool())
    assert normalized[-1] == 10.0
    assert normalized[:-1].eq(0.0).all()


@every_agent_that(lambda case: issubclass(case.agent_class, OffPolicyAgent))
def test_agents_with_a_replay_learn_and_act_whatever_the_scale_of_observations(case: Case) -> None:
    # The target network of a long period never moves here.
    agent = case.make(normalize_observations=True, target_period=100)
    plain = case.make(target_period=100)
    batch = make_batch(plain)
    observation = batch["observation"]
    deviation, mean = torch.std_mean(observation, dim=0, correction=0)
    wide = batch.clone()
    for place in (batch, batch["next"]):
        place["observation"] = (place["observation"] - mean) / deviation
    for place in (wide, wide["next"]):
        place["observation"] = 100.0 + 3.0 * place["observation"]

    for name, loss in losses_of(agent, wide).items():
        torch.testing.assert_close(loss, losses_of(plain, batch)[name], rtol=1e-3, atol=1e-3)
    agent.policy.eval()
    plain.policy.eval()
    acted, expected = agent.policy(wide)["action"], plain.policy(batch)["action"]
    torch.testing.assert_close(acted, expected, rtol=1e-3, atol=1e-3)
