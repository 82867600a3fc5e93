"""JavaScript in Node, and pages in headless Chromium."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
_OPTIONS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--enable-logging=stderr", "--window-size=1300,900", "--dump-dom"),
)
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
    """Return the value that the body of a function returns, in Node, or in Chromium without it.

    Both have the same engine; Node starts in a tenth of a second.

    Args:
        definitions: script before it, which needs no document.
        body: statements that end with `return`.
        folder: folder for files.
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
    """Return what the body of a function returns in a page, and check that no errors are logged.

    Args:
        page: text of the HTML file.
        body: statements that end with `return`.
        folder: folder for files.
    """
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
