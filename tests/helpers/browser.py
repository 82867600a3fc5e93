"""JavaScript in Node, and pages in headless Chromium."""

import base64
import html
import io
import itertools
import json
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import imageio.v2 as imageio
import numpy as np
import pytest
from numpy.typing import NDArray

_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
_QUIET: Final = (
    *("--headless", "--no-sandbox", "--disable-quic", "--no-first-run", "--window-size=1300,900"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
_OPTIONS: Final = (*_QUIET, "--disable-gpu", "--enable-logging=stderr", "--dump-dom")
_LIVE: Final = (*_QUIET, "--enable-unsafe-swiftshader", "--remote-debugging-port=0", "about:blank")
_SECONDS: Final = 120
# Shows the value that a script returns; a page may already have a document.
_REPORT: Final = """
const SHOWN = document.createElement("pre");
SHOWN.id = "result";
try { SHOWN.textContent = JSON.stringify((() => {%s})()); } catch (error) { console.error(error); }
document.documentElement.append(SHOWN);
"""


def find_browser() -> str | None:
    """Return the path of Chromium or Chrome; None if there is none."""
    return next(filter(None, map(shutil.which, _BROWSERS)), None)


def evaluate(definitions: str, body: str, folder: Path) -> Any:
    """Return the result of statements after a script without document, in Node or else Chromium.

    Both have the same engine; Node starts in a tenth of a second.
    """
    node = shutil.which("node")
    if node is None:
        return open_page(f"<!DOCTYPE html><script>{definitions}</script>", body, folder)
    path = folder / "script.js"
    report = f"process.stdout.write(JSON.stringify((() => {{{body}}})()));"
    path.write_text(f"{definitions}\n{report}", encoding="utf-8")
    done = subprocess.run([node, path], capture_output=True, text=True, timeout=_SECONDS)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def open_page(page: str, body: str, folder: Path) -> Any:
    """Return the result of statements in a page of HTML, and check that no errors are logged."""
    browser = find_browser()
    if browser is None:
        pytest.skip("no browser is installed")
    path = folder / "page.html"
    path.write_text(f"{page}\n<script>{_REPORT % body}</script>", encoding="utf-8")
    command = [browser, *_OPTIONS, f"--user-data-dir={folder / 'profile'}", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    logged = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    assert logged == []
    found = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr
    return json.loads(html.unescape(found[1]))


class Tab:
    """A page that stays open, by a WebSocket of Chromium's debugging protocol."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)

    def call(self, method: str, **parameters: Any) -> Any:
        """Return the result of a method of the protocol."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        self._connection.send(json.dumps(message))
        while (answer := json.loads(self._connection.recv(_SECONDS))).get("id") != number:
            pass
        return answer["result"]

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return result["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait until an expression is true in the page."""
        end = time.monotonic() + _SECONDS
        while not self.evaluate(expression):
            shown = self.evaluate("document.body.innerText")
            assert time.monotonic() < end, f"{expression}: {shown}"
            time.sleep(0.05)

    def picture(self) -> NDArray[np.uint8]:
        """Return a screenshot `[H, W, 3]`."""
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        return np.asarray(imageio.imread(io.BytesIO(data)))[..., :3]


@contextmanager
def opened(address: str, folder: Path) -> Iterator[Tab]:
    """Open a page of a server, and close it after the block."""
    browser = find_browser()
    if browser is None:
        pytest.skip("Chromium is not installed")
    connect = pytest.importorskip("websockets.sync.client").connect
    profile = f"--user-data-dir={folder / 'profile'}"
    with subprocess.Popen([browser, *_LIVE, profile], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = (re.search(r"listening on ws://([^/]+)", line) for line in process.stderr)
            host = next(filter(None, found))[1]
            with urllib.request.urlopen(f"http://{host}/json", timeout=_SECONDS) as answer:
                pages = [each for each in json.load(answer) if each["type"] == "page"]
            with connect(pages[0]["webSocketDebuggerUrl"], max_size=None) as connection:
                tab = Tab(connection)
                tab.call("Page.navigate", url=address)
                yield tab
        finally:
            process.kill()
