from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from envs.fanuc.robot import ASSETS
from trainers.run import main

LR_MATE = ASSETS / "lr_mate_200ic.urdf"


def examine(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["torchrl-gpu", "robot", *arguments])
    return main()


def test_an_arm_is_described_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert examine(monkeypatch, str(LR_MATE), "home=[0,0,0,0,-1.57,0]") == 0
    report = capfd.readouterr().out
    assert "  1           -2.97        2.97          6.11       500.00" in report
    assert "[0.00,0.00,0.00,0.00,-1.57,0.00] rad, with a gap of" in report
    (share,) = (line.split()[1] for line in report.splitlines() if "  reachable" in line)
    assert 60 < int(share) < 90
    image = np.asarray(Image.open(tmp_path / "lr_mate_200ic.png")).astype(int)
    is_blue = image[..., 2] - image[..., 0] > 60
    assert is_blue.mean() > 0.002  # reachable positions
    assert report.splitlines()[-1].endswith(
        f"python -m trainers.run agent=sac env=fanuc env.urdf={LR_MATE} "
        "'env.home=[0.00,0.00,0.00,0.00,-1.57,0.00]'"
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), "file= is missing"),
        (("missing.urdf",), "missing.urdf: there is no such file"),
        (("arm.xml",), "arm.xml: fanuc reads URDF files"),
        ((str(LR_MATE), "tool=hand"), "has no env.tool=hand behind its last joint, but link_6"),
        ((str(LR_MATE), "home=[0,0]"), "home=[0.0, 0.0]: the arm has 6 joints"),
        ((str(LR_MATE), "home=[0,2.4,0,0,0,0]"), "has to be above 20 mm"),
        ((str(LR_MATE), "picture=arm.jpg"), "picture=arm.jpg: name a .png file"),
        ((__file__,), "is not XML"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_line(
    arguments: Sequence[str],
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert examine(monkeypatch, *arguments) == 2
    output = capfd.readouterr()
    assert not output.out
    assert output.err.startswith("error: ")
    assert line in output.err
    assert output.err.count("\n") == 1
