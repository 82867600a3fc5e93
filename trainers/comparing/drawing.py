"""Pictures of a page as inline SVG: curves with intervals, and a list of values with intervals.

Colours are variables of the style sheet of `trainers.comparing.document`, so that one picture fits
a light and a dark page.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Values = Sequence[float] | NDArray[np.float64]
_Scale = Callable[[Any], Any]  # from values, numbers or arrays, to positions

COLORS: Final = 8  # of the palette; a curve beyond them repeats one of them, dashed
_WIDTH, _HEIGHT = 420, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 28, 38
_MAX_POINTS: Final = 200  # of a curve
_LIMIT: Final = 1e300  # larger numbers have no part in a range, whose size would be infinite


@dataclass(frozen=True)
class Curve:
    """A line of a picture.

    Attributes:
        label: its name, shown when the pointer rests on it.
        x: positions, ascending.
        y: values, as many; those that are not finite leave a gap.
        low: lower bounds of a band around the line; empty for none.
        high: upper bounds of the band.
        color: number of the color, from 0.
        faint: whether the line stands behind others, as one of the runs of a mean.
        dots: whether to draw a dot for each value, instead of a line.
    """

    label: str
    x: Values
    y: Values
    low: Values = ()
    high: Values = ()
    color: int = 0
    faint: bool = False
    dots: bool = False


@dataclass(frozen=True)
class Interval:
    """A row of a list of values.

    Attributes:
        label: its name, above it.
        value: finite value, a tick.
        low: lower bound; NaN for none.
        high: upper bound.
        points: single finite values, such as those of runs.
        color: number of the color, from 0.
    """

    label: str
    value: float
    low: float
    high: float
    points: Values = ()
    color: int = 0


def short(value: float) -> str:
    """Return a number as in 0.05, 12, 40k, 1.5M, 3G."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.3g}"


def percent(value: float) -> str:
    """Return a share as in 95 %."""
    return f"{100 * value:.3g} %"


def draw_curves(
    curves: Sequence[Curve],
    title: str,
    x_label: str,
    *,
    y_format: Callable[[float], str] = short,
    x_format: Callable[[float], str] = short,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    levels: Sequence[float] = (),
) -> str:
    """Return a picture of curves over one axis.

    Args:
        curves: curves, the first one at the back; those that are faint stand behind all others.
        title: name of the vertical axis, above it.
        x_label: name of the horizontal axis.
        y_format: text of a tick of the vertical axis.
        x_format: text of a tick of the horizontal axis.
        x_range: leftmost and rightmost position; None for 0 and those of the curves.
        y_range: lowest and highest value to show; None for those of the curves.
        levels: values at which a dotted line crosses the picture.
    """
    curves = sorted(map(_thinned, curves), key=lambda curve: not curve.faint)
    xs = _finite(*(curve.x for curve in curves))
    ys = _finite(*(part for curve in curves for part in (curve.y, curve.low, curve.high)))
    low, high = y_range or _padded(ys)
    x_low, x_high = x_range or (min(0.0, *xs, 0.0), max(0.0, *xs, 0.0) or 1.0)
    x_scale = _scale(x_low, x_high, _LEFT, _WIDTH - _RIGHT)
    y_scale = _scale(low, high, _HEIGHT - _BOTTOM, _TOP)
    shapes = []
    bottom = _HEIGHT - _BOTTOM
    for tick in ticks(low, high):
        y, text = y_scale(tick), y_format(tick)
        shapes.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
        shapes.append(_text(_LEFT - 6, y + 4, text, "end"))
    for tick in ticks(x_low, x_high, 5):
        shapes.append(_text(x_scale(tick), bottom + 15, x_format(tick)))
    shapes.append(f'<path class="axis" d="M{_LEFT} {bottom}H{_WIDTH - _RIGHT}"/>')
    for level in levels:
        if low <= level <= high:
            y = y_scale(level)
            shapes.append(f'<path class="level" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
    shapes += [_band(curve, x_scale, y_scale) for curve in curves if len(curve.low)]
    shapes += [(_dots if curve.dots else _line)(curve, x_scale, y_scale) for curve in curves]
    shapes.append(_text(_LEFT, 16, title, "start", "title"))
    shapes.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 5, x_label))
    return _svg(_HEIGHT, title, shapes)


def draw_intervals(
    rows: Sequence[Interval],
    title: str,
    *,
    x_format: Callable[[float], str] = short,
    x_range: tuple[float, float] | None = None,
    levels: Sequence[float] = (),
) -> str:
    """Return a picture of values with their intervals, the first one at the top.

    `title` names the axis. Without `x_range` it shows all rows. A dotted line crosses the picture
    at each of `levels`.
    """
    step, left = 40, 14
    height = _TOP + step * len(rows) + 26
    bottom = height - 24
    low, high = x_range or _padded(
        _finite(*([row.value, row.low, row.high, *row.points] for row in rows))
    )
    scale = _scale(low, high, left, _WIDTH - left)
    shapes = []
    for tick in ticks(low, high):
        shapes.append(f'<path class="grid" d="M{scale(tick):.1f} {_TOP}V{bottom}"/>')
        shapes.append(_text(scale(tick), bottom + 15, x_format(tick)))
    for level in levels:
        shapes.append(f'<path class="level" d="M{scale(level):.1f} {_TOP}V{bottom}"/>')
    for number, row in enumerate(rows, start=1):
        y, color = _TOP - 12 + number * step, _color(row.color)
        shapes.append(_text(left, y - 12, row.label, "start"))
        shapes += [
            f'<circle class="dot" style="fill:{color}" cx="{scale(x):.1f}" cy="{y}" r="3"/>'
            for x in row.points
        ]
        if math.isfinite(row.low):
            left_end, right_end = scale(row.low), scale(row.high)
            shapes.append(
                f'<rect class="interval" style="fill:{color}" x="{left_end:.1f}" y="{y - 6}" '
                f'width="{right_end - left_end:.1f}" height="12" rx="2"/>'
            )
        shapes.append(
            f'<path class="line" style="stroke:{color}" d="M{scale(row.value):.1f} {y - 9}v18"/>'
        )
    shapes.append(_text(left, 16, title, "start", "title"))
    return _svg(height, title, shapes)


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Return about `count` round numbers in a range."""
    size = (high - low) / count
    power = 10.0 ** math.floor(math.log10(size))
    step = power * min((1, 2, 5, 10), key=lambda factor: abs(factor - size / power))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def swatch(color: int) -> str:
    """Return a mark of a color, for a legend or a row of a table."""
    dashed = " dashed" if color >= COLORS else ""
    return f'<i class="swatch{dashed}" style="border-color:{_color(color)}"></i>'


def _color(number: int) -> str:
    return f"var(--c{number % COLORS})"


def _svg(height: int, title: str, shapes: Sequence[str]) -> str:
    body = "".join(shapes)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">{body}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str = "middle", name: str = "") -> str:
    kind = f' class="{name}"' if name else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{escape(text)}</text>'


def _finite(*parts: Values) -> list[float]:
    together = np.concatenate([np.empty(0), *parts])
    found: list[float] = together[np.abs(together) < _LIMIT].tolist()
    return found


def _padded(values: Sequence[float]) -> tuple[float, float]:
    """Return a range with the values and a margin, 0 to 1 without any."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 0.05
    return low - margin, high + margin


def _scale(low: float, high: float, first: float, last: float) -> _Scale:
    """Return the position of values, numbers or arrays; those beyond the range are at its ends."""
    return lambda values: np.interp(values, (low, high), (first, last))


def _thinned(curve: Curve) -> Curve:
    """Return a curve of arrays, and of a line no more points than show, the last one included."""
    last = len(curve.x) - 1
    count = last + 1 if curve.dots else min(last + 1, _MAX_POINTS)
    kept = np.linspace(0, last, count).round().astype(int)
    parts = (curve.x, curve.y, curve.low, curve.high)
    x, y, low, high = (np.asarray(part, float)[kept] if len(part) else part for part in parts)
    return replace(curve, x=x, y=y, low=low, high=high)


def _line(curve: Curve, x_scale: _Scale, y_scale: _Scale) -> str:
    """Return a line, which begins anew after values that are not finite."""
    known = np.isfinite(curve.x) & np.isfinite(curve.y)
    goes_on = np.concatenate([[False], known[:-1]])[known]
    points = zip(goes_on, x_scale(curve.x)[known], y_scale(curve.y)[known], strict=True)
    # A line of no length, h0, makes a dot of a single point, as large as those of `_dots`.
    dot = ";stroke-width:7" if known.sum() == 1 else ""
    texts = ((on, f"{x:.1f} {y:.1f}") for on, x, y in points)
    line = "".join(f"L{text}" if on else f"M{text}h0" for on, text in texts)
    dash = "" if curve.color < COLORS else f";stroke-dasharray:{3 * (curve.color // COLORS)} 3"
    return (
        f'<path class="{"line faint" if curve.faint else "line"}" '
        f'style="stroke:{_color(curve.color)}{dash}{dot}" d="{line}">'
        f"<title>{escape(curve.label)}</title></path>"
    )


def _dots(curve: Curve, x_scale: _Scale, y_scale: _Scale) -> str:
    points = zip(x_scale(curve.x), y_scale(curve.y), strict=True)
    style = f'class="dot" style="fill:{_color(curve.color)}"'
    circles = "".join(f'<circle {style} cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in points)
    return f"<g>{circles}<title>{escape(curve.label)}</title></g>"


def _band(curve: Curve, x_scale: _Scale, y_scale: _Scale) -> str:
    x, low, high = x_scale(curve.x), y_scale(curve.low), y_scale(curve.high)
    around = zip([*x, *x[::-1]], [*high, *low[::-1]], strict=True)
    points = "L".join(f"{left:.1f} {top:.1f}" for left, top in around if math.isfinite(top))
    path = f"M{points}Z" if points else ""
    return f'<path class="band" style="fill:{_color(curve.color)}" d="{path}"/>'
