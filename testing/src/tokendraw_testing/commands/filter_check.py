"""``tokendraw check --filter NAME [SAMPLER]``: checks a filter from moments, and prints the report of a sampler's form.

JSON: the keys of ``check``, and ``filter`` (as in ``list --json``), ``samplers`` (names of those that drew) and
``values`` (of the filter in rows). ``sampler`` has all names in words, ``candidate`` is null where several drew.
"""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import tokendraw
from tokendraw import InvalidParameterError
from tokendraw.commands import candidate_json, host_json, print_json, progress_bar
from tokendraw.resolution import detect_host
from tokendraw.tools import all_of, format_error, nearest
from tokendraw_testing.commands.check_lines import outcome, print_report
from tokendraw_testing.commands.html import write_report
from tokendraw_testing.commands.selection import find_candidate, require_libraries

if TYPE_CHECKING:
    from tokendraw_testing.filter_check import Definition, FilterReport
    from tokendraw_testing.kit.report import Line

_MEANINGLESS = ("operation", "gumbel_dtype", "jobs", "fuzz", "fuzz_case")
_FILTER_ALONE = ("value", "definition")


def refuse_contradictions(options: Mapping[str, Any]) -> None:
    """Refuse options that mean nothing with ``--filter``, or nothing without.

    :param options: those of the command line, by name.
    """
    has_filter = options.get("filter") is not None
    for name in _MEANINGLESS if has_filter else _FILTER_ALONE:
        if options.get(name):
            option = f"'--{name.replace('_', '-')}'"
            meaning = "is about samplers, '--filter' about a filter" if has_filter else "is about '--filter'"
            mend = "Leave out one of them." if has_filter else "Add '--filter NAME', or leave it out."
            raise click.UsageError(f"{option} {meaning}. {mend}")


def print_lines_of_filters(sampler: str | None, *, as_json: bool) -> None:
    """Print the lines of a filter's report with their demands."""
    require_libraries()
    from tokendraw_testing.filter_check import line_names

    lines = line_names([sampler or "SAMPLER"])
    if as_json:
        print_json({"properties": [{"name": name, "about": about} for name, about in lines.items()]})
        return
    width = max(map(len, lines))
    for name, about in lines.items():
        click.echo(f"{name:{width}}  {about}")


def check_installed_filter(
    name: str,
    sampler: str | None,
    device: str | None,
    *,
    quick: bool,
    seed: int,
    only: Sequence[str],
    values: Sequence[float],
    definition: str | None,
    command: str,
    as_json: bool,
    html: Path | None,
) -> bool:
    """Check a filter and print the report; True if no line failed.

    :param command: the command line of the run.
    :param html: file for the page; None: no page.
    """
    require_libraries()
    from tokendraw_testing.filter_check import check_filter, line_names

    if sampler is not None:
        find_candidate(sampler, device)
    define = None if definition is None else read_definition(definition)
    done: list[Line] = []
    with progress_bar(len(line_names([sampler or ""])), "lines") as show:

        def finished(line: Line) -> None:
            done.append(line)
            show(line.name, len(done))

        report = check_filter(
            name,
            sampler,
            device=device,
            quick=quick,
            seed=seed,
            values=values,
            definition=define,
            only=only,
            finished=finished,
        )
    result = _facts(report, only, command)
    for entry in result["lines"]:
        entry["again"] = _command_for_lines(report, [entry["name"]], sampler, values, definition)
    host, versions = str(detect_host(report.device)), _versions(report)
    if as_json:
        print_json(result)
    else:
        names = [line.name for line in report.failed]
        repeat_command = _command_for_lines(report, names, sampler, values, definition)
        print_report(report, host, versions, repeat_command)
    if html is not None:
        write_report(html, result, outcome(report), host, versions)
    return report.passed


def _facts(report: FilterReport, only: Sequence[str], command: str) -> dict[str, Any]:
    import torch

    candidates = [find_candidate(name, report.device) for name in report.samplers]
    return {
        "error": None if report.passed else outcome(report),
        **report.as_json(),
        "command": command,
        "host": host_json(detect_host(report.device)),
        "candidate": candidate_json(candidates[0]) if len(candidates) == 1 else None,
        "tokendraw": tokendraw.__version__,
        "torch": str(torch.__version__),
        "gumbel_dtype": None,
        "heavy_imports": [],
        "only": list(only) or None,
    }


def _versions(report: FilterReport) -> dict[str, str]:
    """Return the version of each distribution of the run."""
    import torch

    candidates = [find_candidate(name, report.device) for name in report.samplers]
    versions = {"tokendraw": tokendraw.__version__, report.filter.distribution: report.filter.version}
    versions |= {candidate.distribution: candidate.version for candidate in candidates}
    return versions | {"torch": str(torch.__version__)}


def _command_for_lines(
    report: FilterReport,
    names: Sequence[str],
    sampler: str | None,
    values: Sequence[float],
    definition: str | None,
) -> str:
    """Write the command that repeats some lines: each line has its own random numbers."""
    words = ["tokendraw", "check", "--filter", report.filter.name, *([sampler] if sampler else [])]
    words += ["--device", report.device, *(["--quick"] if report.quick else [])]
    words += [word for value in values for word in ("--value", f"{value:g}")]
    words += ["--definition", definition] if definition else []
    words += ["--seed", str(report.seed)] if report.seed else []
    words += [word for name in names for word in ("--only", name)]
    return shlex.join(words)


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
    spec = importlib.util.spec_from_file_location("tokendraw_filter_definition", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InvalidParameterError(
            f"'--definition' needs a file that can be imported, {path!r} raised {format_error(error)}. Fix it."
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        near = nearest(name, names)
        known = f"the nearest is {near!r}" if near else f"it has {all_of(sorted(names))}"
        raise InvalidParameterError(f"'--definition' needs a function of {path!r}, found {name!r}, {known}.")
    definition: Definition = function
    return definition
