"""The documentation as a site: a strict build, its links, and its pages in a browser."""

import ast
import functools
import http.server
import importlib
import importlib.util
import os
import posixpath
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.helpers.browser import find_browser

REPOSITORY = Path(__file__).parent.parent
MISSING = [
    name for name in ("mkdocs", "material", "mkdocstrings") if not importlib.util.find_spec(name)
]
OURS = r"(agents|envs|trainers|torchrl_gpu)\b"
needs_mkdocs = pytest.mark.skipif(bool(MISSING), reason="the extra `docs` is not installed")


def test_every_page_is_in_the_navigation() -> None:
    named = re.findall(r"([\w/]+\.md)$", (REPOSITORY / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = (REPOSITORY / "docs").rglob("*.md")
    assert {str(page.relative_to(REPOSITORY / "docs")) for page in pages} <= {*named}


def test_code_in_lists_is_indented_so_that_the_site_shows_it_too() -> None:
    for page in [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]:
        assert not re.findall(r"^ {1,3}```.*$", page.read_text(), re.MULTILINE), page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-d", str(folder)]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@needs_mkdocs
@pytest.mark.slow
def test_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    pages = {str(path.relative_to(site)): path.read_text() for path in site.rglob("*.html")}
    ids = {name: {*re.findall(r'\bid="([^"]+)"', text)} for name, text in pages.items()}
    assert len(pages) > 30
    for name, text in pages.items():
        if name in ("404.html", "sea.html"):
            continue
        for link in re.findall(r'\b(?:href|src)="([^"]+)"', text):
            if re.match(r"\w+:", link):
                continue
            path, _, anchor = unquote(link).partition("#")
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
            target = name if not path else target
            assert (site / target).exists(), f"{name}: {link}"
            assert not anchor or target not in ids or anchor in ids[target], f"{name}: {link}"


@needs_mkdocs
@pytest.mark.slow
def test_the_site_loads_nothing_from_other_servers(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = re.sub(r"<code.*?</code>", "", path.read_text(), flags=re.DOTALL)
        loaded = re.findall(r'<(?:script|img|iframe)\b[^>]*\bsrc="(https?:[^"]+)', text)
        loaded += re.findall(r'<link\b[^>]*\bhref="(https?:[^"]+)"[^>]*>', text)
        assert not loaded, path


@needs_mkdocs
@pytest.mark.slow
@pytest.mark.parametrize("package", ["torchrl_gpu", "agents", "envs", "trainers"])
def test_every_public_name_has_a_section(site: Path, package: str) -> None:
    page = (site / "api" / f"{package}.html").read_text()
    headings = re.findall(r'<h2 id="([^"]+)"', page)
    assert {name.rpartition(".")[2] for name in headings} >= {
        *importlib.import_module(package).__all__
    }
    index = (site / "api" / "index.html").read_text()
    for name in importlib.import_module(package).__all__:
        assert f"from {package} import {name}" in index


@needs_mkdocs
@pytest.mark.slow
def test_every_name_that_an_example_imports_has_a_section(site: Path) -> None:
    pages = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    sections = {*re.findall(r'\bid="(?:\w+\.)+(\w+)"', pages)}
    for page in (REPOSITORY / "docs").glob("*.md"):
        for block in re.findall(
            r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE
        ):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and re.match(OURS, node.module or ""):
                    assert {alias.name for alias in node.names} <= sections, page.name


@needs_mkdocs
@pytest.mark.slow
def test_a_reader_finds_results_and_settings(site: Path) -> None:
    for source in (REPOSITORY / "docs" / "results").glob("*.*"):
        assert (site / "results" / source.name.replace(".md", ".html")).exists() or (
            source.name == "README.md" and (site / "results" / "index.html").exists()
        )
    agents = (site / "api" / "agents.html").read_text()
    assert "learning rate of Adam" in agents, "arguments are explained as `--help` does"


# A page with a page of the site in a frame. It has loaded once the frame shows results of a search.
_WATCHER = """<!DOCTYPE html>
<iframe src="/index.html?q=demonstrations" width="1350" height="850"></iframe><pre id="found"></pre>
<script>
let tries = 0;
function look() {
  const page = document.querySelector("iframe").contentDocument;
  const links = [...page.querySelectorAll(".md-search-result__link")].map((each) => each.href);
  if (links.length || ++tries > 60) document.getElementById("found").textContent = links.join(" ");
  else document.write('<script src="/second.js"></' + "script>");
}
look();
</script>
"""


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the site, `watcher.html`, and `second.js`, which takes a second to load."""

    def do_GET(self) -> None:
        made = {
            "/watcher.html": (_WATCHER, "text/html"),
            "/second.js": ("look();", "text/javascript"),
        }
        if self.path not in made:
            return super().do_GET()
        if self.path == "/second.js":
            time.sleep(1)
        text, kind = made[self.path]
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(text.encode())
        return None

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(_Handler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@needs_mkdocs
@pytest.mark.slow
def test_a_browser_finds_a_page_by_search(address: str, tmp_path: Path) -> None:
    browser = find_browser()
    if browser is None:
        pytest.skip("Chromium is not installed")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    command = [browser, *options, "--dump-dom", f"{address}/watcher.html"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    found = re.findall(r'<pre id="found">(.*?)</pre>', shown)
    assert found
    assert "/data.html" in found[0]
