"""``tokendraw list``, ``show`` and ``resolve``: what is installed and what is chosen, as JSON and in words.

In JSON, tuples become lists, versions of hardware become ``"9.0"``, and what is unknown or does not apply is null.

``list``: ``candidates``, each as in :func:`candidate_json`; ``filters``, each with the fields of
:class:`tokendraw.filters.InstalledFilter`; ``operations``, each with those but ``moments`` and ``summary``.

``show``: of a filter from moments ``filters``, of a plugin ``candidates``, as ``list``; more than one where several
distributions claim the name. State and reason are about the first operation that the plugin offers.

``resolve``: the keys of :func:`resolution_json`, ``settings`` (name to value of what took part), ``built`` (false: no
plugin was built, which may fail) and ``error`` (null). Where no sampler can be given, ``chosen`` is null and ``error``
holds the message; of the other keys only ``operation``, ``decisions`` and ``settings`` are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, TypeAlias

import click
from click.core import ParameterSource

import tokendraw
from tokendraw import operations, providers
from tokendraw.backends.description import (
    API_VERSION,
    Host,
    HostCapabilities,
    HostNeed,
    PluginInfo,
    Upstream,
    read_field,
)
from tokendraw.backends.discovery import settings as _settings
from tokendraw.backends.discovery.settings import Settings
from tokendraw.backends.resolution.candidate import Candidate, Decision, Resolution, State
from tokendraw.backends.resolution.decide import INSTALL, using
from tokendraw.backends.resolution.upstream import in_force
from tokendraw.cli import options
from tokendraw.cli.terminal import (
    NOT_USABLE,
    GuardedCommand,
    in_options,
    plugins_at_work,
    print_heading,
    print_json,
    print_table,
    warn,
)
from tokendraw.errors import (
    InvalidParameterError,
    SamplerUnavailableError,
    TokendrawError,
    all_of,
    dotted,
    nearest,
)
from tokendraw.filters.installed import InstalledFilter, installed_filters

JsonObject = dict[str, Any]


def described(candidate: Candidate) -> PluginInfo | None:
    """Return the description of a plugin; None for a plugin of another version of the plugin API."""
    return None if candidate.state is State.INCOMPATIBLE else candidate.info


def rank(candidate: Candidate) -> tuple[bool, int, str]:
    return candidate.state is not State.AVAILABLE, -candidate.priority, candidate.name


def print_candidates(candidates: Iterable[JsonObject], *, indent: int = 0) -> None:
    """Print a row of a table for each candidate as of :func:`candidate_json`, with every reason in full."""
    rows = [
        (
            *(c["name"], c["state"], "" if c["api_version"] is None else str(c["priority"]), c["version"]),
            c["reason"] or c["summary"] or "",
        )
        for c in candidates
    ]
    header = ("name", "state", "priority", "version", "what it does, or why it cannot")
    print_table(header if rows else ("",), rows or [("none",)], indent=indent)


def candidate_json(candidate: Candidate) -> JsonObject:
    """Describe a plugin; ``operations`` are its capabilities by name."""
    info = described(candidate)
    upstream = info.upstream if info else None
    return {
        "name": candidate.name,
        "state": str(candidate.state),
        "reason": candidate.reason,
        "priority": candidate.priority,
        "summary": info.summary if info else None,
        "distribution": candidate.distribution,
        "version": candidate.version,
        "entry_point": candidate.entry_point,
        "first_party": candidate.first_party,
        "verified": info.verified if info else None,
        "kernels": info.kernels if info else None,
        "expected_failures": dict(info.expected_failures) if info else None,
        "api_version": candidate.info.api_version if candidate.info else None,
        "upstream": upstream
        and {
            "distribution": upstream.distribution,
            "required": upstream.versions,
            "installed": candidate.upstream_version,
            "tested": upstream.tested,
            "releases": [asdict(row) for row in upstream.releases],
            "found": upstream.found,
        },
        "operations": {op: _capabilities_json(c) for op, c in info.operations.items()} if info else None,
    }


def _capabilities_json(capabilities: HostCapabilities) -> JsonObject:
    values = asdict(capabilities)
    if "filters" in values:
        values["filters"] = dict(values["filters"])
    if capabilities.compute_capability:
        values["compute_capability"] = [v and dotted(v) for v in capabilities.compute_capability]
    return values


def host_json(host: Host) -> JsonObject:
    """Return every field of :class:`tokendraw.plugin.Host`."""
    values = asdict(host)
    for name in ("compute_capability", "cuda_version"):
        values[name] = values[name] and dotted(values[name])
    return values


def resolution_json(resolution: Resolution) -> JsonObject:
    """Describe a resolution; ``companion_serves`` are kinds of rows or calls, ``decisions`` the best first."""
    return {
        "operation": resolution.operation,
        "chosen": resolution.chosen,
        "companion": resolution.companion,
        "partial_companion": resolution.partial_companion,
        "companion_serves": resolution.beyond,
        "host": host_json(resolution.host),
        "need": asdict(resolution.need),
        "choice": asdict(resolution.choice),
        "decisions": [asdict(decision) for decision in resolution.decisions],
        "warnings": resolution.warnings,
    }


def settings_in_force(settings: Settings) -> dict[str, str]:
    """Map the settings from outside the program, a variable or ``KEY in FILE``, to their values."""
    values = {
        "TOKENDRAW_NO_PLUGINS": "1" if settings.first_party_only else "",
        "TOKENDRAW_STRICT": "1" if settings.strict else "",
        "TOKENDRAW_DEBUG": "1" if settings.debug else "",
    }
    for key, source, value in (
        ("sampler", settings.sampler_source, settings.sampler or ""),
        ("priority", settings.priority_source, ", ".join(settings.priority)),
        ("disable", settings.disabled_source, ", ".join(settings.disabled)),
    ):
        values[source if source.startswith("TOKENDRAW_") else f"{key} in {source}"] = value
    return {name: value for name, value in values.items() if value}


@click.command("list", cls=GuardedCommand, short_help="Every sampler, and why some cannot serve.")
@options.operation_option
@options.verbose_option
@options.json_option
@click.pass_context
def list_(ctx: click.Context, operation: str, as_json: bool) -> None:
    """Show every installed sampler and its operations, with reasons for those that cannot serve the one asked for.

    Below them are the operations that other distributions bring, and the installed filters from moments.

    Exits with 1 if none is available. Neither torch nor any backend is imported.
    """
    settings = _settings.read_settings()
    with plugins_at_work():
        found = sorted(tokendraw.discover(operation=operation), key=rank)
        filters = [asdict(record) for record in installed_filters()]
        others = [asdict(record) for record in operations.installed_operations()]
    names = [candidate.name for candidate in found]
    warn(settings.all_warnings(names, sampler=True), strict=settings.strict)
    error = None
    if not found:
        error = f"No sampler is installed; {INSTALL}."
    elif all(candidate.state is not State.AVAILABLE for candidate in found):
        error = f"No installed sampler can serve the operation '{operation}' here. Read the reasons of the candidates."
    candidates = [candidate_json(candidate) for candidate in found]
    if as_json:
        print_json({"error": error, "candidates": candidates, "filters": filters, "operations": others})
    elif candidates:
        _print_list(candidates, filters, others)
    else:
        click.echo(error, err=True)
    if error:
        ctx.exit(NOT_USABLE)


def _print_list(
    candidates: Sequence[JsonObject], filters: Sequence[JsonObject], others: Sequence[JsonObject]
) -> None:
    print_candidates(candidates)
    known = operations.operation_names()  # a plugin may offer others, which come last
    offered = [
        (c["name"], ", ".join(sorted(c["operations"], key=lambda name: [*known, name].index(name))))
        for c in candidates
        if c["operations"] is not None
    ]
    brought = [(o["name"], o["state"], o["reason"] or o["distribution"]) for o in others]
    kept = [(f["name"], f["state"], ", ".join(f["moments"]), f["reason"] or f["summary"]) for f in filters]
    for header, rows in (
        (("name", "operations"), offered),
        (("operation", "state", "brought by, or why it cannot be used"), brought),
        (("filter", "state", "moments", "what it keeps, or why it cannot"), kept),
    ):
        if rows:
            click.echo()
            print_table(header, rows)


_Plugin: TypeAlias = Mapping[str, Candidate]
"""A plugin: its candidate in each operation."""


@click.command(cls=GuardedCommand, short_help="Everything about one sampler or filter.")
@click.argument("name", shell_complete=options.installed_names)
@options.verbose_option
@options.json_option
def show(name: str, as_json: bool) -> None:
    """Show everything about the sampler or the filter NAME: origin, state, and capabilities or moments."""
    with plugins_at_work():
        by_operation = providers.discover_all()
    plugins = [dict(zip(by_operation, c, strict=True)) for c in zip(*by_operation.values(), strict=True)]
    claimants = sorted((p for p in plugins if _main(p).name == name), key=lambda p: rank(_main(p)))
    known = () if claimants else installed_filters()
    as_filter = name.replace("-", "_")
    filters = [record for record in known if record.name == as_filter]
    if not claimants and not filters:
        samplers = sorted({_main(plugin).name for plugin in plugins})
        others = [record.name for record in known]
        near = nearest(name, samplers) or nearest(as_filter, others)
        if not samplers and near is None:
            raise TokendrawError(f"'{name}' needs to be an installed sampler, found none; {INSTALL}.")
        found = all_of([*samplers, *dict.fromkeys(others)])
        raise TokendrawError(
            f"'{name}' needs to be an installed sampler or filter, found {found}. "
            f"Try: tokendraw {'list' if near is None else f'show {near}'}"
        )
    if as_json and filters:
        print_json({"filters": [asdict(record) for record in filters]})
    elif as_json:
        print_json({"candidates": [candidate_json(_main(plugin)) for plugin in claimants]})
    else:
        for index in range(len(filters or claimants)):
            if index:
                click.echo()
            _print_filter(filters[index]) if filters else _print_plugin(claimants[index])


def _main(plugin: _Plugin) -> Candidate:
    first, *_ = plugin.values()
    info = described(first)
    offered = info.operations if info else ()
    return next((candidate for name, candidate in plugin.items() if name in offered), first)


def _print_values(title: str, values: Mapping[str, str | None]) -> None:
    click.echo(title)
    print_table(("", ""), [(label, text) for label, text in values.items() if text], indent=2)


def _print_filter(record: InstalledFilter) -> None:
    values = {
        "summary": record.summary,
        "state": str(record.state),
        "reason": record.reason,
        "distribution": f"{record.distribution} {record.version}".rstrip(),
        "entry point": record.entry_point,
        "moments": ", ".join(record.moments),
    }
    _print_values(click.style(record.name, bold=True), values)


def _print_plugin(plugin: _Plugin) -> None:
    main = _main(plugin)
    info = described(main)
    upstream = info.upstream if info else None
    values = {
        "summary": info.summary if info else None,
        **_state(main),
        "distribution": f"{main.distribution} {main.version}, {'first' if main.first_party else 'third'}-party",
        "entry point": main.entry_point,
        "plugin API": f"{main.info.api_version}, this core speaks {API_VERSION}" if main.info else None,
    }
    if info:
        values |= {"priority": str(info.priority), "upstream": upstream.distribution if upstream else "none"}
        if upstream:
            values["  required"] = upstream.versions or "any version"
            values["  installed"] = main.upstream_version or "no"
            values["  tested"] = ", ".join(upstream.tested) or "no version"
        values |= {"kernels": info.kernels, "verified on": info.verified or "nothing stated"}
        values |= {f"fails {check!r}": reason for check, reason in info.expected_failures.items()}
    _print_values(click.style(main.name, bold=True), values)
    if upstream and upstream.releases:
        print_heading(upstream.distribution, " by version")
        rows = list(_releases(upstream, main.upstream_version))
        print_table(("since", "operation", "decision", "what it does"), rows, indent=2)
    for operation, capabilities in (info.operations if info else {}).items():
        candidate = plugin.get(operation, main)
        differs = (candidate.state, candidate.reason) != (main.state, main.reason)
        title = f"\noperation {click.style(operation, bold=True)}"
        _print_values(title, (_state(candidate) if differs else {}) | _in_words(capabilities))


def _state(candidate: Candidate) -> dict[str, str | None]:
    return {"state": str(candidate.state), "reason": candidate.reason}


def _releases(upstream: Upstream, installed: str | None) -> Iterator[tuple[str, str, str, str]]:
    """List the table of releases, with a mark at the rows in force for the installed version."""
    for row in upstream.releases:
        mark = ""
        if installed is not None and row == (found := in_force(upstream, installed, row.operation)).row:
            mark = f" (installed{found.seen and ', by its files'})"
        yield row.since, row.operation or "all", "refused" if row.refused else "used", f"{row.says}{mark}"


def _in_words(capabilities: HostCapabilities) -> dict[str, str | None]:
    """List every field by its label: the promises common to all operations after ``valid_flag``, or last."""
    promises = [field.name for field in fields(HostNeed)]
    names = [field.name for field in fields(capabilities) if field.name not in promises]
    start = names.index("valid_flag") + 1 if "valid_flag" in names else len(names)
    return {
        _LABELS.get(name, name.replace("_", " ")): _value_in_words(name, getattr(capabilities, name))
        for name in (*names[:start], *promises, *names[start:])
    }


_LABELS = {"rocm_archs": "ROCm architectures", "min_sm_count": "least SMs", "max_top_k": "largest top-k"}
_LABELS |= {"max_vocab_size": "largest vocabulary", "dtypes": "dtypes of logits"}
_NO_LIMIT = {"device_types": "any that torch has", "max_top_k": "no limit", "max_vocab_size": "no limit"}


def _value_in_words(name: str, value: Any) -> str:
    if value is None:
        return _NO_LIMIT.get(name, "any")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "compute_capability":
        least, largest = value
        return f"{dotted(least)} to {dotted(largest)}" if largest else f"{dotted(least)} or later"
    if name == "filters":
        value = tuple(f"{filter_name} {granularity.replace('_', ' ')}" for filter_name, granularity in value)
    return ", ".join(value) or "none" if isinstance(value, tuple) else str(value)


_NEEDS = (
    "dtype vocab-size filter-order seeding tie-rule valid-flag graph-safe sync-free threshold batch-invariant"
)


@click.command(cls=GuardedCommand, short_help="Which sampler is chosen here, and why.")
@click.option(
    "--explain", is_flag=True, help="Every decision with its reason, and the settings that took part."
)
@options.operation_option
@options.selection_options
@options.logprobs_mode_option
@options.gumbel_dtype_option
@options.removed_option("--vocab-parallel", "Gather the logits of the ranks and draw from whole rows")
@options.all_of_options(
    *(options.removed_option(f"--{name}", "Use --need FIELD=VALUE") for name in _NEEDS.split())
)
@click.option(
    "--need",
    "assignments",
    metavar="FIELD=VALUE",
    multiple=True,
    help="Any field of what the operation may need; may be given for each.",
)
@options.verbose_option
@options.json_option
@click.pass_context
def resolve(
    ctx: click.Context,
    /,
    explain: bool,
    operation: str,
    sampler: str | None,
    device: str | None,
    as_json: bool,
    assignments: tuple[str, ...],
    **need: str,
) -> None:
    """Print the name of the sampler that is chosen here. No plugin is built: whether that works is not tried.

    `tokendraw doctor` builds and proves the plugins that a program gets.

    Exits with 1 if nothing is available, or an explicit choice (--sampler, TOKENDRAW_SAMPLER, the
    configuration file) cannot be honoured.
    """
    settings = _settings.read_settings()
    in_force = settings_in_force(settings)
    about, source_of = operations.find_operation(operation), ctx.get_parameter_source
    given = [f"{name}={v}" for name, v in need.items() if source_of(name) is ParameterSource.COMMANDLINE]
    try:
        with plugins_at_work():
            resolution = tokendraw.resolve(
                need=_need(about.need, (*given, *assignments)),
                choice=settings.choice(sampler, options.SAMPLER, binds=operations.is_own(about)),
                operation=operation,
                device=device,
            )
    except SamplerUnavailableError as error:
        if as_json:
            decisions = [asdict(decision) for decision in error.decisions]
            values = {"operation": operation, "chosen": None, "decisions": decisions}
            message = in_options(str(error), ctx.command)
            print_json({**values, "settings": in_force, "error": message})
        elif explain:
            click.echo(f"{operation}: no sampler")
            _explain(error.decisions, {}, in_force)
        raise
    misnamed = settings.all_warnings(decision.name for decision in resolution.decisions)
    warn([*misnamed, *resolution.warnings], strict=settings.strict, outcome=using(resolution.chosen))
    if as_json:
        print_json({**resolution_json(resolution), "settings": in_force, "built": False, "error": None})
    elif explain:
        click.echo(f"{operation} on {resolution.host}: {click.style(resolution.chosen, bold=True)}")
        names = all_of((resolution.chosen, *resolution.companions))
        untried = f"whether {names} can be built: `tokendraw doctor` builds what a program gets"
        sections = {"who serves what": _who_serves(resolution), "not tried": [(untried,)]}
        _explain(resolution.decisions, sections, in_force)
    else:
        click.echo(resolution.chosen)


def _need(declared: type[HostNeed], assignments: Iterable[str]) -> HostNeed:
    """Make a need of ``FIELD=VALUE``; refuse what is no part of it, or given twice."""
    values: dict[str, Any] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"'--need' needs FIELD=VALUE, found {text!r}. Pass --need {name}=VALUE.")
        if name in values:
            raise click.UsageError(f"'--need' needs each field once, found {name!r} twice. Leave one out.")
        try:
            values[name] = read_field(declared, name, value)
        except InvalidParameterError as error:
            raise click.UsageError(str(error)) from error
    return declared(**values)


_Rows: TypeAlias = Sequence[tuple[str, ...]]


def _who_serves(resolution: Resolution) -> _Rows:
    beyond = ", ".join(resolution.beyond)
    served = f"all {operations.find_operation(resolution.operation).served}"
    if not beyond:
        return [(resolution.chosen, served)]
    rows = [(resolution.chosen, f"{served} but {beyond}"), (resolution.companion or "nobody", beyond)]
    if resolution.partial_companion is not None:
        rows.insert(1, (resolution.partial_companion, "these, where it can serve all of them in a call"))
    return rows


def _explain(decisions: Iterable[Decision], sections: Mapping[str, _Rows], active: Mapping[str, str]) -> None:
    decided = [(decision.name, str(decision.state), decision.reason) for decision in decisions]
    settings = [(f"{name} = {value}",) for name, value in active.items()] or [("none",)]
    for title, rows in {"decisions": decided, **sections, "settings": settings}.items():
        if rows:
            print_heading(title)
            print_table([""] * len(rows[0]), rows, indent=2)
