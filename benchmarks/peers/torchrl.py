"""Jobs of TorchRL: its losses, target updates, replay buffer and advantages, as its examples do."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential
from torch import nn
from torch.optim import Adam, Optimizer
from torchrl.data import Categorical, LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.modules import (
    MLP,
    IndependentNormal,
    ProbabilisticActor,
    QValueActor,
    TanhModule,
    TanhNormal,
    ValueOperator,
)
from torchrl.objectives import (
    ClipPPOLoss,
    DDPGLoss,
    DQNLoss,
    HardUpdate,
    SACLoss,
    SoftUpdate,
    TargetNetUpdater,
)
from torchrl.objectives.value import GAE

from benchmarks.fixture import (
    ACTION_DIM,
    BATCH,
    HIDDEN,
    NUM_ACTIONS,
    OBSERVATION_DIM,
    random_transitions,
    specs,
)
from benchmarks.measuring import Run, times
from benchmarks.peers.jobs import GAMMA, RANDOM_PPO, STORED, TARGET_PERIOD, Builders
from torchrl_gpu.environments.specs import ActionKind

_MAX_NORM = 10.0


def _mlp(inputs: int, outputs: int) -> Any:
    return MLP(in_features=inputs, out_features=outputs, num_cells=HIDDEN, activation_class=nn.ReLU)


def _gaussian_actor(distribution: type, **settings: Any) -> Any:
    """Return an actor that outputs location and scale of a distribution.

    Args:
        distribution: class of the distribution.
        settings: further arguments of `ProbabilisticActor`.
    """
    network = nn.Sequential(_mlp(OBSERVATION_DIM, 2 * ACTION_DIM), NormalParamExtractor())
    return ProbabilisticActor(
        TensorDictModule(network, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=distribution,
        **settings,
    )


def _critic() -> Any:
    """Return a network of the value of an observation and an action, which it concatenates."""
    return ValueOperator(_mlp(OBSERVATION_DIM + ACTION_DIM, 1), in_keys=["observation", "action"])


Parts = tuple[Any, TargetNetUpdater, list[Optimizer], bool]


def sac() -> Parts:
    """Return loss, target updates, optimizers, and whether gradients are clipped."""
    loss = SACLoss(
        _gaussian_actor(TanhNormal, return_log_prob=True),
        _critic(),
        loss_function="l2",
        action_spec=specs(1)[1],
    )
    loss.make_value_estimator(gamma=GAMMA)
    optimizers: list[Optimizer] = [
        Adam(loss.actor_network_params.flatten_keys().values(), 3e-4),
        Adam(loss.qvalue_network_params.flatten_keys().values(), 3e-4),
        Adam([loss.log_alpha], 3e-4),
    ]
    return loss, SoftUpdate(loss, tau=0.005), optimizers, False


def ddpg() -> Parts:
    """Return the parts of DDPG, see `sac`."""
    actor = TensorDictSequential(
        TensorDictModule(_mlp(OBSERVATION_DIM, ACTION_DIM), ["observation"], ["param"]),
        TanhModule(in_keys=["param"], out_keys=["action"]),
    )
    loss = DDPGLoss(actor, _critic(), delay_actor=True)
    loss.make_value_estimator(gamma=GAMMA)
    optimizers: list[Optimizer] = [
        Adam(loss.actor_network_params.flatten_keys().values(), 1e-3),
        Adam(loss.value_network_params.flatten_keys().values(), 1e-3),
    ]
    return loss, SoftUpdate(loss, tau=0.005), optimizers, False


def dqn() -> Parts:
    """Return the parts of DQN, see `sac`."""
    network = QValueActor(_mlp(OBSERVATION_DIM, NUM_ACTIONS), spec=Categorical(NUM_ACTIONS))
    loss = DQNLoss(network, loss_function="smooth_l1", delay_value=True)
    loss.make_value_estimator(gamma=GAMMA)
    targets = HardUpdate(loss, value_network_update_interval=TARGET_PERIOD)
    return loss, targets, [Adam(loss.parameters(), 1e-3)], True


def build_off_policy(build: Callable[[], Parts], kind: ActionKind = "continuous") -> Run:
    """Return a run of updates with batches from a filled replay."""
    loss, targets, optimizers, is_clipped = build()
    replay = TensorDictReplayBuffer(storage=LazyTensorStorage(STORED), batch_size=BATCH)
    replay.extend(random_transitions(*specs(STORED, kind=kind)))

    def update() -> None:
        losses = loss(replay.sample())
        total = sum(value for name, value in losses.items() if name.startswith("loss"))
        assert isinstance(total, torch.Tensor)
        total.backward()
        for optimizer in optimizers:
            if is_clipped:
                nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], _MAX_NORM)
            optimizer.step()
            optimizer.zero_grad()
        targets.step()

    return times(update)


def build_ppo() -> Run:
    """Return a run of PPO's updates, all epochs of one rollout at a time."""
    task = RANDOM_PPO
    actor = _gaussian_actor(IndependentNormal, return_log_prob=True)
    critic = ValueOperator(_mlp(OBSERVATION_DIM, 1), in_keys=["observation"])
    advantage = GAE(gamma=task.gamma, lmbda=task.gae_lambda, value_network=critic)
    loss = ClipPPOLoss(
        actor,
        critic,
        entropy_bonus=False,
        critic_coeff=0.5,
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    optimizer = Adam(loss.parameters(), task.learning_rate)
    rollout = random_transitions(*specs(task.frames))
    with torch.no_grad():
        actor(rollout)
    rollout = rollout.reshape(task.num_envs, task.rollout_length)
    replay = TensorDictReplayBuffer(
        storage=LazyTensorStorage(task.frames),
        sampler=SamplerWithoutReplacement(),
        batch_size=task.batch_size,
    )

    def learn_from_the_rollout() -> None:
        with torch.no_grad():
            advantage(rollout)
        for _ in range(task.epochs):
            replay.extend(rollout.reshape(-1))
            for batch in replay:
                losses = loss(batch)
                (losses["loss_objective"] + losses["loss_critic"]).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()

    return times(learn_from_the_rollout, task.updates)


BUILDERS: Builders = {
    "updates_sac": {"": partial(build_off_policy, sac)},
    "updates_ddpg": {"": partial(build_off_policy, ddpg)},
    "updates_dqn": {"": partial(build_off_policy, dqn, kind="discrete")},
    "updates_ppo": {"": build_ppo},
}
