import pytest
import torch
from tensordict import TensorDictBase

from agents import SAC
from envs.marinenav import MarineNavEnv
from envs.marinenav.baselines import StraightToGoal
from tests.helpers.environments import IdentityEnv
from torchrl_gpu.acting.collector import BatchCollector
from torchrl_gpu.environments.robots import Robots, SharedPolicy
from torchrl_gpu.environments.specs import action_spec, observation_spec
from torchrl_gpu.replay.buffer import ReplayBuffer

SEAS, ROBOTS = 6, 3


@pytest.fixture
def seas() -> MarineNavEnv:
    return MarineNavEnv(
        num_envs=SEAS, num_robots=ROBOTS, num_obstacles=2, max_episode_steps=60, seed=1
    )


def test_specs_flatten_the_robots_and_omit_outcome_keys(seas: MarineNavEnv) -> None:
    spec = observation_spec(seas)
    assert set(spec.keys()) == {"observation", "objects", "objects_mask"}
    assert spec.shape == (SEAS * ROBOTS,)
    assert spec["objects"].shape == (SEAS * ROBOTS, 5, 5)
    assert action_spec(seas).shape == (SEAS * ROBOTS, 2)


def test_an_environment_without_a_group_is_unchanged() -> None:
    env = IdentityEnv()
    assert Robots(env).group is None
    assert action_spec(env).shape == env.action_spec.shape
    root = env.reset()
    assert Robots(env).view(root) is root
    assert Robots(env).transition(root) is root


@pytest.mark.parametrize("is_remote", [False, True])
def test_the_replay_holds_exactly_the_steps_of_active_robots(
    seas: MarineNavEnv, is_remote: bool, request: pytest.FixtureRequest
) -> None:
    device = request.getfixturevalue("accelerator") if is_remote else seas.device
    baseline = StraightToGoal()  # it computes on the host

    def policy(robots: TensorDictBase) -> TensorDictBase:
        return robots.set("action", baseline(robots.to("cpu"))["action"].to(device))

    collector = BatchCollector(seas, device, baseline.in_keys)
    specs = observation_spec(seas).to(device), action_spec(seas).to(device)
    replay = ReplayBuffer(10_000, *specs, device)
    moves, ends = 0, 0
    for _ in range(150):
        step = collector.step(policy)
        moved = step["robots", "active"]
        moves += int(moved.sum())
        ends += int((step["next", "robots", "terminated"] & moved).sum())
        replay.extend(collector.robots.transition(step))
    assert 0 < moves < 150 * SEAS * ROBOTS
    assert len(replay) == moves
    assert ends > 0
    batch = replay.sample(40_000)
    share = batch["next", "terminated"].float().mean().item()
    assert share == pytest.approx(ends / moves, rel=0.15)
    # Robots reach goals and collide: the rewards of their last steps are stored.
    rewards = batch["next", "reward"][batch["next", "terminated"]]
    assert rewards.max() > 8.0
    assert rewards.min() < -3.0


def test_frames_count_environment_steps_and_not_robot_steps(seas: MarineNavEnv) -> None:
    agent = SAC(observation_spec(seas), action_spec(seas), seas.device, hidden_sizes=[8])
    collector = BatchCollector(seas, seas.device, agent.policy.in_keys)
    for _ in range(4):
        collector.step(agent.policy)
    assert agent.policy.frames == 4 * SEAS


def test_a_shared_policy_works_in_a_torchrl_rollout(seas: MarineNavEnv) -> None:
    policy = SharedPolicy(StraightToGoal(), seas)
    assert ("robots", "observation") in policy.in_keys
    assert policy.out_keys == [("robots", "action")]
    steps = seas.rollout(5, policy)
    expected = StraightToGoal()(steps["robots"].clone())["action"]
    assert torch.equal(steps["robots", "action"], expected)
