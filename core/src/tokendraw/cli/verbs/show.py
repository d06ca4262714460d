"""``tokendraw show NAME``: all facts about a plugin.

JSON of a filter from moments: ``filters``, with the fields of :class:`tokendraw.filters.InstalledFilter`. Of a plugin:
``candidates``, each as in :func:`tokendraw.cli.describe.candidate_json`; more than one where several
distributions claim the name. State and reason are about the first operation that the plugin offers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, TypeAlias

import click

from tokendraw.backends.description.capabilities import HostCapabilities, HostNeed
from tokendraw.backends.description.plugin_info import API_VERSION, Upstream
from tokendraw.backends.resolution.candidate import Candidate
from tokendraw.backends.resolution.messages import INSTALL
from tokendraw.backends.resolution.upstream import disagreement, row_in_force
from tokendraw.cli import options
from tokendraw.cli.command import GuardedCommand
from tokendraw.cli.describe import candidate_json, described, rank
from tokendraw.cli.terminal.tables import plugins_at_work, print_json, print_table
from tokendraw.errors.exceptions import TokendrawError
from tokendraw.errors.formatting import all_of, dotted, nearest
from tokendraw.filters.installed import InstalledFilter, installed_filters
from tokendraw.providers import resolve as _resolve

_Plugin: TypeAlias = Mapping[str, Candidate]
"""A plugin: its candidate in each operation."""


@click.command(cls=GuardedCommand, short_help="Everything about one sampler or filter.")
@click.argument("name", shell_complete=options.installed_names)
@options.verbose_option
@options.json_option
def show(name: str, as_json: bool) -> None:
    """Show everything about the sampler or the filter NAME: origin, state, and capabilities or moments."""
    with plugins_at_work():
        by_operation = _resolve.discover_all()
    plugins = [dict(zip(by_operation, c, strict=True)) for c in zip(*by_operation.values(), strict=True)]
    claimants = [plugin for plugin in plugins if _main(plugin).name == name]
    claimants.sort(key=lambda plugin: rank(_main(plugin)))
    known = () if claimants else installed_filters()
    filters = [record for record in known if record.name == name.replace("-", "_")]
    if filters:
        _show_filters(filters, as_json=as_json)
        return
    if not claimants:
        raise _unknown(name, sorted({_main(plugin).name for plugin in plugins}), [f.name for f in known])
    if as_json:
        print_json({"candidates": [candidate_json(_main(plugin)) for plugin in claimants]})
        return
    for index, plugin in enumerate(claimants):
        if index:
            click.echo()
        _print(plugin)


def _show_filters(filters: Sequence[InstalledFilter], *, as_json: bool) -> None:
    """Show a filter from moments; several records where distributions claim one name."""
    if as_json:
        print_json({"filters": [asdict(record) for record in filters]})
        return
    for index, record in enumerate(filters):
        if index:
            click.echo()
        click.echo(click.style(record.name, bold=True))
        facts = {
            "summary": record.summary,
            "state": str(record.state),
            "reason": record.reason,
            "distribution": f"{record.distribution} {record.version}".rstrip(),
            "entry point": record.entry_point,
            "moments": ", ".join(record.moments),
        }
        print_table(("", ""), [(label, text) for label, text in facts.items() if text], indent=2)


def _main(plugin: _Plugin) -> Candidate:
    """Return the candidate in the first operation that a plugin offers."""
    first, *_ = plugin.values()
    info = described(first)
    offered = info.operations if info else ()
    return next((candidate for name, candidate in plugin.items() if name in offered), first)


def _unknown(name: str, samplers: Sequence[str], filters: Sequence[str]) -> TokendrawError:
    near = nearest(name, samplers) or nearest(name.replace("-", "_"), filters)
    if not samplers and near is None:
        return TokendrawError(f"'{name}' needs to be an installed sampler, found none; {INSTALL}.")
    command = "list" if near is None else f"show {near}"
    found = all_of([*samplers, *dict.fromkeys(filters)])
    return TokendrawError(
        f"'{name}' needs to be an installed sampler or filter, found {found}. Try: tokendraw {command}"
    )


def _print(plugin: _Plugin) -> None:
    main = _main(plugin)
    click.echo(click.style(main.name, bold=True))
    print_table(("", ""), list(_facts(main)), indent=2)
    info = described(main)
    if info and info.upstream and info.upstream.releases:
        click.echo(f"\n{click.style(info.upstream.distribution, bold=True)} by version")
        rows = list(_releases(info.upstream, main.upstream_version))
        print_table(("since", "operation", "decision", "what it does"), rows, indent=2)
    for operation, capabilities in (info.operations if info else {}).items():
        click.echo(f"\noperation {click.style(operation, bold=True)}")
        candidate = plugin.get(operation, main)
        differs = (candidate.state, candidate.reason) != (main.state, main.reason)
        print_table(("", ""), [*(_state(candidate) if differs else ()), *_in_words(capabilities)], indent=2)


def _facts(candidate: Candidate) -> Iterator[tuple[str, str]]:
    info = described(candidate)
    if info and info.summary:
        yield "summary", info.summary
    yield from _state(candidate)
    origin = "first-party" if candidate.first_party else "third-party"
    yield "distribution", f"{candidate.distribution} {candidate.version}, {origin}"
    yield "entry point", candidate.entry_point
    if candidate.info is not None:
        yield "plugin API", f"{candidate.info.api_version}, this core speaks {API_VERSION}"
    if info is None:
        return
    yield "priority", str(info.priority)
    if info.upstream is None:
        yield "upstream", "none"
    else:
        yield "upstream", info.upstream.distribution
        yield "  required", info.upstream.versions or "any version"
        yield "  installed", candidate.upstream_version or "no"
        yield "  tested", ", ".join(info.upstream.tested) or "no version"
    if info.kernels:
        yield "kernels", info.kernels
    yield "verified on", info.verified or "nothing stated"


def _releases(upstream: Upstream, installed: str | None) -> Iterator[tuple[str, str, str, str]]:
    """List the table of releases, with a mark at the rows in force for the installed version."""
    for row in upstream.releases:
        mark = ""
        if installed is not None and row == row_in_force(upstream, installed, row.operation):
            origin = ", by its files" if disagreement(upstream, installed, row.operation) else ""
            mark = f" (installed{origin})"
        yield row.since, row.operation or "all", "refused" if row.refused else "used", f"{row.says}{mark}"


def _state(candidate: Candidate) -> Iterator[tuple[str, str]]:
    yield "state", str(candidate.state)
    if candidate.reason:
        yield "reason", candidate.reason


def _in_words(capabilities: HostCapabilities) -> Iterator[tuple[str, str]]:
    """List every field as (label, value): the promises common to all operations after ``valid_flag``, or last."""
    promises = [field.name for field in fields(HostNeed)]
    names = [field.name for field in fields(capabilities) if field.name not in promises]
    start = names.index("valid_flag") + 1 if "valid_flag" in names else len(names)
    for name in (*names[:start], *promises, *names[start:]):
        label = _LABELS.get(name, name.replace("_", " "))
        yield label, _value_in_words(name, getattr(capabilities, name))


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
