"""Images of the wrist cameras as the policy observes them: varied by episode, and stacked."""

from typing import Any, Final

import torch
from torch import Tensor

from envs.lift_cube.camera import WristCamera
from envs.lift_cube.simulation import Simulation

_SAVED: Final = ("_shift", "_brightness", "stacks")


class WristImages:
    """Draws the images and keeps the last ones of each environment.

    Args:
        simulation: simulated scene with wrist cameras.
        camera: description of the wrist cameras.
        frames: number of images in a stack, at least 1.

    Attributes:
        stacks: last images of each environment, newest last `[N, frames * 3, H, W]`, uint8. At the
            start of an episode, all images of a stack are the first one.
    """

    def __init__(self, simulation: Simulation, camera: WristCamera, frames: int) -> None:
        self._simulation = simulation
        self._camera = camera
        self._frames = frames
        count, size, device = simulation.num_envs, camera.size, simulation.device
        self._shift = torch.zeros(count, 3, device=device)
        self._brightness = torch.ones(count, 1, 1, 1, device=device)
        self.stacks = torch.zeros(count, 3 * frames, size, size, dtype=torch.uint8, device=device)

    def vary(self, rows: Tensor, shift: Tensor, brightness: Tensor) -> None:
        """Set the positions of the cameras and the brightness for new episodes.

        Args:
            rows: indices of the environments, int64 `[K]`.
            shift: shift of each camera in the frame of its hand `[K, 3]`, m.
            brightness: factor of the brightness `[K]`.
        """
        self._shift[rows] = shift
        self._brightness[rows] = brightness.reshape(-1, 1, 1, 1)

    def _newest(self) -> Tensor:
        """Draw the current images `[N, 3, H, W]`, uint8."""
        images = self._simulation.images(self._shift).to(self._simulation.device)
        if self._camera.brightness == (1.0, 1.0):
            return images
        return (images * self._brightness).clamp(max=255).to(torch.uint8)

    def advance(self) -> None:
        """Append the current images to all stacks, after a step."""
        self.stacks = torch.cat([self.stacks[:, 3:], self._newest()], dim=1)

    def restart(self, rows: Tensor) -> None:
        """Fill the stacks of new episodes, in the environments `rows`, with their first image."""
        first = self._newest()[rows].repeat(1, self._frames, 1, 1)
        self.stacks = self.stacks.index_copy(0, rows, first)

    def state_dict(self) -> dict[str, Any]:
        """Return camera positions, brightness and stacks as tensors."""
        return {name: getattr(self, name).clone() for name in _SAVED}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of `state_dict`."""
        for name in _SAVED:
            setattr(self, name, state[name].to(self._simulation.device, copy=True))
