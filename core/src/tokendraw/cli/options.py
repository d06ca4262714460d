"""Options shared by several commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tokendraw import operations
from tokendraw.backends.description.capabilities import FILTER_ORDERS, GUMBEL_DTYPES, LOGPROBS_MODES, Need
from tokendraw.backends.discovery import settings as _settings
from tokendraw.backends.discovery.entry_points import find_entry_points
from tokendraw.cli.terminal import start_verbose
from tokendraw.errors.exceptions import InvalidParameterError
from tokendraw.parameters.params import SamplingParams

if TYPE_CHECKING:
    from tokendraw.providers.sampler import Sampler

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
    return [
        name for name in dict.fromkeys(c.name for c in find_entry_points()) if name.startswith(incomplete)
    ]


def removed_option(flag: str, instead: str, *, is_flag: bool = False) -> Callable[[_F], _F]:
    """Make an option of the last release a usage error that says what to do instead."""

    def refuse(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value:
            raise click.UsageError(f"'{flag}' was removed. {instead}.")

    return click.option(flag, is_flag=is_flag, hidden=True, expose_value=False, callback=refuse)


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")

verbose_option = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    expose_value=False,
    callback=start_verbose,
    help="Show on stderr the traceback of a sampler that fails to load, to build or to draw.",
)

quiet_option = click.option(
    "-q", "--quiet", is_flag=True, help="Do not say on stderr which sampler drew, and why."
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

_HELP_OF_PARAMETERS = {
    "temperature": "0 is greedy.",
    "top_k": "Keep the k likeliest tokens. 0: off.",
    "top_p": "Keep the likeliest tokens that make up this share of the mass. 1: off.",
    "min_p": "Keep tokens at least this likely relative to the likeliest. 0: off.",
    "typical_p": "Keep the tokens closest to the entropy that make up this share of the mass. 1: off.",
    "xtc_probability": "How often to drop all likely tokens but the least likely of them. 0: off.",
    "xtc_threshold": "Least probability of a likely token.",
}
_PLAIN = SamplingParams()
params_options = all_of_options(
    *(
        click.option(
            f"--{name.replace('_', '-')}",
            default=getattr(_PLAIN, name),
            show_default=name == "temperature",  # the help of the others says what is off
            help=text,
        )
        for name, text in _HELP_OF_PARAMETERS.items()
    ),
    _choice_option(
        "--filter-order",
        FILTER_ORDERS,
        "top_k_first",
        "Whether top-p counts what top-k left, or both count everything; or filters at temperature 1.",
    ),
    click.option("--seed", type=int, help="Same seed, same tokens. Default: others in every run."),
)
"""Options for the fields of ``SamplingParams``, under the same names and with the same defaults."""


def _filter_values(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, float] | None:
    """Read ``NAME=VALUE`` of each filter."""
    filters = {}
    for text in values:
        name, _, value = text.partition("=")
        try:
            filters[name] = float(value)
        except ValueError:
            raise click.BadParameter(
                f"{text!r} needs the form NAME=VALUE, such as top_n_sigma=1.0."
            ) from None
    return filters or None


filters_option = click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_filter_values,
    help="A filter from moments, such as top_n_sigma=1.0; may be given again.",
)


def load(sampler: str | None, device: str | None, need: Need) -> Sampler:
    """Load the sampler chosen by the options, as :func:`tokendraw.load_sampler` does."""
    from tokendraw.providers.load import open_negotiator

    settings = _settings.read_settings()
    negotiator, discovery = open_negotiator(settings, settings.choice(sampler, SAMPLER), device, need)
    negotiator.select(operations.find_operation("sample"), discovery)
    from tokendraw.providers.sampler import Sampler

    return Sampler(negotiator)
