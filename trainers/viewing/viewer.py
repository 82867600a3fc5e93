"""Plays policies in the page of a viewer, in real time, while somebody watches."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from torchrl_gpu.errors import ConfigurationError
from trainers.viewing.followed_run import (
    BEST,
    NEWEST,
    LearningCurves,
    WatchedCheckpoints,
    name_of_checkpoint,
)
from trainers.viewing.page import Page
from trainers.viewing.player import Player
from trainers.viewing.scene import DrawnScene

_TEXT_SECONDS: Final = 0.25  # between updates of text and curves
_RUN_SECONDS: Final = 1.0  # between looks into the run folder
_IDLE_SECONDS: Final = 0.05
# If the simulation is slower than real time, pictures are at most this far apart.
_MAX_FRAME_SECONDS: Final = 0.25


@dataclass
class Viewer:
    """Plays the checkpoint, the environment and the speed that are chosen in the page.

    Args:
        page: page with its controls.
        player: player of the episodes.
        checkpoints: checkpoints to choose from.
        load: function that loads a checkpoint into the policy of the player.
        scene: scene that replaces pictures; None to show pictures.
        learning: learning curves of the run; None without a run.
        seconds_between: pause at the end of each episode, in seconds.
        frame_seconds: shortest time between two pictures.
    """

    page: Page
    player: Player
    checkpoints: WatchedCheckpoints
    load: Callable[[Path], None]
    scene: DrawnScene | None
    learning: LearningCurves | None
    seconds_between: float
    frame_seconds: float

    def __post_init__(self) -> None:
        self._patience = _MAX_FRAME_SECONDS if self.scene is None else self.frame_seconds
        self._choice = self.page.controls.checkpoint
        self._playing: Path | None = None
        self._looked = self._told = 0.0

    def run(self) -> NoReturn:
        """Play until an exception, as of Ctrl-C; nothing is simulated while nobody watches."""
        page, player = self.page, self.player
        self._begin()
        due = drawn = time.perf_counter()
        rested = 0.0
        while True:
            page.refresh()
            now = time.perf_counter()
            if not page.is_watched:
                page.wait_for_browser()
                due = time.perf_counter()
                continue
            self._look(now)
            chosen = page.controls
            if (chosen.checkpoint, chosen.env) != (self._choice, player.index):
                self._begin()
            if chosen.is_paused:
                time.sleep(_IDLE_SECONDS)
                due = now
                continue
            if player.done:
                if rested < self.seconds_between:
                    time.sleep(_IDLE_SECONDS)
                    rested += _IDLE_SECONDS  # time in which the process is stopped does not count
                    continue
                self._begin()
                due = drawn = time.perf_counter()
            player.step()
            rested = 0.0
            chosen = page.controls
            step_seconds = player.step_seconds / chosen.speed
            due += step_seconds
            reached = max(due + step_seconds / 2, time.perf_counter())
            if reached < drawn + self.frame_seconds and not player.done:
                continue  # several steps at a time disturb a training less often
            late = time.perf_counter() - due
            while (early := due - time.perf_counter()) > 0:
                if page.controls != chosen:  # is obeyed at once
                    due -= early
                    break
                time.sleep(min(early, _IDLE_SECONDS))
            if player.done or late < 0 or time.perf_counter() - drawn > self._patience:
                drawn = time.perf_counter()
                self._draw()
                if late > _MAX_FRAME_SECONDS:
                    due = drawn  # slower than real time

    def _draw(self) -> None:
        """Show the current state."""
        if self.scene is None:
            self.page.show(self.player.picture())
        else:
            self.scene.move(self.player.index)

    def _begin(self) -> None:
        """Begin an episode by the choices of the page."""
        page, player, chosen = self.page, self.player, self.page.controls
        path = self.checkpoints.find(chosen.checkpoint)
        if path not in (None, self._playing):
            with suppress(ConfigurationError):  # the run has just deleted it: the policy stays
                self.load(path)
                self._playing = path
                player.count_anew()
        self._choice = chosen.checkpoint
        if chosen.env != player.index:
            player.index = chosen.env
            player.count_anew()
        player.begin()
        self._draw()
        page.say(self._text())
        self._told = 0.0

    def _look(self, now: float) -> None:
        """Update text, curves and the list of checkpoints, where it is time to."""
        page, player = self.page, self.player
        if now - self._looked > _RUN_SECONDS and self._told:
            self._looked = now
            page.offer(self.checkpoints.names())
            for metric, curves in (self.learning.read() if self.learning else {}).items():
                frames, *values = curves
                named = zip(("training", "evaluation"), values, strict=True)
                page.plot(f"{metric} over the training", {"frames": frames, **dict(named)})
        if now - self._told > _TEXT_SECONDS and player.steps:
            self._told = now
            page.say(self._text())
            page.plot("reward over this episode", player.curves())

    def _text(self) -> str:
        """Return the name of the policy, and its results so far."""
        player = self.player
        if self._playing is not None:
            follows = f" ({self._choice})" if self._choice in (NEWEST, BEST) else ""
            policy = f"{name_of_checkpoint(self._playing)}{follows}"
        elif self._choice == NEWEST:
            policy = "untrained policy; the run has no checkpoint yet"
        else:
            policy = self._choice
        lines = [
            f"**{policy}**",
            f"episode {player.episodes + (not player.done)}, {player.seconds:.1f} s",
            f"return **{player.episode_return:.2f}**",
        ]
        if self.scene is not None:  # a picture has its own caption
            lines.append(player.caption)
        if player.successes is not None:
            share = f"{player.successes} of {player.episodes}"
            lines.append(f"success in **{share}** episodes")
        return "  \n".join(lines)
