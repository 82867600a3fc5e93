from __future__ import annotations

import copy

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Categorical, Composite, Unbounded

from agents.ddpg import DDPG
from tests.stand_in import count_host_reads
from torchrl_gpu.errors import ConfigurationError

CPU = torch.device("cpu")
ENVS, OBSERVATION, ACTION, BATCH = 4, 5, 2, 32


def specs(low: float = -1.0, high: float = 1.0) -> tuple[Composite, Bounded]:
    observation = Composite(observation=Unbounded((ENVS, OBSERVATION)), shape=(ENVS,))
    return observation, Bounded(low, high, (ENVS, ACTION))


def make(seed: int = 0, device: torch.device = CPU, **hyperparameters: object) -> DDPG:
    torch.manual_seed(seed)
    observation, action = specs()
    hyperparameters = {"hidden_sizes": [16, 16], **hyperparameters}
    return DDPG(observation.to(device), action.to(device), device, **hyperparameters)


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


@pytest.mark.parametrize(
    ("loss", "reached"), [("loss/critic", "critic."), ("loss/actor", "actor.")]
)
def test_each_loss_reaches_its_own_parameters_only(loss: str, reached: str) -> None:
    agent = make()
    agent.loss(make_batch())[loss].backward()
    touched = {name for name, p in agent.named_parameters() if p.grad is not None}
    expected = {name for name, _ in agent.named_parameters() if name.startswith(reached)}
    assert expected
    assert touched == expected


def test_an_update_moves_actor_and_critic_and_their_targets_follow() -> None:
    agent = make(target_rate=0.1)
    before = copy.deepcopy(agent.state_dict())
    agent.update(make_batch())
    after = agent.state_dict()
    for name in before:
        if name.startswith(("actor.", "critic.")):
            assert not torch.equal(before[name], after[name]), name
    for name, value in after.items():
        if name.startswith(("target_actor.network.", "target_critic.network.")):
            online = after[name.removeprefix("target_").replace(".network.", ".", 1)]
            torch.testing.assert_close(value, 0.9 * before[name] + 0.1 * online)


@pytest.mark.parametrize("terminated", [False, True])
def test_critic_learns_the_value_that_the_targets_give(terminated: bool) -> None:
    agent = make(gamma=0.9)
    for p in (*agent.target_actor.parameters(), *agent.target_critic.parameters()):
        p.data += 0.1  # so that they differ from those that learn
    batch = make_batch(terminated)
    after = batch["next"]
    next_action = agent.target_actor(after)
    next_value = agent.target_critic(after, next_action)[0]
    target = after["reward"] + (0.0 if terminated else 0.9) * next_value
    value = agent.critic(batch, batch["action"])[0]
    expected = (value - target).square().mean()
    torch.testing.assert_close(agent.loss(batch)["loss/critic"], expected)


def test_rewards_of_several_steps_discount_the_next_value_as_often() -> None:
    batch, losses = make_batch(), []
    batch["steps_to_next_obs"] = torch.full((BATCH, 1), 3)
    losses.append(make(gamma=0.5, n_step=3).loss(batch)["loss/critic"])
    del batch["steps_to_next_obs"]
    losses.append(make(gamma=0.125).loss(batch)["loss/critic"])
    torch.testing.assert_close(losses[0], losses[1])


def test_a_time_limit_bootstraps_and_a_termination_does_not() -> None:
    def critic_loss(terminated: bool, truncated: bool) -> torch.Tensor:
        batch = make_batch(terminated)
        batch["next", "truncated"] |= truncated
        torch.manual_seed(3)
        return agent.loss(batch)["loss/critic"]

    agent = make()
    assert torch.equal(critic_loss(False, True), critic_loss(False, False))
    assert not torch.allclose(critic_loss(True, False), critic_loss(False, False))


def test_the_actor_climbs_the_critic() -> None:
    agent = make(learning_rate=1e-2)
    batch = make_batch()
    before = agent.loss(batch)["loss/actor"].item()
    critic = copy.deepcopy(agent.critic.state_dict())
    for _ in range(50):
        agent.update(batch)
        agent.critic.load_state_dict(critic)
    assert agent.loss(batch)["loss/actor"].item() < before - 0.01


def test_actions_lie_within_the_bounds_of_the_world() -> None:
    torch.manual_seed(0)
    observation_spec, action_spec = specs(low=2.0, high=6.0)
    agent = DDPG(observation_spec, action_spec, CPU, hidden_sizes=[16, 16], noise_start=1.0)
    observation = TensorDict({"observation": 10 * torch.randn(3, 7, OBSERVATION)}, [3, 7])
    action = agent.policy(observation)["action"]
    assert action.shape == (3, 7, ACTION)
    assert action.min() >= 2.0
    assert action.max() <= 6.0
    assert action.std() > 0.1


def test_actions_in_other_units_mean_the_same() -> None:
    batch = make_batch()
    losses = []
    for low, high in ((-1.0, 1.0), (2.0, 6.0)):
        torch.manual_seed(0)
        agent = DDPG(*specs(low, high), CPU, hidden_sizes=[16, 16])
        scaled = batch.clone()
        scaled["action"] = (low + high) / 2 + (high - low) / 2 * batch["action"]
        losses.append(agent.loss(scaled)["loss/critic"])
    torch.testing.assert_close(losses[0], losses[1])


def test_it_explores_in_train_mode_as_scheduled_and_is_greedy_in_eval_mode() -> None:
    agent = make(noise_start=0.2, noise_end=0.0, noise_frames=1000)
    observation = TensorDict({"observation": torch.randn(1, 1000, OBSERVATION)}, [1, 1000])
    greedy = agent.actor(observation)

    agent.policy.eval()
    assert torch.equal(agent.policy(observation.clone())["action"], greedy)
    agent.policy.train()
    noise = agent.policy(observation.clone())["action"] - greedy
    assert noise.std().item() == pytest.approx(0.2, rel=0.1)
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
        {"target_rate": 0.0},
        {"noise_start": -0.1},
        {"noise_frames": 0},
        {"n_step": 0},
    ],
)
def test_hyperparameters_out_of_range_are_refused_by_name(
    hyperparameters: dict[str, object],
) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(hyperparameters))):
        make(**hyperparameters)


def test_discrete_actions_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="continuous"):
        DDPG(specs()[0], Categorical(3, shape=(ENVS,)), CPU)


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


def test_it_learns_to_act_what_it_sees() -> None:
    agent = make(gamma=0.0, learning_rate=3e-3, hidden_sizes=[32, 32])
    for _ in range(500):
        batch = make_batch(terminated=True, seed=int(torch.randint(10**6, ())))
        error = batch["action"] - batch["observation"][:, :ACTION].clamp(-1.0, 1.0)
        batch["next", "reward"] = -error.square().sum(1, keepdim=True)
        agent.update(batch)
    agent.policy.eval()
    test = TensorDict({"observation": torch.randn(500, OBSERVATION)}, [500])
    error = agent.policy(test)["action"] - test["observation"][:, :ACTION].clamp(-1.0, 1.0)
    assert error.square().mean().item() < 0.05  # of 0.5 if it always acts 0
