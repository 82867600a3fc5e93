"""Adapter for any TorchRL environment and its transforms, with agents and collectors."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    TensorSpec,
    Unbounded,
)
from torchrl.envs import (
    ActionMask,
    CatFrames,
    CatTensors,
    ClipTransform,
    Compose,
    DoubleToFloat,
    EnvBase,
    GrayScale,
    GymEnv,
    InitTracker,
    ObservationNorm,
    ParallelEnv,
    PendulumEnv,
    RewardScaling,
    RewardSum,
    SerialEnv,
    StepCounter,
    ToTensorImage,
    Transform,
    TransformedEnv,
    UnsqueezeTransform,
    VecNormV2,
)
from torchrl.envs.utils import check_env_specs

from agents import DQN, PPO, SAC
from agents.base import Agent
from envs.marinenav import MarineNavEnv
from tests.helpers.agents import build_for
from tests.helpers.environments import IdentityEnv, trajectory
from tests.helpers.forks import fork_server
from torchrl_gpu.acting.collector import BatchCollector
from torchrl_gpu.environments.adapter import AdaptedEnvironment, as_environment
from torchrl_gpu.environments.environment import DONE_NAMES, Environment
from torchrl_gpu.environments.readers import action_spec_of, readers_of
from torchrl_gpu.environments.specs import action_spec, observation_spec
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.replay.buffer import ReplayBuffer
from trainers.evaluation.evaluation import evaluate
from trainers.metrics import EpisodeStatistics, read
from trainers.training.trainer import TorchRLTrainer

CPU = torch.device("cpu")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def pendulum() -> EnvBase:
    return GymEnv("Pendulum-v1")


def cartpole() -> EnvBase:
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def two_cartpoles() -> EnvBase:
    return SerialEnv(2, cartpole)


def limited_pendulums(steps: int = 6) -> EnvBase:
    return TransformedEnv(SerialEnv(4, PendulumEnv), StepCounter(steps))


def constant(action: torch.Tensor) -> TensorDictModule:
    """Return a policy with a constant action."""
    return TensorDictModule(lambda: action, in_keys=[], out_keys=["action"])


class Odd(EnvBase):
    """Counts in unusual shapes and dtypes: a batch of two dimensions, float64, scalars."""

    def __init__(self, **observation: Any) -> None:
        super().__init__(device="cpu", batch_size=[2, 3])
        self.observation_spec = Composite(
            count=Unbounded((2, 3), dtype=torch.float64),
            pair=Unbounded((2, 3, 2, 2), dtype=torch.float64),
            which=Categorical(3, (2, 3), dtype=torch.int64),
            **observation,
            shape=(2, 3),
        )
        self.action_spec = Bounded(-2.0, 2.0, (2, 3), dtype=torch.float64)
        self.reward_spec = Unbounded((2, 3, 1), dtype=torch.float64)
        self.full_done_spec = Composite(
            done=Binary(1, (2, 3, 1), dtype=torch.bool),
            terminated=Binary(1, (2, 3, 1), dtype=torch.bool),
            shape=(2, 3),
        )
        self.count = torch.zeros(2, 3, dtype=torch.float64)

    def _shown(self) -> dict[str, torch.Tensor]:
        over = (self.count >= 4).unsqueeze(-1)
        return {
            "count": self.count.clone(),
            "pair": self.count[..., None, None].expand(2, 3, 2, 2).clone(),
            "which": self.count.long() % 3,
            "done": over,
            "terminated": over.clone(),
        }

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        keep = torch.zeros(2, 3, dtype=torch.bool) if mask is None else ~mask.squeeze(-1)
        self.count = self.count * keep
        return TensorDict(self._shown(), self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict["action"]
        assert action.dtype == torch.float64
        self.count = self.count + 1
        return TensorDict({**self._shown(), "reward": action.unsqueeze(-1)}, self.batch_size)

    def _set_seed(self, seed: int | None) -> None:
        pass


class Team(EnvBase):
    """Two robots: the first terminates after two steps, a time limit ends the second after four.

    Both have done flags. The root ends with the first robot (`done_on_any`, the default of
    PettingZoo) or with the last; the team goes on to reward a robot that has ended.
    """

    def __init__(self, done_on_any: bool) -> None:
        super().__init__(device="cpu", batch_size=[1])
        self.done_on_any, self.count = done_on_any, 0
        flags = {name: Binary(1, (1, 2, 1), dtype=torch.bool) for name in DONE_NAMES[:2]}
        root = {name: Binary(1, (1, 1), dtype=torch.bool) for name in DONE_NAMES[:2]}
        self.observation_spec = self._group(observation=Unbounded((1, 2, 1)))
        self.action_spec = self._group(action=Categorical(3, (1, 2), dtype=torch.int32))
        self.reward_spec = self._group(reward=Unbounded((1, 2, 1)))
        self.full_done_spec = self._group(**flags).update(Composite(root, shape=(1,)))

    @staticmethod
    def _group(**leaves: TensorSpec) -> Composite:
        return Composite(robots=Composite(leaves, shape=(1, 2)), shape=(1,))

    def _shown(self, **entries: torch.Tensor) -> TensorDict:
        over = torch.tensor([[[self.count >= 2], [self.count >= 4]]])
        root = over.any(1) if self.done_on_any else over.all(1)
        entries["observation"] = torch.full((1, 2, 1), float(self.count))
        terminated = over & torch.tensor([[[True], [False]]])
        robots = TensorDict({**entries, "done": over, "terminated": terminated}, [1, 2])
        return TensorDict({"robots": robots, "done": root, "terminated": root.clone()}, [1])

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        self.count = 0
        return self._shown()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        assert tensordict["robots", "action"].dtype == torch.int32
        self.count += 1
        return self._shown(reward=torch.ones(1, 2, 1))

    def _set_seed(self, seed: int | None) -> None:
        pass


ENVIRONMENTS: dict[str, Callable[[], EnvBase]] = {
    "PendulumEnv": PendulumEnv,
    "four PendulumEnv": lambda: SerialEnv(4, PendulumEnv),
    "GymEnv": pendulum,
    "Odd": Odd,
    "RewardSum": lambda: TransformedEnv(two_cartpoles(), RewardSum()),
    "StepCounter": lambda: TransformedEnv(two_cartpoles(), StepCounter(20)),
    "StepCounter of PendulumEnv": limited_pendulums,
    "VecNorm": lambda: TransformedEnv(two_cartpoles(), VecNormV2(in_keys=["observation"])),
    "CatFrames": lambda: TransformedEnv(two_cartpoles(), CatFrames(3, -1, ["observation"])),
    "ObservationNorm": lambda: TransformedEnv(
        pendulum(), ObservationNorm(0.0, 2.0, in_keys=["observation"])
    ),
    "several": lambda: TransformedEnv(
        TransformedEnv(two_cartpoles(), Compose(InitTracker(), RewardSum(), DoubleToFloat())),
        Compose(StepCounter(20), RewardScaling(0.0, 0.5)),
    ),
    "within a SerialEnv": lambda: SerialEnv(
        2, lambda: TransformedEnv(cartpole(), Compose(RewardSum(), StepCounter(20)))
    ),
    "group": lambda: TransformedEnv(
        MarineNavEnv(num_envs=2, num_robots=2), RewardScaling(0.0, 0.5, [("robots", "reward")])
    ),
    "team that ends together": lambda: Team(done_on_any=True),
    "team that ends one by one": lambda: Team(done_on_any=False),
    "teams in a SerialEnv": lambda: SerialEnv(2, lambda: Team(done_on_any=False)),
}
every_environment = pytest.mark.parametrize("make", ENVIRONMENTS.values(), ids=ENVIRONMENTS.keys())


@every_environment
def test_an_adapted_environment_passes_check_env_specs(make: Callable[[], EnvBase]) -> None:
    check_env_specs(as_environment(make()))


@pytest.mark.parametrize(
    ("make", "on_policy"),
    # Off policy and on policy in turns.
    [(make, number % 2 == 1) for number, make in enumerate(ENVIRONMENTS.values())],
    ids=ENVIRONMENTS.keys(),
)
def test_an_agent_trains_in_an_adapted_environment(
    make: Callable[[], EnvBase], on_policy: bool, tmp_path: Path
) -> None:
    env = make()
    off_policy = SAC if action_spec(env).dtype.is_floating_point else DQN
    kind: type[Agent] = PPO if on_policy else off_policy
    agent = build_for(env, kind, rollout_length=8, batch_size=8)
    before = [parameter.clone() for parameter in agent.parameters()]
    trainer = TorchRLTrainer(
        env, agent, tmp_path, total_frames=80, random_frames=16, loggers=(), show_progress=False
    )
    trainer.train()
    assert trainer.updates > 0
    assert any(not now.equal(then) for now, then in zip(agent.parameters(), before, strict=True))
    assert all(parameter.isfinite().all() for parameter in agent.parameters())


@pytest.mark.parametrize(
    ("done_on_any", "lengths"), [(True, [2.0, 2.0, 2.0, 2.0]), (False, [2.0, 4.0])]
)
def test_robots_that_end_alone_or_with_others_end_their_episodes(
    done_on_any: bool, lengths: list[float]
) -> None:
    env = as_environment(Team(done_on_any))
    agent = build_for(env, DQN)
    collector = BatchCollector(env, CPU, agent.policy.in_keys)
    replay = ReplayBuffer(100, agent.observation_spec, agent.action_spec, CPU)
    statistics = EpisodeStatistics(2, CPU)
    for _ in range(2):
        for _ in range(4):
            transition = collector.robots.transition(collector.step(agent.policy))
            replay.extend(transition)
            statistics.update(transition)
            after = transition["next"]
            ends = (after["done"] & transition["active"]).squeeze(1)
            # The end of all is a time limit for a robot that has not terminated.
            for name, robot in (("terminated", [True, False]), ("truncated", [False, True])):
                assert torch.equal(after[name][ends].squeeze(1), torch.tensor(robot)[ends])
        found = read(statistics.take())
        assert found["episode/count"] == len(lengths)
        assert found["episode/return"] == found["episode/length"] == sum(lengths) / len(lengths)
    assert len(replay) == 2 * sum(lengths)


@pytest.mark.parametrize("make", [two_cartpoles, limited_pendulums, Odd])
def test_new_episodes_begin_in_some_environments_of_a_batch(make: Callable[[], EnvBase]) -> None:
    env = as_environment(make())
    root = env.reset()
    for _ in range(3):
        _, root = env.step_and_maybe_reset(env.rand_action(root).clone())
    rows = torch.zeros(env.num_envs, 1, dtype=torch.bool)
    rows[0] = True
    after = env.reset(root.copy().set("_reset", rows))
    keys = observation_spec(env).keys(True, True)
    changed = torch.stack([(after[key] != root[key]).any(1) for key in keys])
    assert torch.equal(changed.any(0), rows.squeeze(1))


def test_transforms_take_abilities_that_they_may_change() -> None:
    ends = ((0.0, 0.0), (1.0, 1.0))

    class Able(IdentityEnv):
        capabilities = replace(
            IdentityEnv.capabilities, frame_stacks={"observation": 2}, action_range=ends
        )

    of_rewards = as_environment(TransformedEnv(Able(), RewardSum())).capabilities
    of_actions = as_environment(
        TransformedEnv(Able(), ClipTransform([], in_keys_inv=["action"], low=-1.0, high=1.0))
    ).capabilities
    assert of_rewards.action_range == ends
    assert of_actions.action_range is None
    assert of_rewards.frame_stacks == of_actions.frame_stacks == {}


def test_an_environment_of_this_library_is_unchanged() -> None:
    env = IdentityEnv()
    assert as_environment(env) is env


def test_batches_shapes_and_dtypes_are_converted_for_agents() -> None:
    env = Odd()
    collector = BatchCollector(env, CPU, ["count", "pair", "which"])
    assert action_spec(env).shape == (6, 1)
    assert observation_spec(env).shape == (6,)
    for step in range(10):
        transition = collector.step(constant(torch.full((6, 1), 0.5)))
        now, after = step % 4, transition["next"]
        assert transition["count"].eq(now).all()
        assert after["count"].eq(now + 1).all()
        assert after["count"].dtype == after["reward"].dtype == torch.float32
        assert after["pair"].shape == (6, 4)
        assert after["which"].argmax(-1).eq((now + 1) % 3).all()
        assert after["reward"].eq(0.5).all()
        assert after["terminated"].eq(now == 3).all()
        assert not after["truncated"].any()


@pytest.mark.parametrize(
    "make",
    [
        limited_pendulums,
        lambda: TransformedEnv(two_cartpoles(), StepCounter(6)),
    ],
)
def test_next_is_the_true_last_observation_and_a_time_limit_truncates(
    make: Callable[[], EnvBase],
) -> None:
    env = as_environment(make())
    keys = list(observation_spec(env).keys(True, True))
    root = env.reset()
    for step in range(1, 13):
        transition, following = env.step_and_maybe_reset(env.rand_action(root).clone())
        after = transition["next"]
        assert after["truncated"].eq(step % 6 == 0).all()
        assert after.select(*keys).apply(torch.isfinite).all()
        same = [after[key].equal(following[key]) for key in keys if "params" not in key]
        assert all(same) == (step % 6 != 0)
        root = following


def test_a_transition_is_unchanged_until_the_next_call() -> None:
    collector = BatchCollector(limited_pendulums(), CPU, ["th", "thdot"])
    action = torch.full((4, 1), 0.3)
    previous = None
    for step in range(14):
        transition = collector.step(constant(action))
        if previous is not None and step % 6:
            assert torch.equal(previous["th"], transition["th"])
        previous = transition["next"].clone()


@pytest.mark.parametrize(
    ("transform", "hidden"),
    [
        (RewardSum(), "episode_reward"),
        (RewardSum(["reward"], ["so_far"]), "so_far"),
        (StepCounter(20), "step_count"),
        (InitTracker(), "is_init"),
    ],
)
def test_counters_and_reward_sums_are_not_observed_by_default(transform: Any, hidden: str) -> None:
    env = TransformedEnv(two_cartpoles(), transform)
    assert hidden in as_environment(env).observation_spec.keys()  # noqa: SIM118
    assert list(observation_spec(env).keys()) == ["observation"]
    # Observation keys can still select it.
    assert set(observation_spec(env, ["observation", hidden]).keys()) == {"observation", hidden}


def test_transformed_observations_are_observed() -> None:
    numbers = ["th", "thdot"]
    env = TransformedEnv(
        PendulumEnv(),
        Compose(UnsqueezeTransform(-1, in_keys=numbers), CatTensors(numbers, "both")),
    )
    assert observation_spec(env)["both"].shape == (1, 2)


def test_transforms_apply_to_an_environment_of_this_library() -> None:
    plain, scaled = (
        as_environment(env)
        for env in (
            IdentityEnv(num_envs=3),
            TransformedEnv(IdentityEnv(num_envs=3), RewardScaling(0.0, 10.0)),
        )
    )
    actions = plain.action_spec.rand().unsqueeze(0)
    steps, scaled_steps = (trajectory(env, actions) for env in (plain, scaled))
    torch.testing.assert_close(10 * steps["next", "reward"], scaled_steps["next", "reward"])


@pytest.mark.parametrize("env", [gymnasium.make("CartPole-v1"), "fanuc"])
def test_objects_that_are_not_environments_of_torchrl_are_refused(env: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"use envs\.GymnasiumEnv or TorchRL's GymWrapper"):
        as_environment(env)


@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_one_hot_action_becomes_an_index(num_envs: int) -> None:
    rollouts = []
    for categorical in (False, True):
        make = partial(GymEnv, "CartPole-v1", categorical_action_encoding=categorical)
        env = as_environment(make() if num_envs == 1 else SerialEnv(num_envs, make))
        assert action_spec(env) == Categorical(2, (num_envs,))
        env.set_seed(3)
        rollouts.append(env.rollout(6, constant(torch.arange(num_envs) % 2)))
        env.close()
    assert (rollouts[0] == rollouts[1]).all()


@pytest.mark.parametrize(
    "spec", [MultiCategorical([2, 3], (4, 2)), Binary(3, (4, 3), dtype=torch.bool)]
)
def test_several_choices_at_once_are_rejected_with_a_hint(spec: TensorSpec) -> None:
    env = IdentityEnv(num_envs=4)
    env.action_spec = spec
    with pytest.raises(ConfigurationError, match="env=gym offers all combinations"):
        DQN(observation_spec(env), action_spec(env), CPU)


def test_an_unsupported_observation_is_rejected_in_one_line() -> None:
    env = Odd(picture=Unbounded((2, 3, 3, 32, 32)))
    with pytest.raises(ConfigurationError, match=r"observation picture of shape \[3, 32, 32\]"):
        observation_spec(env)


class _Scene(Environment):
    """Shows random pictures of a spec `[2, ...]`; an episode lasts a step."""

    def __init__(self, picture: TensorSpec) -> None:
        super().__init__(device="cpu", batch_size=[2])
        self.observation_spec = Composite(picture=picture, shape=(2,))
        self.action_spec = Bounded(-1.0, 1.0, (2, 1))
        self.reward_spec = Unbounded((2, 1))
        self.full_done_spec = self._spec_of_dones()

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        false = {name: torch.zeros(2, 1, dtype=torch.bool) for name in DONE_NAMES}
        return self._batch({"picture": self.observation_spec["picture"].rand(), **false})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        true = {"done": torch.ones(2, 1, dtype=torch.bool), "terminated": torch.ones(2, 1).bool()}
        return self._reset().update(true).set("reward", torch.zeros(2, 1))

    def _set_seed(self, seed: int | None) -> None:
        pass


@pytest.mark.parametrize("layout", ["HWC", "CHW"])
@pytest.mark.parametrize("size", [(3, 16, 24), (12, 16, 16)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_pictures_of_other_layouts_become_pixels(
    layout: str, size: tuple[int, int, int], dtype: torch.dtype
) -> None:
    shape = (*size[1:], size[0]) if layout == "HWC" else size
    high = 255 if dtype == torch.uint8 else 1.0
    scene = _Scene(Bounded(0, high, (2, *shape), dtype=dtype))
    env = AdaptedEnvironment(scene)
    spec = observation_spec(env)["picture"]
    assert (spec.shape, spec.dtype) == ((2, *size), torch.uint8)
    scene.set_seed(0)
    torch.manual_seed(0)
    raw = scene.reset()["picture"]
    torch.manual_seed(0)
    seen = env.reset()["picture"]
    raw = raw.movedim(-1, 1) if layout == "HWC" else raw
    assert seen.is_contiguous() or layout == "HWC"
    assert torch.equal(seen, (raw * (1 if dtype == torch.uint8 else 255)).round().to(torch.uint8))


@pytest.mark.parametrize(
    ("transforms", "channels"),
    [
        ((GrayScale,), 1),
        ((partial(CatFrames, 2, -3),), 6),
        ((GrayScale, partial(CatFrames, 4, -3)), 4),
    ],
    ids=["gray", "stacked", "gray and stacked"],
)
def test_pictures_of_a_chain_of_transforms_become_pixels(
    transforms: tuple[Callable[..., Transform], ...], channels: int
) -> None:
    keys = ["picture"]
    scene = _Scene(Bounded(0, 255, (2, 16, 24, 3), dtype=torch.uint8))
    chain = [ToTensorImage(in_keys=keys), *(make(in_keys=keys) for make in transforms)]
    chained = TransformedEnv(scene, Compose(*chain))
    env = as_environment(chained)
    spec = observation_spec(env)["picture"]
    assert (spec.shape, spec.dtype) == ((2, channels, 16, 24), torch.uint8)
    torch.manual_seed(0)
    raw = chained.reset()["picture"]
    torch.manual_seed(0)
    assert torch.equal(env.reset()["picture"], (255 * raw).round().to(torch.uint8))


def test_pictures_beyond_their_range_are_clipped() -> None:
    """As of a bicubic `Resize`."""
    spec = Composite(picture=Unbounded((1, 3, 16, 16)), shape=(1,))
    (reader,) = readers_of(spec, spec.shape, {("picture",)})
    for value, pixel in ((-0.01, 0), (0.5, 128), (1.01, 255)):
        picture = torch.full((1, 3, 16, 16), value)
        assert reader.read(TensorDict({"picture": picture}, [1])).eq(pixel).all()


def test_pictures_that_a_transform_rescales_are_refused() -> None:
    scene = _Scene(Bounded(0, 255, (2, 16, 24, 3), dtype=torch.uint8))
    keys = ["picture"]
    norm = ObservationNorm(-0.5, 2.0, in_keys=keys, standard_normal=True)
    with pytest.raises(ConfigurationError, match="observation picture of shape"):
        as_environment(TransformedEnv(scene, Compose(ToTensorImage(in_keys=keys), norm)))


def test_flags_gray_pictures_and_several_choices_are_read() -> None:
    spec = Composite(
        gray=Bounded(0, 255, (2, 9, 9), dtype=torch.uint8),
        choices=MultiCategorical([3, 4], (2, 2)),
        success=Binary(1, (2, 1)),
        shape=(2,),
    )
    seen = {reader.path[0]: reader.read(spec.one()) for reader in readers_of(spec, spec.shape)}
    assert (seen["gray"].shape, seen["gray"].dtype) == ((2, 1, 9, 9), torch.uint8)
    assert (seen["choices"].shape, seen["choices"].dtype) == ((2, 2), torch.float32)
    assert seen["success"].dtype == torch.bool
    action = action_spec_of(MultiCategorical([4], (2, 1)), (2,), 1)
    assert action == Categorical(4, (2,))


def test_pixels_of_gymnasium_are_pixels_with_and_without_a_transform() -> None:
    pytest.importorskip("pygame")
    env = GymEnv(
        "CartPole-v1", from_pixels=True, pixels_only=True, categorical_action_encoding=True
    )
    plain = as_environment(env)
    floats = as_environment(TransformedEnv(env, ToTensorImage()))
    picture = plain.reset()["pixels"]
    assert picture.shape == (1, 3, 400, 600)
    assert picture.float().std() > 10
    for each in (plain, floats):
        spec = observation_spec(each)["pixels"]
        assert (spec.shape, spec.dtype) == ((1, 3, 400, 600), torch.uint8)
        assert each.reset()["pixels"].max() == picture.max() == 255
        assert each.capabilities.can_render
        assert torch.equal(each.render(), each.observe()["pixels"][0].movedim(0, -1))
    plain.close()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_an_agent_trains_on_other_floats_of_an_environment(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    env = _Scene(Unbounded((2, 5), dtype=dtype))
    assert observation_spec(env)["picture"].dtype == torch.float32
    agent = build_for(env, SAC, batch_size=8)
    TorchRLTrainer(
        env, agent, tmp_path, total_frames=40, random_frames=16, loggers=(), show_progress=False
    ).train()
    assert all(parameter.isfinite().all() for parameter in agent.parameters())


def test_an_environment_that_loses_last_observations_is_rejected() -> None:
    env = GymEnv("Pendulum-v1", num_envs=2)
    with pytest.raises(ConfigurationError, match="loses the last observation"):
        as_environment(env)
    env.close()


def test_an_environment_that_masks_actions_is_rejected() -> None:
    env = TransformedEnv(GymEnv("CartPole-v1", categorical_action_encoding=True), ActionMask())
    with pytest.raises(ConfigurationError, match="agents do not read the masks of ActionMask"):
        as_environment(env)
    env.close()


def test_a_torchrl_environment_can_be_evaluated() -> None:
    env = limited_pendulums()
    agent = build_for(env, SAC)
    result = evaluate(env, agent.policy, CPU, episodes=8)
    assert result.mean_length == 6.0
    assert result.success is None


def test_a_parallel_env_becomes_one_batch() -> None:
    env = ParallelEnv(2, pendulum, mp_start_method=fork_server().get_start_method())
    try:
        agent = build_for(env, SAC)
        collector = BatchCollector(env, CPU, agent.policy.in_keys)
        replay = ReplayBuffer(100, agent.observation_spec, agent.action_spec, CPU)
        for _ in range(10):
            replay.extend(collector.step(agent.policy))
        assert len(replay) == 20
        assert collector.state_dict().keys() == {"world"}
    finally:
        env.close()
