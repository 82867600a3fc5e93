from __future__ import annotations

import copy
import math

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Categorical, Composite, Unbounded

from agents.noisy import NoisyLinear
from agents.rainbow import Rainbow
from tests.stand_in import count_host_reads
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.prioritized_replay import PrioritizedReplayBuffer
from torchrl_gpu.replay import ReplayBuffer

CPU = torch.device("cpu")
ENVS, OBSERVATION, ACTIONS, BATCH = 4, 5, 3, 32
NOISELESS = {"noisy": False}
PLAIN = {"noisy": False, "dueling": False, "double": False, "prioritized": False, "n_step": 1}


def specs(device: torch.device = CPU) -> tuple[Composite, Categorical]:
    observation = Composite(observation=Unbounded((ENVS, OBSERVATION)), shape=(ENVS,))
    return observation.to(device), Categorical(ACTIONS, shape=(ENVS,)).to(device)


def make(seed: int = 0, device: torch.device = CPU, **hyperparameters: object) -> Rainbow:
    torch.manual_seed(seed)
    settings = {"hidden_sizes": [16, 16], "value_min": -3.0, "value_max": 3.0, "atoms": 13}
    return Rainbow(*specs(device), device, **{**settings, **hyperparameters})


def make_batch(terminated: bool = False, seed: int = 0, batch_size: int = BATCH) -> TensorDict:
    generator = torch.Generator().manual_seed(seed)
    return TensorDict(
        {
            "observation": torch.randn(batch_size, OBSERVATION, generator=generator),
            "action": torch.randint(ACTIONS, (batch_size,), generator=generator),
            "next": {
                "observation": torch.randn(batch_size, OBSERVATION, generator=generator),
                "reward": torch.randn(batch_size, 1, generator=generator),
                "terminated": torch.full((batch_size, 1), terminated),
                "truncated": torch.zeros(batch_size, 1, dtype=torch.bool),
            },
        },
        [batch_size],
    )


def loss_of(agent: Rainbow, batch: TensorDict) -> torch.Tensor:
    """Return the loss, with the same noise at every call."""
    torch.manual_seed(3)
    return agent.loss(batch)["loss/value"]


@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("noisy", [True, False])
@pytest.mark.parametrize("hidden_sizes", [[16], [16, 8], [16, 8, 8]])
def test_the_network_has_the_parts_that_were_asked_for(
    dueling: bool, noisy: bool, hidden_sizes: list[int]
) -> None:
    agent = make(dueling=dueling, noisy=noisy, hidden_sizes=hidden_sizes)
    logits = agent.network(make_batch())
    assert logits.shape == (BATCH, ACTIONS, 13)
    linears = [m for m in agent.network.modules() if isinstance(m, torch.nn.Linear)]
    # The last hidden layer and the output, once or in both streams, are what can be noisy.
    streams = 2 if dueling else 1
    assert len(linears) == len(hidden_sizes) - 1 + 2 * streams
    noisy_layers = sum(isinstance(m, NoisyLinear) for m in linears)
    assert noisy_layers == (2 * streams if noisy else 0)


def test_an_update_moves_the_network_and_its_target_and_nothing_else() -> None:
    agent = make(target_rate=0.1)
    before = copy.deepcopy(agent.state_dict())
    agent.update(make_batch())
    after = agent.state_dict()
    parameters = {name for name, _ in agent.named_parameters(remove_duplicate=False)}
    for name in before:
        moved = name in parameters
        assert torch.equal(before[name], after[name]) != moved, name
    for name in parameters:
        if name.startswith("target_network."):
            online = after[name.replace("target_network.network", "network")]
            torch.testing.assert_close(after[name], 0.9 * before[name] + 0.1 * online)


def test_the_loss_reaches_the_network_but_not_its_target() -> None:
    agent = make()
    agent.loss(make_batch())["loss/value"].backward()
    touched = {name for name, p in agent.named_parameters() if p.grad is not None}
    assert touched == {name for name, _ in agent.named_parameters() if name.startswith("network.")}


def test_a_target_waits_for_its_period() -> None:
    agent = make(target_rate=1.0, target_period=2)
    online, target = agent.network.state_dict(), agent.target_network.network.state_dict()
    start = copy.deepcopy(target)
    agent.update(make_batch())
    assert all(torch.equal(target[name], start[name]) for name in target)
    agent.update(make_batch())
    assert all(torch.equal(target[name], online[name]) for name in target)


def test_the_target_of_a_termination_is_the_reward_alone() -> None:
    agent = make(**NOISELESS)
    batch = make_batch(terminated=True)
    # Half way from the atom of 0.5, the eighth, to that of 1.0.
    batch["next", "reward"] = torch.full((BATCH, 1), 0.75)
    log_probabilities = agent.network(batch).log_softmax(-1)[torch.arange(BATCH), batch["action"]]
    cross_entropy = -0.5 * (log_probabilities[:, 7] + log_probabilities[:, 8]).mean()
    torch.testing.assert_close(agent.loss(batch)["loss/value"], cross_entropy - math.log(2.0))


def test_a_time_limit_bootstraps() -> None:
    agent, batch = make(), make_batch()
    running = loss_of(agent, batch)
    batch["next", "truncated"] = torch.ones(BATCH, 1, dtype=torch.bool)
    torch.testing.assert_close(loss_of(agent, batch), running)
    batch["next", "terminated"] = torch.ones(BATCH, 1, dtype=torch.bool)
    assert not torch.allclose(loss_of(agent, batch), running)


def test_n_steps_are_discounted_n_times() -> None:
    batch = make_batch()
    one_step = loss_of(make(gamma=0.9**3), batch)
    batch["steps_to_next_obs"] = torch.full((BATCH, 1), 3)
    torch.testing.assert_close(loss_of(make(gamma=0.9), batch), one_step)


def say(network: torch.nn.Module, values: list[float]) -> torch.Tensor:
    """Make a plain network certain that each action has this value, and return its logits."""
    atoms = network.values.atoms
    logits = -5.0 * (atoms - torch.tensor(values).unsqueeze(1)).abs()
    last = network.head[-1]
    torch.nn.init.zeros_(last.weight)
    last.bias.data.copy_(logits.flatten())
    return logits


@pytest.mark.parametrize(("double", "next_value"), [(False, 2.5), (True, -1.0)])
def test_target_values_the_action_that_the_right_network_chooses(
    double: bool, next_value: float
) -> None:
    agent = make(**{**PLAIN, "double": double}, gamma=0.5)
    online = say(agent.network, [1.0, 2.0, 3.0])
    say(agent.target_network.network, [2.5, 0.0, -1.0])
    batch = make_batch()
    batch["action"] = torch.zeros(BATCH, dtype=torch.int64)
    batch["next", "reward"] = torch.full((BATCH, 1), 0.25)
    batch["next", "terminated"][0] = True
    agent.loss(batch)

    expected = torch.full((BATCH,), next_value)
    target = agent.values.project(
        (-5.0 * (agent.values.atoms - expected.unsqueeze(1)).abs()).softmax(-1),
        batch["next", "reward"],
        0.5 * (~batch["next", "terminated"]),
    )
    log_ratio = (target + 1e-30).log() - online[0].log_softmax(-1)
    torch.testing.assert_close(batch["priority"], (target * log_ratio).sum(-1))


def test_learner_draws_noise_of_its_own_for_each_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make(hidden_sizes=[16])
    layers = [m for m in agent.modules() if isinstance(m, NoisyLinear)]
    assert len(layers) == 8  # two in each of two streams, online and target
    drawn: list[torch.Tensor] = []
    outer = torch.outer
    monkeypatch.setattr(torch, "outer", lambda a, b: drawn.append(outer(a, b)) or drawn[-1])
    agent.loss(make_batch())
    # Online on s, online and target on s'.
    assert len(drawn) == 12
    assert len({noise.flatten()[0].item() for noise in drawn}) == 12


def test_priorities_are_the_loss_of_each_sample_and_weights_scale_it() -> None:
    agent, batch = make(**NOISELESS), make_batch()
    unweighted = agent.loss(batch)["loss/value"]
    priority = batch["priority"]
    assert priority.shape == (BATCH,)
    assert not priority.requires_grad
    assert (priority > 0.0).all()
    torch.testing.assert_close(priority.mean(), unweighted.detach())
    batch["weight"] = torch.linspace(0.1, 1.0, BATCH).unsqueeze(1)
    expected = (batch["weight"].squeeze(1) * priority).mean()
    torch.testing.assert_close(agent.loss(batch)["loss/value"].detach(), expected)
    torch.testing.assert_close(batch["priority"], priority)
    batch.set("priority", torch.zeros(BATCH))
    agent.update(batch)
    assert (batch["priority"] > 0.0).all()


def test_noise_explores_in_train_mode_and_stays_out_in_eval_mode() -> None:
    agent = make()
    observation = TensorDict({"observation": torch.randn(50, OBSERVATION)}, [50])

    def act() -> torch.Tensor:
        return agent.policy(observation.clone())["action"]

    agent.policy.eval()
    assert torch.equal(act(), act())
    assert torch.equal(act(), agent.values.mean(agent.network(observation, noisy=False)).argmax(-1))
    agent.policy.train()
    assert any(not torch.equal(act(), act()) for _ in range(5))


def test_learns_with_noise_while_the_policy_is_in_eval_mode() -> None:
    agent, batch = make(), make_batch()
    agent.policy.eval()
    assert not torch.allclose(agent.loss(batch)["loss/value"], agent.loss(batch)["loss/value"])


def test_without_noise_epsilon_explores() -> None:
    agent = make(noisy=False, epsilon_start=1.0, epsilon_end=0.0, epsilon_frames=600)
    observation = TensorDict({"observation": torch.ones(300, OBSERVATION)}, [300])
    assert agent.policy(observation)["action"].unique().numel() == ACTIONS
    agent.policy(observation)
    assert agent.policy(observation)["action"].unique().numel() == 1


def test_acts_for_any_batch() -> None:
    observation = TensorDict({"observation": torch.randn(3, 7, OBSERVATION)}, [3, 7])
    action = make().policy(observation)["action"]
    assert action.shape == (3, 7)
    assert action.dtype == torch.int64
    assert set(action.unique().tolist()) <= set(range(ACTIONS))


def test_its_replay_is_prioritized_unless_switched_off() -> None:
    assert isinstance(make().build_replay(100, ENVS), PrioritizedReplayBuffer)
    plain = make(prioritized=False).build_replay(100, ENVS)
    assert type(plain) is ReplayBuffer


@pytest.mark.parametrize("settings", [{}, PLAIN, {"noisy": False}, {"dueling": False}])
def test_solves_the_identity_task(settings: dict[str, object]) -> None:
    agent = make(
        **{
            "learning_rate": 5e-3,
            "target_rate": 0.1,
            "value_min": 0.0,
            "value_max": 2.0,
            "gamma": 0.5,
        }
        | settings
    )
    generator = torch.Generator().manual_seed(0)
    for step in range(200):
        batch = make_batch(seed=step, batch_size=128)
        batch["action"] = torch.randint(ACTIONS, (128,), generator=generator)
        right = batch["observation"][:, :ACTIONS].argmax(-1)
        batch["next", "reward"] = (batch["action"] == right).float().unsqueeze(1)
        agent.update(batch)
    agent.policy.eval()
    batch = make_batch(seed=999, batch_size=1000)
    right = batch["observation"][:, :ACTIONS].argmax(-1)
    assert (agent.policy(batch.select("observation"))["action"] == right).float().mean() > 0.9


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
    agent = make(target_period=2)
    agent.update(make_batch())
    state = copy.deepcopy(agent.training_state())
    resumed = make(seed=99, target_period=2)
    resumed.load_training_state(state)
    for one in (agent, resumed):
        torch.manual_seed(5)
        one.update(make_batch(seed=1))
    for name, value in agent.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


@pytest.mark.parametrize("settings", [{}, PLAIN])
def test_acts_and_learns_without_a_host_read(
    accelerator: torch.device, settings: dict[str, object]
) -> None:
    agent = make(device=accelerator, **settings)
    batch = make_batch().to(accelerator)
    batch["weight"] = torch.ones(BATCH, 1, device=accelerator)
    observation = batch.select("observation")

    def act_and_learn() -> None:
        agent.policy(observation.clone())
        agent.update(batch)

    act_and_learn()  # whatever is made once, is made here
    with count_host_reads() as counter:
        act_and_learn()
    assert counter.host_reads == counter.copies == 0, counter.report()


@pytest.mark.parametrize(
    "hyperparameters",
    [
        {"learning_rate": 0.0},
        {"gamma": 1.5},
        {"hidden_sizes": []},
        {"batch_size": 0},
        {"atoms": 1},
        {"n_step": 0},
        {"priority_exponent": 1.5},
        {"value_max": -3.0},
        {"noisy": "loud"},
    ],
)
def test_hyperparameters_out_of_range_are_refused_by_name(
    hyperparameters: dict[str, object],
) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(hyperparameters))):
        make(**hyperparameters)


def test_a_continuous_action_space_is_refused() -> None:
    observation_spec, _ = specs()
    with pytest.raises(ConfigurationError, match="action_spec"):
        Rainbow(observation_spec, Bounded(-1.0, 1.0, (ENVS, 2)), CPU)
