"""Starts of episodes: postures near the home posture, and targets of the unlocked grades."""

import torch
from torch import Tensor

from envs.fanuc.curriculum import Curriculum
from envs.fanuc.geometry import ArmGeometry
from envs.fanuc.targets import GRADES, ReachableTargets
from envs.streams import random_words


class Starts:
    """Draws the starts of episodes from a bank of postures and targets.

    The maximum random displacement of each target, `target_noise`, is in metres.

    Attributes:
        streams: states of the random number generators, one for each arm, int64 `[B]`.
        positions: positions of all targets in the base frame `[K, 3]`, metres.
        joints: joint angles that reach them `[K, N]`, rad.
    """

    def __init__(
        self,
        geometry: ArmGeometry,
        bank: ReachableTargets,
        curriculum: Curriculum,
        target_noise: float,
        streams: Tensor,
    ) -> None:
        device = streams.device
        self.streams, self._curriculum, self._geometry = streams, curriculum, geometry
        self._postures = bank.starts.to(device)
        self.joints, self.positions = bank.joints.to(device), bank.positions.to(device)
        self._noise = target_noise / geometry.robot.reach

    def draw(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return joint angles `[B, N]`, rad, and targets in the base frame `[B, 3]`, metres.

        Only the generators of the arms in the mask, bool `[B, 1]`, advance.
        """
        joints = self.joints.shape[1]
        words, streams = random_words(self.streams, (2 + joints if self._noise else 2,))
        self.streams = torch.where(mask.view(-1), streams, self.streams)
        words = words & 0x7FFFFFFF
        num_targets = (self._curriculum.level + 1) * len(self.joints) // len(GRADES)
        start, target = words[0] % len(self._postures), words[1] % num_targets
        if self._noise:
            # The sum over the joints is at most the noise, and each moves the tool by its angle
            # times the reach at most.
            turn = (words[2:].T.float() / 2**30 - 1) * (self._noise / joints)
            angles = self.joints.index_select(0, target) + turn
            geometry = self._geometry
            positions = geometry.position(angles.clamp(geometry.lower, geometry.upper))
        else:
            positions = self.positions.index_select(0, target)
        return self._postures.index_select(0, start), positions
