"""``tokendraw check NAME``: hold an installed sampler against its advertised capabilities, or a filter against float64.

JSON: ``command`` (the line that repeats the run), ``sampler``, ``device``, ``host`` (as in ``resolve --json``),
``candidate`` (as in ``list --json``), ``tokendraw`` and ``torch`` (versions), ``quick``, ``seed``, ``only`` (names;
null for all properties), ``gumbel_dtype`` (null without the option), ``passed`` (whether none failed), ``false_alarm``
(the most that a correct sampler fails such a run with), ``heavy_imports`` (empty: no longer
looked for), ``jobs`` (processes), ``elapsed`` (seconds of the run), ``seconds`` (of all lines together), ``missed``
(places that no line looked at: ``call``, the operation, and its mode if it has some, ``dtype``, and ``up_to``, the
widest vocabulary of the class of widths, 1024, 65536, 131072, null for wider ones) and ``lines``, one a property:
``name``, ``about`` (what is demanded), ``status`` (``passed``, ``failed``, ``refused``, ``not run`` or ``expected to
fail``), ``detail`` (what was looked at; of a failure, what was needed and found; of a refusal, its words; why it was
not run or may fail), ``checks`` (how many statistical ones), ``draws``, ``p_value`` (the least; null without
statistics), ``worst`` (where it was the least), ``traceback`` (where a call raised, else ""), ``seconds`` and ``again``
(the command that repeats the line).

With ``--fuzz`` and ``--fuzz-case`` a line has the cases of an operation that went well, and another the first finding
of each sort. With ``--kept-sets`` a line has the rows of an operation and way; beside them stand ``batches``,
``counts`` (by operation and way: ``rows``, ``wrong``, ``uncertain`` and ``worst_ratio``), ``quarters`` and ``places``
(of tokens in their kept sets: counts and p-value), ``seeded`` and ``others`` (rows with a seed; those that draw another
token without thresholds) and ``findings``, the first wrong rows in words.

With ``--filter``, also ``filter`` (as in ``list --json``), ``samplers`` (names of those that drew) and ``values`` (of
the filter in rows). ``sampler`` has all names in words, ``candidate`` is null where several drew.

With ``--table``: ``candidates``, as in ``list --json``. With ``--list``: ``properties``, each with ``name``, ``about``
(what is demanded), ``operation``, ``advertised`` (whether a capability switches it on) and ``needs_cuda``.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import runpy
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

import tokendraw
from tokendraw import InvalidParameterError, PluginError, TokendrawError, commands, tools
from tokendraw.plugin import GUMBEL_DTYPES
from tokendraw.resolution import Candidate, detect_host, read_settings

if TYPE_CHECKING:
    from tokendraw_testing import Subject
    from tokendraw_testing.filter_check import Definition
    from tokendraw_testing.kit.property import Property
    from tokendraw_testing.kit.report import Line, Report

_MOST_NAMES = 3
"""Lines at work that the progress names."""


_HELP = {
    "filter": "Check this filter from moments, by itself and as NAME, or every sampler with its moments, "
    "draws with it.",
    "value": "With --filter: a value of the filter in rows; may be given again. Default: of a list of numbers.",
    "definition": "With --filter: a function of y [n] float64 and the value, that marks the kept tokens [n] bool.",
    "quick": "Fewer draws, smaller vocabularies: a minute on two idle cores of a CPU.",
    "gumbel_dtype": "Check what draws, built for random numbers of this precision. Default: everything, built for the "
    "first that it has.",
    "seed": "Of all that is random in a run.",
    "jobs": "Share the work among N processes. Default: as many as there are cores, at most 16, for a sampler on a "
    "CPU; else 1.",
    "fuzz": "Look at random cases for so long, in place of the properties.",
    "fuzz_case": "Look at one random case again, by itself.",
    "kept_sets": "With --fuzz or --fuzz-case: look at the kept sets of random rows, on the device and by the million.",
    "table": "Print a Markdown table of the installed samplers: where each was verified, what it is known to fail.",
}


class _Case(NamedTuple):
    seed: int
    number: int

    def __str__(self) -> str:
        return f"{self.seed}:{self.number}"


def _parse_case(ctx: click.Context, param: click.Parameter, value: str | None) -> _Case | None:
    match = re.fullmatch(r"(\d+):(\d+)", value or "")
    if value is not None and match is None:
        raise click.BadParameter(f"{value!r} needs the form SEED:NUMBER, such as 0:17.")
    return _Case(int(match[1]), int(match[2])) if match else None


@click.command(cls=commands.GuardedCommand, short_help="Test a sampler: every property, with figures.")
@click.argument("name", required=False, shell_complete=commands.installed_names)
@commands.device_option
@click.option("--filter", metavar="FILTER", help=_HELP["filter"])
@click.option("--value", type=float, multiple=True, help=_HELP["value"])
@click.option("--definition", metavar="FILE:FUNCTION", help=_HELP["definition"])
@click.option("--quick", is_flag=True, help=_HELP["quick"])
@click.option("--only", multiple=True, metavar="PROPERTY", help="Check this property; may be given again.")
@commands.build_operation_option(help="Check the properties of this operation alone.")
@click.option("--gumbel-dtype", type=click.Choice(GUMBEL_DTYPES), help=_HELP["gumbel_dtype"])
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help=_HELP["seed"])
@click.option("--jobs", type=click.IntRange(1), metavar="N", help=_HELP["jobs"])
@click.option("--fuzz", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help=_HELP["fuzz"])
@click.option("--fuzz-case", callback=_parse_case, metavar="SEED:NUMBER", help=_HELP["fuzz_case"])
@click.option("--kept-sets", is_flag=True, help=_HELP["kept_sets"])
@click.option("--list", "as_list", is_flag=True, help="Print the properties, each with what it demands.")
@click.option("--table", "as_table", is_flag=True, help=_HELP["table"])
@commands.html_option
@commands.verbose_option
@commands.json_option
@click.pass_context
def check(ctx: click.Context, /, **given: Any) -> None:
    """Test the sampler NAME against its advertised capabilities; requests for anything else have to be refused.

    The sampler draws by itself, without a companion. Whatever looks wrong in a statistic is looked at again with
    more draws, so that a correct sampler fails one run in a million at most.

    With --filter the filter FILTER is tested: its floors against float64, and the rows that samplers draw with it.

    Exits with 1 if a property failed, or if there was none to check, or if a random case went wrong.
    """
    for contradiction in _contradictions(ctx):
        raise click.UsageError(contradiction)
    name, as_json = given["name"], given["as_json"]
    if given["as_table"]:
        _print_table_of_samplers(as_json=as_json)
        return
    if given["html"] is not None:
        tools.require_html(given["html"], "tokendraw-testing", ("jinja2",))
    if given["as_list"]:
        with commands.progress("loading the kit"):
            _require_libraries()
            entries = _listed(given)
        if as_json:
            commands.print_json({"properties": entries})
            return
        width = max(len(entry["name"]) for entry in entries)
        for entry in entries:
            click.echo(f"{entry['name']:{width}}  {entry['about']}")
        return
    if name is None and given["filter"] is None:
        raise click.MissingParameter(param_hint="'NAME'", param_type="argument")
    settings = read_settings()
    commands.warn(settings.warnings, strict=settings.strict)
    with commands.progress(f"loading {name or 'the kit'}"):
        candidate = name and _find_candidate(name, given["device"])  # before the kit imports torch
        _require_libraries()
    is_fine = _check_filter(ctx) if given["filter"] else _check_sampler(ctx, candidate)
    if not is_fine:
        ctx.exit(commands.NOT_USABLE)


def _contradictions(ctx: click.Context) -> Iterator[str]:
    """Yield a message for each option without meaning beside, or without, another option."""
    params = ctx.params
    given = {
        name
        for name, value in params.items()
        if value is not None and ctx.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    operation, cases = params["operation"], given & {"fuzz", "fuzz_case"}
    if "as_table" in given and given - {"as_table", "as_json", "seed"}:
        yield "'--table' is about every installed sampler. Leave out the other options."
    for option in ("value", "definition"):
        if option in given and "filter" not in given:
            yield f"'--{option}' is about '--filter'. Add '--filter NAME', or leave it out."
    for option in ("operation", "gumbel_dtype", "jobs", "fuzz", "fuzz_case"):
        if option in given and "filter" in given:
            words = option.replace("_", "-")
            yield f"'--{words}' is about samplers, '--filter' about a filter. Leave out one of them."
    if {"name", "as_list"} <= given and "filter" not in given:
        yield "'--list' prints the properties of every sampler. Leave out it, or NAME."
    if (
        "gumbel_dtype" in given
        and operation
        and not hasattr(tools.find_operation(operation).need(), "gumbel_dtype")
    ):
        yield f"'--gumbel-dtype' is no part of what {operation!r} may need. Leave out one of them."
    if "kept_sets" in given and not cases:
        yield "'--kept-sets' is of random rows. Add '--fuzz SECONDS'."
    if {"html", "as_list"} <= given:
        yield "'--html' writes the report of a run, '--list' runs nothing. Leave out one of them."
    if {"fuzz", "fuzz_case"} <= given:
        yield "'--fuzz-case' looks at one case, '--fuzz' at new ones. Leave out one of them."
    if "kept_sets" in given and given & {"html", "jobs"}:
        yield "'--kept-sets' makes no page and one process. Leave out '--html' and '--jobs'."
    if cases and "only" in given:
        yield "'--only' picks properties, which random cases are in place of. Leave out one of them."
    if {"fuzz_case", "seed"} <= given:
        yield "'--fuzz-case' begins with the seed. Leave out '--seed'."


def _require_libraries() -> None:
    """Import the kit."""
    tools.require_torch("Checking")
    try:
        import tokendraw_testing.kit.run
        import tokendraw_testing.kit.statistical_tests  # noqa: F401
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("numpy", "scipy"):
            raise
        raise TokendrawError(
            f"Checking needs numpy and scipy, found no {missing}; run {tools.how_to_install('tokendraw-testing')}."
        ) from error


def _find_candidate(name: str, device: str | None) -> Candidate:
    """Find the plugin named ``name``."""
    candidates = tokendraw.discover(host=detect_host(device))
    if matches := [candidate for candidate in candidates if candidate.name == name]:
        # Beside the owner of a reserved name there may be others, none of which is ever loaded.
        return max(matches, key=lambda candidate: (candidate.info is not None, candidate.first_party))
    names = sorted({candidate.name for candidate in candidates})
    needed = f"'{name}' needs to be an installed sampler, found"
    if not names:
        raise TokendrawError(f"{needed} none; run {tools.how_to_install('tokendraw-native')}.")
    suggestion = tools.nearest(name, names)
    command = "list" if suggestion is None else f"check {suggestion}"
    raise TokendrawError(f"{needed} {tools.all_of(names)}. Try: tokendraw {command}")


def _check_sampler(ctx: click.Context, candidate: Candidate) -> bool:
    """Check properties, random cases or kept sets of a sampler; True if it has a line and nothing failed."""
    from tokendraw_testing import Subject
    from tokendraw_testing.commands.output import Output
    from tokendraw_testing.kit.property import select_properties
    from tokendraw_testing.kit.workers import usual_jobs

    given = ctx.params
    name, operation, seconds, case = (given[name] for name in ("name", "operation", "fuzz", "fuzz_case"))
    noise, quick = given["gumbel_dtype"], given["quick"]
    need = {} if noise is None else {"gumbel_dtype": noise}
    seed = given["seed"] if case is None else case.seed
    options = {"device": given["device"], "quick": quick, "seed": seed, "operation": operation}
    with commands.progress(f"loading {name}"):
        properties = select_properties(given["only"] or None, operation)
        subject = Subject.installed(name, need=need, **options)
        try:
            subject.built(operation or next(iter(subject.capabilities)))
        except PluginError as error:
            raise TokendrawError(
                f"'{name}' needs to build and to pass its proof on {subject.device} before it can be checked, "
                f"found: {error}. Mend the plugin."
            ) from error
    words = ["tokendraw", "check", name, "--device", str(subject.device), *["--quick"] * quick]
    again = [*words, "--gumbel-dtype", noise] if noise else words
    output = Output(context=ctx, again=again, host=subject.host, candidates=[candidate])
    jobs = given["jobs"] or usual_jobs(subject)
    if given["kept_sets"]:
        report, counts = _check_kept_sets(subject, seconds, case, operation)
        return output.show(report, **counts)
    if case is None and seconds is None:
        return output.show(_check_properties(subject, properties, jobs))
    return output.show(_check_cases(subject, seconds, case, operation, jobs))


def _check_cases(
    subject: Subject, seconds: float | None, case: _Case | None, operation: str | None, jobs: int
) -> Report:
    """Check random cases for so many seconds, or one case; a bar on stderr tells of the time and the findings."""
    from tokendraw_testing.kit import run as kit

    if case is not None:
        with commands.progress(f"looking at case {case.number}"):
            return kit.fuzz(subject, 0.0, only=case.number, operation=operation)
    assert seconds is not None
    with commands.progress_bar(round(seconds), "seconds") as show:
        show("starting", 0)

        def count(cases: int, findings: int, passed: float) -> None:
            show(f"{cases:,} cases, {findings:,} findings", min(round(passed), round(seconds)))

        return kit.fuzz(subject, seconds, operation=operation, jobs=jobs, progress=count)


def _check_kept_sets(
    subject: Subject, seconds: float | None, case: _Case | None, operation: str | None
) -> tuple[Report, dict[str, Any]]:
    """Judge kept sets: a line for each way and each wrong row, and one for the draws; and the counts for JSON."""
    from tokendraw_testing.kept_sets import sweep
    from tokendraw_testing.kit.report import Line, Status
    from tokendraw_testing.kit.run import make_report

    start = time.perf_counter()
    with commands.progress("looking at kept sets"):
        found = sweep(subject, seconds or 0.0, operation, case and case.number)
    options = ("--kept-sets", *(("--operation", operation) if operation else ()))
    whole = (*options, "--fuzz", f"{seconds:g}") if case is None else (*options, "--fuzz-case", str(case))

    def line(name: str, is_wrong: bool, detail: str, again: tuple[str, ...] = whole, **figures: Any) -> Line:
        status = Status.FAILED if is_wrong else Status.PASSED
        return Line(name=name, status=status, detail=detail, again=again, **figures)

    lines = []
    for way, count in sorted(found.counts.items()):
        rows = f"{count.rows:,} rows, {count.wrong:,} wrong, {count.uncertain:,} uncertain"
        lines.append(line(way, count.wrong > 0, f"{rows}, worst mass {count.worst_ratio:.4g}"))
    for finding in found.findings:
        batch = re.search(r"batch (\d+:\d+)", finding)
        again = (*options, "--fuzz-case", batch[1]) if batch else whole
        lines.append(line("wrong row", True, finding, again))
    fault = None if found.findings else found.fault
    others = f"{found.others:,} of {found.seeded:,} seeded rows draw another token without thresholds"
    figures = asdict(found.uniformity)
    lines.append(line("draws from kept sets", fault is not None, fault or others, checks=1, **figures))
    return make_report(subject, lines, start=start), found.as_json()


def _check_properties(subject: Subject, properties: Sequence[Property], jobs: int) -> Report:
    """Check the properties; a bar on stderr, or a line now and then, names the current properties.

    An interrupt, and SIGTERM, print on stderr what the finished lines showed.
    """
    import tokendraw_testing
    from tokendraw_testing.kit.run import applies

    total = sum(applies(subject, prop) for prop in properties)
    at_work: list[str] = []
    done: list[Line] = []

    def starting(prop: Property) -> None:
        at_work.append(prop.name)
        show(", ".join(at_work[:_MOST_NAMES]), len(done))

    def finished(line: Line) -> None:
        done.append(line)
        at_work.remove(line.name)
        show(", ".join(at_work[:_MOST_NAMES]), len(done))

    names = tuple(prop.name for prop in properties)
    try:
        with _termination_interrupts(), commands.progress_bar(total, "lines") as show:
            return tokendraw_testing.run(subject, only=names, jobs=jobs, starting=starting, finished=finished)
    except KeyboardInterrupt:
        counts = Counter(str(line.status) for line in done)
        counted = "".join(f", {count} {status}" for status, count in counts.items())
        click.echo(f"Interrupted after {len(done)} of {total} lines{counted}.", err=True)
        for line in done:
            if line.status == "failed":
                click.echo(str(line), err=True)
        raise


@contextlib.contextmanager
def _termination_interrupts() -> Iterator[None]:
    """Let SIGTERM, which runners of jobs send at their limit, interrupt like Ctrl-C, unless a host answers it."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _check_filter(ctx: click.Context) -> bool:
    """Check a filter by itself and with samplers; True if no line failed."""
    from tokendraw_testing.commands.output import Output
    from tokendraw_testing.filter_check import check_filter, line_names

    given = ctx.params
    name, sampler, definition = given["filter"], given["name"], given["definition"]
    define = None if definition is None else read_definition(definition)
    number = itertools.count(1)
    with commands.progress_bar(len(line_names([sampler or ""])), "lines") as show:

        def finished(line: Line) -> None:
            show(line.name, next(number))

        options = {key: given[key] for key in ("device", "quick", "seed", "only")}
        options |= {"values": given["value"], "definition": define, "finished": finished}
        report = check_filter(name, sampler, **options)
    words = ["tokendraw", "check", "--filter", name, *([sampler] if sampler else [])]
    words += ["--device", report.device, *["--quick"] * report.quick]
    words += [word for value in given["value"] for word in ("--value", f"{value:g}")]
    output = Output(
        context=ctx,
        again=[*words, "--definition", definition] if definition else words,
        host=detect_host(report.device),
        candidates=[_find_candidate(name, report.device) for name in report.samplers],
        versions={report.filter.distribution: report.filter.version},
    )
    return output.show(report)


def read_definition(text: str) -> Definition:
    """Load a function from a Python file.

    :param text: ``FILE:FUNCTION``, such as ``tests/definition.py:kept``.
    :raises InvalidParameterError: there is no such file or function, or the file raised.
    """
    path, _, name = text.rpartition(":")
    if not (Path(path).is_file() and path.endswith(".py")):
        raise InvalidParameterError(
            f"'--definition' needs FILE:FUNCTION with a Python file, such as definition.py:kept, found {text!r}."
        )
    try:
        module = runpy.run_path(path)
    except Exception as error:
        raise InvalidParameterError(
            f"'--definition' needs a file that can be imported, {path!r} raised {tools.format_error(error)}. Fix it."
        ) from error
    names = sorted(key for key, value in module.items() if callable(value) and not key.startswith("_"))
    if name not in names:
        near = tools.nearest(name, names)
        known = f"the nearest is {near!r}" if near else f"it has {tools.all_of(names)}"
        raise InvalidParameterError(f"'--definition' needs a function of {path!r}, found {name!r}, {known}.")
    definition: Definition = module[name]
    return definition


def _listed(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    from tokendraw_testing.filter_check import line_names
    from tokendraw_testing.kit.property import select_properties

    if given["filter"] is not None:
        lines = line_names([given["name"] or "SAMPLER"])
        return [{"name": name, "about": about} for name, about in lines.items()]
    return [
        {
            "name": prop.name,
            "about": prop.about,
            "operation": prop.operation,
            "advertised": prop.advertised is not None,
            "needs_cuda": prop.needs_cuda,
        }
        for prop in select_properties(given["only"] or None, given["operation"])
    ]


def _print_table_of_samplers(*, as_json: bool) -> None:
    """Print what the installed plugins say of themselves, the best first: the README's table of backends."""
    with commands.plugins_at_work():
        found = sorted(tokendraw.discover(), key=lambda candidate: (-candidate.priority, candidate.name))
    candidates = [commands.candidate_json(candidate) for candidate in found]
    if as_json:
        commands.print_json({"candidates": candidates})
        return
    click.echo("| plugin | what it is | operations | verified on | known to fail |\n|---|---|---|---|---|")
    for each in candidates:
        failures = [f"{name}: {reason}" for name, reason in (each["expected_failures"] or {}).items()]
        what, operations = each["summary"] or each["reason"], ", ".join(each["operations"] or ())
        verified = each["verified"] or "nothing stated"
        cells = (each["name"], what, operations, verified, "; ".join(failures) or "nothing")
        click.echo(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |")
