"""Draws charts with Vega-Lite, by Altair. A drawing has one specification, and data for each panel."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import altair as alt

from tokendraw_bench.report.questions import Chart, ChartForm, Point

_POINTS: Final = "points"
"""Name of the data that a panel brings."""
_SHAPES: Final = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
_SYMBOLS: Final = "●■▲◆✚▼"
"""The shapes as characters."""
_FLOOR_COLOUR = "var(--muted)"
_MOST_TICKS = 7
_STEPS = ((1, 2, 3, 4, 5, 6, 8), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,))
"""Ticks of a power of ten, the densest first."""
_FAR = 4.0
"""Ratio of values from which an axis is logarithmic."""
_MARGIN = 0.04
"""Room on an axis beyond the values, as a share of their span."""
_PANEL_HEIGHT = 210
_LARGE_HEIGHT = 320
_ROW_HEIGHT = 34
_TEXTS = ("sampler", "call", "time", "reads", "copies", "slowest call")

_CONFIG: Mapping[str, Any] = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "currentColor",
        "titleColor": "currentColor",
        "gridColor": "var(--rule)",
        "domainColor": "var(--muted)",
        "tickColor": "var(--muted)",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 190,
        "labelOverlap": "greedy",
    },
}


def drawing(chart: Chart, contenders: Sequence[str]) -> dict[str, Any]:
    """Return ``spec``, the specification of all panels, and ``panels``, the points and the height of each panel.

    :param contenders: all of the page, since each has one colour and one shape on all of it.
    """
    layers = {ChartForm.LINES: _lines, ChartForm.ROWS: _rows, ChartForm.SCATTER: _scatter}[chart.form]
    names = [*contenders, *([chart.floor] if chart.floor else [])]
    spec = alt.layer(*layers(chart, names)).properties(width="container").configure(**_CONFIG).to_dict()
    return {"spec": spec, "panels": [_panel(chart.form, points) for points in chart.panels.values()]}


def _panel(form: ChartForm, points: Sequence[Point]) -> dict[str, Any]:
    height = {ChartForm.LINES: _PANEL_HEIGHT, ChartForm.SCATTER: _LARGE_HEIGHT}.get(form, 0)
    rows = len({point.get("row") for point in points})
    return {"height": height or _ROW_HEIGHT * rows, "datasets": {_POINTS: points}}


def legend(contenders: Sequence[str]) -> list[dict[str, str]]:
    """Return ``name``, ``symbol`` and ``colour`` of each contender."""
    return [
        {"name": name, "symbol": _SYMBOLS[i % len(_SYMBOLS)], "colour": _colour(i)}
        for i, name in enumerate(contenders)
    ]


@functools.cache
def javascript() -> str:
    """Return the libraries that draw the specifications, as the content of an element ``script``.

    :raises ValueError: the libraries could end the element.
    """
    import vl_convert

    bundle = str(vl_convert.javascript_bundle(None))  # type: ignore[arg-type]  # optional, by its documentation
    if "</script" in bundle.lower() or "<!--" in bundle:
        raise ValueError(
            "The libraries of charts need to fit into an element of HTML, found an end tag in these."
        )
    return bundle


def _colour(index: int) -> str:
    return f"var(--c{index % len(_SHAPES)})"


def _lines(chart: Chart, names: Sequence[str]) -> list[alt.Chart]:
    base = _base(chart, names).encode(x=_x(chart), y=_y(chart))
    line = base.mark_line(strokeWidth=2).encode(detail="series:N", strokeDash=_dashes(chart, names))
    return [line, _points(chart, base, names), _edges(base, dy=-11)]


def _rows(chart: Chart, names: Sequence[str]) -> list[alt.Chart]:
    # A label lies above its row, inside of the plot, since labels may be longer than a narrow plot is wide.
    inside = alt.Axis(
        title=None,
        grid=True,
        ticks=False,
        domain=False,
        labelAlign="left",
        labelPadding=-4,
        labelOffset=-13,
        labelLimit=0,
    )
    rows = alt.Y("row:N", sort=None, axis=inside)
    base = _base(chart, names).encode(x=_x(chart), y=rows)
    span = base.mark_rule(stroke="var(--rule)", strokeWidth=3).encode(
        x=alt.X("min(x):Q"), x2="max(x):Q", color=alt.value("var(--rule)")
    )
    return [span, _points(chart, base, names), _edges(base, dx=8, align="left")]


def _scatter(chart: Chart, names: Sequence[str]) -> list[alt.Chart]:
    base = _base(chart, names).encode(x=_x(chart), y=_y(chart))
    return [_points(chart, base, names)]


def _base(chart: Chart, names: Sequence[str]) -> alt.Chart:
    colours = [_FLOOR_COLOUR if name == chart.floor else _colour(i) for i, name in enumerate(names)]
    scale = alt.Scale(domain=list(names), range=colours)
    return alt.Chart(alt.NamedData(name=_POINTS)).encode(
        color=alt.Color("sampler:N", scale=scale, legend=None)
    )


def _points(chart: Chart, base: alt.Chart, names: Sequence[str]) -> alt.Chart:
    """Draw the points of contenders, with their texts; the floor has none."""
    texts = [name for name in _TEXTS if any(name in point for point in chart.points)]
    shapes = alt.Scale(domain=list(names), range=[_SHAPES[i % len(_SHAPES)] for i in range(len(names))])
    points = base.mark_point(filled=True, size=55, opacity=1).encode(
        shape=alt.Shape("sampler:N", scale=shapes, legend=None), tooltip=[f"{name}:N" for name in texts]
    )
    of_contenders: alt.Chart = points.transform_filter(alt.datum.sampler != chart.floor)
    return of_contenders


def _edges(base: alt.Chart, **offset: Any) -> alt.Chart:
    text = base.mark_text(fontWeight="bold", fontSize=12, **offset).encode(text="edge:N")
    edges: alt.Chart = text.encode(color=alt.value("var(--bad)")).transform_filter(alt.datum.edge != "")
    return edges


def _dashes(chart: Chart, names: Sequence[str]) -> alt.StrokeDash:
    dashes = [[4, 4] if name == chart.floor else [1, 0] for name in names]
    return alt.StrokeDash("sampler:N", scale=alt.Scale(domain=list(names), range=dashes), legend=None)


def _x(chart: Chart) -> alt.X:
    values = sorted({float(point["x"]) for point in chart.points})
    base = 0.0 if chart.form is ChartForm.ROWS else None
    ticks = values if chart.is_discrete and len(values) <= _MOST_TICKS else None
    return alt.X("x:Q", **_position(values, chart.x_title, base=base, ticks=ticks))


def _y(chart: Chart) -> alt.Y:
    values = sorted(float(point["y"]) for point in chart.points)
    return alt.Y(
        "y:Q", **_position(values, chart.y_title, base=1.0 if chart.form is ChartForm.SCATTER else 0.0)
    )


def _position(
    values: Sequence[float], title: str, *, base: float | None, ticks: Sequence[float] | None = None
) -> dict[str, Any]:
    """Return scale and axis: logarithmic for values that reach far, else linear.

    :param values: in ascending order.
    :param base: where a linear axis begins; None: at the least value.
    """
    least, most = values[0], values[-1]
    if least > 0 and most >= _FAR * least:
        margin = (most / least) ** _MARGIN
        ends = least / margin, most * margin
        scale = alt.Scale(type="log", domain=list(ends), nice=False)
        return {"scale": scale, "axis": _axis(title, ticks or log_ticks(*ends))}
    is_far = least == 0 and most >= _FAR**2 * next((value for value in values if value), 1.0)
    start = least if base is None else min(least, base)
    margin = (most - start) * _MARGIN or 1.0
    if is_far:
        scale = alt.Scale(type="symlog", domain=[0, most + margin], nice=False)
        return {"scale": scale, "axis": _axis(title, ticks or [0, *log_ticks(1.0, most)])}
    scale = alt.Scale(domain=[start if base is not None else start - margin, most + margin], nice=False)
    return {"scale": scale, "axis": _axis(title, ticks)}


def _axis(title: str, ticks: Sequence[float] | None) -> alt.Axis:
    if ticks is None:
        return alt.Axis(title=title, format=",~r", tickCount=_MOST_TICKS)
    return alt.Axis(title=title, format=",~r", values=list(ticks))


def log_ticks(low: float, high: float) -> list[float]:
    """Choose the ticks of a logarithmic axis between two ends: the most round numbers that leave room for labels."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in _STEPS:
        ticks = [
            number for power in powers for step in steps if low <= (number := step * 10.0**power) <= high
        ]
        if len(ticks) <= _MOST_TICKS:
            break
    return ticks
