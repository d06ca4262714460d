"""``tokendraw bench --preset cliffs``: a table for each sweep, as soon as it is complete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tokendraw import SamplerUnavailableError
from tokendraw.commands import host_json, print_json, progress, progress_bar
from tokendraw_bench.commands.html import write_report
from tokendraw_bench.commands.printing import print_head, print_table
from tokendraw_bench.sweeps import CLIFFS, SWEEPS, Sweep

if TYPE_CHECKING:
    from tokendraw_bench.contenders import Contender
    from tokendraw_bench.report.lines import BenchReport


def check_sweep_options(ctx: click.Context, preset: str, axis_values: Mapping[str, Any]) -> None:
    """Check that options of sweeps and of grids are not mixed.

    :param axis_values: values of every axis by field.
    :raises click.UsageError: an option has no meaning with the preset.
    """
    grid = {"operation", *axis_values}
    refused = grid if preset == CLIFFS else {"sweeps", "small"}
    for option in ctx.command.params:
        name = str(option.name)
        if name not in refused or ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        opts = option.opts if ctx.params[name] is not False else option.secondary_opts
        if preset == CLIFFS:
            raise click.UsageError(
                f"'{opts[0]}' is about a grid of cells. Leave out --preset {CLIFFS}, or leave it out."
            )
        raise click.UsageError(f"'{opts[0]}' is about sweeps. Add --preset {CLIFFS}, or leave it out.")


@dataclass(frozen=True, kw_only=True)
class SweepFiles:
    """The files to write, anew after each sweep; None: no such file."""

    output: Path | None
    html: Path | None


def bench_sweeps(
    names: Sequence[str],
    samplers: tuple[str, ...],
    settings: Mapping[str, Any],
    *,
    small: bool,
    files: SweepFiles,
    as_json: bool,
) -> bool:
    """Time sweeps one after another, print or write each result at once, and return whether there are times.

    :param names: names of sweeps; empty: all.
    :param samplers: names of contenders; empty: all.
    :param settings: arguments of ``report_of``.
    """
    from tokendraw_bench.report.table import as_section, markdown_page

    reports: dict[str, BenchReport] = {}
    sections: list[str] = []
    for name in dict.fromkeys(names) or SWEEPS:
        sweep = SWEEPS[name]
        contenders = _contenders(samplers, settings["device"], sweep)
        if not contenders:
            continue
        report = _timed(sweep, contenders, settings, small=small)
        head = [report.machine_sentence, report.method_sentence]
        heading = f"{name}: {sweep.title}"
        if not as_json:
            if not reports:
                print_head(head)
            click.echo(f"{heading}\n")
            print_table(report)
            click.echo()
        reports[name] = report
        sections += [f"## {heading}", as_section(report)]
        if files.output is not None:
            files.output.write_text(markdown_page(report.command, head, sections), encoding="utf-8")
        if files.html is not None:
            write_report(files.html, _as_json(reports, settings))
    if as_json:
        print_json(_as_json(reports, settings))
    return _has_times(reports)


def _as_json(reports: Mapping[str, BenchReport], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of ``--json``."""
    sweeps = [
        {"sweep": name, "title": SWEEPS[name].title, **report.as_json()} for name, report in reports.items()
    ]
    return {
        "error": None if _has_times(reports) else "Nothing could be timed. Read the reasons of the entries.",
        "command": settings["command"],
        "host": host_json(settings["host"]),
        "sweeps": sweeps,
    }


def _has_times(reports: Mapping[str, BenchReport]) -> bool:
    return any(report.has_times for report in reports.values())


def _contenders(samplers: tuple[str, ...], device: Any, sweep: Sweep) -> list[Contender]:
    """Select the contenders that serve the operation of a sweep; say why another does not."""
    with progress("loading samplers"):
        from tokendraw_bench.contenders import select_contenders

        if not samplers:
            return list(select_contenders((), device, sweep.operation))
        contenders: list[Contender] = []
        for name in samplers:
            try:
                contenders += select_contenders((name,), device, sweep.operation)
            except SamplerUnavailableError as error:
                click.echo(str(error), err=True)
    return contenders


def _timed(
    sweep: Sweep, contenders: Sequence[Contender], settings: Mapping[str, Any], *, small: bool
) -> BenchReport:
    from tokendraw_bench.run import report_of

    cells = sweep.cells(small=small)
    places: dict[Any, int] = {cell: index for index, cell in enumerate(cells)}
    with progress_bar(len(cells), "cells") as show:
        report = report_of(
            cells,
            contenders,
            starting=lambda cell: show(str(cell), places[cell]),
            keeps_going=True,
            **settings,
        )
    return replace(report, lines=sweep.with_edges(report.lines))
