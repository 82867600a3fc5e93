import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.envs import check_env_specs

from envs.lift_cube import LiftCubeEnv
from envs.lift_cube.arm import PANDA, Arm
from envs.lift_cube.control import damping_matrix, joint_changes
from envs.lift_cube.simulation import FRICTION, Simulation
from envs.lift_cube.starts import Starts
from tests.helpers.environments import trajectory
from tests.helpers.genesis import ERROR_CHECKS, traffic_of_10_steps
from torchrl_gpu.arguments import check_settings
from torchrl_gpu.checkpoints.state_file import load_state, save_state
from torchrl_gpu.errors import ConfigurationError


def _random_actions(env: LiftCubeEnv, steps: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return 2.0 * torch.rand(steps, env.num_envs, 4, generator=generator) - 1.0


def test_numbers_of_the_process_keep_their_precision(lift: LiftCubeEnv) -> None:
    smallest = float("5e-324")
    assert smallest * 1.0 != 0.0


def test_the_tools_of_torch_compile_can_be_imported_beside_genesis(lift: LiftCubeEnv) -> None:
    assert importlib.import_module("torch.utils.cpp_extension").include_paths()


def test_specs_hold(lift: LiftCubeEnv) -> None:
    check_env_specs(lift)


def test_actions_are_taken_without_their_gradients(lift: LiftCubeEnv) -> None:
    actions = _random_actions(lift, 2).requires_grad_()
    assert not trajectory(lift, actions, lift.reset())["next", "reward"].requires_grad


def test_grip_point_follows_its_target(lift: LiftCubeEnv) -> None:
    lift.set_mode("eval")
    root = lift.reset()
    action = torch.zeros(lift.num_envs, 4)
    action[:, 1] = torch.tensor([0.5, -0.5, 0.25, 0.0])
    before = lift.grip.clone()
    trajectory(lift, action.repeat(10, 1, 1), root)
    trajectory(lift, torch.zeros(10, lift.num_envs, 4), lift.observe())
    moved = lift.grip - before
    assert torch.allclose(moved[:, 1], 10 * 0.02 * action[:, 1], atol=0.01)
    assert moved[:, [0, 2]].abs().max() < 0.02


def test_jacobian_is_that_of_the_simulator(lift: LiftCubeEnv) -> None:
    trajectory(lift, _random_actions(lift, 5), lift.reset())
    simulation = lift.simulation
    scene, target = simulation.observe(), lift.grip + 0.01
    theirs = simulation.robot.get_jacobian(simulation.hand, torch.tensor(simulation.arm.grip_point))
    way = torch.cat([target - scene.grip, scene.tilt], dim=-1)
    expected = joint_changes(theirs[:, :, :7].mT, way, damping_matrix(lift.device))
    ours = simulation.joints_towards(scene, target) - scene.joints
    assert torch.allclose(ours, expected, atol=1e-4)


def test_scene_is_that_of_the_getters_of_the_simulator(lift: LiftCubeEnv) -> None:
    lift.set_mode("train")
    lift.curriculum = 1.0
    root = lift.reset()
    actions = _random_actions(lift, 15)
    actions[:, :2, 3] = -1.0  # two grippers close around the cube
    trajectory(lift, actions, root)
    lift.curriculum = 0.25
    simulation = lift.simulation
    scene, robot, cube = simulation.observe(), simulation.robot, simulation.cube
    position, speed = robot.get_dofs_position(), robot.get_dofs_velocity()
    assert torch.equal(torch.cat([scene.joints, scene.fingers], dim=1), position)
    assert torch.equal(torch.cat([scene.joint_speeds, scene.finger_speeds], dim=1), speed)
    assert torch.equal(scene.cube, cube.get_pos())
    pads = [robot.get_link(name).idx for name in simulation.arm.pads]
    contacts = robot.get_contacts(with_entity=cube)
    links = torch.stack([contacts["link_a"], contacts["link_b"]], dim=-1)
    touches = [
        [bool((links[row] == pad).any(-1)[contacts["valid_mask"][row]].any()) for pad in pads]
        for row in range(lift.num_envs)
    ]
    assert scene.touches.tolist() == touches
    assert scene.touches.any()


def test_curriculum_starts_with_the_gripper_around_the_cube(lift: LiftCubeEnv) -> None:
    lift.set_mode("train")
    lift.curriculum = 1.0
    root = lift.reset()
    assert (lift.cube - lift.grip).norm(dim=-1).max() < 0.005
    close_and_lift = torch.zeros(40, lift.num_envs, 4)
    close_and_lift[:, :, 3] = -1.0
    close_and_lift[10:, :, 2] = 0.4
    steps = trajectory(lift, close_and_lift, root)
    assert steps["next", "success"].any(0).all()
    lift.curriculum = 0.25


def test_evaluation_has_no_curriculum(lift: LiftCubeEnv) -> None:
    lift.set_mode("eval")
    lift.curriculum = 1.0
    lift.reset()
    assert (lift.cube - lift.grip).norm(dim=-1).min() > 0.03
    lift.curriculum = 0.25


def test_partial_reset_changes_no_other_environment(lift: LiftCubeEnv) -> None:
    lift.set_mode("train")
    lift.curriculum = 1.0
    trajectory(lift, _random_actions(lift, 5), lift.reset())
    before = lift.observe()["observation"].clone()
    mask = torch.tensor([[False], [True], [False], [False]])
    lift.reset(TensorDict({"_reset": mask}, [4]))
    after = lift.observe()["observation"]
    kept = [0, 2, 3]
    assert torch.equal(after[kept], before[kept])
    assert not torch.equal(after[1], before[1])
    assert (lift.cube - lift.grip).norm(dim=-1)[1] < 0.005  # the curriculum holds there too
    lift.curriculum = 0.25


def test_episodes_end_one_by_one(lift: LiftCubeEnv) -> None:
    lift.set_mode("eval")
    root = lift.reset()
    root = trajectory(lift, torch.zeros(20, 4, 4), root)[-1]["next"].exclude("reward")
    mask = torch.tensor([[True], [False], [False], [False]])
    root = lift.reset(root.set("_reset", mask))
    steps = trajectory(lift, torch.zeros(lift.max_episode_steps - 20, 4, 4), root)
    truncated = steps["next", "truncated"][:, :, 0]
    assert not truncated[:, 0].any()
    assert truncated[-1, 1:].all()


def test_equal_seeds_give_equal_episodes(lift: LiftCubeEnv) -> None:
    episodes = []
    for _ in range(2):
        lift.set_seed(7)
        episodes.append(trajectory(lift, _random_actions(lift, 5), lift.reset()))
    first, second = episodes
    assert torch.equal(first["next", "observation"], second["next", "observation"])


def test_restored_state_continues_bit_for_bit(lift: LiftCubeEnv, tmp_path: Path) -> None:
    lift.set_mode("train")
    lift.reset()
    actions = _random_actions(lift, 40)
    trajectory(lift, actions[:20], lift.observe())
    save_state(tmp_path / "state", lift.state_dict())
    expected = trajectory(lift, actions[20:], lift.observe())
    lift.reset()
    lift.load_state_dict(load_state(tmp_path / "state"))
    repeated = trajectory(lift, actions[20:], lift.observe())
    for key in ("observation", "reward", "done"):
        assert torch.equal(repeated["next", key], expected["next", key]), key


def test_a_state_of_another_kind_of_device_goes_on_with_other_random_numbers(
    lift: LiftCubeEnv, caplog: pytest.LogCaptureFixture
) -> None:
    lift.set_seed(4)
    expected = lift.reset()["observation"]
    state = lift.state_dict() | {"generator": torch.zeros(16, dtype=torch.uint8)}  # as of cuda
    lift.set_seed(4)
    lift.load_state_dict(state)
    (warning,) = caplog.messages
    assert "random state was saved on another kind of device" in warning
    assert torch.equal(lift.observe()["observation"], expected)
    assert torch.equal(lift.reset()["observation"], expected)


def test_a_cube_slides_as_far_as_its_friction_lets_it(lift: LiftCubeEnv) -> None:
    lift.set_mode("eval")  # the hand starts away from the cube
    lift.reset()
    simulation, cube = lift.simulation, lift.simulation.cube
    factor = torch.tensor([0.2, 0.6, 1.0, 3.0])
    everywhere = torch.ones(4, dtype=torch.bool)
    simulation.set_friction(everywhere, factor)
    joints, start = simulation.observe().joints.clone(), lift.cube
    speed = torch.zeros(4, cube.n_dofs)
    speed[:, 1] = 0.5
    cube.set_dofs_velocity(speed)
    for _ in range(40):
        simulation.step(joints, torch.ones(4, 1))
    distance = (simulation.observe().cube - start)[:, 1]
    simulation.set_friction(everywhere, torch.ones(4))
    expected = 0.5**2 / (2 * 9.81 * FRICTION * factor)  # v^2 / (2 g mu)
    assert torch.allclose(distance, expected, rtol=0.05, atol=0.006), (distance, expected)


def test_a_step_reads_nothing_on_the_host(lift: LiftCubeEnv) -> None:
    traffic = traffic_of_10_steps(lift)
    assert traffic.host_reads == ERROR_CHECKS, traffic.report()
    assert traffic.copies_to_device == 0, traffic.report()


def test_terms_of_the_reward_are_metrics(lift: LiftCubeEnv) -> None:
    lift.metrics()
    trajectory(lift, _random_actions(lift, 3), lift.reset())
    metrics = lift.metrics()
    names = ("reach", "floor", "grasp", "lifted", "high", "drop", "smooth")
    assert metrics.keys() == {f"reward/{name}" for name in names}
    assert 0.0 < metrics["reward/reach"] < 1.0
    assert lift.metrics() == {}


def test_an_evaluation_in_between_leaves_the_terms_of_the_reward(lift: LiftCubeEnv) -> None:
    lift.set_mode("train")
    lift.metrics()
    trajectory(lift, _random_actions(lift, 3), lift.reset())
    state = lift.state_dict()
    expected = lift.metrics()
    trajectory(lift, _random_actions(lift, 9), lift.reset())
    lift.load_state_dict(state)
    assert lift.metrics() == expected


def test_a_state_of_another_task_is_refused(lift: LiftCubeEnv) -> None:
    state = lift.state_dict()
    state["term_sums"] = state["term_sums"][:2]
    with pytest.raises(ConfigurationError, match=r"env\.task=lift: .* of another task"):
        lift.load_state_dict(state)


def test_a_reset_heals_an_environment_after_an_action_that_is_no_number(lift: LiftCubeEnv) -> None:
    lift.set_mode("eval")
    actions = _random_actions(lift, 3)
    lift.set_seed(9)
    actions[1, 2] = torch.nan
    trajectory(lift, actions, lift.reset())
    assert lift.observe()["observation"][[0, 1, 3]].isfinite().all()
    lift.reset(TensorDict({"_reset": torch.tensor([[False], [False], [True], [False]])}, [4]))
    steps = trajectory(lift, _random_actions(lift, 5), lift.observe())
    assert steps["next", "observation"].isfinite().all()
    assert (lift.cube[2] - lift.grip[2]).norm() < 0.5


def test_memory_that_runs_out_during_the_build_ends_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:  # the message of Genesis on the CPU
        raise RuntimeError("[allocate_raw_memory@58] Virtual memory allocation (9 B) failed.\n")

    monkeypatch.setattr("genesis.Scene.build", fail)
    with pytest.raises(
        ConfigurationError, match=r"^env.num_envs=1: .*; fewer environments may fit$"
    ):
        Simulation(PANDA, 1, torch.device("cpu"))


def test_capabilities_are_known_before_the_scene_is_built(lift: LiftCubeEnv) -> None:
    settings = check_settings(LiftCubeEnv, {"num_envs": 4}, "env", ("mode", "device", "seed"))
    assert LiftCubeEnv.capabilities_of(settings, torch.device("cpu")) == lift.capabilities
    for key, elements in lift.capabilities.elements.items():
        spec = lift.action_spec if key == "action" else lift.observation_spec[key]
        assert len(elements) == spec.shape[-1]


def test_only_demonstrations_are_drawn(lift: LiftCubeEnv) -> None:
    with pytest.raises(ConfigurationError, match="only in mode=demo"):
        lift.render()


def test_a_range_beyond_the_workspace_is_refused_before_genesis_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr("envs.lift_cube.simulation.start_genesis")
    with pytest.raises(ConfigurationError, match=r"^env\.cube_range=5: .* choose at most 0\.2,"):
        LiftCubeEnv(num_envs=1, cube_range=5.0)


def test_cubes_out_of_reach_are_refused(lift: LiftCubeEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    arm = Arm(workspace_low=(-0.15, -0.7, 0.01), workspace_high=(1.25, 0.7, 0.4))
    monkeypatch.setattr(lift.simulation, "arm", arm)
    with pytest.raises(ConfigurationError, match=r"^env\.cube_range=0\.6: the gripper"):
        Starts(
            lift.simulation,
            generator,
            cube_range=0.6,
            joint_noise=0.0,
            camera=lift.camera,
            friction=lift.friction,
            mass=lift.mass,
        )
