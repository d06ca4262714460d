"""``tokendraw check NAME``: hold an installed sampler against everything that it advertises.

JSON: ``sampler``, ``device``, ``host`` (as in ``resolve --json``), ``candidate`` (as in ``list --json``), ``tokendraw``
and ``torch`` (versions), ``quick``, ``seed``, ``only`` (names; null for all properties), ``gumbel_dtype`` (null without
the option), ``passed`` (whether none failed), ``false_alarm`` (the most that a correct sampler fails such a run with),
``seconds`` and ``lines``, one a property: ``name``, ``about`` (what is demanded), ``status`` (``passed``, ``failed``,
``refused`` or ``not run``), ``detail`` (what was looked at; of a failure, what was needed and found; of a refusal, its
words), ``checks`` (how many statistical ones), ``draws``, ``p_value`` (the least; null without statistics), ``worst``
(where it was the least), ``traceback`` (where a call raised, else "") and ``seconds``. With ``--list``: ``properties``,
each with ``name``, ``about`` (what is demanded), ``operation``, ``advertised`` (whether a capability switches it on)
and ``needs_cuda``.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

import tokendraw
from tokendraw import operations
from tokendraw._discovery import settings as _settings
from tokendraw._machine import detect
from tokendraw._messages.errors import PluginError, TokendrawError
from tokendraw._messages.install import how_to_install
from tokendraw._messages.words import all_of
from tokendraw._resolution.candidate import Candidate
from tokendraw._resolution.refusals import INSTALL
from tokendraw._torch.importing import require_torch
from tokendraw.cli.app import NOT_USABLE, GuardedCommand, warn
from tokendraw.cli.describe import candidate_json, host_json
from tokendraw.cli.options import (
    device_option,
    installed_names,
    json_option,
    only_gumbel_dtype_option,
    only_operation_option,
    verbose_option,
)
from tokendraw.cli.terminal.check_lines import print_report
from tokendraw.cli.terminal.tables import print_json, progress, progress_bar

if TYPE_CHECKING:
    from tokendraw._exchange.capabilities import GumbelDtype
    from tokendraw.testing import Subject
    from tokendraw.testing.kit.property import Property
    from tokendraw.testing.kit.report import Report


@click.command(cls=GuardedCommand, short_help="Test a sampler: every property, with figures.")
@click.argument("name", required=False, shell_complete=installed_names)
@device_option
@click.option("--quick", is_flag=True, help="Fewer draws, smaller vocabularies: under a minute on a CPU.")
@click.option("--only", multiple=True, metavar="PROPERTY", help="Check this property; may be given again.")
@only_operation_option
@only_gumbel_dtype_option
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of all that is random in a run."
)
@click.option("--list", "as_list", is_flag=True, help="Print the properties, each with what it demands.")
@verbose_option
@json_option
@click.pass_context
def check(
    ctx: click.Context,
    name: str | None,
    device: str | None,
    quick: bool,
    only: tuple[str, ...],
    operation: str | None,
    gumbel_dtype: GumbelDtype | None,
    seed: int,
    as_list: bool,
    as_json: bool,
) -> None:
    """Test the sampler NAME: what it advertises it does, and requests for what it does not are refused.

    The sampler draws by itself, without a companion. Whatever looks wrong in a statistic is looked at again with
    more draws, so that a correct sampler fails one run in a million at most.

    Exits with 1 if a property failed, or if there was none to check. Needs numpy and scipy, which the extra testing
    brings.
    """
    if as_list:
        if name is not None:
            raise click.UsageError("'--list' prints the properties of every sampler. Leave out it, or NAME.")
        with progress("loading the kit"):
            listed = _properties(only, operation)
        _print_properties(listed, as_json=as_json)
        return
    if name is None:
        raise click.MissingParameter(param_hint="'NAME'", param_type="argument")
    if gumbel_dtype and operation and not hasattr(operations.get(operation).need(), "gumbel_dtype"):
        raise click.UsageError(
            f"'--gumbel-dtype' is no part of what {operation!r} may need. Leave out one of them."
        )
    settings = _settings.read_settings()
    warn(settings.warnings, strict=settings.strict)
    properties = tuple(prop.name for prop in _properties(only, operation))
    with progress(f"loading {name}"):
        candidate = _candidate(name, device)
        subject = _subject(name, device, operation, gumbel_dtype, quick=quick, seed=seed)
    report = _run(subject, properties)
    if as_json:
        print_json(
            {
                **report.as_json(),
                "host": host_json(subject.host),
                "candidate": candidate_json(candidate),
                "tokendraw": tokendraw.__version__,
                "torch": _torch_version(),
                "only": list(only) or None,
                "gumbel_dtype": gumbel_dtype,
            }
        )
    else:
        noise = f", {gumbel_dtype} noise" if gumbel_dtype else ""
        print_report(report, f"{subject.host}{noise}", _versions(candidate), _again(report, gumbel_dtype))
    if report.failed or not report.lines:
        ctx.exit(NOT_USABLE)


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


def _properties(only: Sequence[str], operation: str | None) -> tuple[Property, ...]:
    """Select the properties to check, in the order of a report.

    :raises TokendrawError: a library is missing that the kit needs.
    :raises InvalidParameterError: there is no property of one of these names.
    """
    require_torch("Checking")
    try:
        from tokendraw.testing.kit.run import selected

        return selected(only or None, operation)
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("numpy", "scipy"):
            raise
        raise TokendrawError(
            f"Checking needs numpy and scipy, found no {missing}; run {how_to_install('tokendraw', 'testing')}."
        ) from error


def _candidate(name: str, device: str | None) -> Candidate:
    """Find the plugin that is called ``name``.

    :raises TokendrawError: there is none; the message has the nearest name.
    """
    candidates = tokendraw.discover(host=detect.detect_host(device))
    named = [candidate for candidate in candidates if candidate.name == name]
    if named:  # beside the owner of a reserved name there may be others, none of which is ever loaded
        return max(named, key=lambda candidate: (candidate.info is not None, candidate.first_party))
    names = sorted({candidate.name for candidate in candidates})
    if not names:
        raise TokendrawError(f"'{name}' needs to be an installed sampler, found none; {INSTALL}.")
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0)[0]
    raise TokendrawError(
        f"'{name}' needs to be an installed sampler, found {all_of(names)}. Try: tokendraw check {nearest}"
    )


def _subject(
    name: str,
    device: str | None,
    operation: str | None,
    gumbel_dtype: GumbelDtype | None,
    *,
    quick: bool,
    seed: int,
) -> Subject:
    """Build the sampler and prove it.

    :raises SamplerUnavailableError: it cannot serve this machine; the reason in words.
    :raises TokendrawError: it did not build, or did not draw rightly.
    """
    from tokendraw.testing import Subject

    need = {} if gumbel_dtype is None else {"gumbel_dtype": gumbel_dtype}
    subject = Subject.installed(name, device=device, quick=quick, seed=seed, operation=operation, need=need)
    try:
        subject.built(operation or next(iter(subject.capabilities)))
    except PluginError as error:
        raise TokendrawError(
            f"'{name}' needs to build and to draw on {subject.device} before it can be checked, found: {error}. "
            "Mend the plugin."
        ) from error
    return subject


def _run(subject: Subject, properties: Sequence[str]) -> Report:
    """Check the properties; on a terminal a bar on stderr shows the progress."""
    from tokendraw import testing

    with progress_bar(len(properties)) as show:
        return testing.run(
            subject, only=properties, starting=lambda prop: show(prop.name, properties.index(prop.name))
        )


def _versions(candidate: Candidate) -> dict[str, str]:
    """Return the version of each distribution that took part in a run."""
    versions = {"tokendraw": tokendraw.__version__, candidate.distribution: candidate.version}
    if candidate.info and candidate.info.upstream and candidate.upstream_version:
        versions[candidate.info.upstream.distribution] = candidate.upstream_version
    return versions | {"torch": _torch_version()}


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


def _again(report: Report, gumbel_dtype: GumbelDtype | None) -> str:
    """Write the command that repeats the failed properties: the random numbers of one depend on no other."""
    arguments = ["check", report.sampler, "--device", report.device]
    arguments += ["--quick"] if report.quick else []
    arguments += ["--gumbel-dtype", gumbel_dtype] if gumbel_dtype else []
    arguments += ["--seed", str(report.seed)] if report.seed else []
    arguments += [part for line in report.failed for part in ("--only", line.name)]
    return shlex.join(["tokendraw", *arguments])
