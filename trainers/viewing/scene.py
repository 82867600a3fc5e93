"""Draws the scene of an environment in the page of a viewer, in three dimensions."""

import importlib
from typing import Any, Final

import numpy as np

from torchrl_gpu.environments.scene import Scene, Shape
from torchrl_gpu.errors import ConfigurationError

_AMBIENT: Final = 1.5
_SUN: Final = 2.0
_SUN_POSITION: Final = (1.0, 1.0, 3.0)  # shines to the origin


class DrawnScene:
    """The bodies of a scene in the page of a server of viser.

    Raises:
        ConfigurationError: a pose has the name of no body, or the file of a mesh cannot be read;
            nothing is drawn then.
    """

    def __init__(self, server: Any, scene: Scene) -> None:
        if unknown := scene.poses(0).keys() - scene.bodies.keys():
            raise ConfigurationError(f"no body is named {', '.join(sorted(unknown))}")
        self._scene = scene
        self._rotations: Any = importlib.import_module("viser.transforms").SO3
        meshes = {name: list(map(mesh_of, shapes)) for name, shapes in scene.bodies.items()}
        server.initial_camera.position = scene.camera
        server.initial_camera.look_at = scene.look_at
        server.initial_camera.fov = scene.field_of_view
        # The lights of viser, an environment and shadows, take a browser without a GPU seconds.
        server.scene.configure_environment_map(hdri=None)
        server.scene.configure_default_lights(enabled=False)
        server.scene.add_light_ambient("/lights/ambient", intensity=_AMBIENT)
        server.scene.add_light_directional("/lights/sun", intensity=_SUN, position=_SUN_POSITION)
        self._atomic = server.atomic
        self._frames: dict[str, Any] = {}
        for name, shapes in scene.bodies.items():
            self._frames[name] = server.scene.add_frame(f"/{name}", show_axes=False)
            for number, (shape, mesh) in enumerate(zip(shapes, meshes[name], strict=True)):
                server.scene.add_mesh_simple(
                    f"/{name}/shape_{number}",
                    *(mesh.vertices, mesh.faces),
                    color=tuple(map(float, shape.color)),  # integers would be of 255
                    flat_shading=True,
                )
        # Rotation and position of each body `[7]`.
        self._sent = {name: np.full(7, np.nan) for name in scene.bodies}

    def move(self, index: int) -> None:
        """Show the environment of this index; only changes are sent."""
        poses = self._scene.poses(index)
        matrices = np.reshape([*poses.values()], (-1, 4, 4))
        rotations = self._rotations.from_matrix(matrices[:, :3, :3]).wxyz
        places = np.concatenate((rotations, matrices[:, :3, 3]), 1)
        with self._atomic():
            for name, place in zip(poses, places, strict=True):
                is_new = place != self._sent[name]
                if is_new[:4].any():
                    self._frames[name].wxyz = place[:4]
                if is_new[4:].any():
                    self._frames[name].position = place[4:]
        self._sent.update(zip(poses, places, strict=True))


def mesh_of(shape: Shape) -> Any:
    """Return a shape as a mesh in the frame of its body."""
    trimesh: Any = importlib.import_module("trimesh")  # comes with viser
    create, size = trimesh.creation, shape.size
    if shape.kind == "mesh":
        try:
            mesh = trimesh.load_mesh(shape.file)
            if mesh.units:  # a Collada file has a unit
                mesh.convert_units("meters")
        except Exception as error:  # readers of meshes raise errors of any kind
            raise ConfigurationError(
                f"{shape.file}: trimesh cannot read this mesh: {type(error).__name__}: {error}"
            ) from error
        mesh.apply_scale(size)
    elif shape.kind == "box":
        mesh = create.box(size)
    elif shape.kind == "sphere":
        mesh = create.icosphere(radius=size[0])
    else:
        make = create.cylinder if shape.kind == "cylinder" else create.capsule
        mesh = make(height=size[0], radius=size[1])
    return mesh.apply_transform(shape.pose)
