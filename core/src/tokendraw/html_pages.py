"""Pages of HTML that commands write: title, summary, charts and tables in one file, which opens without a network."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import click

from tokendraw.errors import InvalidParameterError, TokendrawError, all_of, how_to_install

html_option = click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    metavar="FILE",
    help="Write the report as a page of HTML, which needs no network.",
)


class PageSection(NamedTuple):
    """A part of a page. What is empty is left out."""

    title: str
    texts: Sequence[str] = ()
    codes: Sequence[str] = ()
    """Command lines and tracebacks."""
    chart: Mapping[str, Any] | None = None
    """What :func:`draw_chart` returns."""
    columns: Sequence[str] = ()
    """Titles of the table."""
    rows: Sequence[Sequence[str | float | None]] = ()
    """Cells of the table; None, and NaN, where there is no value."""


def require_html(file: Path, distribution: str, modules: Sequence[str]) -> None:
    """Check the folder of a page, and its libraries, which the extra ``html`` of a distribution brings."""
    if not file.parent.is_dir():
        raise InvalidParameterError(
            f"'--html' needs a file in a folder that exists, found '{file}'. Make the folder '{file.parent}'."
        )
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise TokendrawError(
            f"'--html' needs {all_of(modules)}, found no {' and no '.join(missing)}; run "
            f"{how_to_install(distribution, 'html')}."
        )


def write_page(file: Path, title: str, sections: Sequence[PageSection]) -> None:
    """Write a page; every value in it is escaped. It needs jinja2, and altair and vl_convert if it has charts."""
    from jinja2 import Environment, PackageLoader

    loader = PackageLoader("tokendraw", ".")
    pages = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    charts = [section.chart for section in sections if section.chart]
    javascript = _javascript() if charts else ""
    values = {"title": title, "sections": sections, "charts": charts, "javascript": javascript, "text": _text}
    page = pages.get_template("html_page.html").render(values)
    file.write_text(page, encoding="utf-8", errors="xmlcharrefreplace")


def draw_chart(points: Sequence[Mapping[str, Any]], *, x: str, y: str) -> dict[str, Any]:
    """Return the Vega-Lite specification of lines over numbers, in panels, or of bars beside words.

    :param points: ``x``, ``y``, ``series`` and ``panel`` of each; the other parameters are titles of axes.
    """
    import altair as alt

    def scale(axis: str) -> alt.Scale:
        values = [point[axis] for point in points]
        is_far = min(values) > 0 and max(values) >= 4 * min(values)
        return alt.Scale(type="log", nice=False) if is_far else alt.Scale(zero=False)

    color = alt.Color("series:N", title=None, sort=None)
    base = alt.Chart(alt.InlineData(values=list(points))).encode(color=color)
    if any(isinstance(point["x"], str) for point in points):
        words = alt.Y("x:N", title=None, sort=None, axis=alt.Axis(labelLimit=300))
        drawn = base.mark_bar(tooltip=True).encode(x=alt.X("y:Q", title=y), y=words, yOffset="series:N")
    else:
        across, up = alt.X("x:Q", title=x, scale=scale("x")), alt.Y("y:Q", title=y, scale=scale("y"))
        drawn = base.mark_line(point=True, tooltip=True).encode(x=across, y=up)
        drawn = drawn.properties(width=300, height=200)
        panels = list(dict.fromkeys(point["panel"] for point in points))
        drawn = drawn.facet(facet=alt.Facet("panel:N", title=None, sort=panels), columns=3)
    return dict(drawn.to_dict())


def _text(value: str | float | None) -> str:
    if value is None or value != value:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else value


@functools.cache
def _javascript() -> str:
    import vl_convert

    bundle = str(vl_convert.javascript_bundle(None))  # type: ignore[arg-type]  # optional, by its documentation
    return bundle.replace("</script", "<\\/script").replace("<!--", "<\\!--")
