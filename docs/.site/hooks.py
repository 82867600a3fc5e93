"""Hooks of mkdocs: pages from outside docs/, the pages of the API, and the links between them.

The pages of docs/ are written for readers of the repository. Here their links to its other files
are turned into links of the site.
"""

from __future__ import annotations

import ast
import inspect
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]

# Pages by their file in the repository, where the file is not in docs/.
_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "agents": "api/agents.md",
}
# Public names by page of the API, beside those that the package of that name exports.
_FURTHER = {
    "torchrl_gpu": (
        "torchrl_gpu.acting.interface.PolicyInterface",
        "torchrl_gpu.replay.episodes.rows_needed",
        "torchrl_gpu.intervals",
    ),
    "agents": (
        "agents.hyperparameters",
        "agents.modules.encoders.Encoder",
        "agents.modules.encoders.EncoderFactory",
        "agents.modules.networks.Critics",
        "agents.modules.networks.DeterministicActor",
        "agents.modules.networks.frozen",
        "agents.modules.target_network.TargetNetwork",
    ),
    "envs": (
        "envs.fanuc.ArmObserver",
        "envs.fanuc.load_robot",
        "envs.marinenav.baselines.ModelPredictive",
        "envs.marinenav.curriculum.PAPER_STAGES",
        "envs.marinenav.evaluation.evaluate",
        "envs.marinenav.scenario.draw_scenarios",
        "envs.marinenav.scenario.load_scenarios",
        "envs.marinenav.scenario.save_scenarios",
    ),
    "trainers": ("trainers.run.run", "trainers.run.settings_of"),
    "bridges": (
        "torchrl_gpu.gymnasium",
        "torchrl_gpu.gymnasium.single.SingleEnv",
        "torchrl_gpu.gymnasium.batched.BatchedEnv",
        "torchrl_gpu.stable_baselines.StableBaselinesEnv",
        "torchrl_gpu.rsl_rl.RslRlEnv",
    ),
}
_TITLES = {"bridges": "Bridges to other libraries"}
_FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")


def exports_of(package: str) -> list[str]:
    """Return the names that a package exports, without importing it."""
    tree = ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return sorted(alias.asname for node in imports for alias in node.names if alias.asname)


def public_names(page: str) -> list[str]:
    """Return the dotted names that a page of the API documents."""
    own = [] if page in _TITLES else [f"{page}.{name}" for name in exports_of(page)]
    return [*own, *_FURTHER[page]]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root and of the API, and the files and folders that pages link to."""
    for source, page in _PAGES.items():
        if (ROOT / source).is_file():
            files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for page in _FURTHER:
        files.append(File.generated(config, f"api/{page}.md", content=_api_page(page)))
    files.append(File.generated(config, "api/index.md", content=_api_index()))
    for file in [*files.documentation_pages()]:
        _map_links(file.content_string, _source_of(file), lambda path: _add(path, files, config))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    here = posixpath.dirname(page.file.src_uri)
    return _map_links(
        markdown, _source_of(page.file), lambda path: posixpath.relpath(_uri(path), here or ".")
    )


def _source_of(file: File) -> str:
    """Return the path of a page's file in the repository."""
    pages = {page: source for source, page in _PAGES.items()}
    return pages.get(file.src_uri, f"docs/{file.src_uri}")


def _uri(path: str) -> str:
    """Return the path in the site of a file or folder of the repository."""
    if path in _PAGES:
        return _PAGES[path]
    if (ROOT / path).is_dir():
        readme = f"{path}/README.md"
        return _uri(readme if (ROOT / readme).exists() else f"{path}/index.md")
    return path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}"


def _add(path: str, files: Files, config: MkDocsConfig) -> str:
    """Add a file or folder of the repository to the site, unless it is there."""
    uri = _uri(path)
    if files.get_file_from_path(uri) is None and (ROOT / path).exists():
        if (ROOT / path).is_dir():
            listed = sorted(each.name for each in (ROOT / path).iterdir())
            lines = [f"# Files of {path}", "", *(f"* [{name}]({name})" for name in listed)]
            files.append(
                File.generated(
                    config,
                    uri,
                    content="\n".join(lines),
                    inclusion=InclusionLevel.NOT_IN_NAV,
                )
            )
        else:
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    return uri


def _map_links(markdown: str, source: str, target: Callable[[str], str]) -> str:
    """Replace the relative links of a page, outside code.

    Args:
        markdown: text of the page.
        source: path of the page in the repository.
        target: returns the new link of a path in the repository.
    """

    def replace(link: re.Match[str]) -> str:
        if re.match(r"\w+:", link[1]):
            return link[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
        return f"]({target(path)}{link[2] or ''})"

    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(replace, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(replace, markdown[end:])])


def _api_page(page: str) -> str:
    """Return the page of one package, each public name under its own heading."""
    lines = [f"# {_TITLES.get(page, page)}", ""]
    if page not in _TITLES:
        source = (ROOT / page / "__init__.py").read_text(encoding="utf-8")
        lines += [ast.get_docstring(ast.parse(source)) or "", ""]
    lines += [f"::: {name}\n" for name in public_names(page)]
    return "\n".join(lines)


def _api_index() -> str:
    """Return the page that lists all public names with their links."""
    lines = [
        "# Python API",
        "",
        "Names that scripts import. [Use the library in a script](../scripts.md) has examples.",
    ]
    for page in _FURTHER:
        lines += ["", f"## {_TITLES.get(page, page)}", ""]
        for name in public_names(page):
            module, _, short = name.rpartition(".")
            lines.append(f"* [`from {module} import {short}`][{name}]{_summary(name)}")
    return "\n".join(lines)


def _summary(name: str) -> str:
    """Return the first line of the docstring of a class, function or module, behind a colon."""
    found = resolve_name(name)
    if not (inspect.isclass(found) or inspect.isroutine(found) or inspect.ismodule(found)):
        return ""
    return f": {(inspect.getdoc(found) or '').partition(chr(10))[0]}"
