"""Options shared by several commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from tokendraw import operations
from tokendraw.backends.description import GUMBEL_DTYPES, LOGPROBS_MODES
from tokendraw.backends.discovery.entry_points import find_entry_points
from tokendraw.cli.terminal import start_verbose
from tokendraw.errors import InvalidParameterError

_F = TypeVar("_F", bound=Callable[..., Any])

SAMPLER = "--sampler"


def all_of_options(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    """Combine several options into one decorator; the help shows them in this order."""

    def decorate(function: _F) -> _F:
        for option in reversed(options):  # click lists the option that was applied last first
            function = option(function)
        return function

    return decorate


def installed_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of an installed sampler without running its code."""
    names = dict.fromkeys(candidate.name for candidate in find_entry_points())
    return [name for name in names if name.startswith(incomplete)]


def removed_option(flag: str, instead: str) -> Callable[[_F], _F]:
    """Make an option of the last release, with a value or without, a usage error that says what to do instead."""

    def refuse(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value:
            raise click.UsageError(f"'{flag}' was removed. {instead}.")

    hidden: Any = {"hidden": True, "expose_value": False, "callback": refuse}
    return click.option(flag, flag_value=flag, is_flag=False, **hidden)


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")

verbose_option = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    expose_value=False,
    callback=start_verbose,
    help="Show on stderr the traceback of a sampler that fails to load, to build or to draw.",
)


def _known(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    try:
        return value if value is None else operations.find_operation(value).name
    except InvalidParameterError as error:
        raise click.UsageError(str(error)) from error


def _operations(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in operations.operation_names() if name.startswith(incomplete)]


def build_operation_option(**settings: Any) -> Callable[[_F], _F]:
    """Build the option ``--operation`` with completion and check of the name.

    :param settings: more arguments of :func:`click.option`, such as ``help`` or ``default``.
    """
    names = f"[{'|'.join(operations.RECORDS)}|...]"
    return click.option("--operation", metavar=names, callback=_known, shell_complete=_operations, **settings)


def _choice_option(name: str, values: Sequence[str], default: str, text: str) -> Callable[[_F], _F]:
    return click.option(name, type=click.Choice(values), default=default, show_default=True, help=text)


operation_option = build_operation_option(default="sample", show_default=True)

device_option = click.option(
    "--device", metavar="DEVICE", help="cpu, cuda, cuda:1 ... Default: the accelerator, else the CPU."
)

_SAMPLER_HELP = "Use this sampler or fail. Default: the best that is available."
selection_options = all_of_options(
    click.option(SAMPLER, metavar="NAME", shell_complete=installed_names, help=_SAMPLER_HELP), device_option
)

logprobs_mode_option = _choice_option(
    "--logprobs-mode", LOGPROBS_MODES, "raw_logprobs", "What log-probabilities are taken of."
)

gumbel_dtype_option = _choice_option(
    "--gumbel-dtype", GUMBEL_DTYPES, "fp32", "Precision of the random numbers."
)
