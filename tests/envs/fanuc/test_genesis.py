"""The arms in Genesis keep the contract of the arms in PyBullet."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torchrl.envs import check_env_specs

from envs.fanuc import FanucEnv
from envs.fanuc.genesis_arms import GenesisArms
from envs.fanuc.geometry import ArmGeometry
from envs.fanuc.observation import ArmEncoder
from envs.fanuc.simulation import ArmGroup
from tests.helpers.environments import trajectory
from tests.stand_in import count_host_reads
from torchrl_gpu import extras
from torchrl_gpu.errors import ConfigurationError

MakeEnv = Callable[..., FanucEnv]


def _actions(steps: int, hold: int = 1, seed: int = 0) -> torch.Tensor:
    """Return random actions `[steps, 8, 6]`; held ones are extreme."""
    noise = torch.rand(steps // hold, 8, 6, generator=torch.Generator().manual_seed(seed))
    actions = 2 * noise - 1
    return actions if hold == 1 else actions.sign().repeat_interleave(hold, 0)


def _random_postures(env: FanucEnv) -> torch.Tensor:
    lower, upper = torch.tensor(env.robot.lower), torch.tensor(env.robot.upper)
    noise = torch.rand(8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return (lower + (upper - lower) * noise).float()


@pytest.mark.slow
def test_env_satisfies_its_specs(genesis: FanucEnv) -> None:
    check_env_specs(genesis)


def test_flange_agrees_in_both_simulators_within_a_tenth_of_a_millimetre(
    genesis: FanucEnv,
) -> None:
    arms = genesis._arms
    assert isinstance(arms, GenesisArms)
    angles = _random_postures(genesis)
    arms.place(torch.ones(8, 1, dtype=torch.bool), angles, torch.zeros(8, 3))
    in_genesis = arms.entity.links[-1].get_pos()
    group = ArmGroup(genesis.robot, num_arms=1, solver_iterations=10)
    for row, joints in enumerate(angles.tolist()):
        group.write(0, joints, [0.0] * 6)
        flange = group.client.getLinkState(
            group.bodies[0], group.joints[-1], computeForwardKinematics=True
        )[4]
        in_bullet = torch.tensor(flange)
        torch.testing.assert_close(in_genesis[row], in_bullet, atol=1e-4, rtol=0)
        torch.testing.assert_close(genesis.tool_position[row], in_bullet, atol=1e-4, rtol=0)
    group.close()
    genesis.reset()


def test_equal_seeds_give_equal_starts_and_targets(genesis: FanucEnv, make_env: MakeEnv) -> None:
    bullet = make_env(num_envs=8)
    for env in (genesis, bullet):
        env.set_seed(5)
    for _ in range(2):
        ours, theirs = genesis.reset()["observation"], bullet.reset()["observation"]
        torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=0)
        torch.testing.assert_close(genesis.target, bullet.target)


def test_free_arms_move_as_in_the_other_simulator(genesis: FanucEnv, make_env: MakeEnv) -> None:
    """Gentle actions near the home posture, where no arm touches anything."""
    bullet = make_env(num_envs=8)
    actions = 0.1 * _actions(20)
    for env in (genesis, bullet):
        env.set_seed(5)
        root = env.reset()
        for action in actions:
            env.step(root.set("action", action))
    moved = (genesis.joint_positions - bullet.joint_positions).abs()
    assert moved.max() < 0.01
    genesis.reset()


def test_commanded_speed_is_reached_within_one_step(genesis: FanucEnv) -> None:
    velocity = torch.tensor(genesis.robot.velocity, dtype=torch.float32)
    genesis.step(genesis.reset().set("action", torch.full((8, 6), 0.1)))
    expected = (0.098 * velocity).expand(8, -1)
    torch.testing.assert_close(genesis.joint_velocities, expected, rtol=2e-2, atol=0)


def test_motors_accelerate_by_the_effort_of_the_urdf(
    genesis: FanucEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = genesis._arms
    assert isinstance(arms, GenesisArms)
    monkeypatch.setattr(arms, "_effort", torch.full((6,), 5.0))
    root, action = genesis.reset(), torch.zeros(8, 6)
    genesis.step(root.set("action", action))
    inertia = arms.entity.get_mass_mat()[:, 0, 0]
    action[:, 0] = 0.5
    genesis.step(root.set("action", action))
    torch.testing.assert_close(
        genesis.joint_velocities[:, 0] * inertia, torch.full((8,), 5.0 / 60), rtol=0.1, atol=0
    )


def test_states_respect_the_data_sheet_and_equal_those_of_the_simulator(genesis: FanucEnv) -> None:
    """Extreme actions, held until arms hit their limits, the floor and themselves."""
    arms, robot = genesis._arms, genesis.robot
    assert isinstance(arms, GenesisArms)
    lower, upper, velocity = (
        torch.tensor(values, dtype=torch.float32)
        for values in (robot.lower, robot.upper, robot.velocity)
    )
    root = genesis.reset()
    for action in _actions(100, hold=20):
        before = genesis.joint_positions
        step, _ = genesis.step_and_maybe_reset(root.set("action", action))
        assert genesis.observation_spec.is_in(step["next"].select("observation", "success"))
        if step["next", "done"].any():
            continue
        after = genesis.joint_positions
        assert ((after >= lower) & (after <= upper)).all()
        assert ((after - before).abs() <= velocity / 60 + 1e-6).all()
        assert (genesis.joint_velocities.abs() <= velocity).all()
        torch.testing.assert_close(arms.entity.get_dofs_position(), after, atol=0, rtol=0)


def test_arms_driven_into_the_floor_stay_above_it(genesis: FanucEnv) -> None:
    root, action = genesis.reset(), torch.zeros(8, 6)
    action[:, 1] = 0.3
    for _ in range(120):
        genesis.step(root.set("action", action))
    clearance = ArmGeometry(genesis.robot).clearance(genesis.joint_positions)
    assert clearance.max() < 0.01, "the test never drove the arms into the floor"
    assert clearance.min() > -0.001
    genesis.reset()


def test_a_non_finite_action_moves_nothing(genesis: FanucEnv) -> None:
    root, action = genesis.reset(), torch.zeros(8, 6)
    before = genesis.joint_positions
    action[1] = torch.nan
    genesis.step(root.set("action", action))
    torch.testing.assert_close(genesis.joint_positions, before, atol=1e-3, rtol=0)
    genesis.reset()
    genesis.step(root.set("action", torch.full((8, 6), 0.1)))
    assert (genesis.joint_velocities[1] > 0.1).all()


def test_partial_reset_leaves_other_arms_unchanged(genesis: FanucEnv) -> None:
    actions = _actions(24)
    trajectory(genesis, actions[:12], genesis.reset())
    state, before = genesis.state_dict(), genesis.observe()
    calm = trajectory(genesis, actions[12:], before.clone())
    genesis.load_state_dict(state)
    mask = torch.zeros(8, 1, dtype=torch.bool)
    mask[3] = True
    after = genesis.reset(before.clone().set("_reset", mask))
    others = ~mask.squeeze(-1)
    assert torch.equal(after["observation"][others], before["observation"][others])
    assert (after["observation"][3] != before["observation"][3]).any()
    disturbed = trajectory(genesis, actions[12:], after)
    assert (disturbed["next"][:, others] == calm["next"][:, others]).all()


def test_restored_state_reproduces_the_trajectory(genesis: FanucEnv) -> None:
    actions = _actions(60, hold=10)
    trajectory(genesis, actions[:35], genesis.reset())
    state = genesis.state_dict()
    first = trajectory(genesis, actions[35:], genesis.observe())
    genesis.load_state_dict(state)
    assert (trajectory(genesis, actions[35:], genesis.observe()) == first).all()


def test_picture_and_caption_show_the_arm(genesis: FanucEnv) -> None:
    genesis.reset()
    picture = genesis.render(1)
    assert picture.shape == (480, 640, 3)
    assert picture.float().std() > 10
    assert genesis.caption(1).startswith("distance ")


def test_tensors_are_encoded_as_arrays_are(genesis: FanucEnv) -> None:
    state = torch.stack((_random_postures(genesis), torch.zeros(8, 6)), 1)
    target = torch.rand(8, 3, generator=torch.Generator().manual_seed(1)) - 0.5
    options = {"dtype": torch.float32, "device": torch.device("cpu")}
    observation, distance = ArmEncoder(genesis.robot, torch, **options)(state, target)
    array, length = ArmEncoder(genesis.robot)(state.double().numpy(), target.numpy())
    torch.testing.assert_close(observation, torch.from_numpy(array), atol=5e-6, rtol=0)
    torch.testing.assert_close(distance, torch.from_numpy(length), atol=1e-6, rtol=0)


def test_state_of_the_other_simulator_is_refused(genesis: FanucEnv, make_env: MakeEnv) -> None:
    pybullet = make_env(num_envs=8)
    with pytest.raises(ConfigurationError, match=r"state is one of env\.simulator=pybullet"):
        genesis.load_state_dict(pybullet.state_dict())
    with pytest.raises(ConfigurationError, match=r"state is one of env\.simulator=genesis"):
        pybullet.load_state_dict(genesis.state_dict())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_workers": 2}, r"num_workers=2: .*no worker processes; env\.num_workers=null"),
        ({"urdf": "no/such.urdf"}, r"urdf=no/such\.urdf: cannot be read"),
    ],
)
def test_invalid_settings_raise_one_line_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        FanucEnv(simulator="genesis", **settings)


def test_urdf_that_genesis_cannot_load_is_named(genesis: FanucEnv, tmp_path: Path) -> None:
    text = Path(genesis.robot.urdf).read_text()
    body = '<geometry><capsule radius="0.06" length="0.24"/></geometry>'
    own = tmp_path / "meshes.urdf"
    own.write_text(text.replace(body, '<geometry><mesh filename="none.stl"/></geometry>'))
    with pytest.raises(ConfigurationError, match=r"meshes\.urdf: Genesis cannot load"):
        FanucEnv(num_envs=1, simulator="genesis", urdf=str(own))


def test_capabilities_are_known_before_the_scene_is_built(genesis: FanucEnv) -> None:
    settings = {"simulator": "genesis", "num_envs": 8}
    assert FanucEnv.capabilities_of(settings, torch.device("cpu")) == genesis.capabilities


class Scene:
    """The scene of arms that stand still, on the stand-in: it counts no transfers of Genesis."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.links: list[Any] = []

    def build(self, n_envs: int) -> None:
        self.values = torch.zeros(n_envs, 6, device=self.device)

    def get_mass_mat(self) -> torch.Tensor:
        return torch.eye(6, device=self.device).expand(len(self.values), 6, 6)

    def get_dofs_position(self) -> torch.Tensor:
        return self.values.clone()

    get_dofs_velocity = get_dofs_position

    def __getattr__(self, name: str) -> "Scene":  # modules, constructors, and other methods
        return self

    def __call__(self, *_: Any, **__: Any) -> "Scene":
        return self


def test_a_step_reads_nothing_on_the_host(
    accelerator: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envs.fanuc.genesis_arms.start_genesis", lambda _: Scene(accelerator))
    env = FanucEnv(
        num_envs=4,
        simulator="genesis",
        device=accelerator,
        max_episode_steps=3,
        success="hold",
        hold_steps=3,
        target_noise=0.01,
    )
    root, ends = env.reset(), torch.zeros((), dtype=torch.int64, device=accelerator)
    with count_host_reads() as counter:
        for _ in range(10):
            action = torch.zeros(4, 6, device=accelerator)
            step, root = env.step_and_maybe_reset(root.set("action", action))
            ends += step["next", "done"].sum()
    assert counter.host_reads == counter.copies == 0, counter.report()
    assert ends == 12


def test_absent_genesis_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"env: genesis not installed; .*\[genesis\]"):
        FanucEnv(simulator="genesis")
