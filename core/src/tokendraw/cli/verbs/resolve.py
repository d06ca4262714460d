"""``tokendraw resolve``: the chosen sampler, and with ``--explain`` every decision on the way.

JSON: the keys of :func:`tokendraw.cli.describe.resolution_json`, ``settings`` (name to value of what took
part), ``built`` (false: no plugin was built, which may fail) and ``error`` (null). Where no sampler can be given,
``chosen`` is null and ``error`` holds the message; of the other keys only ``operation``, ``decisions`` and
``settings`` are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, TypeAlias

import click
from click.core import ParameterSource

import tokendraw
from tokendraw import operations
from tokendraw.backends.description.capabilities import FILTER_ORDERS, INPUT_DTYPES, HostNeed
from tokendraw.backends.description.declared import read_field
from tokendraw.backends.discovery import settings as _settings
from tokendraw.backends.resolution.candidate import Decision, Resolution
from tokendraw.backends.resolution.messages import using
from tokendraw.cli import options
from tokendraw.cli.command import GuardedCommand, warn
from tokendraw.cli.describe import decisions_json, resolution_json, settings_in_force
from tokendraw.cli.terminal.tables import plugins_at_work, print_heading, print_json, print_table
from tokendraw.errors.exceptions import InvalidParameterError, SamplerUnavailableError
from tokendraw.errors.formatting import all_of

_Rows: TypeAlias = Sequence[tuple[str, ...]]

_need_options = options.all_of_options(
    options.logprobs_mode_option,
    click.option(
        "--filter-order",
        "filter_orders",
        type=click.Choice(FILTER_ORDERS),
        multiple=True,
        default=("top_k_first",),
        show_default=True,
        help="An order in use; may be given for each.",
    ),
    options.gumbel_dtype_option,
    click.option("--dtype", type=click.Choice(INPUT_DTYPES), help="Of the logits, if known."),
    click.option("--vocab-size", type=click.IntRange(min=1), help="If known."),
    click.option(
        "--seeding", type=click.Choice(("none", "launch", "counter")), default="none", show_default=True
    ),
    click.option(
        "--tie-rule",
        type=click.Choice(("value", "exact_k", "either")),
        help="Default: the sampler's own; either: it may change from batch to batch.",
    ),
    click.option("--valid-flag", is_flag=True, help="Need rows with NaN to be told from others."),
    click.option("--graph-safe", is_flag=True, help="Need calls that a CUDA graph can capture."),
    click.option("--sync-free", is_flag=True, help="Need calls that do not wait for the device."),
    click.option("--threshold", is_flag=True, help="Need the least kept logit of each row."),
    click.option("--batch-invariant", is_flag=True, help="Need the same token in any batch."),
    click.option("--vocab-parallel", is_flag=True, help="Need draws from logits that are split over ranks."),
    click.option(
        "--need",
        "assignments",
        metavar="FIELD=VALUE",
        multiple=True,
        help="Any field of what the operation may need; may be given for each.",
    ),
)
"""Options for the fields of ``Need``, under the same names, and one for those of every other operation."""


@click.command(cls=GuardedCommand, short_help="Which sampler is chosen here, and why.")
@click.option(
    "--explain", is_flag=True, help="Every decision with its reason, and the settings that took part."
)
@options.operation_option
@options.selection_options
@_need_options
@options.verbose_option
@options.json_option
def resolve(
    explain: bool,
    operation: str,
    sampler: str | None,
    device: str | None,
    as_json: bool,
    assignments: tuple[str, ...],
    **need: Any,
) -> None:
    """Print the name of the sampler that is chosen here. No plugin is built: whether that works is not tried.

    `tokendraw doctor` builds and proves the plugins that a program gets.

    Exits with 1 if nothing is available, or an explicit choice (--sampler, TOKENDRAW_SAMPLER, the
    configuration file) cannot be honoured.
    """
    settings = _settings.read_settings()
    in_force = settings_in_force(settings)
    about = operations.find_operation(operation)
    try:
        with plugins_at_work():
            resolution = tokendraw.resolve(
                need=_need(operation, need, assignments),
                choice=settings.choice(sampler, options.SAMPLER, binds=operations.is_own(about)),
                operation=operation,
                device=device,
            )
    except SamplerUnavailableError as error:
        if as_json:
            facts = {"operation": operation, "chosen": None, "decisions": decisions_json(error.decisions)}
            print_json({**facts, "settings": in_force, "error": str(error)})
        elif explain:
            click.echo(f"{operation}: no sampler")
            _explain(error.decisions, (), in_force)
        raise
    misnamed = settings.all_warnings(decision.name for decision in resolution.decisions)
    warn([*misnamed, *resolution.warnings], strict=settings.strict, outcome=using(resolution.chosen))
    if as_json:
        print_json({**resolution_json(resolution), "settings": in_force, "built": False, "error": None})
    elif explain:
        click.echo(f"{operation} on {resolution.host}: {click.style(resolution.chosen, bold=True)}")
        names = all_of((resolution.chosen, *resolution.companions))
        untried = f"whether {names} can be built: `tokendraw doctor` builds what a program gets"
        sections = (("who serves what", _who_serves(resolution)), ("not tried", [(untried,)]))
        _explain(resolution.decisions, sections, in_force)
    else:
        click.echo(resolution.chosen)


def _need(operation: str, values: dict[str, Any], assignments: tuple[str, ...]) -> HostNeed:
    """Make the need of an operation.

    :param assignments: fields with their values, ``FIELD=VALUE``.
    :raises UsageError: something was given that is no part of it, or twice.
    """
    ctx, declared = click.get_current_context(), operations.find_operation(operation).need
    field_names = {field.name for field in fields(declared)}
    assigned_names = {
        name for name in values if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    for parameter in ctx.command.params:
        if parameter.name in assigned_names - field_names:
            raise click.UsageError(
                f"'{parameter.opts[0]}' is no part of what {operation!r} may need. Leave it out."
            )
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"'--need' needs FIELD=VALUE, found {text!r}. Pass --need {name}=VALUE.")
        if name in assigned_names:
            raise click.UsageError(f"'--need' needs each field once, found {name!r} twice. Leave one out.")
        assigned_names.add(name)
        try:
            values[name] = read_field(declared, name, value)
        except InvalidParameterError as error:
            raise click.UsageError(str(error)) from error
    return declared(**{name: value for name, value in values.items() if name in field_names})


def _who_serves(resolution: Resolution) -> _Rows:
    beyond = ", ".join(resolution.beyond)
    served = f"all {operations.find_operation(resolution.operation).served}"
    if not beyond:
        return [(resolution.chosen, served)]
    rows = [(resolution.chosen, f"{served} but {beyond}"), (resolution.companion or "nobody", beyond)]
    if resolution.partial_companion is not None:
        rows.insert(1, (resolution.partial_companion, "these, where it can serve all of them in a call"))
    return rows


def _explain(
    decisions: Iterable[Decision], sections: Iterable[tuple[str, _Rows]], in_force: dict[str, str]
) -> None:
    """Print the decisions, more sections, and the settings."""
    decided = [(decision.name, str(decision.state), decision.reason) for decision in decisions]
    settings = [(f"{name} = {value}",) for name, value in in_force.items()]
    for title, rows in (("decisions", decided), *sections, ("settings", settings or [("none",)])):
        if rows:
            print_heading(title)
            print_table([""] * len(rows[0]), rows, indent=2)
