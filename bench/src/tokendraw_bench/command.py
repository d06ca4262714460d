"""``tokendraw bench``: time the installed plugins against each other, and against a read or a copy of the same bytes.

JSON: ``command`` (the line that repeats the run), ``operation``, ``device``, ``host`` (as in ``resolve --json``),
``method`` (how times were taken, in words), ``repeats``, ``threads`` (of torch), ``omp_wait_policy`` (the
environment's; null: unset), ``cores`` (that the process may use) and ``load`` (programs at work in the minute before;
null where the system does not tell), ``busy`` (that other work disturbed the times, by what signs, and what to set;
else ""), ``versions`` (by distribution), ``contenders`` (names), ``notes`` (the sentences below the table), ``seconds``
and ``cells``; for operations on logits also ``seeded``, ``gumbel_dtype``, ``temperature``, ``top_k``, ``top_p`` and
``min_p`` (of the rows that have them) and ``logprob_ranks``.

A cell has the values of its axes. On logits: ``batch``, ``vocab_size``, ``dtype``, ``filters``, ``family``, and what
was measured of them, ``nucleus`` (tokens that top-p alone keeps of a row; the mean); ``special`` (rows of another
kind), ``filter_order``, ``tie_rule``, ``logprobs`` (of each row; null: none), ``logprobs_mode`` and ``row_padding``
(unused elements behind a row); verifications also ``drafts`` (of each of the ``batch`` requests) and ``mode``.
``process_logits``: ``batch``, ``vocab_size``, ``dtype``, ``edits``, ``distinct`` (ids that occur in a request),
``bitmask`` (the ids that it allows) and ``graph`` (the edits that a CUDA graph serves). Operations of other
distributions: ``method``, ``size`` and ``way`` (its options).

Every cell has ``buffers`` (sets of inputs that took turns), ``nbytes`` (of one), what ratios refer to under ``read`` or
``copy``, and ``entries``, one a contender by its name. These have ``us`` (median microseconds of a call), ``q1_us`` and
``q3_us`` (the quartiles), ``host_us`` (until a call returns on an idle device; null on a CPU), ``how``
(``wall clock``, ``graph`` or ``eager``), ``ratio``, ``reason`` (why there is no time, all else being null; else ""),
``by`` (which of several ways was the fastest; "" where there is only one, or none works), and with ``--single``
``largest_us`` (of a call) and ``least_host_us``, else null. With ``--memory`` they have ``extra_memory`` (the peak of
the bytes of tensors beside a call's inputs and result).

With ``--preset cliffs`` there are ``command``, ``host`` and ``sweeps``, each with its ``sweep`` (name), ``title`` and
the keys of a run. Entries have ``edge``, the growth of the ratio from the cell before in a series (that in which only
the swept parameters differ), or from the first, where it is more than twofold; else null.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tokendraw import InvalidParameterError, SamplerUnavailableError
from tokendraw.commands import (
    NOT_USABLE,
    PIPE_WIDTH,
    GuardedCommand,
    all_of_options,
    command_line,
    device_option,
    host_json,
    html_option,
    installed_names,
    json_option,
    print_json,
    progress,
    progress_bar,
    verbose_option,
)
from tokendraw.tools import find_device, find_operation, one_of, require_html
from tokendraw_bench import operations
from tokendraw_bench.cells import Cell, min_vocab_size
from tokendraw_bench.operation import AnyCell, Axis
from tokendraw_bench.page import MODULES, write_report, write_saved
from tokendraw_bench.sweeps import BATCHES, CLIFFS, SMALL_BATCHES, SWEEPS, Sweep

if TYPE_CHECKING:
    from tokendraw_bench.contenders import Contender
    from tokendraw_bench.report import BenchReport

REPEATS = 15
"""Samples of a median, unless an option says otherwise."""


_OPERATIONS: dict[Axis, list[str]] = {}
"""Every axis, and the operations with cells along it."""
for _name in operations.NAMES:
    for _axis in operations.get(_name).axes:
        _OPERATIONS.setdefault(_axis, []).append(_name)


def _option(axis: Axis) -> Callable[[Any], Any]:
    """Make the option for an axis, under the name of the field; None or () by default."""
    if axis.is_flag:
        return click.option(axis.option, axis.field, default=None, help=axis.help)
    number = click.FloatRange if axis.is_fraction else click.IntRange
    values: Any = number(min=axis.minimum, max=axis.maximum, min_open=axis.excludes_minimum)
    if axis.choices:
        values = click.Choice(axis.choices)
    elif axis.allows_none:
        values = _number_or_none
    metavar = "INTEGER|none" if axis.allows_none else None
    return click.option(
        axis.option, axis.field, multiple=not axis.single, type=values, help=axis.help, metavar=metavar
    )


def _number_or_none(text: str) -> int | None:
    """Read a whole number of 0 or more, or ``none``."""
    if text != "none" and not text.isdecimal():
        raise ValueError(text)
    return None if text == "none" else int(text)


def _cells_of_options(operation: str, preset: str, axis_values: Mapping[str, Any]) -> tuple[AnyCell, ...]:
    """List the cells of a preset, with values of options in place of the preset's.

    :param axis_values: values of every axis by field, as the options have them.
    :raises click.UsageError: an axis of another operation was given, or a vocabulary without room for a family.
    """
    values: dict[str, tuple[Any, ...]] = {}
    for axis, names in _OPERATIONS.items():
        option = axis_values[axis.field]
        choices = option if isinstance(option, tuple) else () if option is None else (option,)
        if choices and operation not in names:
            raise click.UsageError(
                f"'{axis.option_of(choices[0])}' is about {axis.subject}. Add --op {one_of(names)}, or leave it out."
            )
        if operation in names:
            values[axis.field] = choices
    cells = operations.get(operation).grid(preset, **values)
    for cell in cells:
        if isinstance(cell, Cell) and cell.vocab_size < min_vocab_size(cell.family):
            raise click.UsageError(
                f"{cell.family} needs a vocabulary of {min_vocab_size(cell.family)} or more, "
                f"found {cell.vocab_size}."
            )
    return cells


def _known(ctx: click.Context, param: click.Parameter, value: str) -> str:
    try:
        return value if value in operations.NAMES else operations.get(find_operation(value).name).name
    except InvalidParameterError as error:
        raise click.BadParameter(str(error)) from error


def _check_sweep_options(ctx: click.Context, preset: str, axis_values: Mapping[str, Any]) -> None:
    """Check that options of sweeps and of grids are not mixed.

    :param axis_values: values of every axis by field.
    :raises click.UsageError: an option has no meaning with the preset.
    """
    grid = {"operation", "export_format", *axis_values}
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


@click.command(cls=GuardedCommand, short_help="Time samplers against each other, and a read.")
@click.option(
    "--op",
    "operation",
    metavar=f"[{'|'.join(operations.NAMES)}|...]",
    callback=_known,
    shell_complete=lambda ctx, param, start: [name for name in operations.names() if name.startswith(start)],
    default="sample",
    show_default=True,
    help="The operation that is timed.",
)
@click.option(
    "--preset",
    type=click.Choice([*operations.get("sample").presets, CLIFFS]),
    default="quick",
    show_default=True,
    help="What is timed where the options below do not say: quick takes seconds on a laptop, design has the "
    "shapes that plugins for GPUs are held to. Cliffs sweeps one parameter at a time, and marks edges.",
)
@click.option(
    "--sweep",
    "sweeps",
    type=click.Choice(list(SWEEPS)),
    multiple=True,
    help="Of --preset cliffs; may be given again. Default: all.",
)
@click.option(
    "--small", is_flag=True, help="Shrink the cells of --preset cliffs, as on a CPU. Times then say nothing."
)
@all_of_options(*map(_option, _OPERATIONS))
@click.option(
    "--sampler",
    multiple=True,
    metavar="NAME",
    shell_complete=installed_names,
    help="An installed sampler, torch-sort or flashinfer-direct; may be given again. Default: all that there are. A+B "
    "draws special rows by B and the batch by A. flashinfer-unfused leaves out FlashInfer's fused sampler, which "
    "compiles for minutes. vllm-direct: vLLM's Triton kernels.",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=3),
    help=f"Samples of a median. Default: {REPEATS}; {BATCHES} with --preset cliffs.",
)
@click.option(
    "--single",
    is_flag=True,
    help="Take samples of single calls, each at other positions, and show the largest.",
)
@click.option(
    "--cache",
    type=click.Choice(["cold", "warm"]),
    default="cold",
    show_default=True,
    help="Whether the inputs of a call are in the cache.",
)
@click.option(
    "--graphs/--no-graphs", default=True, help="Whether CUDA graphs capture the calls. Default: they do."
)
@click.option("--memory", is_flag=True, help="Show the peak memory of a call, beside its inputs and result.")
@device_option
@click.option(
    "--output",
    type=click.Path(path_type=Path, writable=True),
    metavar="FILE",
    help="Write the table as Markdown, with the command and what it ran on at its head.",
)
@click.option(
    "--export",
    "export_format",
    type=click.Choice(["flashinfer-bench"]),
    help="Time nothing: write the cells and samplers as a dataset of flashinfer-bench, into a folder of this name or "
    "that of --output.",
)
@html_option
@click.option(
    "--from",
    "saved",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Time nothing: write the page of --html from what --json printed, here or elsewhere.",
)
@verbose_option
@json_option
@click.pass_context
def bench(
    ctx: click.Context,
    /,
    operation: str,
    preset: str,
    sweeps: tuple[str, ...],
    small: bool,
    sampler: tuple[str, ...],
    repeats: int | None,
    single: bool,
    cache: str,
    graphs: bool,
    memory: bool,
    device: str | None,
    output: Path | None,
    export_format: str | None,
    html: Path | None,
    saved: Path | None,
    as_json: bool,
    **axis_values: Any,
) -> None:
    """Time installed plugins against each other, and against a pass that only reads the same logits.

    Each serves by itself, without a companion; one that cannot serve a cell shows a dash, and the reason below. On
    CUDA, times are those of graphs over buffers in rotation that no cache holds; on a CPU, of the clock on the wall.
    With --op another operation is timed, against a read or a copy of the bytes that it cannot do without.
    The preset cliffs prints a table for each sweep as soon as it is complete: single calls, each on other logits.

    Exits with 1 if nothing could be timed.
    """
    if saved is not None:
        write_saved(ctx, saved, html)
        return
    _check_sweep_options(ctx, preset, axis_values)
    is_sweep = preset == CLIFFS
    cells = () if is_sweep else _cells_of_options(operation, preset, axis_values)
    if export_format is not None:
        if as_json or html is not None:
            raise click.UsageError("'--export' times nothing. Leave out --json and --html.")
        _export(cells, sampler, output or Path(export_format), device)
        return
    if output is not None and output.is_dir():
        raise click.UsageError(f"'--output' needs a file, found the folder '{output}'.")
    if output is not None and not output.parent.is_dir():
        raise InvalidParameterError(
            f"'--output' needs a file in a folder that exists, found '{output}'. Make the folder '{output.parent}'."
        )
    if html is not None:
        require_html(html, "tokendraw-bench", MODULES)
    with progress("loading samplers"):
        target, host = find_device(device)  # first: it says so where torch is missing
    small = small or target.type == "cpu"
    repeats = repeats or (REPEATS if not is_sweep else SMALL_BATCHES if small else BATCHES)
    with progress("loading samplers"):
        from tokendraw_bench.run import timer_for
        from tokendraw_bench.timing import SamplePlan

    plan = SamplePlan(
        single=is_sweep or single,
        warm=cache == "warm",
        graphs=graphs,
        input_sets=min(repeats, BATCHES) if is_sweep else None,
    )
    settings: dict[str, Any] = {
        "device": target,
        "host": host,
        "timer": timer_for(target, repeats, plan=plan),
        "command": command_line(ctx),
        "measures_memory": memory,
    }
    if is_sweep:
        facts = _bench_sweeps(sweeps, sampler, settings, small, output, html, as_json)
    else:
        with progress("loading samplers"):
            from tokendraw_bench.contenders import select_contenders

            contenders = select_contenders(sampler, target, operation)
        report = _timed(cells, contenders, settings)
        if report.busy:
            click.echo(report.busy, err=True)
        if output is not None:
            from tokendraw_bench.report import as_markdown

            output.write_text(as_markdown(report), encoding="utf-8")
        facts = {"error": _error([report]), **report.as_json(), "host": host_json(host)}
        if not as_json:
            _print_head(report.head)
            _print_table(report)
        if html is not None:
            write_report(html, facts)
    if as_json:
        print_json(facts)
    if facts["error"]:
        ctx.exit(NOT_USABLE)


def _export(cells: Sequence[AnyCell], samplers: tuple[str, ...], folder: Path, device: str | None) -> None:
    """Write cells and samplers for another bench, and say what was left out."""
    with progress("writing tensors"):
        target, _ = find_device(device)
        from tokendraw_bench.contenders import select_contenders
        from tokendraw_bench.export import export

        names = {each.name for each in select_contenders(samplers, target)}
        plugins = sorted(n for n in names - {*operations.get("sample").baselines()} if "+" not in n)
        count, left_out = export(cells, plugins, folder, target)
    click.echo(f"{count} workloads in {folder}")
    for cell in left_out:
        click.echo(f"left out: {cell}")


def _bench_sweeps(
    names: Sequence[str],
    samplers: tuple[str, ...],
    settings: Mapping[str, Any],
    small: bool,
    output: Path | None,
    html: Path | None,
    as_json: bool,
) -> dict[str, Any]:
    """Time sweeps, print or write each as soon as it is complete, and return the keys of ``--json``."""
    from tokendraw_bench.report import as_section, markdown_page

    reports: list[BenchReport] = []
    sections: list[str] = []
    facts: dict[str, Any] = {
        "error": _error(()),
        "command": settings["command"],
        "host": host_json(settings["host"]),
        "sweeps": [],
    }
    for name in dict.fromkeys(names) or SWEEPS:
        sweep = SWEEPS[name]
        contenders = _contenders(samplers, settings["device"], sweep)
        if not contenders:
            continue
        report = _timed(sweep.cells(small=small), contenders, settings, keeps_going=True)
        report = replace(report, lines=sweep.with_edges(report.lines))
        head = [report.machine_sentence, report.method_sentence]
        if not as_json:
            if not reports:
                _print_head(head)
            click.echo(f"{name}: {sweep.title}\n")
            _print_table(report)
            click.echo()
        reports.append(report)
        facts["error"] = _error(reports)
        facts["sweeps"].append({"sweep": name, "title": sweep.title, **report.as_json()})
        sections += [f"## {name}: {sweep.title}", as_section(report)]
        if output is not None:
            output.write_text(markdown_page(report.command, head, sections), encoding="utf-8")
        if html is not None:
            write_report(html, facts)
    return facts


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
    cells: Sequence[AnyCell], contenders: Sequence[Contender], settings: Mapping[str, Any], **more: Any
) -> BenchReport:
    from tokendraw_bench.run import report_of

    number = itertools.count()
    with progress_bar(len(cells), "cells") as show:
        return report_of(
            cells, contenders, starting=lambda cell: show(str(cell), next(number)), **settings, **more
        )


def _error(reports: Sequence[BenchReport]) -> str | None:
    """Say that nothing has a time; None if something has."""
    if any(report.has_times for report in reports):
        return None
    return "Nothing could be timed. Read the reasons of the entries."


def _print_head(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        click.echo(textwrap.fill(sentence, PIPE_WIDTH))
    click.echo()


def _print_table(report: BenchReport) -> None:
    from tokendraw_bench.report import as_text

    for row in as_text(report):
        click.echo(row)
    click.echo()
    for note in report.notes:
        click.echo(textwrap.fill(note, PIPE_WIDTH))
