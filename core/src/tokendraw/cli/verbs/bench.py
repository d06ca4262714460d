"""``tokendraw bench``: time the installed samplers against each other, and against a read of the same logits.

JSON: ``command`` (the line that repeats the run), ``operation``, ``device``, ``host`` (as in
``resolve --json``), ``method`` (how times were taken, in words), ``seeded``, ``repeats``, ``threads`` (of torch),
``cores`` (that the process may use) and ``load`` (programs at work in the minute before; null where the system does not
tell), ``busy`` (that other work disturbed the times, by what signs, and what to set; else ""), ``versions`` (by
distribution), ``contenders`` (names), ``temperature``, ``top_k``, ``top_p`` and ``min_p`` (of the rows
that have them), ``seconds`` and ``cells``, each with ``batch``, ``vocab_size``, ``dtype``, ``filters``, ``family``,
``nucleus`` (tokens that top-p alone keeps of a row; the mean), ``buffers`` (how many took turns), ``nbytes`` (of one),
``read`` and ``entries``, one a contender by its name. Cells of verifications also have ``drafts`` (of each of the
``batch`` requests) and ``mode``. The read and an entry have ``us`` (median microseconds of a call), ``q1_us`` and
``q3_us`` (the quartiles), ``host_us`` (until a call returns on an idle device; null on a CPU), ``how`` (``wall clock``,
``graph`` or ``eager``), ``ratio`` (to the read), ``reason`` (why there is no time, all else being null; else "") and
``by`` (which of several ways was the fastest; "" where there is only one, or none works).
"""

from __future__ import annotations

import shlex
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

import tokendraw
from tokendraw._discovery.installed import installed_version
from tokendraw._messages.errors import InvalidParameterError
from tokendraw._messages.install import pip_install, where
from tokendraw.bench import operations
from tokendraw.bench.cells import DTYPES, FAMILIES, FILTERS, LEAST_VOCAB_SIZE, Cell
from tokendraw.cli.app import NOT_USABLE, GuardedCommand
from tokendraw.cli.describe import host_json
from tokendraw.cli.options import device_option, installed_names, json_option, verbose_option
from tokendraw.cli.terminal.tables import PIPE_WIDTH, print_json, progress, progress_bar

if TYPE_CHECKING:
    import torch

    from tokendraw._exchange.host import Host
    from tokendraw.bench.contenders import Contender
    from tokendraw.bench.operation import Axis
    from tokendraw.bench.report.lines import Report

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _axes() -> list[tuple[str, Axis]]:
    """Every operation with each axis of its cells."""
    return [(name, axis) for name in operations.names() for axis in operations.get(name).axes]


def _axis_options(command: _Command) -> _Command:
    """Give the command an option for every axis."""
    for _, axis in reversed(_axes()):
        values = click.Choice(axis.choices) if axis.choices else click.IntRange(min=1)
        option = click.option(axis.option, axis.parameter, multiple=True, type=values, help=axis.help)
        command = option(command)
    return command


def _values_of_axes(operation: str, given: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """The values of the axes of an operation, by field; of those that were not given, none.

    :raises click.UsageError: an axis of another operation was given.
    """
    for name, axis in _axes():
        if given[axis.parameter] and name != operation:
            raise click.UsageError(
                f"'{axis.option}' is about {axis.about}. Add --op {name}, or leave it out."
            )
    return {axis.field: given[axis.parameter] for axis in operations.get(operation).axes}


@click.command(cls=GuardedCommand, short_help="Time samplers against each other, and a read.")
@click.option(
    "--op",
    "operation",
    type=click.Choice(operations.names()),
    default="sample",
    show_default=True,
    help="The operation that is timed.",
)
@click.option(
    "--preset",
    type=click.Choice(list(operations.get("sample").presets)),
    default="quick",
    show_default=True,
    help="What is timed where the options below do not say: quick takes seconds on a laptop, design has the "
    "shapes that GPU samplers are held to.",
)
@click.option(
    "--batch",
    multiple=True,
    type=click.IntRange(min=1),
    help="Rows, or requests that have drafts; may be given again.",
)
@click.option(
    "--vocab-size",
    multiple=True,
    type=click.IntRange(min=LEAST_VOCAB_SIZE),
    help="Logits a row; may be given again.",
)
@click.option("--dtype", multiple=True, type=click.Choice(DTYPES), help="Of the logits; may be given again.")
@click.option(
    "--filters",
    multiple=True,
    type=click.Choice(FILTERS),
    help="What the rows ask for; may be given again. Both: top-k and top-p. Mixed: each row another.",
)
@click.option(
    "--family",
    multiple=True,
    type=click.Choice(FAMILIES),
    help="What the logits look like, by the size of the nucleus of p = 0.9: 7 or 30 tokens, thousands, most of the "
    "vocabulary; may be given again.",
)
@_axis_options
@click.option(
    "--sampler",
    multiple=True,
    metavar="NAME",
    shell_complete=installed_names,
    help="An installed sampler, torch-sort or flashinfer-direct; may be given again. Default: all that there are.",
)
@click.option(
    "--seeded/--unseeded",
    default=True,
    show_default=True,
    help="Whether each row has a seed. Samplers make those of rows without.",
)
@click.option(
    "--repeats", type=click.IntRange(min=3), default=15, show_default=True, help="Samples of a median."
)
@device_option
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    metavar="FILE",
    help="Draw microseconds against the batch. Needs the extra bench: "
    f"{pip_install('tokendraw', 'bench')}{where('tokendraw')}.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    metavar="FILE",
    help="Write the table as Markdown, with the command and what it ran on at its head.",
)
@verbose_option
@json_option
@click.pass_context
def bench(
    ctx: click.Context,
    /,
    operation: str,
    preset: str,
    batch: tuple[int, ...],
    vocab_size: tuple[int, ...],
    dtype: tuple[str, ...],
    filters: tuple[str, ...],
    family: tuple[str, ...],
    sampler: tuple[str, ...],
    seeded: bool,
    repeats: int,
    device: str | None,
    plot: Path | None,
    output: Path | None,
    as_json: bool,
    **given: tuple[Any, ...],
) -> None:
    """Time installed samplers against each other, and against a pass that only reads the same logits.

    Each draws by itself, without a companion; one that cannot serve a cell shows a dash, and the reason below. On
    CUDA, times are those of graphs over buffers in rotation that no cache holds; on a CPU, of the clock on the wall.
    With --op another operation is timed, and the pass reads what that has to read.

    Exits with 1 if nothing could be timed.
    """
    cells = operations.get(operation).grid(
        preset,
        batches=batch,
        vocab_sizes=vocab_size,
        dtypes=dtype,
        filters=filters,
        families=family,
        axes=_values_of_axes(operation, given),
    )
    _check_files(plot, output)
    with progress("loading samplers"):
        from tokendraw._loading.load import _target

        target, host = _target(device)  # first: it says so where torch is missing

        from tokendraw.bench.contenders import chosen

        contenders = chosen(sampler, target, operation)
    report = _run(cells, contenders, target, host, seeded=seeded, repeats=repeats, command=_command(ctx))
    if report.busy:
        click.echo(report.busy, err=True)
    if output is not None:
        from tokendraw.bench.report.table import as_markdown

        output.write_text(as_markdown(report), encoding="utf-8")
    if plot is not None:
        from tokendraw.bench.report import plot as _plot

        _plot.draw(report, plot)
    if as_json:
        print_json({**report.as_json(), "host": host_json(host)})
    else:
        _print(report)
    if not report.has_times:
        ctx.exit(NOT_USABLE)


def _check_files(plot: Path | None, output: Path | None) -> None:
    """Check, before anything is timed, that the results can be written afterwards.

    :raises TokendrawError: matplotlib is not installed.
    :raises InvalidParameterError: there is no such folder, or no such format.
    """
    for option, path in (("--plot", plot), ("--output", output)):
        if path is not None and not path.parent.is_dir():
            raise InvalidParameterError(
                f"'{option}' needs a file in a folder that exists, found '{path}'. Make the folder '{path.parent}'."
            )
    if plot is not None:
        from tokendraw.bench.report import plot as _plot

        _plot.check(plot)


def _run(
    cells: Sequence[Cell],
    contenders: Sequence[Contender],
    device: torch.device,
    host: Host,
    *,
    seeded: bool,
    repeats: int,
    command: str,
) -> Report:
    """Time the contenders; on a terminal a bar on stderr shows the progress."""
    import torch

    from tokendraw.bench.report.lines import Report
    from tokendraw.bench.run import run, timer_for
    from tokendraw.bench.timing import contention
    from tokendraw.bench.timing.floor import readers

    timer = timer_for(device, repeats)
    machine = contention.look()
    start = time.perf_counter()
    with progress_bar(len(cells)) as show:
        lines = run(
            cells,
            contenders,
            device=device,
            timer=timer,
            readers=readers(device),
            seeded=seeded,
            starting=lambda cell: show(str(cell), cells.index(cell)),
        )
    versions = {"tokendraw": tokendraw.__version__, "torch": str(torch.__version__)}
    for contender in contenders:
        versions |= contender.versions
    if any("Triton" in line.read_by for line in lines):
        versions["triton"] = installed_version("triton") or ""
    return Report(
        command=command,
        device=str(device),
        host=str(host),
        method=timer.method,
        seeded=seeded,
        repeats=timer.repeats,
        threads=torch.get_num_threads(),
        versions=versions,
        contenders=tuple(contender.name for contender in contenders),
        lines=lines,
        seconds=time.perf_counter() - start,
        operation=cells[0].operation,
        machine=machine,
    )


def _command(ctx: click.Context) -> str:
    """Write the command with its options as one line."""
    words = ["tokendraw", "bench"]
    for option in ctx.command.params:
        name = str(option.name)
        if name not in ctx.params or ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue  # what is not a parameter, such as --verbose, changes nothing of a run
        value = ctx.params[name]
        if isinstance(value, bool):
            words.append(option.opts[0] if value else option.secondary_opts[0])
            continue
        for item in value if isinstance(value, tuple) else (value,):
            words += [option.opts[0], str(item)]
    return shlex.join(words)


def _print(report: Report) -> None:
    from tokendraw.bench.report.table import as_text

    for sentence in report.head:
        click.echo(textwrap.fill(sentence, PIPE_WIDTH))
    click.echo()
    for row in as_text(report):
        click.echo(row)
    click.echo()
    for note in report.notes:
        click.echo(textwrap.fill(note, PIPE_WIDTH))
