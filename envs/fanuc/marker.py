"""Marker of a target in pictures: a sphere, and bars that are visible from afar."""

from __future__ import annotations

from envs.fanuc.bullet import pybullet

COLOUR = (0.9, 0.1, 0.25, 1.0)
MIN_RADIUS = 0.03  # m
# The flange of an arm that has reached its target hides the sphere, but not the ends of the bars.
BAR_LENGTH, BAR_WIDTH = 0.16, 0.012  # m


def add_marker(client: int, radius: float = MIN_RADIUS) -> int:
    """Add a marker under the floor; it has no mass and collides with nothing.

    Args:
        client: PyBullet client.
        radius: radius of the sphere in metres, at least 0.03. Three bars of 0.16 m along the axes
            cross in its centre.

    Returns:
        Index of the body, whose position is the centre of the sphere.
    """
    bars = [
        [BAR_LENGTH / 2 if axis == bar else BAR_WIDTH / 2 for axis in range(3)] for bar in range(3)
    ]
    shape = pybullet.createVisualShapeArray(
        shapeTypes=[pybullet.GEOM_SPHERE, *[pybullet.GEOM_BOX] * 3],
        radii=[max(radius, MIN_RADIUS), 0.0, 0.0, 0.0],
        halfExtents=[[0.0, 0.0, 0.0], *bars],
        rgbaColors=[COLOUR] * 4,
        physicsClientId=client,
    )
    return pybullet.createMultiBody(0, -1, shape, (0.0, 0.0, -1.0), physicsClientId=client)
