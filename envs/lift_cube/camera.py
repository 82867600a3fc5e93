"""The camera at the wrist, and the ways in which Genesis can draw it for many environments."""

import importlib.util
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from torchrl_gpu.arguments import CheckedFields, Range
from torchrl_gpu.errors import ConfigurationError

Renderer = Literal["auto", "batched", "sequential", "madrona"]
Way = Literal["batched", "sequential", "madrona"]

# Distance of the environments in metres where they share one scene: beyond `_FAR`, so that no
# camera sees another environment, and a multiple of the tiles of the floor.
SPACING = 20.0
_NEAR, _FAR = 0.01, 5.0

_OVERVIEW_SIZE = (640, 480)
_OVERVIEW_FOV = 40
_OVERVIEW_PLACE: Final = ((1.3, -0.9, 0.8), (0.4, 0.0, 0.2), (0.0, 0.0, 1.0))  # eye, target, up


class WristCamera(CheckedFields):
    """Camera mounted on the hand, looking at the finger tips.

    Args:
        renderer: way to draw the images. `batched` draws all environments in one call of the
            rasterizer, `sequential` one environment after another, `madrona` on an NVIDIA GPU;
            `auto` picks the fastest one that works on the machine.
        size: height and width of the images in pixels.
        geometry: shapes of the arm that are drawn: `visual`, its detailed meshes, or `collision`,
            the simple bodies of its collision model, which a machine without GPU draws several
            times as fast.
        fov: vertical field of view in degrees.
        position: position in the frame of the hand, in metres.
        tilt: rotation towards the fingers in degrees; 0 looks along the fingers.
        shift: maximum random shift of the position along each axis in metres, drawn for each
            episode.
        brightness: lowest and highest factor of the brightness, drawn for each episode, above 0.

    Raises:
        ConfigurationError: a setting is out of range.
    """

    renderer: Renderer = "auto"
    size: Annotated[int, Field(ge=8, le=1024)] = 84
    geometry: Literal["visual", "collision"] = "visual"
    fov: Annotated[float, Field(ge=10, le=150)] = 88.0
    position: tuple[float, float, float] = (0.07, 0.0, 0.03)
    tilt: Annotated[float, Field(ge=-90, le=90)] = 25.0
    shift: Annotated[float, Field(ge=0)] = 0.0
    brightness: Range = (1.0, 1.0)

    def mounting(self) -> NDArray[np.float64]:
        """Return the pose of the camera in the frame of the hand `[4, 4]`, float64.

        A camera looks along its negative z axis, x is right and y is up.
        """
        angle = np.deg2rad(self.tilt)
        cosine, sine = np.cos(angle), np.sin(angle)
        pose = np.eye(4)
        pose[:3, :3] = [[0.0, cosine, sine], [1.0, 0.0, 0.0], [0.0, sine, -cosine]]
        pose[:3, 3] = self.position
        return pose


def refuse_unseen(camera: WristCamera) -> None:
    """Refuse settings of a camera that draws nothing, unless they are the defaults."""
    defaults = vars(WristCamera())
    changed = [name for name, value in vars(camera).items() if value != defaults.get(name)]
    if changed:
        names = ", ".join(f"env.camera.{name}" for name in changed)
        raise ConfigurationError(f"{names}: without effect; add env.pixels=true")


def choose(renderer: Renderer, backend: str) -> Way:
    """Return the way to draw with a backend of Genesis, by the setting `renderer`.

    Raises:
        ConfigurationError: the machine cannot draw in this way.
    """
    has_madrona = importlib.util.find_spec("gs_madrona") is not None
    if renderer == "madrona":
        if backend != "cuda":
            raise ConfigurationError(
                "env.camera.renderer=madrona: this needs an NVIDIA GPU; batched works everywhere"
            )
        if not has_madrona:
            raise ConfigurationError(
                "env.camera.renderer=madrona: not installed; pip install gs-madrona"
            )
    if renderer != "auto":
        return renderer
    return "madrona" if backend == "cuda" and has_madrona else "batched"


class Cameras:
    """The wrist camera of all environments and a camera that overlooks the scene.

    They are added to a scene of Genesis before it is built; the second one only with `overview`.

    Attributes:
        has_overview: whether there is the second camera, so that `overview_image` works.
    """

    def __init__(
        self, gs: Any, scene: Any, wrist: WristCamera, way: Way, *, overview: bool
    ) -> None:
        self._way = way
        self._scene = scene
        self.has_overview = overview
        self._pose = gs.utils.geom.trans_quat_to_T
        self._mounting = wrist.mounting()
        self._wrist = scene.add_camera(
            res=(wrist.size, wrist.size), fov=wrist.fov, near=_NEAR, far=_FAR
        )
        if overview:
            # Madrona draws all its cameras in one size; the rasterizer draws those for debugging.
            self._overview = scene.add_camera(
                res=_OVERVIEW_SIZE, fov=_OVERVIEW_FOV, near=_NEAR, far=_FAR, debug=True
            )
        place = (np.array(vector) for vector in _OVERVIEW_PLACE)
        self._overview_pose = gs.utils.geom.pos_lookat_up_to_T(*place)

    def wrist_images(
        self, position: Tensor, rotation: Tensor, shift: Tensor, chosen: Tensor | None = None
    ) -> Tensor:
        """Return images of the wrist cameras `[K, 3, H, W]`, uint8, of the scene as it is now.

        Args:
            position: positions of the hand `[N, 3]`, m.
            rotation: orientations of the hand, unit quaternions w, x, y, z `[N, 4]`.
            shift: shift of each camera in the frame of its hand `[N, 3]`, m.
            chosen: the K environments to draw, bool `[N]`; None for all.
        """
        # Genesis places cameras on the host, and Apple GPUs have no float64: one copy.
        known = [position, rotation, shift]
        if chosen is not None:
            known.append(chosen.unsqueeze(-1))
        hand = torch.cat(known, dim=-1).cpu().double().numpy()
        rows = None if chosen is None else np.flatnonzero(hand[:, 10]).tolist()
        if rows == []:
            return torch.empty(0, 3, *self._wrist.res, dtype=torch.uint8)
        mounting = np.repeat(self._mounting[None], len(hand), axis=0)
        mounting[:, :3, 3] += hand[:, 7:10]
        poses = self._pose(hand[:, :3], hand[:, 3:7]) @ mounting
        return self._draw(self._wrist, poses, rows).permute(0, 3, 1, 2).contiguous()

    def overview_image(self, index: int) -> Tensor:
        """Return the image `[480, 640, 3]`, uint8, of the scene of one environment."""
        poses = np.repeat(self._overview_pose[None], self._scene.n_envs, axis=0)
        return self._draw(self._overview, poses, [index])[0]

    def _draw(self, camera: Any, poses: Any, chosen: Collection[int] | None) -> Tensor:
        """Draw the scene of the chosen environments by a camera with the poses `[N, 4, 4]`."""
        if self._way == "sequential":
            everyone = range(len(poses)) if chosen is None else chosen
            # Genesis binds the camera to the first environment.
            offsets = self._scene.envs_offset - self._scene.envs_offset[0]
            poses[:, :3, 3] += np.asarray(offsets)
            images: list[Tensor] = []
            for number in everyone:
                camera.set_pose(transform=poses[number])
                images.append(_image(camera, is_first=not images))
            return torch.stack(images)
        camera.set_pose(transform=poses)
        if self._way == "madrona" and camera is self._wrist:
            drawn = _image(camera)
            return drawn if chosen is None else drawn[list(chosen)]
        with _only(self._scene, camera, chosen):
            drawn = _image(camera)
        return drawn.reshape(-1, *drawn.shape[-3:])  # of one environment without its dimension


@contextmanager
def _only(scene: Any, camera: Any, chosen: Collection[int] | None) -> Iterator[None]:
    """Let the rasterizer draw the chosen environments alone; None for all.

    Genesis has no argument for it: its renderer skips an environment whose pass returns nothing.
    """
    if chosen is None or scene.n_envs == 1:
        yield
        return
    target = scene.visualizer.rasterizer._camera_targets[camera.uid]
    draw = target._forward_pass

    def draw_chosen(*args: Any, env_idx: int, **options: Any) -> Any:
        return draw(*args, env_idx=env_idx, **options) if env_idx in chosen else None

    target._forward_pass = draw_chosen
    try:
        yield
    finally:
        del target._forward_pass


def _image(camera: Any, *, is_first: bool = True) -> Tensor:
    # Genesis would draw the bodies where they were at its last step, before a reset moved them.
    image = camera.render(rgb=True, force_render=is_first)[0]
    # The rasterizer returns views with negative strides, Madrona tensors on the GPU.
    return image if isinstance(image, Tensor) else torch.from_numpy(np.ascontiguousarray(image))
