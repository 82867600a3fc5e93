from __future__ import annotations

import copy
import math

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Composite, Unbounded

from agents import SAC
from torchrl_gpu.errors import ConfigurationError

CPU = torch.device("cpu")
ENVS, OBSERVATION, ACTION, BATCH = 4, 5, 2, 32


def specs(low: float = -1.0, high: float = 1.0) -> tuple[Composite, Bounded]:
    observation = Composite(observation=Unbounded((ENVS, OBSERVATION)), shape=(ENVS,))
    return observation, Bounded(low, high, (ENVS, ACTION))


def make(seed: int = 0, **hyperparameters: object) -> SAC:
    torch.manual_seed(seed)
    return SAC(*specs(), CPU, **{"hidden_sizes": [16, 16], **hyperparameters})


def make_batch(terminated: bool = False, seed: int = 0) -> TensorDict:
    generator = torch.Generator().manual_seed(seed)
    return TensorDict(
        {
            "observation": torch.randn(BATCH, OBSERVATION, generator=generator),
            "action": 2 * torch.rand(BATCH, ACTION, generator=generator) - 1,
            "next": {
                "observation": torch.randn(BATCH, OBSERVATION, generator=generator),
                "reward": torch.randn(BATCH, 1, generator=generator),
                "terminated": torch.full((BATCH, 1), terminated),
                "truncated": torch.zeros(BATCH, 1, dtype=torch.bool),
            },
        },
        [BATCH],
    )


def test_an_update_reaches_actor_critics_and_temperature_and_moves_the_targets() -> None:
    agent = make(target_rate=0.1)
    before = copy.deepcopy(agent.state_dict())
    agent.update(make_batch())
    after = agent.state_dict()
    for name in before:
        if not name.startswith("policy.") and name != "target_critics.updates":
            assert not torch.equal(before[name], after[name]), name
    for name, value in after.items():
        if name.startswith("target_critics.network."):
            online = after[name.replace("target_critics.network", "critics")]
            torch.testing.assert_close(value, 0.9 * before[name] + 0.1 * online)


@pytest.mark.parametrize(
    ("loss", "reached"),
    [("loss/critic", "critics."), ("loss/actor", "actor."), ("loss/temperature", "log_temp")],
)
def test_each_loss_reaches_its_own_parameters_only(loss: str, reached: str) -> None:
    agent = make()
    agent.loss(make_batch())[loss].backward()
    touched = {name for name, p in agent.named_parameters() if p.grad is not None}
    expected = {name for name, _ in agent.named_parameters() if name.startswith(reached)}
    assert expected
    assert touched == expected


def test_critic_target_of_a_termination_is_the_reward_alone() -> None:
    agent = make()
    batch = make_batch(terminated=True)
    error = agent.critics(batch, batch["action"]) - batch["next", "reward"]
    expected = error.square().mean(dim=(1, 2)).sum()
    torch.testing.assert_close(agent.loss(batch)["loss/critic"], expected)


def test_a_time_limit_bootstraps() -> None:
    agent = make()
    batch = make_batch()
    torch.manual_seed(3)
    running = agent.loss(batch)["loss/critic"]
    batch["next", "truncated"] = torch.ones(BATCH, 1, dtype=torch.bool)
    torch.manual_seed(3)
    torch.testing.assert_close(agent.loss(batch)["loss/critic"], running)
    batch["next", "terminated"] = torch.ones(BATCH, 1, dtype=torch.bool)
    torch.manual_seed(3)
    assert not torch.allclose(agent.loss(batch)["loss/critic"], running)


@pytest.mark.parametrize(("target_entropy", "direction"), [(100.0, 1.0), (-100.0, -1.0)])
def test_temperature_moves_towards_the_target_entropy(
    target_entropy: float, direction: float
) -> None:
    agent = make(target_entropy=target_entropy)
    before = agent.log_temperature.item()
    agent.update(make_batch())
    assert math.copysign(1.0, agent.log_temperature.item() - before) == direction


def test_actions_lie_within_the_bounds_of_the_world() -> None:
    torch.manual_seed(0)
    observation_spec, action_spec = specs(low=2.0, high=6.0)
    agent = SAC(observation_spec, action_spec, CPU, hidden_sizes=[16])
    observation = TensorDict({"observation": 10 * torch.randn(3, 7, OBSERVATION)}, [3, 7])
    action = agent.policy(observation)["action"]
    assert action.shape == (3, 7, ACTION)
    assert action.min() >= 2.0
    assert action.max() <= 6.0
    assert action.std() > 0.1


def test_eval_mode_is_deterministic_and_train_mode_is_not() -> None:
    agent = make()
    observation = TensorDict({"observation": torch.randn(ENVS, OBSERVATION)}, [ENVS])

    def act() -> torch.Tensor:
        return agent.policy(observation.clone())["action"]

    agent.policy.eval()
    assert torch.equal(act(), act())
    agent.policy.train()
    assert not torch.equal(act(), act())


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
    agent = make()
    agent.update(make_batch())
    state = copy.deepcopy(agent.training_state())
    resumed = make(seed=99)
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
        {"hidden_sizes": [0]},
        {"batch_size": 0},
        {"utd_ratio": -1.0},
        {"batch_size": "many"},
    ],
)
def test_hyperparameters_out_of_range_are_refused_by_name(
    hyperparameters: dict[str, object],
) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(hyperparameters))):
        make(**hyperparameters)


def test_an_unbounded_action_space_is_refused() -> None:
    observation_spec, _ = specs()
    with pytest.raises(ConfigurationError, match="action_spec"):
        SAC(observation_spec, Unbounded((ENVS, ACTION)), CPU)
