"""``tokendraw check NAME``: hold an installed sampler against its advertised capabilities, or a filter against float64.

JSON: ``command`` (the line that repeats the run), ``sampler``, ``device``, ``host`` (as in ``resolve --json``),
``candidate`` (as in ``list --json``), ``tokendraw`` and ``torch`` (versions), ``quick``, ``seed``, ``only`` (names;
null for all properties), ``gumbel_dtype`` (null without the option), ``passed`` (whether none failed), ``false_alarm``
(the most that a correct sampler fails such a run with), ``heavy_imports`` (empty: no longer
looked for), ``jobs`` (processes), ``elapsed`` (seconds of the run), ``seconds`` (of all lines together), ``missed``
(places that no line looked at) and ``lines``, one a property: ``name``, ``about`` (what is demanded), ``status``
(``passed``, ``failed``, ``refused``, ``not run`` or ``expected to fail``), ``detail`` (what was looked at; of a
failure, what was needed and found; of a refusal, its words; why it was not run or may fail), ``checks`` (how many
statistical ones), ``draws``, ``p_value`` (the least; null without statistics), ``worst`` (where it was the least),
``traceback`` (where a call raised, else ""), ``seconds``, ``again`` (the command that repeats the line) and ``looked``,
the places where it looked at ``rows``: ``call`` (the operation, and its mode if it has some), ``dtype``, ``up_to``
(widest vocabulary of the class of widths: 1024, 65536, 131072; null for wider ones) and ``kind`` (of row:
``greedy``, ``seeded`` ...).

With ``--fuzz`` and ``--fuzz-case``, in place of ``only``, ``seconds`` and ``lines``: ``cases`` (their number by
operation), ``left_out`` (operations without random cases), ``checks``, ``looked`` (as above, of all cases) and
``findings``, the first of each sort: ``operation``, ``number`` (of the case), ``detail``, ``traceback``, ``times``
(how many differ in numbers alone) and ``again`` (the command that repeats it).

With ``--kept-sets``: ``batches``, ``counts`` (by operation and way: ``rows``, ``wrong``, ``uncertain`` and
``worst_ratio``), ``quarters`` and ``places`` (of tokens in their kept sets: counts and p-value), ``seeded`` and
``others`` (rows with a seed; those that draw another token without thresholds) and ``findings``, the first wrong rows
in words.

With ``--filter``, also the keys of :mod:`tokendraw_testing.commands.filter_check`.

With ``--table``: ``candidates``, as in ``list --json``.

With ``--list``: ``properties``, each with ``name``, ``about`` (what is demanded), ``operation``, ``advertised``
(whether a capability switches it on) and ``needs_cuda``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
from click.core import ParameterSource

import tokendraw
from tokendraw.commands import (
    NOT_USABLE,
    GuardedCommand,
    all_of_options,
    build_operation_option,
    candidate_json,
    command_line,
    device_option,
    html_option,
    installed_names,
    json_option,
    plugins_at_work,
    print_json,
    progress,
    verbose_option,
    warn,
)
from tokendraw.plugin import GUMBEL_DTYPES
from tokendraw.resolution import read_settings
from tokendraw.tools import find_operation, require_html
from tokendraw_testing.commands import filter_check, runs
from tokendraw_testing.commands.report_output import ReportOutput
from tokendraw_testing.commands.selection import find_candidate, make_subject, select_properties

if TYPE_CHECKING:
    from tokendraw.plugin import GumbelDtype
    from tokendraw_testing.kit.property import Property


class _Case(NamedTuple):
    """A random case."""

    seed: int
    number: int

    def __str__(self) -> str:
        return f"{self.seed}:{self.number}"


def _case(ctx: click.Context, param: click.Parameter, value: str | None) -> _Case | None:
    match = re.fullmatch(r"(\d+):(\d+)", value or "")
    if value is not None and match is None:
        raise click.BadParameter(f"{value!r} needs the form SEED:NUMBER, such as 0:17.")
    return _Case(int(match[1]), int(match[2])) if match else None


_run_options = all_of_options(
    click.option(
        "--quick",
        is_flag=True,
        help="Fewer draws, smaller vocabularies: a minute on two idle cores of a CPU.",
    ),
    click.option(
        "--only", multiple=True, metavar="PROPERTY", help="Check this property; may be given again."
    ),
    build_operation_option(help="Check the properties of this operation alone."),
    click.option(
        "--gumbel-dtype",
        type=click.Choice(GUMBEL_DTYPES),
        help="Check what draws, built for random numbers of this precision. Default: everything, built for the first "
        "that it has.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Of all that is random in a run.",
    ),
    click.option(
        "--jobs",
        type=click.IntRange(min=1),
        metavar="N",
        help="Share the work among N processes. Default: as many as there are cores, at most 16, for a sampler on a "
        "CPU; else 1.",
    ),
    click.option(
        "--fuzz",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help="Look at random cases for so long, in place of the properties.",
    ),
    click.option(
        "--fuzz-case", callback=_case, metavar="SEED:NUMBER", help="Look at one random case again, by itself."
    ),
    click.option(
        "--kept-sets",
        is_flag=True,
        help="With --fuzz or --fuzz-case: look at the kept sets of random rows, on the device and by the million.",
    ),
    click.option("--list", "as_list", is_flag=True, help="Print the properties, each with what it demands."),
    click.option(
        "--table",
        "as_table",
        is_flag=True,
        help="Print a Markdown table of the installed samplers: where each was verified, what it is known to fail.",
    ),
)

_filter_options = all_of_options(
    click.option(
        "--filter",
        metavar="FILTER",
        help="Check this filter from moments, by itself and as NAME, or every sampler with its moments, draws with it.",
    ),
    click.option(
        "--value",
        type=float,
        multiple=True,
        help="With --filter: a value of the filter in rows; may be given again. Default: of a list of numbers.",
    ),
    click.option(
        "--definition",
        metavar="FILE:FUNCTION",
        help="With --filter: a function of y [n] float64 and the value, that marks the kept tokens [n] bool.",
    ),
)


@click.command(cls=GuardedCommand, short_help="Test a sampler: every property, with figures.")
@click.argument("name", required=False, shell_complete=installed_names)
@device_option
@_filter_options
@_run_options
@html_option
@verbose_option
@json_option
@click.pass_context
def check(
    ctx: click.Context,
    name: str | None,
    device: str | None,
    filter: str | None,  # noqa: A002 - the name of the option
    value: tuple[float, ...],
    definition: str | None,
    quick: bool,
    only: tuple[str, ...],
    operation: str | None,
    gumbel_dtype: GumbelDtype | None,
    seed: int,
    jobs: int | None,
    fuzz: float | None,
    fuzz_case: _Case | None,
    kept_sets: bool,
    as_list: bool,
    as_table: bool,
    html: Path | None,
    as_json: bool,
) -> None:
    """Test the sampler NAME against its advertised capabilities; requests for anything else have to be refused.

    The sampler draws by itself, without a companion. Whatever looks wrong in a statistic is looked at again with
    more draws, so that a correct sampler fails one run in a million at most.

    With --filter the filter FILTER is tested: its floors against float64, and the rows that samplers draw with it.

    Exits with 1 if a property failed, or if there was none to check, or if a random case went wrong.
    """
    if as_table:
        others = [
            name
            for name, value in ctx.params.items()
            if value and name not in ("as_table", "as_json", "seed")
        ]
        if others:
            raise click.UsageError("'--table' is about every installed sampler. Leave out the other options.")
        _print_table_of_samplers(as_json=as_json)
        return
    filter_check.refuse_contradictions(ctx.params)
    if html is not None:
        if as_list:
            raise click.UsageError(
                "'--html' writes the report of a run, '--list' runs nothing. Leave out one of them."
            )
        require_html(html, "tokendraw-testing", ("jinja2",))
    if filter is not None:
        if as_list:
            filter_check.print_lines_of_filters(name, as_json=as_json)
        elif not _check_filter(ctx, name, filter, device, quick, seed, only, value, definition, as_json):
            ctx.exit(NOT_USABLE)
        return
    if as_list:
        if name is not None:
            raise click.UsageError("'--list' prints the properties of every sampler. Leave out it, or NAME.")
        with progress("loading the kit"):
            properties_to_list = select_properties(only, operation)
        _print_properties(properties_to_list, as_json=as_json)
        return
    if name is None:
        raise click.MissingParameter(param_hint="'NAME'", param_type="argument")
    _refuse_contradictions(ctx)
    settings = read_settings()
    warn(settings.warnings, strict=settings.strict)
    with progress(f"loading {name}"):
        candidate = find_candidate(name, device)  # a misspelled name is told of before the kit imports torch
        properties = select_properties(only, operation)
        seed = seed if fuzz_case is None else fuzz_case.seed
        subject = make_subject(name, device, operation, gumbel_dtype, quick=quick, seed=seed)
    showing = ReportOutput(
        subject=subject,
        candidate=candidate,
        gumbel_dtype=gumbel_dtype,
        command=command_line(ctx),
        as_json=as_json,
        html=html,
    )
    if kept_sets:
        is_fine = showing.kept_sets(
            runs.kept_sets(subject, fuzz or 0.0, operation, fuzz_case and fuzz_case.number)
        )
    elif fuzz is not None:
        is_fine = showing.cases(runs.fuzz(subject, fuzz, operation, jobs))
    elif fuzz_case is not None:
        is_fine = showing.cases(runs.fuzz_case(subject, fuzz_case.number, operation))
    else:
        is_fine = showing.lines(runs.check_properties(subject, properties, jobs), only)
    if not is_fine:
        ctx.exit(NOT_USABLE)


def _check_filter(
    ctx: click.Context,
    sampler: str | None,
    name: str,
    device: str | None,
    quick: bool,
    seed: int,
    only: tuple[str, ...],
    values: tuple[float, ...],
    definition: str | None,
    as_json: bool,
) -> bool:
    """Check a filter, with the warnings about settings first; True if no line failed."""
    settings = read_settings()
    warn(settings.warnings, strict=settings.strict)
    return filter_check.check_installed_filter(
        name,
        sampler,
        device,
        quick=quick,
        seed=seed,
        only=only,
        values=values,
        definition=definition,
        command=command_line(ctx),
        as_json=as_json,
        html=ctx.params["html"],
    )


def _refuse_contradictions(ctx: click.Context) -> None:
    """Refuse an option without meaning beside another option."""
    options = {name: value for name, value in ctx.params.items() if value}
    operation = options.get("operation")
    has_no_noise = operation and not hasattr(find_operation(operation).need(), "gumbel_dtype")
    if "gumbel_dtype" in options and has_no_noise:
        raise click.UsageError(
            f"'--gumbel-dtype' is no part of what {operation!r} may need. Leave out one of them."
        )
    fuzzing = [option for option in ("fuzz", "fuzz_case") if options.get(option) is not None]
    if len(fuzzing) == 2:
        raise click.UsageError(
            "'--fuzz-case' looks at one case, '--fuzz' at new ones. Leave out one of them."
        )
    if "kept_sets" in options and not fuzzing:
        raise click.UsageError("'--kept-sets' is of random rows. Add '--fuzz SECONDS'.")
    if "kept_sets" in options and ("html" in options or "jobs" in options):
        raise click.UsageError(
            "'--kept-sets' makes no page and one process. Leave out '--html' and '--jobs'."
        )
    if fuzzing and "only" in options:
        raise click.UsageError(
            "'--only' picks properties, which random cases are in place of. Leave out one of them."
        )
    if "fuzz_case" in options and ctx.get_parameter_source("seed") is not ParameterSource.DEFAULT:
        raise click.UsageError("'--fuzz-case' begins with the seed. Leave out '--seed'.")


def _print_properties(properties: Sequence[Property], *, as_json: bool) -> None:
    if as_json:
        entries = [
            {
                "name": prop.name,
                "about": prop.about,
                "operation": prop.operation,
                "advertised": prop.advertised is not None,
                "needs_cuda": prop.needs_cuda,
            }
            for prop in properties
        ]
        print_json({"properties": entries})
        return
    width = max(len(prop.name) for prop in properties)
    for prop in properties:
        click.echo(f"{prop.name:{width}}  {prop.about}")


def _print_table_of_samplers(*, as_json: bool) -> None:
    """Print what the installed plugins say of themselves, the best first: the README's table of backends."""
    with plugins_at_work():
        found = sorted(tokendraw.discover(), key=lambda candidate: (-candidate.priority, candidate.name))
    candidates = [candidate_json(candidate) for candidate in found]
    if as_json:
        print_json({"candidates": candidates})
        return
    click.echo("| plugin | what it is | operations | verified on | known to fail |\n|---|---|---|---|---|")
    for each in candidates:
        failures = "; ".join(
            f"{name}: {reason}" for name, reason in (each["expected_failures"] or {}).items()
        )
        cells = (
            each["name"],
            each["summary"] or each["reason"],
            ", ".join(each["operations"] or ()),
            each["verified"] or "nothing stated",
            failures or "nothing",
        )
        click.echo(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |")
