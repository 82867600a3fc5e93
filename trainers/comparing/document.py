"""An HTML page that is one file: its style, its parts, and no script."""

from collections.abc import Sequence
from html import escape
from typing import Final

_STYLE: Final = """
:root { color-scheme: light dark; --text: #1b1f24; --dim: #5d6672; --paper: #fff; --line: #dfe3e8;
  --c0: #0b6fb8; --c1: #d9541e; --c2: #12855f; --c3: #8e4bb5; --c4: #b8860b; --c5: #c2306b;
  --c6: #3aa0c8; --c7: #6b6f76; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e8ed; --dim: #98a2ae; --paper: #14171b;
  --line: #2c323a; --c0: #5aaef0; --c1: #f58a5b; --c2: #4cc79b; --c3: #c792ea; --c4: #e0b84c;
  --c5: #f0709f; --c6: #7fd4f0; --c7: #a9b0ba; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 20px 16px 60px; color: var(--text);
  background: var(--paper); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; line-height: 1.2; margin: 8px 0; }
h2 { font-size: 19px; margin: 36px 0 6px; border-top: 1px solid var(--line); padding-top: 18px; }
h3 { font-size: 15px; margin: 22px 0 6px; }
p { margin: 6px 0; max-width: 80ch; }
.note { color: var(--dim); font-size: 13px; }
.panels { display: grid; gap: 14px 22px;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 340px), 1fr)); }
.panels.large { grid-template-columns: repeat(auto-fill, minmax(min(100%, 440px), 1fr)); }
svg { width: 100%; height: auto; display: block; overflow: visible; }
svg text { font: 11.5px system-ui, sans-serif; fill: var(--dim); }
svg text.title { font-size: 13px; font-weight: 600; fill: var(--text); }
.grid { stroke: var(--line); fill: none; }
.axis { stroke: var(--dim); fill: none; }
.level { stroke: var(--dim); fill: none; stroke-dasharray: 2 3; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.line.faint { stroke-width: 1; opacity: .4; }
.line:hover { stroke-width: 3.5; opacity: 1; }
.band { opacity: .16; }
.interval { opacity: .32; }
.dot { opacity: .75; }
.swatch { display: inline-block; width: 18px; border-top: 3px solid; vertical-align: middle;
  margin-right: 6px; }
.swatch.dashed { border-top-style: dashed; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 10px 0; }
.scroll { overflow-x: auto; margin: 8px 0; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 14px 4px 0; text-align: right; white-space: nowrap; vertical-align: top;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--dim); }
th:first-child, td:first-child, .left td, .left th { text-align: left; }
.wrap td:last-child { white-space: normal; }
video, img { width: 100%; border-radius: 4px; }
figure { margin: 0; }
figcaption { font-size: 13px; color: var(--dim); }
code { font: 13px ui-monospace, monospace; overflow-wrap: anywhere; }
summary { cursor: pointer; color: var(--dim); }
@media print { body { max-width: none; } details { display: block; } }
"""


class Markup(str):
    """Text that is HTML, not to be escaped."""


def document(title: str, parts: Sequence[str]) -> str:
    """Return the text of a page."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>{escape(title)}</h1>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """Return a table that scrolls sideways where it is wider than the page.

    Args:
        header: names of the columns, plain text.
        rows: cells, plain text or `Markup`.
        kind: `left` to align all columns to the left, not to the right but for the first; `wrap`
            to break long lines in the last one.
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    cells = ([each if isinstance(each, Markup) else escape(each) for each in row] for row in rows)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in cells)
    return f'<div class="scroll"><table class="{kind}"><tr>{head}</tr>{body}</table></div>'


def panels(pictures: Sequence[str], kind: str = "") -> str:
    """Return pictures side by side, as many as the page is wide; fewer with the kind `large`."""
    return f'<div class="panels {kind}">{"".join(pictures)}</div>'


def folded(summary: str, content: str) -> str:
    """Return content that opens on a click."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"
