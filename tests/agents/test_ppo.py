import math
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn
from torchrl.data import Bounded, Composite

from agents import ppo
from agents.modules.encoders import ObservationEncoderFactory
from agents.ppo import PPO
from tests.helpers.agents import CHOICES, CPU, ENVS, OBSERVATION, small_specs
from torchrl_gpu.devices.kinds import accelerator_of
from torchrl_gpu.environments.specs import ActionKind
from torchrl_gpu.errors import ConfigurationError

STEPS = 6
KINDS: tuple[ActionKind, ...] = ("continuous", "discrete")


def make(kind: ActionKind = "continuous", **hyperparameters: Any) -> PPO:
    torch.manual_seed(0)
    settings = {"hidden_sizes": [16], "learning_rate": 1e-2, **hyperparameters}
    return PPO(*small_specs(kind, bounds=(2.0, 6.0)), CPU, **settings)


@torch.no_grad()
def make_rollout(agent: PPO, seed: int = 0) -> TensorDictBase:
    """Return a rollout of the agent with random observations and rewards."""
    torch.manual_seed(seed)
    observation = torch.randn(STEPS + 1, ENVS, OBSERVATION)
    end = torch.rand(STEPS, ENVS, 1)
    rollout = TensorDict(
        {
            "observation": observation[:-1],
            "next": {
                "observation": observation[1:],
                "reward": torch.randn(STEPS, ENVS, 1),
                "terminated": end < 0.15,
                "truncated": end > 0.85,
            },
        },
        [STEPS, ENVS],
    )
    return torch.stack([agent.policy(step) for step in rollout.unbind(0)])


def learn(agent: PPO, rollouts: int = 1, seed: int = 0) -> dict[str, torch.Tensor]:
    for i in range(rollouts):
        batch = agent.prepare(make_rollout(agent, seed + i)).reshape(-1)
        metrics = agent.update(batch).metrics
    return metrics


@pytest.mark.parametrize("kind", KINDS)
def test_prepare_adds_the_entries_that_updates_read(kind: ActionKind) -> None:
    agent = make(kind)
    rollout = make_rollout(agent)
    prepared = agent.prepare(rollout.clone())
    assert prepared.batch_size == (STEPS, ENVS)
    for name in ("log_prob", "value", "value_target", "advantage"):
        assert prepared[name].shape == (STEPS, ENVS, 1)
        assert not prepared[name].requires_grad
    torch.testing.assert_close(prepared["value"], agent.critic(rollout))
    torch.testing.assert_close(prepared["advantage"] + prepared["value"], prepared["value_target"])
    assert torch.equal(prepared["action"], rollout["action"])


def test_a_rollout_of_a_torchrl_collector_is_prepared_with_time_first() -> None:
    agent = make()
    rollout = make_rollout(agent)
    other = rollout.transpose(0, 1).refine_names(None, "time")
    assert (agent.prepare(other) == agent.prepare(rollout)).all()


def test_a_rollout_is_prepared_in_parts_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings: dict[str, Any] = {"normalize_observations": True, "batch_size": 5}
    agent = make(**settings)
    whole = agent.prepare(make_rollout(agent))
    monkeypatch.setattr(ppo, "_PREPARED_AT_ONCE", 5)
    agent = make(**settings)
    torch.testing.assert_close(agent.prepare(make_rollout(agent)), whole)


def test_a_rollout_that_does_not_fit_at_once_is_prepared_in_smaller_parts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    agent = make()
    whole = agent.prepare(make_rollout(agent))
    for owner, name in ((agent.critic, "forward"), (agent, "_log_prob")):
        compute = getattr(owner, name)

        def within_memory(rows: Any, compute: Any = compute) -> Any:
            if len(rows) > 3:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
            return compute(rows)

        monkeypatch.setattr(owner, name, within_memory)
    torch.testing.assert_close(agent.prepare(make_rollout(agent)), whole)
    assert "insufficient for the values of" in caplog.text


@pytest.mark.parametrize("reads_stall", [True, False])
def test_time_limits_bootstrap_from_the_true_last_observation_and_terminations_do_not(
    monkeypatch: pytest.MonkeyPatch, reads_stall: bool
) -> None:
    monkeypatch.setattr(type(accelerator_of(CPU)), "reads_stall", reads_stall)
    agent = make(gae_lambda=0.0, gamma=0.9, normalize_observations=True)
    rollout = make_rollout(agent)
    after = rollout["next"]
    # Where an episode ends, the next step begins with the first observation of another one.
    last = 5.0 * torch.randn(STEPS, ENVS, OBSERVATION)
    ended = after["terminated"] | after["truncated"]
    after["observation"] = torch.where(ended, last, after["observation"])
    prepared = agent.prepare(rollout)
    with torch.no_grad():
        value = agent.critic(after)
        future = torch.where(after["terminated"], 0.0, 0.9 * value)
    assert after["terminated"].any()
    assert after["truncated"].any()
    torch.testing.assert_close(prepared["value_target"], after["reward"] + future)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.0, 2.0, -2.0),
        (1.5, 2.0, -2.4),  # clipped to 1.2
        (0.5, 2.0, -1.0),
        (1.5, -2.0, 3.0),
        (0.5, -2.0, 1.6),  # clipped to 0.8
    ],
)
def test_surrogate_is_clipped_where_its_gain_is_too_large(
    ratio: float, advantage: float, expected: float
) -> None:
    settings = {"normalize_advantages": False, "clip_ratio": 0.2, "entropy_coefficient": 0.1}
    agent = make("discrete", **settings)
    batch = agent.prepare(make_rollout(agent)).reshape(-1)
    batch["log_prob"] = batch["log_prob"] - math.log(ratio)
    batch["advantage"] = torch.full_like(batch["advantage"], advantage)
    losses = agent.loss(agent.prepare_batch(batch))
    bonus = 0.1 * losses.metrics["ppo/entropy"].item()
    assert bonus == pytest.approx(0.1 * math.log(CHOICES), rel=1e-2)
    assert losses.terms["loss/policy"].item() == pytest.approx(expected - bonus, rel=1e-4)
    assert losses.metrics["ppo/kl"].item() == pytest.approx(ratio - 1.0 - math.log(ratio), abs=1e-4)


def test_value_loss_is_the_larger_of_the_plain_and_the_clipped_error() -> None:
    agent = make(value_clip=0.5, value_coefficient=0.25)
    batch = agent.prepare(make_rollout(agent)).reshape(-1)
    value = agent.critic(batch).detach()
    # The value is 2 above its old value and equals the target; the clipped value is 1.5 off.
    batch["value"], batch["value_target"] = value - 2.0, value.clone()
    assert agent.loss(agent.prepare_batch(batch)).terms["loss/value"].item() == pytest.approx(
        0.25 * 1.5**2, rel=1e-4
    )
    # The value is 3 above its target, which is more than the error of the clipped value.
    batch["value_target"] = value - 3.0
    assert agent.loss(agent.prepare_batch(batch)).terms["loss/value"].item() == pytest.approx(
        0.25 * 3.0**2, rel=1e-4
    )


def test_returns_that_scale_the_rewards_end_with_every_episode() -> None:
    moments = []
    for end in ("terminated", "truncated"):
        agent = make(normalize_rewards=True)
        rollout = make_rollout(agent)
        done = rollout["next", "terminated"] | rollout["next", "truncated"]
        for name in ("terminated", "truncated"):
            rollout["next", name] = done & (name == end)
        agent.prepare(rollout)
        assert agent.reward_normalizer is not None
        moments.append(agent.reward_normalizer.moments.variance)
    assert torch.equal(*moments)


@pytest.mark.parametrize(("factor", "expected"), [(1.0, 1.0), (2.0, 0.75)])
def test_explained_variance_is_that_of_the_returns_by_the_values(
    factor: float, expected: float
) -> None:
    agent = make(gamma=0.0)
    rollout = make_rollout(agent)
    with torch.no_grad():
        rollout["next", "reward"] = factor * agent.critic(rollout)
    explained = agent.prepare(rollout)["explained_variance"]
    torch.testing.assert_close(explained, torch.full_like(explained, expected))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_a_transition_have_no_effect(kind: ActionKind) -> None:
    settings = {"normalize_observations": True, "normalize_rewards": True}
    results = []
    for garbage in (1.0, -7.0):
        agent = make(kind, **settings)
        rollout = make_rollout(agent)
        # The first two environments end with the third step and are inactive afterwards.
        active = torch.ones(STEPS, ENVS, 1, dtype=torch.bool)
        active[3:, :2] = False
        rollout["next", "terminated"][2, :2] = True
        rollout["active"] = active
        rollout["observation"] = torch.where(active, rollout["observation"], garbage)
        rollout["next", "reward"] = torch.where(active, rollout["next", "reward"], garbage)
        batch = agent.prepare(rollout).reshape(-1)
        transitions = batch[batch["active"].squeeze(1)].exclude("active")
        one, other = (agent.loss(agent.prepare_batch(each)) for each in (batch, transitions))
        torch.testing.assert_close(one, other)
        results.append({**agent.update(batch).metrics, **agent.state_dict()})
    for name, value in results[0].items():
        if "discounted" not in name:
            torch.testing.assert_close(value, results[1][name], msg=name)


def test_the_advantage_of_a_single_transition_is_not_normalized_away() -> None:
    agent = make()
    batch = agent.prepare(make_rollout(agent)).reshape(-1)[:1]
    assert torch.equal(agent.prepare_batch(batch)["advantage"], batch["advantage"])


def test_observations_are_normalized_to_act_and_to_learn() -> None:
    agent = make(normalize_observations=True)
    rollout = make_rollout(agent)
    rollout["observation"] = 100.0 + 3.0 * rollout["observation"]
    rollout["next", "observation"] = 100.0 + 3.0 * rollout["next", "observation"]
    agent.policy.eval()
    actions = []
    for _ in range(2):
        actions.append(agent.policy(rollout.clone())["action"])
        agent.prepare(rollout.clone())
    assert not torch.allclose(actions[0], actions[1])
    # The statistics cancel the scale of the observations.
    plain = make()
    plain.policy.eval()
    scaled = TensorDict({"observation": (rollout["observation"] - 100.0) / 3.0}, [STEPS, ENVS])
    flat = scaled["observation"].flatten(0, 1)
    scaled["observation"] = (scaled["observation"] - flat.mean(0)) / flat.std(0, unbiased=False)
    torch.testing.assert_close(
        agent.policy(rollout)["action"], plain.policy(scaled)["action"], rtol=1e-3, atol=1e-3
    )


def test_log_probabilities_are_those_of_the_policy_that_acted() -> None:
    agent = make(normalize_observations=True)
    agent.prepare(make_rollout(agent))
    rollout = make_rollout(agent, seed=1)
    with torch.no_grad():
        action = agent.policy.from_bounds(rollout["action"])
        acted, _ = agent.actor.evaluate(rollout, action)
    prepared = agent.prepare(rollout)
    torch.testing.assert_close(prepared["log_prob"], acted)
    # The values use the statistics after the rollout, which the updates use too.
    torch.testing.assert_close(prepared["value"], agent.critic(rollout))


def test_shifted_images_leave_the_ratio_of_an_unchanged_policy_at_one() -> None:
    torch.manual_seed(0)
    encoder = ObservationEncoderFactory(random_shift=4)
    pixels = Composite(pixels=Bounded(0, 255, (ENVS, 3, 16, 16), dtype=torch.uint8), shape=(ENVS,))
    _, action = small_specs("discrete")
    agent = PPO(pixels, action, CPU, hidden_sizes=[16], encoder=encoder)
    images = torch.randint(0, 256, (STEPS + 1, ENVS, 3, 16, 16), dtype=torch.uint8)
    flag = torch.zeros(STEPS, ENVS, 1, dtype=torch.bool)
    after = {"reward": flag.float(), "terminated": flag, "truncated": flag}
    rollout = TensorDict(
        {"pixels": images[:-1], "next": {"pixels": images[1:], **after}}, [STEPS, ENVS]
    )
    rollout = agent.prepare(torch.stack([agent.policy(step) for step in rollout.unbind(0)]))
    assert not torch.equal(rollout["pixels"], images[:-1])
    metrics = agent.update(rollout.reshape(-1)).metrics
    assert metrics["ppo/kl"].abs() < 1e-6
    assert metrics["ppo/clip_fraction"] == 0.0


def test_entropy_bonus_follows_its_schedule_by_frames() -> None:
    def policy_loss(weight: float, **schedule: Any) -> float:
        agent = make(entropy_coefficient=weight, learning_rate=1e-9, epochs=1, **schedule)
        for _ in range(3):
            metrics = learn(agent, seed=7)
        return metrics["loss/policy"].item()

    frames = 6 * STEPS * ENVS
    end: dict[str, Any] = {"entropy_coefficient_end": 0.0, "entropy_coefficient_frames": frames}
    # After three of six rollouts the weight is half the initial one.
    assert policy_loss(0.2, **end) == pytest.approx(policy_loss(0.1), abs=1e-6)
    assert policy_loss(0.2, **end) != pytest.approx(policy_loss(0.2), abs=1e-3)


@pytest.mark.parametrize(
    ("target_kl", "change"),
    [(10.0, 1.5), (0.31, 1.5), (0.25, 1.0), (0.08, 1.0), (0.07, 1 / 1.5), (1e-9, 1 / 1.5)],
)
def test_adaptive_learning_rate_follows_the_kl_divergence(target_kl: float, change: float) -> None:
    agent = make(learning_rate=1e-3, target_kl=target_kl)
    agent.optimizer.param_groups[0]["lr"] = 1e-3  # as users of torch set it
    batch = agent.prepare(make_rollout(agent)).reshape(-1)
    batch["log_prob"] = batch["log_prob"] - 0.5  # as if the policy had moved: KL = 0.149
    agent.update(batch)
    assert agent.rate.item() == pytest.approx(1e-3 * change)
    if target_kl in (10.0, 1e-9):
        for _ in range(20):
            agent.update(batch)
        assert agent.rate.item() == pytest.approx(1e-2 if change > 1 else 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_all_actions_are_about_equally_likely_at_first(kind: ActionKind) -> None:
    agent = make(kind, hidden_sizes=[64, 64], log_std_init=-0.5)
    observation = TensorDict({"observation": torch.randn(100, OBSERVATION)}, [100])
    outputs = agent.actor.network(observation)
    assert outputs.abs().max() < 0.1
    if kind == "continuous":
        assert (agent.get_parameter("actor.log_std") == -0.5).all()


def test_weights_are_orthogonal_at_first() -> None:
    agent = make(hidden_sizes=[64, 64])
    networks: list[tuple[Any, float]] = [(agent.actor.network, 0.01), (agent.critic, 1.0)]
    for network, gain in networks:
        layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
        for layer, expected in zip(layers, (2.0**0.5, 2.0**0.5, gain), strict=True):
            scales = torch.linalg.svdvals(layer.weight)
            torch.testing.assert_close(scales, torch.full_like(scales, expected))
            assert layer.bias.eq(0.0).all()


@pytest.mark.parametrize(("log_std", "bound"), [(-20.0, -5.0), (20.0, 2.0)])
def test_the_log_standard_deviation_is_bounded(log_std: float, bound: float) -> None:
    agent = make()
    rollout = make_rollout(agent)
    found = []
    for value in (log_std, bound):
        nn.init.constant_(agent.get_parameter("actor.log_std"), value)
        action = agent.policy.from_bounds(rollout["action"])
        found.append(agent.actor.evaluate(rollout, action))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    "hyperparameters",
    [
        {"entropy_coefficient_end": 0.0},
        {"entropy_coefficient_frames": 100},
        {"target_kl": 0.01, "learning_rate_end": 0.0, "learning_rate_frames": 100},
    ],
)
def test_settings_that_exclude_each_other_are_refused(hyperparameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(hyperparameters))):
        make(**hyperparameters)


def test_an_update_refuses_a_rollout_that_is_not_prepared() -> None:
    agent = make()
    with pytest.raises(ConfigurationError, match=r"^batch: advantage is missing; .*prepare"):
        agent.update(make_rollout(agent).reshape(-1))
