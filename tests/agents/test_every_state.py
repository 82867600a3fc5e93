"""Every agent resumes from a saved state, with the same settings or different ones."""

import copy
import pickle
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ExponentialLR
from torchrl.data import Composite, Unbounded

from agents import SAC
from agents.base import Agent, OffPolicyAgent
from agents.modules.encoders import Encoder
from tests.helpers.agents import (
    CPU,
    WITH_ALL_OPTIONS,
    WITH_SCHEDULES,
    Case,
    assert_equal,
    build,
    every_agent,
    every_agent_that,
    every_agent_with,
    make_batch,
    online_of,
    parameters,
    small_specs,
)
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.execution.learner import Losses

pytestmark = pytest.mark.directml


def trained(case: Case, **settings: Any) -> Agent:
    agent = case.make(**settings)
    for seed in range(3):
        agent.update(make_batch(agent, seed=seed))
    return agent


def resumed(case: Case, agent: Agent, **settings: Any) -> Agent:
    """Return an agent with the given settings that has loaded the state of another."""
    other = case.make(seed=1, **settings)
    other.load_training_state(copy.deepcopy(agent.training_state()))
    return other


@every_agent
def test_a_new_learning_rate_replaces_the_saved_one(case: Case) -> None:
    agent = trained(case, learning_rate=1e-2)
    slow, same = (resumed(case, agent, learning_rate=rate) for rate in (1e-10, 1e-2))
    distances = []
    for one in (slow, same):
        learned = [
            parameter
            for optimizer in one.optimizers().values()
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
        before = [parameter.clone() for parameter in learned]
        one.update(make_batch(one, seed=9))
        pairs = zip(learned, before, strict=True)
        distances.append(max((new - old).abs().max().item() for new, old in pairs))
    assert distances[0] < 1e-8
    assert distances[1] > 1e-3


@every_agent_that(lambda case: issubclass(case.agent_class, OffPolicyAgent))
def test_a_learning_rate_that_a_torch_scheduler_changed_is_restored(case: Case) -> None:
    def scheduled() -> tuple[Agent, list[ExponentialLR]]:
        agent = case.make(learning_rate=1e-2)
        schedulers = [ExponentialLR(one, 0.5) for one in agent.optimizers().values()]
        agent.update(make_batch(agent))
        return agent, schedulers

    agent, schedulers = scheduled()
    for scheduler in schedulers:
        scheduler.step()
    other, _ = scheduled()
    other.load_training_state(copy.deepcopy(agent.training_state()))
    for optimizer in other.optimizers().values():
        for group in optimizer.param_groups:
            assert float(group["lr"]) == pytest.approx(5e-3)


def test_a_learning_rate_that_an_agent_changed_in_its_own_optimizer_is_restored() -> None:
    class Slowing(SAC):
        def __post_init__(self) -> None:
            super().__post_init__()
            self.optimizer = torch.optim.SGD(self.critics.parameters(), self.learning_rate)

        def after_update(self, metrics: dict[str, Tensor]) -> None:
            super().after_update(metrics)
            self.optimizer.param_groups[0]["lr"] *= 0.5

    case = Case(Slowing, "continuous")
    other = resumed(case, trained(case, learning_rate=8e-3), learning_rate=8e-3)
    assert other.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3)


@every_agent
def test_a_scheduled_learning_rate_goes_on_where_it_was(case: Case) -> None:
    agent = trained(case, **WITH_SCHEDULES)
    agent.policy.frames.fill_(200)
    agent.update(make_batch(agent))
    other = resumed(case, agent, **WITH_SCHEDULES)
    for one in (agent, other):
        torch.manual_seed(5)
        one.update(make_batch(one, seed=9))
        assert float(one.optimizer.param_groups[0]["lr"]) == pytest.approx(6e-3)
    assert_equal(parameters(agent), parameters(other))


@every_agent_with("adam_epsilon")
def test_optimizer_keeps_the_new_settings(case: Case) -> None:
    other = resumed(case, trained(case, adam_epsilon=1e-8), adam_epsilon=1e-3)
    assert [group["eps"] for group in other.optimizer.param_groups] == [1e-3]


@every_agent_with("target_kl")
@pytest.mark.parametrize(("asked", "expected"), [(1e-2, 1e-2 / 1.5**3), (4e-3, 4e-3)])
def test_an_adapted_learning_rate_is_restored_unless_a_new_one_is_set(
    case: Case, asked: float, expected: float
) -> None:
    # Every step exceeds the target, so the rate is divided by 1.5 each time.
    agent = case.make(learning_rate=1e-2, target_kl=1e-9)
    batch = make_batch(agent)
    batch["log_prob"] -= 0.5
    for _ in range(3):
        agent.update(batch)
    other = resumed(case, agent, learning_rate=asked, target_kl=1e-9)
    assert float(other.optimizer.param_groups[0]["lr"]) == pytest.approx(expected)


@every_agent
def test_state_holds_every_tensor_once(case: Case) -> None:
    agent = trained(case)
    networks = agent.training_state()["networks"]
    assert len({tensor.data_ptr() for tensor in networks.values()}) == len(networks)
    assert {f"policy.{name}" for name in agent.policy.state_dict()} <= networks.keys()


@every_agent
def test_state_with_several_names_per_tensor_loads_too(case: Case) -> None:
    agent = trained(case)
    other = case.make(seed=1)
    state = copy.deepcopy(agent.training_state())
    other.load_training_state({**state, "networks": copy.deepcopy(agent.state_dict())})
    assert_equal(parameters(agent), parameters(other))


@every_agent
def test_a_deep_copy_learns_exactly_like_the_original(case: Case) -> None:
    agent = trained(case, target_rate=0.1)
    other = copy.deepcopy(agent)
    for one in (agent, other):
        torch.manual_seed(5)
        for seed in range(3):
            one.update(make_batch(one, seed=seed))
    assert_equal(parameters(agent), parameters(other))


@every_agent
def test_a_seed_gives_the_same_first_parameters_on_every_device(
    case: Case, accelerator: torch.device
) -> None:
    settings = WITH_ALL_OPTIONS | {"device": accelerator}
    agent, other = case.make(**WITH_ALL_OPTIONS), case.make(**settings)
    assert {value.device for value in other.state_dict().values()} == {accelerator}
    moved = {name: value.cpu() for name, value in parameters(other).items()}
    assert_equal(parameters(agent), moved)


@every_agent
def test_agent_continues_to_learn_after_a_move_to_another_device(
    case: Case, accelerator: torch.device
) -> None:
    agent = trained(case, target_rate=1.0)
    before = parameters(agent)
    agent.to(accelerator)
    assert agent.device == accelerator
    agent.update(make_batch(agent, seed=9))
    after = parameters(agent)
    assert all(value.device == accelerator for value in after.values())
    moved = [name for name in after if not torch.equal(after[name].cpu(), before[name])]
    assert moved
    # Target networks that are copied at each update equal the online networks.
    for name in moved:
        if name.startswith("target_"):
            assert torch.equal(after[name].cpu(), after[online_of(name)].cpu()), name


def test_agent_can_move_before_it_has_an_optimizer() -> None:
    class Moved(SAC):
        def build_encoders(self) -> tuple[Encoder, Encoder]:
            self.to(CPU)
            return super().build_encoders()

    assert Case(Moved, "continuous").make().device == CPU


@pytest.mark.parametrize("name", ["policy", "optimizer"])
def test_an_agent_without_policy_or_optimizer_is_refused(name: str) -> None:
    class Forgetful(SAC):
        def __post_init__(self) -> None:
            super().__post_init__()
            delattr(self, name)

    refusal = rf"^agent: Forgetful\.__post_init__ has to set self\.{name}$"
    with pytest.raises(ConfigurationError, match=refusal):
        Case(Forgetful, "continuous").make()


def test_an_agent_that_does_not_call_its_base_is_refused() -> None:
    class Orphan(SAC):
        def __post_init__(self) -> None:
            self.actor = nn.Linear(1, 1)  # type: ignore[assignment]

    with pytest.raises(ConfigurationError, match=r"Orphan.__post_init__ has to call super\(\)"):
        Case(Orphan, "continuous").make()


def test_an_agent_that_names_no_actions_is_refused() -> None:
    class Motionless(OffPolicyAgent):
        def loss(self, batch: TensorDictBase) -> Losses:
            raise NotImplementedError

    settings: Any = {"learning_rate": 0.1, "batch_size": 1, "utd_ratio": 1.0}
    with pytest.raises(ConfigurationError, match="Motionless takes no actions, not continuous"):
        Motionless(*small_specs("continuous"), CPU, **settings)


def test_optimizers_in_a_container_follow_a_move(accelerator: torch.device) -> None:
    class Separate(SAC):
        def __post_init__(self) -> None:
            super().__post_init__()
            self.by_name = {"both": self.optimizer}
            del self.optimizer

        def optimizers(self) -> dict[str, Optimizer]:
            return self.by_name

    agent = trained(Case(Separate, "continuous"))
    agent.to(accelerator)
    agent.update(make_batch(agent, seed=9))
    assert {value.device for value in parameters(agent).values()} == {accelerator}


@every_agent
def test_an_agent_that_has_learned_can_be_pickled(case: Case) -> None:
    agent = trained(case)
    assert_equal(parameters(agent), parameters(pickle.loads(pickle.dumps(agent))))


@every_agent
def test_specs_without_a_batch_size_are_refused(case: Case) -> None:
    # An element of a set would pass for a vector.
    observation = Composite(objects=Unbounded((3, 2)), objects_mask=Unbounded((3,)))
    _, action = small_specs(case.actions)
    with pytest.raises(ConfigurationError, match=r"batch size has to be \[num_envs\], not \[\]"):
        build(case.agent_class, observation, action)


@every_agent
def test_state_of_an_accelerator_resumes_on_the_host(case: Case, accelerator: torch.device) -> None:
    agent = trained(case)
    state = copy.deepcopy(agent.training_state())
    options = ("fused", "capturable")
    moved = copy.deepcopy(agent).to(accelerator)
    moved.update(make_batch(moved, seed=8))
    other = case.make(seed=1)
    other.load_training_state(moved.training_state())
    for name, optimizer in other.optimizers().items():
        for group, own in zip(
            optimizer.param_groups, state["optimizers"][name]["param_groups"], strict=True
        ):
            assert {key: group[key] for key in options} == {key: own[key] for key in options}
    other.update(make_batch(other, seed=9))
    assert all(value.device == CPU for value in parameters(other).values())


@every_agent
def test_networks_of_a_different_size_are_refused_in_one_line(case: Case) -> None:
    agent = case.make(hidden_sizes=[16, 16])
    said = r"do not fit .* agent\.hidden_sizes, .* has shape"
    with pytest.raises(ConfigurationError, match=said):
        resumed(case, agent, hidden_sizes=[8, 8])


@every_agent_that(lambda case: case.agent_class.__name__ == "Rainbow")
@pytest.mark.parametrize("settings", [{"value_max": 7.0}, {"value_min": -9.0}])
def test_atoms_of_a_different_range_are_refused(case: Case, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        resumed(case, case.make(), **settings)


@every_agent
@pytest.mark.parametrize("moment", [torch.ones(1), torch.ones(0), torch.tensor(1)])
def test_moments_that_do_not_fit_are_refused(case: Case, moment: Tensor) -> None:
    """A fused step would write beyond them."""
    agent, other = case.make(), case.make()
    agent.update(make_batch(agent))
    state = agent.training_state()
    name, saved = next(iter(state["optimizers"].items()))
    saved["state"][0]["exp_avg"] = moment
    with pytest.raises(ConfigurationError, match="exp_avg of parameter 0 has shape"):
        other.load_training_state(state)
    assert not other.optimizers()[name].state_dict()["state"]
