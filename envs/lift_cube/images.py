"""Images of the wrist cameras as the policy observes them: varied by episode, and stacked."""

from typing import Any, Final

import torch
from torch import Tensor

from envs.lift_cube.camera import WristCamera
from envs.lift_cube.simulation import Simulation

_SAVED: Final = ("_shift", "_brightness", "stacks")


class WristImages:
    """Draws the images and keeps the last ones of each environment.

    Attributes:
        stacks: last images of each environment, newest last `[N, frames * 3, H, W]`, uint8. At the
            start of an episode, all images of a stack are the first one.
    """

    def __init__(self, simulation: Simulation, camera: WristCamera, frames: int) -> None:
        self._simulation, self._camera, self._frames = simulation, camera, frames
        count, size, device = simulation.num_envs, camera.size, simulation.device
        self._shift = torch.zeros(count, 3, device=device)
        self._brightness = torch.ones(count, device=device)
        self.stacks = torch.zeros(count, 3 * frames, size, size, dtype=torch.uint8, device=device)

    def advance(self) -> None:
        """Append the current images to all stacks, after a step."""
        images = self._with_brightness(self._simulation.images(self._shift))
        self.stacks = torch.cat([self.stacks[:, 3:], images], dim=1)

    def restart(self, chosen: Tensor, shift: Tensor, brightness: Tensor) -> None:
        """Fill the stacks of new episodes with their first image; only these are drawn.

        Args:
            chosen: environments that begin an episode, bool `[N]`.
            shift: shift of each camera in the frame of its hand `[N, 3]`, m.
            brightness: factor of the brightness `[N]`.
        """
        self._shift = torch.where(chosen.unsqueeze(-1), shift, self._shift)
        self._brightness = torch.where(chosen, brightness, self._brightness)
        images = self._simulation.images(self._shift, chosen)
        if not len(images):
            return
        # The images are in the order of the chosen environments, whose numbers the host would wait
        # for; the other environments take any image.
        rank = (chosen.cumsum(0) - 1).clamp(min=0)
        first = self._with_brightness(images[rank]).repeat(1, self._frames, 1, 1)
        self.stacks = torch.where(chosen.view(-1, 1, 1, 1), first, self.stacks)

    def _with_brightness(self, images: Tensor) -> Tensor:
        if self._camera.brightness == (1.0, 1.0):
            return images
        return (images * self._brightness.view(-1, 1, 1, 1)).clamp(max=255).to(torch.uint8)

    def state_dict(self) -> dict[str, Any]:
        """Return camera positions, brightness and stacks as tensors."""
        return {name: getattr(self, name).clone() for name in _SAVED}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of `state_dict`."""
        for name in _SAVED:
            setattr(self, name, state[name].to(self._simulation.device, copy=True))
