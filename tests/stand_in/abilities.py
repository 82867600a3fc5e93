"""Abilities that the stand-in accelerator has or lacks, like the accelerators of each maker."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch

from torchrl_gpu.devices.accelerator import Accelerator, Presence

# A name that TorchRL's collectors accept.
DEVICE_TYPE: Final = "npu"


@dataclass(frozen=True)
class Abilities:
    """Abilities of an accelerator.

    Args:
        float64: whether it has tensors of float64.
        fused_adam: whether it has a fused kernel for Adam.
        pinned_memory: whether it copies from pinned memory without blocking the host.
        generator: whether `torch.manual_seed` seeds its random number generator, and its state can
            be read and set.
        lerp: whether it has a kernel of `lerp`.
        byte_views: whether its tensors can be viewed as another dtype, in the same memory.
        graphs: whether it can capture its work in a graph.
        searchsorted: whether it has a kernel of `searchsorted`.
    """

    float64: bool = True
    fused_adam: bool = False
    pinned_memory: bool = False
    generator: bool = True
    lerp: bool = True
    byte_views: bool = True
    graphs: bool = False
    searchsorted: bool = True

    def record(self) -> type[Accelerator]:
        """Return the class of a device with these abilities, for the table of all kinds."""
        abilities = self

        class StandIn(Accelerator):
            device_type = DEVICE_TYPE

            @classmethod
            def look(cls) -> Presence:
                return Presence(1)

            @classmethod
            def names(cls, count: int) -> list[str]:
                return [f"{DEVICE_TYPE}:{index}" for index in range(count)]

            @property
            def fused_adam(self) -> bool:
                return abilities.fused_adam

            @property
            def float64(self) -> bool:
                return abilities.float64

        if abilities.pinned_memory:
            StandIn.pinned_transfers = True
        StandIn.lerp, StandIn.byte_views = abilities.lerp, abilities.byte_views
        StandIn.searchsorted = abilities.searchsorted
        return StandIn


MAKERS: Final = {
    "mps": Abilities(float64=False, fused_adam=True),
    "xpu": Abilities(float64=False, fused_adam=True, pinned_memory=True, graphs=True),
    "directml": Abilities(
        float64=False, generator=False, lerp=False, byte_views=False, searchsorted=False
    ),
}


class Hardware:
    """The stand-in accelerator of this process.

    Attributes:
        is_present: whether the process is within a block of `stand_in_accelerator`.
        abilities: abilities within that block.
        random_state: state of the random number generator, apart from that of the host.
    """

    def __init__(self) -> None:
        self.is_present = False
        self.abilities = Abilities()
        self.seed(0)

    def switch_on(self, abilities: Abilities) -> None:
        """Begin a block, with the same random numbers as in every other block."""
        self.is_present, self.abilities = True, abilities
        self.seed(0)

    def switch_off(self) -> None:
        """End a block."""
        self.is_present, self.abilities = False, Abilities()

    def seed(self, seed: int) -> None:
        """Seed the random number generator."""
        self.random_state = torch.Generator().manual_seed(seed).get_state()

    @contextmanager
    def draws(self) -> Iterator[None]:
        """Let torch draw from the generator of the device within the block."""
        of_host = torch.get_rng_state()
        torch.set_rng_state(self.random_state)
        try:
            yield
        finally:
            self.random_state = torch.get_rng_state()
            torch.set_rng_state(of_host)


HARDWARE: Final = Hardware()
