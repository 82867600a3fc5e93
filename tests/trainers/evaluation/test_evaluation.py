import math

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.envs import PendulumEnv, TransformedEnv, VecNormV2

from agents import DQN
from tests.helpers.agents import build_for
from tests.helpers.environments import IdentityEnv
from tests.helpers.ranks import on_ranks
from tests.torchrl_gpu.environments.test_adapter import Team
from torchrl_gpu.acting.collector import BatchCollector
from torchrl_gpu.acting.policy import PolicyWrapper
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.bookkeeping import copy_statistics
from torchrl_gpu.environments.specs import observation_spec
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.intervals import wilson_interval
from torchrl_gpu.processes import Processes
from trainers.evaluation.evaluation import Evaluation, EvaluationStoppedError, evaluate
from trainers.evaluation.evaluator import Evaluator

CPU = torch.device("cpu")


class Identity(nn.Module):
    """Returns the observation plus a constant error as the action."""

    def __init__(self, error: float) -> None:
        super().__init__()
        self.error = error

    def act(self, observation: TensorDictBase, deterministic: bool) -> Tensor:
        return (observation["observation"] + self.error).clamp(-1, 1)


def policy_for(env: IdentityEnv, error: float = 0.0) -> PolicyWrapper:
    return PolicyWrapper(Identity(error), observation_spec(env), env.action_spec)


@pytest.mark.parametrize("episodes", [1, 5, 16, 37])
def test_perfect_policy_succeeds_in_every_episode(episodes: int) -> None:
    env = IdentityEnv(num_envs=16)
    result = evaluate(env, policy_for(env), CPU, episodes=episodes)
    assert result.episodes == episodes
    assert result.score == result.success == 1.0
    assert result.success_high == pytest.approx(1.0)
    assert result.success_low is not None
    assert 0.2 <= result.success_low < 1.0
    assert result.mean_return == 0.0
    assert result.mean_length == env.max_episode_steps


def test_the_return_is_the_mean_over_the_robots_until_their_ends() -> None:
    env = as_environment(Team(done_on_any=False))  # they end after two and after four steps
    agent = build_for(env, DQN)
    result = evaluate(env, agent.policy, CPU, episodes=2)
    assert (result.mean_return, result.mean_length) == (3.0, 4.0)


def test_the_interval_is_that_of_a_whole_number_of_successes() -> None:
    means = {"episode/return": 0.0, "episode/length": 1.0, "episode/success": 29 / 100}
    result = Evaluation.of(100, means)
    assert (result.success_low, result.success_high) == wilson_interval(29, 100)


def test_short_episodes_do_not_bias_the_mean() -> None:
    """The first episodes to end are short ones: every environment must play an equal share."""
    env = IdentityEnv(num_envs=64, max_episode_steps=50, terminates_above=0.8)
    result = evaluate(env, policy_for(env), CPU, episodes=640)
    # An episode ends with probability 0.1 at each step: (1 - 0.9^50) / 0.1 steps in the mean.
    assert result.mean_length == pytest.approx((1 - 0.9**50) / 0.1, rel=0.1)


def test_equal_seeds_give_equal_results_and_the_policy_mode_is_restored() -> None:
    env = IdentityEnv()
    policy = policy_for(env, error=0.3).train()
    first, second, third = (
        evaluate(env, policy, CPU, episodes=20, seed=seed) for seed in (1, 1, 2)
    )
    assert first == second
    assert first != third
    assert policy.training


def test_environment_without_success_is_scored_by_its_return() -> None:
    class Silent(IdentityEnv):
        def _step(self, tensordict: TensorDictBase) -> TensorDict:
            return super()._step(tensordict).exclude("success")

        def _reset(self, tensordict: TensorDictBase | None, **kwargs: object) -> TensorDict:
            return super()._reset(tensordict).exclude("success")

    env = Silent()
    del env.observation_spec["success"]
    env.observation_spec = observation_spec(env)
    result = evaluate(env, policy_for(env, error=0.5), CPU, episodes=4)
    assert result.success is None
    assert result.score == result.mean_return < 0.0
    assert set(result.as_metrics()) == {"evaluation/return", "evaluation/length"}


@pytest.mark.filterwarnings("ignore:Support of VecNormV2")
def test_statistics_of_transforms_stay_as_they_are_and_scale_the_return() -> None:
    env = TransformedEnv(IdentityEnv(4), VecNormV2(in_keys=["reward"], decay=1.0))
    env.rollout(30, break_when_any_done=False)

    def statistics() -> list[torch.Tensor]:
        state = env.transform.state_dict()["_extra_state"]
        return [state[f"{name}.-|-.reward"].clone() for name in ("loc", "var", "count")]

    mean, square, count = statistics()
    policy = policy_for(IdentityEnv(4), error=0.3)
    result = evaluate(as_environment(env), policy, CPU, episodes=4)
    assert all(map(torch.equal, statistics(), (mean, square, count)))

    collector = BatchCollector(IdentityEnv(4), CPU, policy.in_keys)
    collector.env.set_seed(0)
    rewards = torch.stack([collector.step(policy.eval())["next", "reward"] for _ in range(8)])
    scaled = (rewards - mean) / (square - mean.square()).sqrt()
    assert result.mean_return == pytest.approx(scaled.sum(0).mean().item(), rel=1e-3)
    env.rollout(2)
    assert statistics()[-1] == count + 2, "they move again in training"
    env.transform.freeze()
    evaluate(as_environment(env), policy, CPU, episodes=4)
    assert env.transform.frozen, "they stay as the user wants them"


@pytest.mark.filterwarnings("ignore:Support of VecNormV2")
def test_an_evaluation_of_a_training_uses_its_statistics() -> None:
    def normalized(num_envs: int) -> TransformedEnv:
        return TransformedEnv(IdentityEnv(num_envs), VecNormV2(in_keys=["reward"]))

    training, other = as_environment(normalized(4)), normalized(4)
    training.rollout(30, break_when_any_done=False)
    policy = policy_for(IdentityEnv(4))
    result = Evaluator(other).evaluate(policy, CPU, episodes=4, training_env=training)
    assert math.isfinite(result.mean_return)
    states = [base.transform.state_dict()["_extra_state"] for base in (training.env, other)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    with pytest.raises(ConfigurationError, match=r"^evaluation_env: VecNormV2 .* 4 .* not 3$"):
        Evaluator(normalized(3)).evaluate(policy, CPU, episodes=4, training_env=training)


def test_environments_without_a_batch_share_their_statistics() -> None:
    def pendulum() -> TransformedEnv:
        return TransformedEnv(PendulumEnv(), VecNormV2(in_keys=["th"]))

    training, other = pendulum(), pendulum()
    training.rollout(9)
    copy_statistics(as_environment(training), other)
    states = [env.transform.state_dict()["_extra_state"] for env in (training, other)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_surplus_episode_does_not_affect_the_means() -> None:
    class Diverging(IdentityEnv):
        """Returns NaN rewards in the second episodes of the last eight environments."""

        steps_done = 0

        def _step(self, tensordict: TensorDictBase) -> TensorDict:
            self.steps_done += 1
            after = super()._step(tensordict)
            if self.steps_done > self.max_episode_steps:
                after["reward"][8:] = float("nan")
            return after

    env = Diverging()
    result = evaluate(env, policy_for(env), CPU, episodes=24)
    assert env.steps_done > env.max_episode_steps
    assert result.mean_return == 0.0


@pytest.mark.parametrize("endless", [[0], [0, 1]])
def test_an_episode_that_never_ends_is_refused(
    endless: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Endless(IdentityEnv):
        """Has no time limit in some environments."""

        def _step(self, tensordict: TensorDictBase) -> TensorDict:
            after = super()._step(tensordict)
            for key in ("done", "truncated"):
                after[key][endless] = False
            return after

    monkeypatch.setattr("trainers.evaluation.evaluation._MAX_STEPS", 50)
    env = Endless(num_envs=2)
    with pytest.raises(ConfigurationError, match="no episode ended within 50 steps"):
        evaluate(env, policy_for(env), CPU, episodes=4)


@pytest.mark.parametrize("episodes", [1, 2, 7, 16])
def test_processes_play_shares_and_return_the_result_of_all(episodes: int) -> None:
    def play(processes: Processes) -> tuple[Evaluation, list[int]]:
        env, reports = IdentityEnv(4), [0]
        policy = policy_for(env, error=0.1 * processes.rank)
        seed = processes.rank
        found = evaluate(
            env,
            policy,
            CPU,
            episodes=episodes,
            seed=seed,
            processes=processes,
            progress=reports.append,
        )
        return found, reports

    played = on_ranks(3, play)
    shares = [episodes // 3 + (rank < episodes % 3) for rank in range(3)]
    assert [reports[-1] for _, reports in played] == shares
    alone = [
        evaluate(env, policy_for(env, error=0.1 * rank), CPU, episodes=share, seed=rank)
        for rank, share in enumerate(shares)
        if share and (env := IdentityEnv(4))
    ]
    for found, _ in played:
        assert found == played[0][0]
        assert found.episodes == episodes
        for name in ("mean_return", "mean_length", "success"):
            total = sum(getattr(each, name) * each.episodes for each in alone)
            assert getattr(found, name) == pytest.approx(total / episodes)


@pytest.mark.parametrize("asked", [0, 1])
def test_a_request_to_one_process_breaks_off_the_evaluation_of_all(asked: int) -> None:
    """A process that has played its share waits for the others, which may break off."""

    def play(processes: Processes) -> list[int]:
        env, reports = IdentityEnv(1 + 3 * processes.rank), [0]
        with pytest.raises(EvaluationStoppedError):
            evaluate(
                env,
                policy_for(env),
                CPU,
                episodes=40,
                processes=processes,
                progress=reports.append,
                stop=lambda: processes.rank == asked and reports[-1] >= 8,
            )
        return reports

    reached = [reports[-1] for reports in on_ranks(2, play)]
    assert reached[asked] == 8
    assert reached[1 - asked] == 20
