"""The camera at the wrist, and the ways in which Genesis can draw it for many environments."""

import importlib.util
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field
from torch import Tensor

from torchrl_gpu.arguments import CheckedFields
from torchrl_gpu.errors import ConfigurationError


def _ascending(limits: tuple[float, float]) -> tuple[float, float]:
    low, high = limits
    if not 0 < low <= high:
        raise ValueError("write [lowest, highest], above 0")
    return limits


# Lowest and highest value of a random factor.
Range = Annotated[tuple[float, float], AfterValidator(_ascending)]
Renderer = Literal["auto", "batched", "sequential", "madrona"]
Way = Literal["batched", "sequential", "madrona"]

# Distance of the environments in metres where they share one scene: beyond `_FAR`, so that no
# camera sees another environment, and a multiple of the tiles of the floor.
SPACING = 20.0
_NEAR, _FAR = 0.01, 5.0

_OVERVIEW_SIZE = (640, 480)
_OVERVIEW = {"pos": (1.3, -0.9, 0.8), "lookat": (0.4, 0.0, 0.2), "fov": 40}


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


def choose(renderer: Renderer, backend: str) -> Way:
    """Return the way to draw on this machine.

    Args:
        renderer: setting of the user.
        backend: backend of Genesis.

    Raises:
        ConfigurationError: the machine cannot draw in the way that the user set.
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

    Args:
        gs: the package `genesis`.
        scene: scene of Genesis, before it is built.
        wrist: description of the wrist camera.
        way: way to draw.
        overview: also add the camera that overlooks the scene.
    """

    def __init__(
        self, gs: Any, scene: Any, wrist: WristCamera, way: Way, *, overview: bool
    ) -> None:
        self._way = way
        self._scene = scene
        self._pose = gs.utils.geom.trans_quat_to_T
        self._mounting = wrist.mounting()
        self._wrist = scene.add_camera(
            res=(wrist.size, wrist.size), fov=wrist.fov, near=_NEAR, far=_FAR
        )
        self._overview = (
            scene.add_camera(res=_OVERVIEW_SIZE, near=_NEAR, far=_FAR, **_OVERVIEW)
            if overview
            else None
        )

    def wrist_images(self, position: Tensor, rotation: Tensor, shift: Tensor) -> Tensor:
        """Return the images of the wrist cameras `[N, 3, H, W]`, uint8.

        Args:
            position: positions of the hand `[N, 3]`, m.
            rotation: orientations of the hand, unit quaternions w, x, y, z `[N, 4]`.
            shift: shift of each camera in the frame of its hand `[N, 3]`, m.
        """
        # Converted on the host: Apple GPUs have no float64.
        hand = self._pose(position.cpu().double().numpy(), rotation.cpu().double().numpy())
        mounting = np.repeat(self._mounting[None], len(hand), axis=0)
        mounting[:, :3, 3] += shift.cpu().double().numpy()
        poses = hand @ mounting
        if self._way == "sequential":
            images = self._one_after_another(self._wrist, poses)
        else:
            images = self._at_once(self._wrist, poses)
        return images.permute(0, 3, 1, 2).contiguous()

    def overview_image(self, index: int) -> Tensor:
        """Return the image `[480, 640, 3]`, uint8, of the scene of one environment."""
        assert self._overview is not None
        poses = np.asarray(self._overview.get_transform()).reshape(-1, 4, 4)[:1]
        poses = np.repeat(poses, self._scene.n_envs, axis=0)
        if self._way == "sequential":
            return self._one_after_another(self._overview, poses[: index + 1])[index]
        return self._at_once(self._overview, poses)[index]

    def _at_once(self, camera: Any, poses: Any) -> Tensor:
        camera.set_pose(transform=poses)
        images = _image(camera)
        return images.reshape(-1, *images.shape[-3:])  # of one environment without its dimension

    def _one_after_another(self, camera: Any, poses: Any) -> Tensor:
        # Genesis binds the camera to the first environment.
        offsets = self._scene.envs_offset - self._scene.envs_offset[0]
        images = []
        for pose, offset in zip(poses, offsets, strict=False):
            pose[:3, 3] += np.asarray(offset)
            camera.set_pose(transform=pose)
            images.append(_image(camera))
        return torch.stack(images)


def _image(camera: Any) -> Tensor:
    image = camera.render(rgb=True)[0]
    # The rasterizer returns views with negative strides, Madrona tensors on the GPU.
    return image if isinstance(image, Tensor) else torch.from_numpy(np.ascontiguousarray(image))
