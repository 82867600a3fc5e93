from pathlib import Path
from typing import Any

import pytest

from envs.lift_cube import Arm, LiftCubeEnv
from torchrl_gpu.errors import ConfigurationError


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"file": "arm.stl"}, "MJCF"),
        ({"home": (0.0, 1.0)}, "it takes 7"),
        ({"stiffness": (1.0,)}, "it takes 9"),
        ({"pads": ("hand",)}, "it takes 2 values"),
        ({"grip_point": ()}, "it takes 3 values"),
        ({"workspace_low": (1.0, 0.0, 0.0)}, "below workspace_high"),
    ],
)
def test_wrong_description_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Arm(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"file": "nowhere/arm.xml"}, "not found"),
        ({"hand": "palm"}, "no link palm; it has: .*hand"),
        ({"pads": ("left", "right")}, "no link left"),
        ({"fingers": ("thumb", "finger_joint2")}, "no joint thumb; it has: .*finger_joint1"),
    ],
)
def test_parts_that_the_file_lacks_are_named(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        LiftCubeEnv(num_envs=1, arm=Arm(**settings))
