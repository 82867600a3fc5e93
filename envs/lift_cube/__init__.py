"""Lift-cube: an arm in Genesis lifts a cube, seen by state or by a camera at its wrist."""

from envs.lift_cube.arm import Arm
from envs.lift_cube.camera import WristCamera
from envs.lift_cube.env import LiftCubeEnv

__all__ = ["Arm", "LiftCubeEnv", "WristCamera"]
