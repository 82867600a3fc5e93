import copy

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, TensorSpec, Unbounded

from agents import RandomAgent, UntrainedAgent, ZeroAgent
from tests.helpers.agents import ACTION_DIM, CHOICES, CPU, ENVS, OBSERVATION, small_specs
from tests.stand_in import count_host_reads
from torchrl_gpu.environments.specs import ActionKind

UNTRAINED = [RandomAgent, ZeroAgent]
KINDS: list[ActionKind] = ["continuous", "discrete"]


def act(agent: UntrainedAgent, *batch: int, device: torch.device = CPU) -> Tensor:
    observation = torch.zeros(*batch, OBSERVATION, device=device)
    return agent.policy(TensorDict({"observation": observation}, batch))["action"]


def make(agent_class: type[UntrainedAgent], action: TensorSpec) -> UntrainedAgent:
    return agent_class(small_specs("continuous")[0], action, CPU)


@pytest.mark.parametrize("agent_class", UNTRAINED)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), (5,), (3, 2)])
@pytest.mark.parametrize("training", [False, True])
def test_policy_acts_for_any_batch_shape(
    agent_class: type[UntrainedAgent], kind: ActionKind, batch: tuple[int, ...], training: bool
) -> None:
    agent = agent_class(*small_specs(kind), CPU)
    agent.policy.train(training)
    action = act(agent, *batch)
    spec = small_specs(kind)[1]
    assert action.shape == (*batch, *spec.shape[1:])
    assert action.dtype == spec.dtype


@pytest.mark.parametrize("training", [False, True])
def test_random_actions_are_uniform_between_the_bounds(training: bool) -> None:
    low, high = torch.tensor([-1.0, 2.0]), torch.tensor([1.0, 6.0])
    agent = make(RandomAgent, Bounded(low.expand(ENVS, 2), high.expand(ENVS, 2)))
    agent.policy.train(training)
    torch.manual_seed(0)
    share = (act(agent, 20_000) - low) / (high - low)
    assert share.min() >= 0.0
    assert share.max() <= 1.0
    deciles = torch.stack([torch.histc(column, 10, 0.0, 1.0) for column in share.T]) / 20_000
    assert torch.allclose(deciles, torch.full((ACTION_DIM, 10), 0.1), atol=0.01)
    assert torch.corrcoef(share.T)[0, 1].abs() < 0.03


@pytest.mark.parametrize("training", [False, True])
def test_random_indices_are_uniform(training: bool) -> None:
    agent = make(RandomAgent, Categorical(CHOICES, shape=(ENVS,)))
    agent.policy.train(training)
    torch.manual_seed(0)
    counts = act(agent, 20_000).bincount(minlength=CHOICES)
    assert len(counts) == CHOICES
    assert torch.allclose(counts / 20_000, torch.full((CHOICES,), 1 / CHOICES), atol=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_repeats_random_actions(kind: ActionKind) -> None:
    agent = RandomAgent(*small_specs(kind), CPU)
    agent.policy.eval()
    sequences = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        sequences.append(torch.stack([act(agent, 50) for _ in range(2)]))
    assert torch.equal(sequences[0], sequences[1])
    assert not torch.equal(sequences[0], sequences[2])
    assert not torch.equal(*sequences[0])


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-1.0, 1.0, 0.0),
        (-2.0, 10.0, 0.0),
        (-0.3, 0.1, 0.0),
        (0.0, 10.0, 0.0),
        (-4.0, 0.0, 0.0),
        (1.0, 3.0, 1.0),
        (-3.0, -1.0, -1.0),
        (0.0, 0.0, 0.0),
        (2.0, 2.0, 2.0),
    ],
)
def test_zero_action_is_the_value_nearest_to_0_within_the_bounds(
    low: float, high: float, expected: float
) -> None:
    # Another dimension beside it has bounds of its own.
    bounds = torch.tensor([[low, -1.0], [high, 1.0]])
    agent = make(ZeroAgent, Bounded(bounds[0].expand(ENVS, 2), bounds[1].expand(ENVS, 2)))
    assert act(agent, ENVS).tolist() == [pytest.approx([expected, 0.0], abs=1e-6)] * ENVS


def test_zero_action_of_a_discrete_space_is_index_0() -> None:
    assert act(make(ZeroAgent, Categorical(CHOICES, shape=(ENVS,))), ENVS).tolist() == [0] * ENVS


@pytest.mark.parametrize("agent_class", UNTRAINED)
@pytest.mark.parametrize("kind", KINDS)
def test_actions_may_be_overwritten(agent_class: type[UntrainedAgent], kind: ActionKind) -> None:
    agent = agent_class(*small_specs(kind), CPU)
    first = act(agent, ENVS)
    before = first.clone()
    act(agent, ENVS).fill_(2)
    assert torch.equal(first, before)


@pytest.mark.parametrize("agent_class", UNTRAINED)
def test_observations_of_any_shape_and_dtype_are_accepted(
    agent_class: type[UntrainedAgent],
) -> None:
    spec = Composite(
        volume=Unbounded((ENVS, 2, 3, 4, 5)),
        count=Unbounded((ENVS,), dtype=torch.int16),
        shape=(ENVS,),
    )
    agent = agent_class(spec, small_specs("continuous")[1], CPU)
    assert agent.policy(spec.rand())["action"].shape == (ENVS, ACTION_DIM)


@pytest.mark.parametrize("agent_class", UNTRAINED)
@pytest.mark.parametrize("kind", KINDS)
def test_moved_copy_acts_on_its_device_without_host_reads(
    agent_class: type[UntrainedAgent], kind: ActionKind, accelerator: torch.device
) -> None:
    agent = copy.deepcopy(agent_class(*small_specs(kind), CPU)).to(accelerator)
    with count_host_reads() as counter:
        action = act(agent, ENVS, device=accelerator)
    assert action.device.type == accelerator.type
    assert counter.host_reads == 0, counter.report()
