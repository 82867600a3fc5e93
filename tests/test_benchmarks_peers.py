from contextlib import closing

import pytest
import torch

from benchmarks.fixture import ACTION_DIM
from benchmarks.measuring import Samples
from benchmarks.peers import __main__ as command
from benchmarks.peers.jobs import CARTPOLE_PPO, RANDOM_PPO, SEAS_PPO, WORKS, PPOTask, Side
from benchmarks.peers.libraries import LIBRARIES, builders_of
from benchmarks.peers.plain_agents import PPO, SAC, Rollout
from benchmarks.peers.processes import Worker
from benchmarks.peers.report import Result, print_work
from torchrl_gpu.commands import read_arguments
from torchrl_gpu.errors import ConfigurationError

# Libraries that need no package of an extra.
ALWAYS = ("ours", "torchrl", "plain")


@pytest.mark.parametrize("library", ALWAYS)
@pytest.mark.parametrize("job", ["updates_sac", "updates_ddpg", "updates_dqn"])
def test_library_updates(library: str, job: str) -> None:
    builders_of(library)[job][""]()(2)


def test_plain_advantages_stop_at_the_end_of_an_episode() -> None:
    learner = PPO(1, 1, is_discrete=False, task=PPOTask(1, 3, 1, gamma=0.5, gae_lambda=0.5))
    reward, value = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[1.0], [3.0], [2.0]])
    done = torch.tensor([[0.0], [1.0], [0.0]])
    no = torch.zeros(3, 1)
    advantage = learner.advantages(Rollout(no, no, no, value, reward, done), torch.tensor([6.0]))
    # Errors: 1 + .5 * 3 - 1 = 1.5; 2 - 3 = -1 at the end; 4 + .5 * 6 - 2 = 5.
    assert advantage.flatten().tolist() == [1.5 - 0.25, -1.0, 5.0]


def test_plain_log_probability_is_that_of_a_transformed_normal() -> None:
    torch.manual_seed(0)
    learner = SAC(3, ACTION_DIM)
    observation = torch.randn(4, 3)
    action, log_prob = learner.act(observation)
    mean, log_std = learner.actor(observation).chunk(2, -1)
    normal = torch.distributions.Normal(mean, log_std.exp())
    tanh = torch.distributions.TransformedDistribution(
        normal, [torch.distributions.TanhTransform()]
    )
    torch.testing.assert_close(log_prob, tanh.log_prob(action).sum(-1, keepdim=True))


def test_every_job_is_done_by_this_library_and_another() -> None:
    present = [name for name in LIBRARIES if name in ALWAYS]
    for work in WORKS.values():
        for job in work:
            sides = command.sides_of(job, present)
            assert any(side.is_ours for side in sides)
            if job.name != "updates_iqn":  # of sb3-contrib
                assert any(not side.is_ours for side in sides)


def test_compiled_plain_pytorch_stands_beside_this_library_compiled() -> None:
    for work in WORKS.values():
        for job in work:
            ours, plain = (builders_of(name).get(job.name, {}) for name in ("ours", "plain"))
            assert len(plain) in (0, len(ours)), job.name


def test_units_are_whole_rollouts() -> None:
    units = {job.name: job.units for work in WORKS.values() for job in work}
    assert units["updates_ppo"] % RANDOM_PPO.updates == 0
    assert units["training_ppo"] % CARTPOLE_PPO.frames == 0
    assert units["seas_ppo"] % SEAS_PPO.frames == 0


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("work=update", "'updates', 'training', 'seas' or 'all'"),
        ("rounds=0", "greater than or equal to 1"),
    ],
)
def test_bad_argument_is_refused(argument: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        read_arguments(command.compare, [argument])


def test_library_without_its_package_is_not_installed() -> None:
    assert LIBRARIES["plain"].is_installed
    assert not LIBRARIES["sbx"]._replace(packages=("no_such_package",)).is_installed


def test_child_process_measures_a_job() -> None:
    with closing(Worker("plain")) as worker:
        assert worker.measurement("updates_dqn", "", 2)() > 0.0


def test_work_is_printed_as_rates_and_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    job = WORKS["training"][0]
    rates = {Side("ours"): [200.0], Side("ours", "bf16"): [300.0], Side("plain"): [100.0]}
    print_work([Result(job, Samples(rates))])
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["ours", "bf16", "300.0"] in said
    assert ["plain", "PyTorch", "2.00,", "3.00"] in said
