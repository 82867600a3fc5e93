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
from envs.marinenav.layout import MAP_SIZE
from envs.marinenav.perception import SENSING_RANGE
from envs.marinenav.physics import VESSEL_LENGTH, VESSEL_WIDTH, current
from envs.marinenav.sea import GOAL_RADIUS
from envs.marinenav.simulator import Episode, pick, to_device
from torchrl_gpu.environments.captions import grid

Colour = tuple[int, int, int]
Point = tuple[float, float]

MARGIN: Final = 4.0  # m of sea shown around the map
SUPERSAMPLING: Final = 2
ARROW_SPACING: Final = 3.5  # m between the arrows of the current

DEEP: Final = (16, 42, 67)
SHALLOW: Final = (36, 84, 116)
FOAM: Final = (120, 176, 204)
CORE: Final = (178, 216, 232)
BUOY: Final = (240, 110, 60)
ALARM: Final = (255, 72, 88)
WRECK: Final = (96, 110, 122)
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

    Args:
        size: width and height of the image, in pixels.
    """

    def __init__(self, size: int = 720) -> None:
        self.size = size
        self._scale = 1.0  # pixels per metre of the current image
        self._trails: dict[int, list[list[Point]]] = {}
        self._steps: dict[int, int] = {}

    def draw(self, episode: Episode, index: int | Sequence[int] = 0) -> Tensor:
        """Draw the current state of seas.

        Args:
            episode: state of all seas, and views of their robots.
            index: index of the sea, or indices of several seas that are drawn in a grid.

        Returns:
            Image `[H, W, 3]`, uint8, on the host.
        """
        seas = [index] if isinstance(index, int) else list(index)
        chosen = torch.tensor(seas, device=episode.sea.steps.device)
        shown = to_device(pick(episode, chosen), torch.device("cpu"))
        rows, columns = grid(len(seas))
        size = self.size // columns
        self._scale = size * SUPERSAMPLING / (MAP_SIZE + 2.0 * MARGIN)
        picture = Image.new("RGB", (size * columns, size * rows), DEEP)
        for slot, sea in enumerate(seas):
            tile = self._tile(pick(shown, torch.tensor([slot])), sea)
            tile = tile.resize((size, size), Image.Resampling.LANCZOS)
            picture.paste(tile, (slot % columns * size, slot // columns * size))
        return torch.from_numpy(np.array(picture))

    def _tile(self, episode: Episode, index: int) -> Image.Image:
        sea = episode.sea
        side = round(self._scale * (MAP_SIZE + 2.0 * MARGIN))
        image = Image.new("RGB", (side, side), DEEP)
        pen = ImageDraw.Draw(image, "RGBA")
        corner = [self._pixel(MAP_SIZE, 0.0), self._pixel(0.0, MAP_SIZE)]
        pen.rectangle(corner, fill=SHALLOW)
        self._draw_current(pen, sea.vortices)
        for x, y, radius in sea.obstacles[:, :, 0].T.tolist():
            if radius > 0.0:
                self._disc(pen, (x, y), radius, BUOY, (255, 235, 220))
                self._disc(pen, (x, y), 0.35 * radius, (255, 235, 220), None)

        motion, steps = sea.motion[:, :, 0].T.tolist(), int(sea.steps[0])
        trails = self._follow(index, steps, [(row[0], row[1]) for row in motion])
        goals = sea.goal[:, :, 0].T.tolist()
        phi = (give_way_angle(episode.view) * sea.active)[:, 0].tolist()
        flags = zip(*(x[:, 0].tolist() for x in (sea.exists, sea.active, sea.reached)), strict=True)
        for number, (exists, is_active, has_arrived) in enumerate(flags):
            if not exists:
                continue
            colour = ROBOTS[number % len(ROBOTS)]
            self._draw_goal(pen, goals[number], colour, has_arrived)
            self._draw_trail(pen, trails[number], colour)
            x, y, heading = motion[number][:3]
            if is_active:
                self._circle(pen, (x, y), SENSING_RANGE, (*colour, 60), 1)
                course = math.atan2(motion[number][7], motion[number][6])
                self._draw_duty(pen, (x, y), course, phi[number])
            hull = colour if is_active or has_arrived else WRECK
            self._draw_hull(pen, (x, y), heading, hull)
        return image

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

    def _draw_current(self, pen: ImageDraw.ImageDraw, vortices: Tensor) -> None:
        if vortices.shape[1] == 0:
            return
        places = torch.arange(ARROW_SPACING / 2.0, MAP_SIZE, ARROW_SPACING, dtype=vortices.dtype)
        points = torch.cartesian_prod(places, places).T[..., None]
        flow = current(points, vortices)[..., 0].T.tolist()
        for (x, y), (u, v) in zip(points[..., 0].T.tolist(), flow, strict=True):
            speed = math.hypot(u, v)
            if speed < 0.02:
                continue
            length = ARROW_SPACING * min(0.9, 0.35 + 0.5 * speed)
            colour = (*FOAM, round(70 + 150 * min(1.0, speed)))
            self._arrow(pen, (x, y), (u / speed * length, v / speed * length), colour)
        for x, y, circulation, radius in vortices[:, :, 0].T.tolist():
            if circulation != 0.0:
                self._disc(pen, (x, y), radius, CORE, None)
                for ring in (2.0, 3.2):
                    self._circle(pen, (x, y), ring * radius, (*CORE, 140), 1)

    def _draw_goal(
        self, pen: ImageDraw.ImageDraw, place: Sequence[float], colour: Colour, has_arrived: bool
    ) -> None:
        at = (place[0], place[1])
        self._disc(pen, at, GOAL_RADIUS, (*colour, 110 if has_arrived else 35), (*colour, 230))
        self._disc(pen, at, 0.35, colour, None)

    def _draw_trail(self, pen: ImageDraw.ImageDraw, trail: list[Point], colour: Colour) -> None:
        pixels = [self._pixel(*place) for place in trail]
        for number, (start, end) in enumerate(itertools.pairwise(pixels)):
            fade = 40 + 180 * (number + 1) / len(pixels)
            pen.line([start, end], (*colour, round(fade)), round(0.22 * self._scale))

    def _draw_duty(self, pen: ImageDraw.ImageDraw, place: Point, course: float, phi: float) -> None:
        if phi <= 0.0:
            return
        # PIL measures angles clockwise from east, courses are clockwise from north.
        start = math.degrees(course) - 90.0
        box = self._box(place, 7.0)
        pen.pieslice(box, start, start + math.degrees(phi), (*ALARM, 90), (*ALARM, 230))

    def _draw_hull(
        self, pen: ImageDraw.ImageDraw, place: Point, heading: float, colour: Colour
    ) -> None:
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
        pen.polygon(pixels, colour, (12, 28, 44), round(0.12 * self._scale))
        bow, mast = pixels[0], self._pixel(*place)
        pen.line([mast, bow], (12, 28, 44), round(0.15 * self._scale))

    def _arrow(
        self,
        pen: ImageDraw.ImageDraw,
        middle: Point,
        vector: Point,
        colour: tuple[int, int, int, int],
    ) -> None:
        (x, y), (u, v) = middle, vector
        start, tip = self._pixel(x - u / 2, y - v / 2), self._pixel(x + u / 2, y + v / 2)
        pen.line([start, tip], colour, SUPERSAMPLING)
        for side in (-0.5, 0.5):
            barb = (x + u / 4 - side * v * 0.5, y + v / 4 + side * u * 0.5)
            pen.line([self._pixel(*barb), tip], colour, SUPERSAMPLING)

    def _disc(
        self,
        pen: ImageDraw.ImageDraw,
        place: Point,
        radius: float,
        fill: tuple[int, ...],
        outline: tuple[int, ...] | None,
    ) -> None:
        pen.ellipse(self._box(place, radius), fill, outline, round(0.15 * self._scale))

    def _circle(
        self,
        pen: ImageDraw.ImageDraw,
        place: Point,
        radius: float,
        colour: tuple[int, ...],
        width: int,
    ) -> None:
        pen.ellipse(self._box(place, radius), None, colour, width * SUPERSAMPLING)

    def _box(self, place: Point, radius: float) -> list[Point]:
        x, y = place
        return [self._pixel(x + radius, y - radius), self._pixel(x - radius, y + radius)]

    def _pixel(self, x: float, y: float) -> Point:
        """Return the pixel of a position; x points up, y to the right."""
        return self._scale * (y + MARGIN), self._scale * (MAP_SIZE + MARGIN - x)
