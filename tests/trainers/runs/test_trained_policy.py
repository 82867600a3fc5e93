"""Policies that act from a file alone: `load_policy(path).predict(observation)`."""

import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.envs import RewardScaling, Transform, TransformedEnv

from agents import DQN, SAC
from agents.modules.encoders import ObservationEncoderFactory
from envs.gym import GymnasiumEnv
from tests.helpers.agents import OBSERVATION, Case, build, build_for, every_agent, small_specs
from tests.helpers.environments import IdentityEnv
from tests.helpers.policies import MANY, random_weights, saved
from torchrl_gpu.acting.interface import PolicyInterface
from torchrl_gpu.checkpoints.checkpoint import CheckpointFolder
from torchrl_gpu.checkpoints.state_file import load_state, save_state
from torchrl_gpu.devices.device import resolve_device
from torchrl_gpu.environments.action_table import with_action_table
from torchrl_gpu.environments.adapter import as_environment
from torchrl_gpu.environments.capabilities import Capabilities
from torchrl_gpu.environments.specs import action_spec, observation_spec
from torchrl_gpu.errors import ConfigurationError
from trainers import load_policy, save_policy
from trainers.runs.policy_files import restore_policy
from trainers.training.trainer import TorchRLTrainer

BATCH = 6


@every_agent
def test_every_agent_acts_from_a_file_as_its_policy_does(case: Case, tmp_path: Path) -> None:
    torch.manual_seed(0)
    agent = case.make(bounds=(2.0, 6.0))
    random_weights(agent)
    policy = saved(agent, tmp_path)
    observation = torch.randn(BATCH, OBSERVATION)
    agent.policy.eval()
    expected = agent.policy(TensorDict({"observation": observation}, [BATCH]))["action"].detach()

    batch = policy.predict(observation)
    assert isinstance(batch, Tensor)
    assert torch.equal(batch, expected)
    assert torch.equal(policy({"observation": observation}), expected)
    for array in (observation.numpy(), {"observation": observation.double().numpy()}):
        found = policy.predict(array)
        assert isinstance(found, np.ndarray)
        np.testing.assert_array_equal(found, expected.numpy())
    single = torch.stack([torch.as_tensor(policy.predict(row)) for row in observation])
    torch.testing.assert_close(single, expected)
    assert np.asarray(policy.predict(observation[0].tolist())).shape == expected.shape[1:]


@every_agent
def test_every_agent_reads_nested_keys_sets_and_stacked_images_by_name(
    case: Case, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    encoder = ObservationEncoderFactory(channels=[4])
    action = small_specs(case.actions)[1][:1]
    agent = build(case.agent_class, MANY, action, encoder=encoder)
    capabilities = Capabilities(frame_stacks={"pixels": 2}, step_seconds=0.1)
    policy = saved(agent, tmp_path, capabilities)
    assert policy.interface.frame_stacks == {"pixels": 2}
    assert policy.interface.step_seconds == 0.1
    observation = MANY.rand().squeeze(0)
    agent.policy.eval()
    named = {
        "robot.speed": observation["robot", "speed"].numpy(),
        **{key: observation[key].numpy() for key in ("objects", "objects_mask", "pixels")},
    }
    expected = agent.policy(observation.copy())["action"].detach()
    nested = {"robot": {"speed": named["robot.speed"]}, **named}
    del nested["robot.speed"]
    for given in (named, nested, observation):
        np.testing.assert_array_equal(np.asarray(policy.predict(given)), expected.numpy())


def test_a_discrete_policy_returns_the_continuous_action_of_its_table(tmp_path: Path) -> None:
    torch.manual_seed(0)
    env = with_action_table(IdentityEnv(num_envs=BATCH))
    agent = build(DQN, observation_spec(env), action_spec(env))
    random_weights(agent)
    policy = saved(agent, tmp_path, env.capabilities)
    observation = torch.randn(BATCH, 2)
    agent.policy.eval()
    index = agent.policy(TensorDict({"observation": observation}, [BATCH]))["action"]
    expected = IdentityEnv().discrete_actions[index]
    assert torch.equal(torch.as_tensor(policy.predict(observation)), expected)
    assert len(expected.unique(dim=0)) > 1


@pytest.mark.parametrize(
    ("observation", "said"),
    [
        (np.zeros(OBSERVATION), "observation: this policy reads several, by name: a, b"),
        ({"a": np.zeros(3)}, "observation: this policy reads a, b, not a"),
        ({"a": np.zeros(3), "c": np.zeros(3)}, "observation: this policy reads a, b, not a, c"),
        ({"a": np.zeros(3), 1: np.zeros(3)}, "observation: this policy reads a, b, not a, 1"),
        ({("a", 1): np.zeros(3)}, "observation: this policy reads a, b, not a.1"),
        (
            {"a": np.zeros(3, complex), "b": np.zeros((2, 16, 16), np.uint8)},
            'observation "a" has dtype complex128; it has to be float32',
        ),
        (
            {"a": np.zeros(4), "b": np.zeros((2, 16, 16), np.uint8)},
            'observation "a" has shape [4]; it has to end with [3]',
        ),
        (
            {"a": np.zeros(3), "b": np.zeros((2, 16, 16))},
            'observation "b" has dtype float64; it has to be uint8',
        ),
        (
            {"a": np.zeros((5, 3)), "b": np.zeros((2, 16, 16), np.uint8)},
            "observation: the batch sizes differ: [], [5]",
        ),
    ],
)
def test_observations_that_do_not_fit_are_refused_in_one_line(observation: Any, said: str) -> None:
    spec = Composite(
        a=Unbounded((1, 3)),
        b=Bounded(0, 255, (1, 2, 16, 16), dtype=torch.uint8),
        shape=(1,),
    )
    interface = PolicyInterface(spec, small_specs("continuous")[1])
    with pytest.raises(ConfigurationError) as raised:
        interface.read(observation, torch.device("cpu"))
    assert str(raised.value) == said


@pytest.mark.parametrize("given", [None, "text", [[1.0], [1.0, 2.0]], object()])
def test_an_observation_that_is_not_a_tensor_is_refused(given: Any) -> None:
    interface = PolicyInterface(*small_specs("continuous"))
    with pytest.raises(ConfigurationError, match=r'^observation "observation" has to be an arr'):
        interface.read(given, torch.device("cpu"))


@pytest.mark.parametrize("number", [np.nan, -np.inf, 1e300])
def test_arrays_that_are_not_finite_in_float32_are_refused(number: float) -> None:
    interface = PolicyInterface(*small_specs("continuous"))
    given = np.zeros((2, OBSERVATION))
    given[1, 0] = number
    with pytest.raises(ConfigurationError, match=r'^observation "observation" holds NaN or inf'):
        interface.read(given, torch.device("cpu"))
    tensors = interface.read(torch.from_numpy(given), torch.device("cpu"))
    assert not tensors["observation"].isfinite().all()


def test_a_view_with_negative_strides_is_read() -> None:
    interface = PolicyInterface(*small_specs("continuous"))
    given = np.arange(float(OBSERVATION))
    tensors = interface.read(given[::-1], torch.device("cpu"))
    assert tensors["observation"].tolist() == given[::-1].tolist()


def test_float64_arrays_are_cast_before_they_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[torch.dtype] = []
    to = torch.Tensor.to

    def spy(tensor: torch.Tensor, target: Any) -> torch.Tensor:
        if isinstance(target, torch.device):
            moved.append(tensor.dtype)
        return to(tensor, target)

    monkeypatch.setattr(torch.Tensor, "to", spy)
    interface = PolicyInterface(*small_specs("continuous"))
    tensors = interface.read(np.zeros(OBSERVATION), torch.device("meta"))
    assert tensors["observation"].device.type == "meta"
    assert moved == [torch.float32]


def test_names_with_dots_and_nested_names_stay_distinct() -> None:
    spec = Composite(
        {
            "a.b": Unbounded((1, 3)),
            "a": Composite(c=Unbounded((1, 2)), shape=(1,)),
        },
        shape=(1,),
    )
    state = PolicyInterface(spec, small_specs("continuous")[1]).state_dict()
    assert PolicyInterface.from_state(state).observation_spec == spec


def test_a_policy_is_traced_as_a_module_of_plain_tensors(tmp_path: Path) -> None:
    policy = saved(build(SAC, *small_specs("continuous")), tmp_path)
    observation = {"observation": torch.randn(BATCH, OBSERVATION)}
    program = torch.export.export(policy, (observation,))
    torch.testing.assert_close(program.module()(observation), policy(observation))


def test_bounds_that_share_memory_are_saved(tmp_path: Path) -> None:
    shared = torch.ones(()).expand(1, 1)
    spec = Bounded(-shared, shared, (1, 1))
    state = PolicyInterface(small_specs("continuous")[0], spec).state_dict()
    save_state(tmp_path / "interface.safetensors", state)
    assert torch.equal(state["action"]["high"], torch.ones(1))


@pytest.mark.parametrize("discrete", [False, True])
def test_predict_returns_what_the_simulator_takes(discrete: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    env = GymnasiumEnv(name="Pendulum-v1", num_envs=BATCH)
    with closing(with_action_table(env) if discrete else env) as acting:
        agent = build(DQN if discrete else SAC, observation_spec(acting), action_spec(acting))
        random_weights(agent, scale=0.4)
        policy = saved(agent, tmp_path, acting.capabilities)
        root = acting.reset()
        with torch.no_grad():
            acting.step(agent.policy.eval()(root))
        torques = [copy.unwrapped.last_u for copy in env._vector.envs]
    predicted = policy.predict(root["observation"].numpy())
    np.testing.assert_array_equal(np.asarray(predicted).ravel(), torques)
    assert len(set(torques)) > 1
    assert policy.interface.action_range is not None
    assert policy.interface.action_range.tolist() == [[-2.0], [2.0]]
    assert torch.equal(policy({"observation": root["observation"]}), torch.as_tensor(predicted))


class _Reversed(Transform):
    """Transform that turns the sign of actions."""

    def _inv_apply_transform(self, action: Tensor) -> Tensor:
        return -action


def test_actions_that_a_transform_changes_have_no_range() -> None:
    pendulum = GymnasiumEnv(name="Pendulum-v1", num_envs=1)
    with closing(TransformedEnv(pendulum, _Reversed(in_keys_inv=["action"]))) as env:
        assert as_environment(env).capabilities.action_range is None
        env.transform = RewardScaling(0.0, 0.1)
        assert as_environment(env).capabilities.action_range == ((-2.0,), (2.0,))


def test_a_checkpoint_without_the_settings_of_its_agent_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Own(SAC):
        """An agent of a class that no other program can import."""

    with closing(IdentityEnv(num_envs=2)) as env:
        agent = build_for(env, Own)
        trainer = TorchRLTrainer(env, agent, tmp_path)
        checkpoint = trainer.save()
        trainer.close()
    assert "only its script can load it from a checkpoint" in caplog.text
    with pytest.raises(ConfigurationError, match=r"it lacks the settings of the agent; pass"):
        load_policy(checkpoint)


def test_device_names_are_those_of_the_command_line(tmp_path: Path) -> None:
    saved(build(SAC, *small_specs("continuous")), tmp_path)
    policy = load_policy(tmp_path / "policy.safetensors", "auto")
    assert policy.policy.frames.device == resolve_device("auto")
    with pytest.raises(ConfigurationError, match="device=gpu"):
        load_policy(tmp_path / "policy.safetensors", "gpu")


def test_a_run_folder_stands_for_its_best_checkpoint(tmp_path: Path) -> None:
    agent = build(SAC, *small_specs("continuous"))
    policy = saved(agent, tmp_path)
    state = load_state(tmp_path / "policy.safetensors") | {"frames": 10, "seconds": 1.0}
    folder = CheckpointFolder(tmp_path / "checkpoints")
    folder.prepare(10, state, score=1.0)()
    random_weights(agent)
    folder.prepare(20, {**state, "policy": agent.policy.state_dict()}, score=0.0)()
    observation = torch.randn(BATCH, OBSERVATION)
    expected = policy.predict(observation)
    save_policy(tmp_path, tmp_path / "saved.safetensors")
    for path in (tmp_path, tmp_path / "saved.safetensors"):
        found = load_policy(path).predict(observation)
        assert torch.equal(torch.as_tensor(found), torch.as_tensor(expected))


def test_read_only_arrays_are_read_without_a_warning(tmp_path: Path) -> None:
    policy = saved(build(SAC, *small_specs("continuous")), tmp_path)
    observation = np.zeros(OBSERVATION, np.float32)
    observation.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy.predict(observation)


def test_observations_in_another_order_are_refused(tmp_path: Path) -> None:
    def spec(*names: str) -> Composite:
        return Composite({name: Unbounded((1, 3)) for name in names}, shape=(1,))

    action = small_specs("continuous")[1][:1]
    saved(build(SAC, spec("a", "b"), action), tmp_path)
    path = tmp_path / "policy.safetensors"
    restore_policy(path, build(SAC, spec("a", "b"), action))
    with pytest.raises(ConfigurationError, match="another environment"):
        restore_policy(path, build(SAC, spec("b", "a"), action))
