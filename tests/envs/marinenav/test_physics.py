import math

import pytest
import torch
from torch import Tensor

from envs.marinenav.colregs import give_way_angle
from envs.marinenav.noise import make_noise, uniform
from envs.marinenav.perception import View, perceive, surroundings
from envs.marinenav.physics import (
    HEADING,
    POSITION,
    THRUST,
    VELOCITY,
    VESSEL_RADIUS,
    current,
    sail,
    to_body,
)
from envs.streams import random_words, seed_streams

NONE = torch.zeros(4, 0, 1, dtype=torch.float64)
CPU = torch.device("cpu")


def _vessel(heading: float = 0.0, thrust: tuple[float, float] = (0.0, 0.0)) -> Tensor:
    motion = torch.zeros(11, 1, 1, dtype=torch.float64)
    motion[HEADING], motion[THRUST] = heading, torch.tensor(thrust).view(2, 1, 1).double()
    return motion


@pytest.mark.parametrize(
    ("thrust", "steady"),
    [
        ((1000.0, 1000.0), (3.333, 0.0, 0.0)),
        ((500.0, 500.0), (2.270, 0.0, 0.0)),
        ((1000.0, -500.0), (0.183, -0.622, 0.9815)),
        ((1000.0, 0.0), (0.813, -1.407, 0.751)),
    ],
)
def test_steady_states(thrust: tuple[float, float], steady: tuple[float, float, float]) -> None:
    motion = _vessel(0.7, thrust)
    for _ in range(200):
        motion = sail(motion, torch.zeros(2, 1, 1), NONE)
    heading, (x, y, yaw) = motion[HEADING], motion[VELOCITY]
    u, v = to_body(heading.cos(), heading.sin(), x, y)
    assert [z.item() for z in (u, v, yaw)] == pytest.approx(steady, abs=1e-3)


def test_thrust_integrates_its_rate_within_limits() -> None:
    motion = sail(_vessel(), torch.tensor([0.5, -1.0]).view(2, 1, 1).double(), NONE)
    assert motion[THRUST].flatten().tolist() == [250.0, -500.0]
    for _ in range(10):
        motion = sail(motion, torch.ones(2, 1, 1).double(), NONE)
    assert motion[THRUST].flatten().tolist() == [1000.0, 1000.0]


def test_current_circulates_around_the_vortex() -> None:
    """North of a vortex c - p points south, so t = (-u_y, u_x) points west: counter-clockwise."""
    vortex = torch.tensor([10.0, 10.0, 3.0 * math.pi, 0.5]).view(4, 1, 1)
    points = torch.tensor([[12.0, 10.5, 10.25, 10.0], [10.0, 10.0, 10.0, 10.0]])[..., None]
    flow = current(points, vortex)[..., 0].T.tolist()
    assert flow[0] == pytest.approx([0.0, -0.75])  # Gamma / (2 pi d)
    assert flow[1] == pytest.approx([0.0, -3.0])  # edge of the core
    assert flow[2] == pytest.approx([0.0, -1.5])  # half the core radius
    assert flow[3] == pytest.approx([0.0, 0.0])


def test_drifting_vessel_moves_with_the_current() -> None:
    vortex = torch.tensor([0.0, 0.0, 3.0 * math.pi, 0.5]).view(4, 1, 1).double()
    motion = _vessel()
    motion[POSITION] = torch.tensor([10.0, 0.0]).view(2, 1, 1).double()
    after = sail(motion, torch.zeros(2, 1, 1), vortex)
    assert after[1].item() == pytest.approx(-0.5 * 0.15, rel=1e-2)


def _view(place: tuple[float, float], velocity: tuple[float, float], speed: float = 2.0) -> View:
    own = torch.zeros(7, 1, 1, dtype=torch.float64)
    own[2] = speed
    objects = torch.zeros(5, 5, 1, 1, dtype=torch.float64)
    objects[:, 0, 0, 0] = torch.tensor([*place, *velocity, VESSEL_RADIUS])
    mask = torch.zeros(5, 1, 1, dtype=torch.bool)
    mask[0] = True
    return View(own, objects, mask)


def _tangent(place: tuple[float, float]) -> float:
    distance, b = math.hypot(*place), VESSEL_RADIUS + 1.0
    root = math.sqrt(distance**2 - b**2)
    return math.atan2(place[1], place[0]) + math.asin(b / distance) + math.atan2(2.7951, root)


def test_head_on_vessel_requires_a_turn_to_starboard() -> None:
    phi = give_way_angle(_view((15.0, 0.0), (-2.0, 0.0)))
    assert phi.item() == pytest.approx(_tangent((15.0, 0.0)), abs=1e-5)


def test_robot_gives_way_to_a_vessel_from_starboard() -> None:
    """The vessel heads west with the robot on its port side: the robot must give way."""
    phi = give_way_angle(_view((8.0, 8.0), (0.0, -2.0)))
    assert phi.item() == pytest.approx(_tangent((8.0, 8.0)), abs=1e-5)


@pytest.mark.parametrize(
    ("place", "velocity", "speed"),
    [
        ((8.0, -8.0), (0.0, 2.0), 2.0),  # from port: the other vessel gives way
        ((15.0, 0.0), (2.0, 0.0), 2.0),  # same course
        ((15.0, 0.0), (-0.4, 0.0), 2.0),  # slower than the minimum speed
        ((15.0, 0.0), (-2.0, 0.0), 0.4),  # robot slower than the minimum speed
        ((18.0, 0.0), (-2.0, 0.0), 2.0),  # too far
        ((2.0, 0.0), (-2.0, 0.0), 2.0),  # inside the safety margin: no tangent
    ],
)
def test_no_turn_is_required_in_other_situations(
    place: tuple[float, float], velocity: tuple[float, float], speed: float
) -> None:
    assert give_way_angle(_view(place, velocity, speed)).item() == 0.0


def test_nearest_applicable_object_determines_the_turn() -> None:
    view = _view((9.0, 0.0), (2.0, 0.0))  # no rule applies
    view.objects[:, 1, 0, 0] = torch.tensor([12.0, 0.0, -2.0, 0.0, VESSEL_RADIUS])
    view.objects[:, 2, 0, 0] = torch.tensor([15.0, 0.0, -2.0, 0.0, VESSEL_RADIUS])
    view.mask[1:3] = True
    assert give_way_angle(view).item() == pytest.approx(_tangent((12.0, 0.0)), abs=1e-5)


@pytest.mark.parametrize("obstacles", [2, 4, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nearest_objects_are_observed_in_order(obstacles: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    motion = torch.zeros(11, 1, 50, dtype=dtype)
    buoys = 60.0 * torch.rand(3, obstacles, 50, generator=generator, dtype=dtype) - 30.0
    buoys[2] = (buoys[2] / 30.0).clamp(min=0.0)  # half of the buoys are missing
    goal, active = torch.zeros(2, 1, 50, dtype=dtype), torch.ones(1, 50, dtype=torch.bool)
    around = surroundings(motion, active, buoys)
    view, _ = perceive(motion, goal, around, seed_streams(0, 50, CPU), None)
    clearance = (buoys[:2].norm(dim=0) - buoys[2]).masked_fill(buoys[2] == 0.0, torch.inf)
    expected = clearance.sort(dim=0).values[:5]
    expected = expected[:, None].masked_fill(expected[:, None] > 20.0, torch.inf)
    seen = (view.objects[:2].norm(dim=0) - view.objects[4]).masked_fill(~view.mask, torch.inf)
    torch.testing.assert_close(seen[: len(expected)], expected)
    assert not view.mask[len(expected) :].any()


def test_sensor_noise_has_the_documented_distribution() -> None:
    noise = make_noise(CPU, torch.float64)
    words, _ = random_words(seed_streams(0, 500, CPU), (200,))
    error, factor = torch.stack(noise.displacement(words)), noise.radius_factor(words)
    assert error.mean().item() == pytest.approx(0.0, abs=5e-4)
    assert error.std().item() == pytest.approx(0.05, rel=1e-2)
    assert torch.corrcoef(error.view(2, -1))[0, 1].abs() < 0.01
    for component in error:
        for one in (component, component.abs()):
            both = torch.stack((one.flatten(), factor.flatten()))
            assert torch.corrcoef(both)[0, 1].abs() < 0.015
    # E cos(angle) of a von Mises distribution is I1(kappa) / I0(kappa)
    angle = (factor - 0.8) / 0.2 * math.pi
    ratio = torch.special.i1(torch.tensor(1.0)) / torch.special.i0(torch.tensor(1.0))
    assert angle.cos().mean().item() == pytest.approx(ratio.item(), abs=5e-3)
    assert 0.6 <= factor.min() < 0.61
    assert 0.99 < factor.max() <= 1.0


def test_generators_are_uniform_independent_and_advance() -> None:
    streams = seed_streams(3, 400, CPU)
    first, after = random_words(streams, (200,))
    second, _ = random_words(after, (200,))
    draws = uniform(torch.cat((first, second)), torch.float64).reshape(2 * 400, 400)
    assert ((draws > 0) & (draws < 1)).all()
    assert draws.mean().item() == pytest.approx(0.5, abs=2e-3)
    assert draws.var().item() == pytest.approx(1 / 12, abs=1e-3)
    correlation = torch.corrcoef(draws.T)
    correlation.fill_diagonal_(0.0)
    assert correlation.abs().max() < 0.2
    correlation = torch.corrcoef(draws)
    correlation.fill_diagonal_(0.0)
    assert correlation.abs().max() < 0.3
    assert not torch.isin(seed_streams(4, 400, CPU), streams).any()
    assert torch.equal(seed_streams(3, 7, CPU), streams[:7])
