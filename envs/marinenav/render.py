"""Images of seas from above, drawn with PIL; no display is needed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from envs.marinenav.colregs import give_way_angle
from envs.marinenav.perception import SENSING_RANGE
from envs.marinenav.physics import VESSEL_LENGTH, VESSEL_WIDTH, current
from envs.marinenav.placement import MAP_SIZE
from envs.marinenav.sea import GOAL_RADIUS, Episode
from envs.marinenav.simulator import pick, to_host
from torchrl_gpu.environments.captions import grid

Colour = tuple[int, int, int]
Fill = tuple[int, ...]
Point = tuple[float, float]

SIZE: Final = 720  # pixels, width of an image
MARGIN: Final = 6.0  # m of sea shown around the map
SUPERSAMPLING: Final = 2
ARROW_SPACING: Final = 3.5  # m between the arrows of the current

DEEP: Final = (16, 42, 67)
SHALLOW: Final = (36, 84, 116)
FOAM: Final = (120, 176, 204)
CORE: Final = (178, 216, 232)
BUOY: Final = (240, 110, 60)
ALARM: Final = (255, 72, 88)
WRECK: Final = (96, 110, 122)
INK: Final = (12, 28, 44)
ROBOTS: Final = (
    (255, 209, 102),
    (6, 214, 160),
    (239, 134, 190),
    (122, 196, 255),
    (190, 160, 255),
    (255, 160, 110),
    (180, 230, 110),
    (240, 240, 240),
)


class SeaRenderer:
    """Draws seas, north up, with the trails of their robots in the current episode.

    Each robot's hull and goal ring share a colour. A thin circle marks its sensing range; a grey
    hull has collided. Where the collision regulations require a turn, a red wedge spans from the
    robot's course to the required course.
    """

    def __init__(self) -> None:
        self._trails: dict[int, list[list[Point]]] = {}
        self._steps: dict[int, int] = {}

    def draw(self, episode: Episode, index: int | Sequence[int] = 0) -> Tensor:
        """Draw the current state of one sea, or of several in a grid.

        Returns:
            Image `[720, 720, 3]`, uint8, on the host; less high for a grid with empty rows.
        """
        seas = [index] if isinstance(index, int) else list(index)
        chosen = torch.tensor(seas, device=episode.sea.steps.device)
        shown = to_host(pick(episode, chosen))
        rows, columns = grid(len(seas))
        size = SIZE // columns
        picture = Image.new("RGB", (size * columns, size * rows), DEEP)
        for slot, sea in enumerate(seas):
            chart = _Chart(size * SUPERSAMPLING)
            self._draw_sea(chart, pick(shown, torch.tensor([slot])), sea)
            tile = chart.image.resize((size, size), Image.Resampling.LANCZOS)
            picture.paste(tile, (slot % columns * size, slot // columns * size))
        return torch.from_numpy(np.array(picture))

    def _draw_sea(self, chart: _Chart, episode: Episode, index: int) -> None:
        sea = episode.sea
        chart.draw_current(sea.vortices)
        for x, y, radius in sea.obstacles[:, :, 0].T.tolist():
            if radius > 0.0:
                chart.circle((x, y), radius, BUOY, (255, 235, 220))
                chart.circle((x, y), 0.35 * radius, (255, 235, 220))

        motion, steps = sea.motion[:, :, 0].T.tolist(), int(sea.steps[0])
        trails = self._follow(index, steps, [(row[0], row[1]) for row in motion])
        goals = sea.goal[:, :, 0].T.tolist()
        phi = (give_way_angle(episode.view) * sea.active)[:, 0].tolist()
        flags = zip(*(x[:, 0].tolist() for x in (sea.exists, sea.active, sea.reached)), strict=True)
        for number, (exists, is_active, has_arrived) in enumerate(flags):
            if not exists:
                continue
            colour = ROBOTS[number % len(ROBOTS)]
            goal = (goals[number][0], goals[number][1])
            chart.circle(goal, GOAL_RADIUS, (*colour, 110 if has_arrived else 35), (*colour, 230))
            chart.circle(goal, 0.35, colour)
            chart.draw_trail(trails[number], colour)
            x, y, heading = motion[number][:3]
            if is_active:
                chart.ring((x, y), SENSING_RANGE, (*colour, 60))
                course = math.atan2(motion[number][7], motion[number][6])
                chart.draw_duty((x, y), course, phi[number])
            chart.draw_hull((x, y), heading, colour if is_active or has_arrived else WRECK)

    def _follow(self, index: int, steps: int, places: list[Point]) -> list[list[Point]]:
        """Return the trails of the robots; a lower step number marks a new episode."""
        if steps < self._steps.get(index, steps + 1) or steps == 0:
            self._trails[index] = [[] for _ in places]
        trails = self._trails[index]
        if steps != self._steps.get(index) or not trails[0]:
            for trail, place in zip(trails, places, strict=True):
                trail.append(place)
        self._steps[index] = steps
        return trails


class _Chart:
    """Square image of the map, `size` pixels wide, with shapes at positions in metres."""

    def __init__(self, size: int) -> None:
        self._scale = size / (MAP_SIZE + 2.0 * MARGIN)  # pixels per metre
        self.image = Image.new("RGB", (size, size), DEEP)
        self._pen = ImageDraw.Draw(self.image, "RGBA")
        corners = [self._pixel(MAP_SIZE, 0.0), self._pixel(0.0, MAP_SIZE)]
        self._pen.rectangle(corners, fill=SHALLOW)

    def circle(self, place: Point, radius: float, fill: Fill, outline: Fill | None = None) -> None:
        """Draw a filled circle."""
        self._pen.ellipse(self._box(place, radius), fill, outline, self._pixels(0.15))

    def ring(self, place: Point, radius: float, colour: Fill) -> None:
        """Draw a thin circle."""
        self._pen.ellipse(self._box(place, radius), None, colour, SUPERSAMPLING)

    def draw_current(self, vortices: Tensor) -> None:
        """Draw the current as arrows, and the cores of the vortices `[4, V, 1]`."""
        if vortices.shape[1] == 0:
            return
        places = torch.arange(ARROW_SPACING / 2.0, MAP_SIZE, ARROW_SPACING, dtype=vortices.dtype)
        points = torch.cartesian_prod(places, places).T[..., None]
        flow = current(points, vortices)[..., 0].T.tolist()
        for (x, y), (u, v) in zip(points[..., 0].T.tolist(), flow, strict=True):
            speed = math.hypot(u, v)
            if speed >= 0.02:
                length = ARROW_SPACING * min(0.9, 0.35 + 0.5 * speed)
                colour = (*FOAM, round(70 + 150 * min(1.0, speed)))
                self._draw_arrow((x, y), (u / speed * length, v / speed * length), colour)
        for x, y, circulation, radius in vortices[:, :, 0].T.tolist():
            if circulation != 0.0:
                self.circle((x, y), radius, CORE)
                for factor in (2.0, 3.2):
                    self.ring((x, y), factor * radius, (*CORE, 140))

    def draw_trail(self, trail: list[Point], colour: Colour) -> None:
        """Draw the past positions of a robot, which fade with their age."""
        pixels = [self._pixel(*place) for place in trail]
        for number, ends in enumerate(itertools.pairwise(pixels)):
            fade = 40 + 180 * (number + 1) / len(pixels)
            self._pen.line(ends, (*colour, round(fade)), self._pixels(0.22))

    def draw_duty(self, place: Point, course: float, phi: float) -> None:
        """Draw the turn by `phi` that the collision regulations require."""
        if phi > 0.0:
            # PIL measures angles clockwise from east, courses are clockwise from north.
            start = math.degrees(course) - 90.0
            end = start + math.degrees(phi)
            self._pen.pieslice(self._box(place, 7.0), start, end, (*ALARM, 90), (*ALARM, 230))

    def draw_hull(self, place: Point, heading: float, colour: Colour) -> None:
        """Draw a vessel."""
        half, beam = VESSEL_LENGTH / 2.0, VESSEL_WIDTH / 2.0
        outline = (
            (half, 0.0),
            (0.4 * half, beam),
            (-half, 0.85 * beam),
            (-half, -0.85 * beam),
            (0.4 * half, -beam),
        )
        c, s = math.cos(heading), math.sin(heading)
        pixels = [
            self._pixel(place[0] + c * x - s * y, place[1] + s * x + c * y) for x, y in outline
        ]
        self._pen.polygon(pixels, colour, INK, self._pixels(0.12))
        self._pen.line([self._pixel(*place), pixels[0]], INK, self._pixels(0.15))

    def _draw_arrow(self, middle: Point, vector: Point, colour: Fill) -> None:
        (x, y), (u, v) = middle, vector
        start, tip = self._pixel(x - u / 2, y - v / 2), self._pixel(x + u / 2, y + v / 2)
        self._pen.line([start, tip], colour, SUPERSAMPLING)
        for side in (-0.5, 0.5):
            barb = (x + u / 4 - side * v * 0.5, y + v / 4 + side * u * 0.5)
            self._pen.line([self._pixel(*barb), tip], colour, SUPERSAMPLING)

    def _box(self, place: Point, radius: float) -> list[Point]:
        x, y = place
        return [self._pixel(x + radius, y - radius), self._pixel(x - radius, y + radius)]

    def _pixel(self, x: float, y: float) -> Point:
        """Return the pixel of a position; x points up, y to the right."""
        return self._scale * (y + MARGIN), self._scale * (MAP_SIZE + MARGIN - x)

    def _pixels(self, length: float) -> int:
        return round(length * self._scale)
