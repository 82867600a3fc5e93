import io
import math
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.helpers.clock import Clock
from torchrl_gpu.tables import human_time
from trainers.training.progress import ProgressDisplay


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(display: ProgressDisplay, clock: Clock, rate: float, seconds: float, start: int = 0) -> int:
    """Update ten times a second at a steady rate; return the final number of frames."""
    for tick in range(1, round(10 * seconds) + 1):
        clock.now += 0.1
        display.update(start + round(rate * tick / 10))
    return start + round(rate * seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def file() -> io.StringIO:
    return io.StringIO()


# Plain lines

LINES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "all parts": (
        {"total": 60_000},
        {"frames": 20_000, "success": 0.87, "mean_return": 3.2, "stage": "evaluation"},
        "frames 20,000/60,000   2,000 frames/s   success 87 %   return 3.2   evaluation"
        "   20 s left",
    ),
    "another unit": (
        {"total": 500, "unit": "episodes"},
        {"frames": 120},
        "episodes 120/500   12 episodes/s   32 s left",
    ),
    "neither rate nor time left before the first frame": (
        {"total": 1000},
        {"frames": 0},
        "frames 0/1,000",
    ),
    "no negative time after the last frame": (
        {"total": 300},
        {"frames": 320, "stage": "evaluating 0/200 episodes"},
        "frames 320/300   32 frames/s   evaluating 0/200 episodes   0 s left",
    ),
    "a return that is no number": (
        {"total": 1000},
        {"frames": 100, "mean_return": math.nan},
        "frames 100/1,000   10 frames/s   return nan   1 min 30 s left",
    ),
}


@pytest.mark.parametrize("case", LINES)
def test_line_after_ten_seconds(case: str, file: io.StringIO, clock: Clock) -> None:
    settings, values, line = LINES[case]
    display = ProgressDisplay(**settings, file=file, clock=clock)
    clock.now += 10
    display.update(**values)
    assert file.getvalue() == f"  {line}\n"


def test_at_most_one_line_in_ten_seconds_and_one_at_the_end(
    file: io.StringIO, clock: Clock
) -> None:
    with ProgressDisplay(100_000, file=file, clock=clock) as display:
        frames = run(display, clock, rate=1000, seconds=35)
        assert frames == 35_000
        assert len(file.getvalue().splitlines()) == 3
    lines = file.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[-1] == "  frames 35,000/100,000   1,000 frames/s   in 35 s"
    assert all(
        re.match(r"  frames [\d,]+/100,000   1,000 frames/s   .* left$", s) for s in lines[:3]
    )


def test_a_terminal_that_closes_ends_no_training(clock: Clock) -> None:
    class Closing(Terminal):
        def write(self, text: str) -> int:
            if self.lost:
                raise OSError(5, "Input/output error")
            return super().write(text)

        lost = False

    terminal = Closing()
    display = ProgressDisplay(1000, file=terminal, clock=clock)
    terminal.lost = True
    clock.now += 10
    display.update(100)
    display.message("evaluated")
    display.close()


def test_rate_covers_seconds_and_time_left_covers_minutes(file: io.StringIO, clock: Clock) -> None:
    display = ProgressDisplay(10**6, file=file, clock=clock)
    frames = run(display, clock, rate=10_000, seconds=20)
    run(display, clock, rate=100, seconds=60, start=frames)
    assert "   100 frames/s   4 min 33 s left" in file.getvalue().splitlines()[-1]
    run(display, clock, rate=100, seconds=600, start=frames + 6000)
    assert "   100 frames/s   2 h 02 min left" in file.getvalue().splitlines()[-1]
    display.close()
    assert "   391 frames/s   in 11 min 20 s" in file.getvalue().splitlines()[-1]


def test_resumed_run_counts_only_its_own_frames(file: io.StringIO, clock: Clock) -> None:
    display = ProgressDisplay(200_000, initial=100_000, file=file, clock=clock)
    clock.now += 10
    display.update(110_000)
    assert file.getvalue() == "  frames 110,000/200,000   1,000 frames/s   1 min 30 s left\n"
    display.close()
    assert "1,000 frames/s   in 10 s" in file.getvalue()


def test_omitted_value_is_kept(file: io.StringIO, clock: Clock) -> None:
    display = ProgressDisplay(1000, file=file, clock=clock)
    display.update(10, success=0.5)
    display.update(20, mean_return=-123.4567)
    clock.now += 10
    display.update(30)
    assert "success 50 %   return -123 " in file.getvalue()


def test_units_that_take_longer_than_a_second_have_seconds_in_place_of_a_rate(
    file: io.StringIO, clock: Clock
) -> None:
    display = ProgressDisplay(40, file=file, unit="trials", clock=clock)
    for trial, seconds in enumerate((30, 60, 84)):
        display.update(trial, stage=f"trial {trial}")
        clock.now += seconds
        display.update(trial + 1, stage="")
    assert file.getvalue().splitlines()[-1] == "  trials 3/40   58 s per trial   35 min 46 s left"
    display.close()
    assert file.getvalue().splitlines()[-1] == "  trials 3/40   58 s per trial   in 2 min 54 s"


def test_messages_have_their_own_lines(file: io.StringIO, clock: Clock) -> None:
    display = ProgressDisplay(1000, file=file, clock=clock)
    display.message("evaluation: 98 %")
    assert file.getvalue() == "evaluation: 98 %\n"


def test_nothing_is_shown_after_closing(file: io.StringIO, clock: Clock) -> None:
    display = ProgressDisplay(1000, file=file, clock=clock)
    display.close()
    text = file.getvalue()
    display.close()
    clock.now += 100
    display.update(500)
    assert file.getvalue() == text


def test_last_line_is_shown_when_the_run_fails() -> None:
    file = io.StringIO()

    def failing_run() -> None:
        with ProgressDisplay(1000, file=file, clock=Clock()) as display:
            display.update(10)
            raise RuntimeError("the simulator died")

    with pytest.raises(RuntimeError, match="simulator"):
        failing_run()
    assert "frames 10/1,000" in file.getvalue()


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_disabled_display_shows_only_messages(kind: type[io.StringIO]) -> None:
    file, clock = kind(), Clock()
    with ProgressDisplay(1000, file=file, enabled=False, clock=clock) as display:
        run(display, clock, rate=10, seconds=30)
        display.message("saved")
    assert file.getvalue() == "saved\n"


def test_standard_error_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    ProgressDisplay(1000, clock=Clock()).close()
    captured = capsys.readouterr()
    assert "frames 0/1,000" in captured.err
    assert captured.out == ""


# The bar


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "160")
    return Terminal()


def test_bar_contains_frames_rate_time_success_and_return(terminal: Terminal, clock: Clock) -> None:
    display = ProgressDisplay(1000, file=terminal, clock=clock)
    clock.now += 5
    display.update(250, success=0.87, mean_return=3.2, stage="grade easy")
    shown = terminal.getvalue().split("\r")[-1]
    assert re.match(r" 25% \|", shown)
    facts = "frames 250/1,000   50 frames/s   success 87 %   return 3.2   grade easy   15 s left"
    assert facts in shown
    assert "\n" not in terminal.getvalue()
    display.close()
    assert terminal.getvalue().rstrip(" ").endswith("\n")
    assert "in 5 s" in terminal.getvalue().split("\r")[-1]


def test_bar_is_drawn_at_most_five_times_a_second(terminal: Terminal, clock: Clock) -> None:
    display = ProgressDisplay(10**6, file=terminal, clock=clock)
    terminal.truncate(0)
    for frame in range(1000):
        clock.now += 0.001
        display.update(frame)
    assert 3 <= terminal.getvalue().count("frames/s") <= 5


def test_bar_shows_the_beginning_of_an_activity_at_once(terminal: Terminal) -> None:
    display = ProgressDisplay(1000, file=terminal, clock=Clock())
    display.update(250, stage="compiling the update of SAC")
    assert "compiling the update of SAC" in terminal.getvalue()
    display.close()


def test_messages_are_printed_above_the_bar(terminal: Terminal, clock: Clock) -> None:
    display = ProgressDisplay(1000, file=terminal, clock=clock)
    clock.now += 5
    display.update(250)
    display.message("evaluation: 98 %")
    above, below = terminal.getvalue().split("evaluation: 98 %\n")
    assert above.endswith("\r")
    assert "frames 250/1,000" in below
    display.close()


def test_bar_of_a_run_beyond_its_total_is_full(terminal: Terminal, clock: Clock) -> None:
    with ProgressDisplay(1000, file=terminal, clock=clock) as display:
        clock.now += 5
        display.update(1024)
    shown = terminal.getvalue().split("\r")[-1]
    assert re.match(r"100% \|", shown)
    assert "frames 1,024/1,000" in shown


# Readable numbers


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (121, "2 min 01 s"),
        (3599.9, "1 h 00 min"),
        (3 * 3600 + 5 * 60, "3 h 05 min"),
        (86399, "23 h 59 min"),
        (2 * 86400 + 4 * 3600, "2 d 04 h"),
    ],
)
def test_human_time(seconds: float, text: str) -> None:
    assert human_time(seconds) == text


def test_bar_makes_nothing_that_several_processes_share() -> None:
    code = """
import multiprocessing
from multiprocessing import resource_tracker
from trainers.training.progress import ProgressDisplay
from tests.trainers.training.test_progress import Terminal
multiprocessing.set_start_method("spawn")  # as TorchRL does
with ProgressDisplay(10, file=Terminal()) as display:
    display.update(5)
print(resource_tracker._resource_tracker._pid)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"
