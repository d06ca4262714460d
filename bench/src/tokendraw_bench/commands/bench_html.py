"""The options of ``tokendraw bench`` for a page of HTML, of this run or of an earlier one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tokendraw import InvalidParameterError
from tokendraw.commands import all_of_options, html_option, require_html
from tokendraw_bench.report.page import MODULES, write_report

_PARAMETERS = ("html", "saved")

html_options = all_of_options(
    html_option,
    click.option(
        "--from",
        "saved",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        metavar="FILE",
        help="Time nothing: write the page of --html from what --json printed, here or elsewhere.",
    ),
)


def require_page(file: Path) -> None:
    """Check that a page can be written, as :func:`tokendraw.commands.require_html` does."""
    require_html(file, "tokendraw-bench", MODULES)


def write_saved(ctx: click.Context, saved: Path, html: Path | None) -> None:
    """Write the page of a saved run.

    :raises click.UsageError: there is no page to write, or an option has no meaning without a run.
    :raises InvalidParameterError: the file has no JSON of a run.
    """
    if html is None:
        raise click.UsageError("'--from' writes the page of --html. Add --html FILE.")
    for option in ctx.command.params:
        name = str(option.name)
        is_given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if name in ctx.params and is_given and name not in _PARAMETERS:
            raise click.UsageError(
                f"'{option.opts[0]}' is about a run, '--from' about an earlier one. Leave out one of them."
            )
    require_page(html)
    report = _read(saved)
    try:
        write_report(html, report)
    except (KeyError, TypeError) as error:
        raise _no_report(f"an object of another form ({type(error).__name__}: {error})") from error


def _read(saved: Path) -> dict[str, Any]:
    try:
        report = json.loads(saved.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _no_report("no JSON") from error
    if not isinstance(report, dict) or not (report.get("cells") or report.get("sweeps")):
        raise _no_report("no cells")
    return report


def _no_report(found: str) -> InvalidParameterError:
    return InvalidParameterError(
        f"'--from' needs a file with the output of `tokendraw bench --json`, found {found}. Pass another file."
    )
