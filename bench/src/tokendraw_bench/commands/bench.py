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

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokendraw import InvalidParameterError
from tokendraw.commands import (
    NOT_USABLE,
    GuardedCommand,
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
from tokendraw.tools import find_device, find_operation, require_html
from tokendraw_bench import operations
from tokendraw_bench.commands.bench_axes import axis_options, cells_of_options
from tokendraw_bench.commands.bench_sweeps import SweepFiles, bench_sweeps, check_sweep_options
from tokendraw_bench.commands.html import MODULES, write_report, write_saved
from tokendraw_bench.commands.printing import print_head, print_table
from tokendraw_bench.sweeps import BATCHES, CLIFFS, SMALL_BATCHES, SWEEPS

if TYPE_CHECKING:
    from tokendraw_bench.operation import AnyCell
    from tokendraw_bench.report.lines import BenchReport

REPEATS = 15
"""Samples of a median, unless an option says otherwise."""


def _known(ctx: click.Context, param: click.Parameter, value: str) -> str:
    try:
        return value if value in operations.NAMES else operations.get(find_operation(value).name).name
    except InvalidParameterError as error:
        raise click.BadParameter(str(error)) from error


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
@axis_options
@click.option(
    "--sampler",
    multiple=True,
    metavar="NAME",
    shell_complete=installed_names,
    help="An installed sampler, torch-sort or flashinfer-direct; may be given again. Default: all that there are. A+B "
    "draws special rows by B and the batch by A. flashinfer-unfused leaves out FlashInfer's fused sampler, which "
    "compiles for minutes for each shape. With --op process_logits also torch-dense, and floor-launch, -scatter, "
    "-gather, -write or -update, which do less than any edit.",
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
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    metavar="FILE",
    help="Write the table as Markdown, with the command and what it ran on at its head.",
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
    check_sweep_options(ctx, preset, axis_values)
    cells = () if preset == CLIFFS else cells_of_options(operation, preset, axis_values)
    if output is not None and not output.parent.is_dir():
        raise InvalidParameterError(
            f"'--output' needs a file in a folder that exists, found '{output}'. Make the folder '{output.parent}'."
        )
    if html is not None:
        require_html(html, "tokendraw-bench", MODULES)
    with progress("loading samplers"):
        target, host = find_device(device)  # first: it says so where torch is missing
    is_sweep, small = preset == CLIFFS, small or target.type == "cpu"
    repeats = repeats or (REPEATS if not is_sweep else SMALL_BATCHES if small else BATCHES)
    settings: dict[str, Any] = {
        "device": target,
        "host": host,
        "repeats": repeats,
        "command": command_line(ctx),
    }
    if is_sweep or single or cache == "warm" or not graphs:
        from tokendraw_bench.run import timer_for
        from tokendraw_bench.timing.timer import SamplePlan

        plan = SamplePlan(
            single=is_sweep or single,
            warm=cache == "warm",
            graphs=graphs,
            input_sets=min(repeats, BATCHES) if is_sweep else None,
        )
        settings["timer"] = timer_for(target, repeats, plan=plan)
    settings["measures_memory"] = memory
    if is_sweep:
        files = SweepFiles(output=output, html=html)
        if not bench_sweeps(sweeps, sampler, settings, small=small, files=files, as_json=as_json):
            ctx.exit(NOT_USABLE)
        return
    report = _timed(cells, sampler, operation, settings)
    if report.busy:
        click.echo(report.busy, err=True)
    if output is not None:
        from tokendraw_bench.report.table import as_markdown

        output.write_text(as_markdown(report), encoding="utf-8")
    error = None if report.has_times else "Nothing could be timed. Read the reasons of the entries."
    facts = {"error": error, **report.as_json(), "host": host_json(host)}
    if as_json:
        print_json(facts)
    else:
        print_head(report.head)
        print_table(report)
    if html is not None:
        write_report(html, facts)
    if not report.has_times:
        ctx.exit(NOT_USABLE)


def _timed(
    cells: Sequence[AnyCell], names: tuple[str, ...], operation: str, settings: Mapping[str, Any]
) -> BenchReport:
    """Time contenders in this process."""
    with progress("loading samplers"):
        from tokendraw_bench.contenders import select_contenders
        from tokendraw_bench.run import report_of

        contenders = select_contenders(names, settings["device"], operation)
    with progress_bar(len(cells), "cells") as show:
        return report_of(
            cells, contenders, starting=lambda cell: show(str(cell), cells.index(cell)), **settings
        )
