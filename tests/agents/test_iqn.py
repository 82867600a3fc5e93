from __future__ import annotations

import copy

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Categorical, Composite, Unbounded

from agents.iqn import IQN
from tests.stand_in import count_host_reads
from torchrl_gpu.errors import ConfigurationError

CPU = torch.device("cpu")
ENVS, OBSERVATION, ACTIONS, BATCH = 4, 5, 3, 32


def specs() -> tuple[Composite, Categorical]:
    observation = Composite(observation=Unbounded((ENVS, OBSERVATION)), shape=(ENVS,))
    return observation, Categorical(ACTIONS, shape=(ENVS,))


def make(seed: int = 0, device: torch.device = CPU, **hyperparameters: object) -> IQN:
    torch.manual_seed(seed)
    observation, action = specs()
    hyperparameters = {"hidden_sizes": [16, 16], **hyperparameters}
    return IQN(observation.to(device), action.to(device), device, **hyperparameters)


def make_batch(terminated: bool = False, seed: int = 0) -> TensorDict:
    generator = torch.Generator().manual_seed(seed)
    return TensorDict(
        {
            "observation": torch.randn(BATCH, OBSERVATION, generator=generator),
            "action": torch.randint(ACTIONS, (BATCH,), generator=generator),
            "next": {
                "observation": torch.randn(BATCH, OBSERVATION, generator=generator),
                "reward": torch.randn(BATCH, 1, generator=generator),
                "terminated": torch.full((BATCH, 1), terminated),
                "truncated": torch.zeros(BATCH, 1, dtype=torch.bool),
            },
        },
        [BATCH],
    )


def with_known_quantiles(agent: IQN) -> IQN:
    """Make values that depend on tau alone, whatever is seen: of action 0, 1, 2.

    Online Z = (2, 10 tau, 0): the mean is (2, 5, 0), that of the worst tenth (2, 0.5, 0). The
    target network's is (20, 10, 5 + 20 tau): its mean is (20, 10, 15).
    """
    for network, bias, slope in (
        (agent.network, [2.0, 0.0, 0.0], [0.0, 10.0, 0.0]),
        (agent.target_network.network, [20.0, 10.0, 5.0], [0.0, 0.0, 20.0]),
    ):
        network.forward = KnownQuantiles(bias, slope)
    return agent


class KnownQuantiles:
    """Z_tau(s, a) = bias_a + slope_a tau."""

    def __init__(self, bias: list[float], slope: list[float]) -> None:
        self.bias, self.slope = torch.tensor(bias), torch.tensor(slope)

    def __call__(self, observation: TensorDict, fractions: torch.Tensor) -> torch.Tensor:
        values = self.bias + self.slope * fractions.unsqueeze(-1)
        return values.expand(*observation.batch_size, *values.shape[-2:])


@pytest.mark.parametrize(("risk_level", "action"), [(1.0, 1), (0.1, 0)])
@pytest.mark.parametrize("training", [False, True])
def test_an_averse_policy_does_not_bet(risk_level: float, action: int, training: bool) -> None:
    agent = with_known_quantiles(make(risk_level=risk_level, epsilon_start=0.0, epsilon_end=0.0))
    agent.policy.train(training)
    observation = TensorDict({"observation": torch.randn(2, 7, OBSERVATION)}, [2, 7])
    assert torch.equal(agent.policy(observation)["action"], torch.full((2, 7), action))


def test_fixed_fractions_are_the_mean_of_drawn_ones() -> None:
    agent = make(acting_fractions=64)
    observation = TensorDict({"observation": torch.randn(BATCH, OBSERVATION)}, [BATCH])
    fixed = agent.network(observation, agent.network.acting_midpoints).mean(-2)
    drawn = agent.network(observation, torch.rand(BATCH, 5_000)).mean(-2)
    torch.testing.assert_close(fixed, drawn, atol=0.02, rtol=0.0)


# The next value is that of the action that the target network prefers, 20, or the online one, 10.
@pytest.mark.parametrize(("double", "next_value"), [(False, 20.0), (True, 10.0)])
def test_target_values_the_action_that_the_right_network_chooses(
    double: bool, next_value: float
) -> None:
    agent = with_known_quantiles(make(double=double, gamma=0.5, fractions=4, kappa=1.0))
    batch = make_batch()
    batch["action"] = torch.zeros(BATCH, dtype=torch.int64)  # of value 2
    batch["next", "reward"] = torch.full((BATCH, 1), 4.0)
    batch["next", "terminated"][0] = True
    batch["next", "truncated"][1] = True
    torch.manual_seed(3)
    losses = agent.loss(batch)
    torch.manual_seed(3)
    agent.network.draw_acting_fractions()
    torch.rand(BATCH, agent.target_fractions)
    # All errors are positive: the weights are tau itself, and add up over the 4 fractions.
    weight = torch.rand(BATCH, 4).sum(1)
    error = torch.full((BATCH,), 4.0 + 0.5 * next_value - 2.0)
    error[0] = 4.0 - 2.0
    torch.testing.assert_close(batch["priority"], weight * (error - 0.5))
    torch.testing.assert_close(losses["loss/value"], (weight * (error - 0.5)).mean())


def test_rewards_of_several_steps_discount_the_next_value_as_often() -> None:
    agent = with_known_quantiles(make(gamma=0.5, n_step=3, fractions=1))
    batch = make_batch()
    batch["action"] = torch.zeros(BATCH, dtype=torch.int64)
    batch["next", "reward"] = torch.full((BATCH, 1), 4.0)
    batch["steps_to_next_obs"] = torch.full((BATCH, 1), 3)
    torch.manual_seed(3)
    agent.loss(batch)
    torch.manual_seed(3)
    agent.network.draw_acting_fractions()
    torch.rand(BATCH, agent.target_fractions)
    weight = torch.rand(BATCH, 1).sum(1)
    torch.testing.assert_close(batch["priority"], weight * (4.0 + 20.0 / 8 - 2.0 - 0.5))


def test_importance_weights_scale_the_loss_of_each_sample() -> None:
    agent, batch = make(), make_batch()
    batch["weight"] = torch.rand(BATCH, 1)
    loss = agent.loss(batch)["loss/value"]
    weighted = batch["weight"].squeeze(1) * batch["priority"]
    torch.testing.assert_close(loss, weighted.mean())


def test_no_gradient_reaches_the_target() -> None:
    agent = make(double=True)
    agent.loss(make_batch())["loss/value"].backward()
    touched = {name for name, p in agent.named_parameters() if p.grad is not None}
    assert touched == {f"network.{name}" for name, _ in agent.network.named_parameters()}


def test_target_is_copied_every_so_many_updates() -> None:
    agent = make(target_rate=1.0, target_period=3)
    initial = copy.deepcopy(agent.network.state_dict())
    for step in range(1, 7):
        agent.update(make_batch(seed=step))
        expected = initial if step < 3 else agent.network.state_dict() if step % 3 == 0 else None
        if expected is not None:
            for name, value in agent.target_network.network.state_dict().items():
                assert torch.equal(value, expected[name]), (step, name)


def test_target_follows_by_its_rate() -> None:
    agent = make(target_rate=0.1)
    before = copy.deepcopy(agent.network.state_dict())
    agent.update(make_batch())
    after = agent.network.state_dict()
    for name, value in agent.target_network.network.state_dict().items():
        torch.testing.assert_close(value, 0.9 * before[name] + 0.1 * after[name])


def test_a_gradient_norm_limits_the_step() -> None:
    agent = make(max_gradient_norm=1e-3)
    batch = make_batch()
    batch["next", "reward"] *= 100.0
    agent.update(batch)
    gradients = torch.cat([p.grad.flatten() for p in agent.network.parameters()])
    assert gradients.norm().item() == pytest.approx(1e-3, rel=1e-3)


def test_it_explores_in_train_mode_as_scheduled_and_is_greedy_in_eval_mode() -> None:
    agent = with_known_quantiles(make(epsilon_start=1.0, epsilon_end=0.0, epsilon_frames=1000))
    observation = TensorDict({"observation": torch.randn(1, 1000, OBSERVATION)}, [1, 1000])
    greedy = torch.ones(1, 1000, dtype=torch.int64)

    agent.policy.eval()
    assert torch.equal(agent.policy(observation.clone())["action"], greedy)
    agent.policy.train()
    random = agent.policy(observation.clone())["action"]
    assert (random != greedy).float().mean().item() > 0.5
    assert torch.equal(agent.policy(observation.clone())["action"], greedy)  # the schedule is over


def test_the_same_seed_gives_the_same_parameters() -> None:
    agents = []
    for _ in range(2):
        agent = make(seed=7)
        for step in range(5):
            agent.update(make_batch(seed=step))
        agents.append(agent.state_dict())
    for name, value in agents[0].items():
        assert torch.equal(value, agents[1][name]), name


def test_training_goes_on_from_a_state_as_if_it_had_never_stopped() -> None:
    agent = make(target_period=2, target_rate=1.0)
    agent.update(make_batch())
    state = copy.deepcopy(agent.training_state())
    resumed = make(seed=99, target_period=2, target_rate=1.0)
    resumed.load_training_state(state)
    for one in (agent, resumed):
        torch.manual_seed(5)
        one.update(make_batch(seed=1))
    for name, value in agent.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


@pytest.mark.parametrize(
    "hyperparameters",
    [
        {"learning_rate": 0.0},
        {"gamma": 1.5},
        {"hidden_sizes": []},
        {"target_rate": 0.0},
        {"target_period": 0},
        {"max_gradient_norm": 0.0},
        {"epsilon_start": 1.5},
        {"fractions": 0},
        {"acting_fractions": 0},
        {"risk_level": 0.0},
        {"risk_level": 1.5},
        {"kappa": 0.0},
        {"head_sizes": [0]},
    ],
)
def test_hyperparameters_out_of_range_are_refused_by_name(
    hyperparameters: dict[str, object],
) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(hyperparameters))):
        make(**hyperparameters)


def test_continuous_actions_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="discrete"):
        IQN(specs()[0], Bounded(-1.0, 1.0, (ENVS, 2)), CPU)


def test_hidden_layers_may_follow_the_product() -> None:
    agent = make(head_sizes=[8])
    assert agent.network.head[0].weight.shape == (8, 16)
    assert agent.update(make_batch())["loss/value"].isfinite()


def test_nothing_is_read_back_from_the_device(accelerator: torch.device) -> None:
    agent = make(device=accelerator)
    batch = make_batch().to(accelerator)
    observation = TensorDict({"observation": batch["observation"]}, [BATCH])

    def act_and_learn() -> None:
        agent.policy(observation)
        agent.update(batch)

    act_and_learn()
    with count_host_reads() as counter:
        act_and_learn()
    assert counter.host_reads == counter.copies == 0, counter.report()


def test_it_learns_to_name_the_largest_component() -> None:
    agent = make(gamma=0.0, learning_rate=3e-3)
    for _ in range(300):
        batch = make_batch(terminated=True, seed=int(torch.randint(10**6, ())))
        is_right = batch["observation"][:, :ACTIONS].argmax(1) == batch["action"]
        batch["next", "reward"] = is_right.float().unsqueeze(1)
        agent.update(batch)
    agent.policy.eval()
    test = TensorDict({"observation": torch.randn(500, OBSERVATION)}, [500])
    accuracy = agent.policy(test)["action"] == test["observation"][:, :ACTIONS].argmax(1)
    assert accuracy.float().mean().item() > 0.9
