"""The page of a viewer: a scene, or a picture as large as the window, beside choices and curves."""

import contextlib
import errno
import importlib
import io
import logging
import os
import socket
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from torchrl_gpu.environments.scene import Scene
from torchrl_gpu.errors import ConfigurationError
from torchrl_gpu.intervals import Scores
from trainers.evaluation.film import Picture
from trainers.viewing.scene import DrawnScene

_ANY_INTERFACE: Final = ("0.0.0.0", "::")
_BACKGROUND: Final = (24, 26, 30)
_PANEL_WIDTH: Final = 400  # px
_PLOT_ASPECT: Final = 2.7
_MAX_ASPECT: Final = 10.0  # of the pictures for a window that is hardly open
_COLORS: Final = (
    *("#4dabf7", "#ff922b", "#69db7c", "#f783ac", "#ffd43b", "#b197fc"),
    *("#63e6be", "#ff8787", "#ced4da", "#a9e34b"),
)
_SPEEDS: Final = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_QUALITY: Final = 85  # of JPEG
_SECONDS_UNWATCHED: Final = 1.0  # between looks for a browser that has been missed


def free_port(host: str, port: int) -> int:
    """Return the number of a port that can be listened on: the given one, or any if it is 0."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigurationError(f"viewer_host={host}: {error.strerror}") from None
    family, kind, protocol, _, address = min(found)  # IPv4 first
    with socket.socket(family, kind, protocol) as listener:
        if os.name == "posix":  # as asyncio does
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise ConfigurationError(
                    f"viewer_host={host}: not an address of this machine"
                ) from None
            raise ConfigurationError(
                f"viewer_port={port}: cannot listen on {host}: {error.strerror}; choose another "
                "port, or viewer_port=0 for a free one"
            ) from None
        return int(listener.getsockname()[1])


class Controls(NamedTuple):
    """Choices in the page: speed as a multiple of real time, number of the environment."""

    is_paused: bool
    speed: float
    env: int
    checkpoint: str


class Page:
    """Serves the page; nothing but its own server is asked for anything.

    Attributes:
        address: address of the page.
    """

    def __init__(self, host: str, port: int, title: str) -> None:
        viser: Any = importlib.import_module("viser")  # an optional package
        # A browser may leave at any time, also before it has asked for anything.
        logging.getLogger("websockets").setLevel(logging.CRITICAL)
        warnings.filterwarnings("ignore", "Queued a .* on a closed connection")
        with contextlib.redirect_stdout(io.StringIO()):  # its own banner
            self._server = viser.ViserServer(
                host, free_port(host, port), label=title, verbose=False
            )
        name = socket.gethostname() if host in _ANY_INTERFACE else host
        name = f"[{name}]" if ":" in name else name  # IPv6
        self.address = f"http://{name}:{self._server.get_port()}"
        self._lock = threading.Lock()
        self._picture: Picture | None = None
        # Of each browser: number of the picture that it shows, and aspect ratio.
        self._shown: dict[int, tuple[int, float]] = {}
        self._number = 0
        gui = self._gui = self._server.gui
        gui.configure_theme(dark_mode=True, show_logo=False, show_share_button=False)
        gui.main_panel.dock_right()
        gui.main_panel.set_width(_PANEL_WIDTH)
        self._text = gui.add_markdown("")
        self._plots: dict[str, Any] = {}
        self._opened = threading.Event()
        self._server.on_client_connect(lambda _: self._on_open())

    def add_controls(self, names: Sequence[str], chosen: str, num_envs: int, speed: float) -> None:
        """Add the controls, once there is something to play."""
        gui = self._gui
        self._choice = gui.add_dropdown("Checkpoint", [*names], initial_value=chosen)
        options = [*map(str, range(num_envs))]
        self._index = gui.add_dropdown("Environment", options, visible=num_envs > 1)
        speeds = [f"{each:g}" for each in sorted({*_SPEEDS, speed})]
        self._speed = gui.add_dropdown("Speed", speeds, initial_value=f"{speed:g}")
        self._paused = gui.add_checkbox("Pause", False)

    def close(self) -> None:
        """Stop the server."""
        with contextlib.redirect_stdout(io.StringIO()):
            self._server.stop()

    @property
    def is_watched(self) -> bool:
        """Whether a browser shows the page."""
        return bool(self._server.get_clients())

    def wait_for_browser(self) -> None:
        """Wait until a browser opens the page, for a second at most; nothing runs meanwhile."""
        self._opened.clear()
        if not self.is_watched:
            self._opened.wait(_SECONDS_UNWATCHED)

    @property
    def controls(self) -> Controls:
        """The current choices."""
        speed, index = float(_chosen(self._speed)), int(_chosen(self._index))
        return Controls(bool(self._paused.value), speed, index, _chosen(self._choice))

    def offer(self, names: Sequence[str]) -> None:
        """Offer checkpoints; the chosen one stays, even if it has been deleted."""
        names = [*names, *({_chosen(self._choice)} - {*names})]
        if tuple(names) != tuple(self._choice.options):
            self._choice.options = names

    def say(self, text: str) -> None:
        """Write a text (Markdown) above everything else."""
        if text != self._text.content:
            self._text.content = text

    def draw(self, scene: Scene) -> DrawnScene:
        """Return a scene that replaces pictures: see `DrawnScene`."""
        return DrawnScene(self._server, scene)

    def show(self, picture: Picture) -> None:
        """Show a picture `[H, W, 3]` as large as the window allows."""
        with self._lock:
            self._picture = picture
            self._number += 1
        self.refresh()

    def refresh(self) -> None:
        """Show the picture in windows that have just been opened or have another size."""
        with self._lock:
            if self._picture is None:
                return
            clients = self._server.get_clients()
            self._shown = {n: shown for n, shown in self._shown.items() if n in clients}
            for number, client in clients.items():
                wanted = self._number, _aspect(client.camera)
                if self._shown.get(number) != wanted:
                    self._shown[number] = wanted
                    client.scene.set_background_image(
                        _fitted(self._picture, wanted[1]), format="jpeg", jpeg_quality=_QUALITY
                    )

    def _on_open(self) -> None:
        """Show the picture at once, in a thread that does not give way as the viewer's does."""
        self._opened.set()
        self.refresh()

    def plot(self, title: str, curves: Mapping[str, Scores]) -> None:
        """Draw curves in the plot of this title, which is added if it is new.

        Args:
            title: title of the plot.
            curves: values by name `[K]`; the first ones, ascending, are the horizontal axis. Others
                may be NaN, but not all.
        """
        data = tuple(curves.values())
        scales: dict[str, Any] = {"x": {"time": False}}
        if np.isnan(values := np.stack(data[1:])).any():  # the page would find no range
            low, high = float(np.nanmin(values)), float(np.nanmax(values))
            margin = 0.05 * (high - low) or 1.0
            scales["y"] = {"range": (low - margin, high + margin)}
        plot = self._plots.get(title)
        if plot is not None:
            plot.data = data
            if plot.scales != scales:
                plot.scales = scales
            return
        series: list[dict[str, Any]] = [{"label": name} for name in curves]
        for number, each in enumerate(series[1:]):
            each |= {"stroke": _COLORS[number % len(_COLORS)], "width": 2}
        self._plots[title] = self._gui.add_uplot(
            data, tuple(series), title=title, scales=scales, aspect=_PLOT_ASPECT
        )


def _chosen(dropdown: Any) -> str:
    """Return the choice of a dropdown; the first one for a message that no page would send."""
    options: tuple[str, ...] = dropdown.options
    return dropdown.value if dropdown.value in options else options[0]


def _aspect(camera: Any) -> float:
    """Return the aspect ratio of the picture for a window, which may have a height of 0 px."""
    aspect: float = camera.image_width / max(camera.image_height, 1)
    return min(max(aspect, 1 / _MAX_ASPECT), _MAX_ASPECT)


def _fitted(picture: Picture, aspect: float) -> Picture:
    """Return a picture with margins at two sides, so that it has an aspect ratio."""
    height, width = picture.shape[:2]
    full = max(height, round(width / aspect)), max(width, round(height * aspect)), 3
    canvas = np.full(full, _BACKGROUND, np.uint8)
    top, left = (full[0] - height) // 2, (full[1] - width) // 2
    canvas[top : top + height, left : left + width] = picture
    return canvas
