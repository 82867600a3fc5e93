"""The encoder as a component of every agent: shared, augmented, or a user's own class."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchrl.data import Bounded, Composite, Unbounded

from agents import PPO
from agents.base import Agent
from agents.modules.encoders import (
    Encoder,
    EncoderFactory,
    JoinedEncoder,
    ObservationEncoderFactory,
)
from agents.modules.pixels import PixelEncoder
from tests.helpers.agents import (
    AGENTS,
    ENVS,
    Case,
    assert_equal,
    build,
    every_agent,
    every_agent_that,
    make_batch,
    parameters,
    small_specs,
)
from torchrl_gpu.acting.policy import Observations
from torchrl_gpu.arguments import parameters_of
from torchrl_gpu.errors import ConfigurationError

SIZE = 16

every_actor_critic = every_agent_that(lambda case: case.actions == "continuous")


class Mean(EncoderFactory):
    """Encodes pixels by their mean, scaled: an example of a user's own class."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def build(self, observation_spec: Composite) -> Encoder:
        return MeanEncoder(self.scale)


class MeanEncoder(Encoder):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.width = 1
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, observation: Observations) -> Tensor:
        mean = observation["pixels"].to(torch.float32).mean(dim=(-3, -2, -1))
        return self.scale * mean.unsqueeze(-1) / 255.0


def make(case: Case, encoder: EncoderFactory, **settings: Any) -> Agent:
    """Return an agent that observes a vector and an image."""
    torch.manual_seed(0)
    _, action = small_specs(case.actions)
    spec = Composite(
        observation=Unbounded((ENVS, 3)),
        pixels=Bounded(0, 255, (ENVS, 2, SIZE, SIZE), dtype=torch.uint8),
        shape=(ENVS,),
    )
    return build(case.agent_class, spec, action, encoder=encoder, **settings)


def encoders_of(agent: Agent) -> list[nn.Module]:
    """Return the encoders of pixels that the optimizer trains."""
    learned = {id(p) for group in agent.optimizer.param_groups for p in group["params"]}
    modules = [m for m in agent.modules() if type(m).__name__ in ("PixelEncoder", "MeanEncoder")]
    return [m for m in modules if id(next(m.parameters())) in learned]


@every_agent
def test_agent_trains_a_users_own_encoder(case: Case) -> None:
    agent = make(case, Mean(scale=2.0))
    (first, *_) = encoders_of(agent)
    assert next(first.parameters()).item() == 2.0
    batch = make_batch(agent)
    for _ in range(3):
        agent.update(batch)
    for encoder in encoders_of(agent):
        assert next(encoder.parameters()).item() != 2.0


@every_agent
@pytest.mark.parametrize("batch", [(), (5,), (3, 2)])
def test_the_actor_of_every_agent_maps_plain_tensors_to_actions(
    case: Case, batch: tuple[int, ...]
) -> None:
    agent = make(case, ObservationEncoderFactory(channels=[4, 4]), normalize_observations=True)
    observation = agent.observation_spec.rand()[0].expand(batch).clone()
    agent.policy.eval()
    tensors = {key: observation[key] for key in agent.policy.in_keys}
    action = agent.policy.actor.act(tensors, deterministic=True)
    assert tensors.keys() == {"observation", "pixels"}
    assert torch.equal(action, agent.policy(observation)["action"])


@every_actor_critic
@pytest.mark.parametrize("shared", [False, True])
def test_actor_and_critic_share_an_encoder_on_request(case: Case, shared: bool) -> None:
    agent = make(case, ObservationEncoderFactory(shared=shared, channels=[4, 4]))
    encoders = encoders_of(agent)
    assert len(encoders) == (1 if shared else 2)
    copies = [m for m in agent.modules() if type(m) is PixelEncoder and m not in encoders]
    assert len(copies) <= len(encoders)  # of the target networks
    before = parameters(agent)
    agent.update(make_batch(agent))
    after = parameters(agent)
    names = [name for name in after if "parts.1" in name and not name.startswith("target")]
    assert names
    for name in names:
        assert not torch.equal(after[name], before[name]), name


@every_agent_that(lambda case: case.actions == "continuous" and case.agent_class.__name__ != "PPO")
def test_the_critic_alone_trains_a_shared_encoder(case: Case) -> None:
    agent = make(case, ObservationEncoderFactory(shared=True, channels=[4, 4]))
    (encoder,) = encoders_of(agent)
    losses = agent.loss(make_batch(agent)).terms
    losses["loss/actor"].backward(retain_graph=True)
    assert all(parameter.grad is None for parameter in encoder.parameters())
    losses["loss/critic"].backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


@every_actor_critic
def test_a_shared_encoder_reads_each_observation_once(case: Case) -> None:
    """And its losses and gradients are those of networks that encode for themselves."""
    found, calls = [], 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    for encodes_once in (True, False):
        agent = make(case, ObservationEncoderFactory(shared=True, channels=[4, 4]))
        batch = make_batch(agent)
        if not encodes_once:
            agent.encode = lambda _, seen: seen  # type: ignore[method-assign, assignment]
        for module in agent.modules():
            if isinstance(module, JoinedEncoder):
                module.register_forward_hook(count)
        torch.manual_seed(1)
        calls = 0
        terms = agent.loss(agent.prepare_batch(batch)).terms
        sum(terms.values()).backward()  # type: ignore[union-attr]
        gradients = {n: p.grad for n, p in agent.named_parameters() if p.grad is not None}
        found.append((calls, {name: term.detach() for name, term in terms.items()}, gradients))
    (once, losses, gradients), (more, losses_too, gradients_too) = found
    assert once == {"PPO": 1, "SAC": 3}.get(case.agent_class.__name__, 2) < more
    torch.testing.assert_close(losses, losses_too)
    torch.testing.assert_close(gradients, gradients_too)


@every_actor_critic
def test_state_with_a_shared_encoder_restores_the_whole_policy(case: Case) -> None:
    factory = ObservationEncoderFactory(shared=True, channels=[4, 4])
    agent, other = make(case, factory), make(case, factory)
    agent.update(make_batch(agent))
    other.load_training_state(agent.training_state())
    assert_equal(parameters(agent), parameters(other))
    observation = make_batch(agent).select(*agent.policy.in_keys)
    agent.policy.eval()
    other.policy.eval()
    assert torch.equal(
        agent.policy(observation.clone())["action"], other.policy(observation.clone())["action"]
    )


@every_agent
def test_random_shifts_change_the_gradient_step_but_not_the_policy(case: Case) -> None:
    gradients, actions = [], []
    observation = make_batch(make(case, ObservationEncoderFactory(channels=[4, 4])))
    for shift in (0, 4):
        agent = make(case, ObservationEncoderFactory(random_shift=shift, channels=[4, 4]))
        batch = make_batch(agent)
        agent.policy.eval()
        actions.append(agent.policy(observation.clone())["action"])
        before = batch.clone()
        agent.update(batch)
        assert (batch == before).all()
        found = [p.grad for p in encoders_of(agent)[-1].parameters() if p.grad is not None]
        gradients.append(torch.cat([gradient.flatten() for gradient in found]))
    assert torch.equal(*actions)
    assert not torch.allclose(gradients[0], gradients[1])


class NoEncoder(EncoderFactory):
    def build(self, observation_spec: Composite) -> Encoder:
        return nn.Identity()  # type: ignore[return-value]


def test_a_factory_that_builds_no_encoder_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"NoEncoder.build has to return an .*Encoder"):
        make(Case(AGENTS[0], "continuous"), NoEncoder())


def test_an_encoder_that_cannot_be_copied_keeps_the_modes_of_its_layers() -> None:
    class Frozen(EncoderFactory):
        def build(self, observation_spec: Composite) -> Encoder:
            encoder = MeanEncoder(1.0)
            encoder.live, encoder.frozen = nn.BatchNorm1d(1), nn.BatchNorm1d(1).eval()
            vars(encoder)["lock"] = threading.Lock()
            return encoder

    encoder = make(Case(PPO, "continuous"), Frozen()).build_encoder()
    modes = {name: module.training for name, module in encoder.named_modules()}
    assert modes == {"": True, "live": True, "frozen": False}


@pytest.mark.parametrize(
    ("width", "forward", "found"),
    [
        (3, lambda _, observation: observation["pixels"].flatten(1).float(), r"\[1, 512\]"),
        (1, lambda _, observation: observation["observation"].mean(dim=1), r"\[1\]"),
        (1, lambda _, observation: (observation["observation"],), "tuple"),
    ],
)
def test_an_encoder_of_another_width_is_refused(
    width: int, forward: Callable[..., Tensor], found: str
) -> None:
    class Wrong(EncoderFactory):
        def build(self, observation_spec: Composite) -> Encoder:
            encoder = type("WrongEncoder", (Encoder,), {"forward": forward})()
            encoder.width = width
            return encoder

    with pytest.raises(ConfigurationError, match=f"Wrong.build: .* {width} returns .*{found}"):
        make(Case(AGENTS[0], "continuous"), Wrong())


def test_every_agent_takes_an_encoder() -> None:
    assert all("encoder" in parameters_of(agent) for agent in AGENTS)
