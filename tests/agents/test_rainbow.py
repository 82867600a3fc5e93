from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from agents.modules.noisy import NoisyLinear
from agents.rainbow import Rainbow
from tests.helpers.agents import BATCH, CHOICES, ENVS, OBSERVATION, make_batch, small
from torchrl_gpu.replay.buffer import ReplayBuffer
from torchrl_gpu.replay.prioritized import PrioritizedReplayBuffer

PLAIN = {"noisy": False, "dueling": False, "double": False, "prioritized": False, "n_step": 1}


make = partial(small, Rainbow, value_min=-3.0, value_max=3.0, atoms=13)


@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("noisy", [True, False])
@pytest.mark.parametrize("hidden_sizes", [[16], [16, 8], [16, 8, 8]])
def test_network_has_the_parts_of_its_settings(
    dueling: bool, noisy: bool, hidden_sizes: list[int]
) -> None:
    agent = make(dueling=dueling, noisy=noisy, hidden_sizes=hidden_sizes)
    logits = agent.network(make_batch(agent))
    assert logits.shape == (BATCH, CHOICES, 13)
    linears = [m for m in agent.network.modules() if isinstance(m, torch.nn.Linear)]
    # The last hidden layer and the output layer of each stream can be noisy.
    streams = 2 if dueling else 1
    assert len(linears) == len(hidden_sizes) - 1 + 2 * streams
    noisy_layers = sum(isinstance(m, NoisyLinear) for m in linears)
    assert noisy_layers == (2 * streams if noisy else 0)


def set_values(network: Any, values: list[float]) -> torch.Tensor:
    """Peak the distribution of each action of a plain network at a value; return its logits."""
    atoms = network.values.atoms
    logits = -5.0 * (atoms - torch.tensor(values).unsqueeze(1)).abs()
    last = network.head[-1]
    torch.nn.init.zeros_(last.weight)
    last.bias.data.copy_(logits.flatten())
    return logits


@pytest.mark.parametrize(("double", "next_value"), [(False, 2.5), (True, -1.0)])
def test_double_decides_which_network_chooses_the_next_action(
    double: bool, next_value: float
) -> None:
    agent = make(**{**PLAIN, "double": double}, gamma=0.5)
    online = set_values(agent.network, [1.0, 2.0, 3.0])
    set_values(agent.target_network.network, [2.5, 0.0, -1.0])
    batch = make_batch(agent)
    batch["action"] = torch.zeros(BATCH, dtype=torch.int64)
    batch["next", "reward"] = torch.full((BATCH, 1), 0.25)
    batch["next", "terminated"][0] = True
    losses = agent.loss(batch)

    expected = torch.full((BATCH,), next_value)
    target = agent.network.values.project(
        (-5.0 * (agent.network.values.atoms - expected.unsqueeze(1)).abs()).softmax(-1),
        batch["next", "reward"],
        0.5 * (~batch["next", "terminated"]),
    )
    log_ratio = (target + 1e-30).log() - online[0].log_softmax(-1)
    divergence = (target * log_ratio).sum(-1)
    torch.testing.assert_close(losses.priorities, divergence)
    torch.testing.assert_close(losses.terms["loss/value"], divergence.mean())


def test_every_forward_pass_of_a_loss_draws_its_own_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make(hidden_sizes=[16])
    layers = [m for m in agent.modules() if isinstance(m, NoisyLinear)]
    assert len(layers) == 8  # two in each of two streams, online and target
    drawn: list[torch.Tensor] = []
    outer = torch.outer

    def draw(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        drawn.append(outer(one, other))
        return drawn[-1]

    monkeypatch.setattr(torch, "outer", draw)
    agent.loss(make_batch(agent))
    # Online on s, online and target on s'.
    assert len(drawn) == 12
    assert len({noise.flatten()[0].item() for noise in drawn}) == 12


def test_noise_explores_in_train_mode_only() -> None:
    agent = make()
    observation = TensorDict({"observation": torch.randn(50, OBSERVATION)}, [50])

    def act() -> torch.Tensor:
        return agent.policy(observation.clone())["action"]

    agent.policy.eval()
    assert torch.equal(act(), act())
    assert torch.equal(
        act(), agent.network.values.mean(agent.network(observation, noisy=False)).argmax(-1)
    )
    agent.policy.train()
    assert any(not torch.equal(act(), act()) for _ in range(5))


def test_loss_uses_noise_while_the_policy_is_in_eval_mode() -> None:
    agent = make()
    batch = make_batch(agent)
    agent.policy.eval()
    one, other = (agent.loss(batch).terms["loss/value"] for _ in range(2))
    assert not torch.allclose(one, other)


def test_importance_sampling_exponent_follows_the_frames_of_the_policy() -> None:
    agent = make(weight_exponent_start=0.0, weight_exponent_frames=10 * ENVS, priority_exponent=1.0)
    replay = agent.build_replay(100)
    replay.extend(make_batch(agent)[:ENVS])
    # The random actions at the start of a run are no frames of the policy.
    for _ in range(4):
        replay.extend(make_batch(agent)[:ENVS])
    batch = replay.sample(64)
    replay.update_priorities(batch, torch.linspace(0.1, 1.0, 64))
    assert (replay.sample(64)["weight"] == 1.0).all()
    for _ in range(10):
        agent.policy(make_batch(agent)[:ENVS])
    assert replay.sample(512)["weight"].min() < 0.5


def test_replay_is_prioritized_unless_switched_off() -> None:
    assert isinstance(make().build_replay(100), PrioritizedReplayBuffer)
    plain = make(prioritized=False).build_replay(100)
    assert type(plain) is ReplayBuffer


@pytest.mark.parametrize("exponent", [0.0, 1.0])
def test_priorities_count_by_the_exponent_of_the_agent(exponent: float) -> None:
    agent = make(priority_exponent=exponent, weight_exponent_start=1.0)
    replay = agent.build_replay(100)
    replay.extend(make_batch(agent)[:ENVS])
    replay.update_priorities(replay.sample(64), torch.linspace(0.1, 1.0, 64))
    has_equal_weights = bool((replay.sample(64)["weight"] == 1.0).all())
    assert has_equal_weights == (exponent == 0.0)


def test_the_noise_of_every_layer_begins_at_its_setting() -> None:
    agent = make(noise=0.25)
    for layer in agent.network.modules():
        if isinstance(layer, NoisyLinear):
            assert layer.weight_sigma.allclose(torch.tensor(0.25 / layer.in_features**0.5))


@pytest.mark.parametrize("settings", [PLAIN, {"noisy": False}, {"dueling": False}])
def test_agent_learns_without_some_of_its_parts(settings: dict[str, Any]) -> None:
    values = {"value_min": 0.0, "value_max": 2.0, "gamma": 0.5}
    agent = make(learning_rate=5e-3, target_rate=0.1, **values, **settings)
    for step in range(300):
        batch = make_batch(agent, seed=step)
        right = batch["observation"][:, :CHOICES].argmax(-1)
        batch["next", "reward"] = (batch["action"] == right).float().unsqueeze(1)
        agent.update(batch)
    agent.policy.eval()
    observation = torch.randn(1000, OBSERVATION)
    action = agent.policy(TensorDict({"observation": observation}, [1000]))["action"]
    assert (action == observation[:, :CHOICES].argmax(-1)).float().mean() > 0.9


@pytest.mark.parametrize("batch", [(), (4,), (3, 4)])
def test_dueling_advantages_have_a_mean_of_0_for_each_atom(batch: tuple[int, ...]) -> None:
    network: Any = make(dueling=True, noisy=False).network
    observation = TensorDict({"observation": torch.randn(*batch, OBSERVATION)}, batch)
    logits = network(observation)
    assert logits.shape == (*batch, CHOICES, len(network.values.atoms))
    features = network.shared(network.encoder(observation))
    torch.testing.assert_close(logits.mean(-2), network.head["value"](features))
    with torch.no_grad():
        network.head["advantage"][-1].bias.add_(100.0)  # of all actions: without effect
    torch.testing.assert_close(network(observation), logits, atol=1e-4, rtol=1e-4)


def test_noise_reaches_both_dueling_streams() -> None:
    network = make(dueling=True, noisy=True).network
    observation = TensorDict({"observation": torch.randn(5, OBSERVATION)}, [5])
    assert torch.equal(network(observation, noisy=False), network(observation, noisy=False))
    logits, others = network(observation), network(observation)
    assert not torch.allclose(logits.mean(-2), others.mean(-2))
    assert not torch.allclose(logits - logits.mean(-2, True), others - others.mean(-2, True))
