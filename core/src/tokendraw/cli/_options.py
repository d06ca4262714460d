"""Options that several commands take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from tokendraw._capabilities import FILTER_ORDERS, LOGPROBS_MODES
from tokendraw._errors import SamplerUnavailableError
from tokendraw._params import SamplingParams
from tokendraw._refusals import INSTALL

_F = TypeVar("_F", bound=Callable[..., Any])

_DEFAULTS = SamplingParams()


def all_of_options(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    """Make one decorator of several options, which the help shows in this order."""

    def decorate(function: _F) -> _F:
        for option in reversed(options):  # click lists the option that was applied last first
            function = option(function)
        return function

    return decorate


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")

quiet_option = click.option(
    "-q", "--quiet", is_flag=True, help="Do not say on stderr which sampler drew, and why."
)

selection_options = all_of_options(
    click.option(
        "--sampler", metavar="NAME", help="Use this sampler or fail. Default: the best that is available."
    ),
    click.option(
        "--device", metavar="DEVICE", help="cpu, cuda, cuda:1 ... Default: the accelerator, else the CPU."
    ),
)

logprobs_mode_option = click.option(
    "--logprobs-mode",
    type=click.Choice(LOGPROBS_MODES),
    default="raw_logprobs",
    show_default=True,
    help="What log-probabilities are taken of.",
)

params_options = all_of_options(
    click.option(
        "--temperature", type=float, default=_DEFAULTS.temperature, show_default=True, help="0 is greedy."
    ),
    click.option("--top-k", type=int, default=_DEFAULTS.top_k, help="Keep the k likeliest tokens. 0: off."),
    click.option(
        "--top-p",
        type=float,
        default=_DEFAULTS.top_p,
        help="Keep the likeliest tokens that make up this share of the mass. 1: off.",
    ),
    click.option(
        "--min-p",
        type=float,
        default=_DEFAULTS.min_p,
        help="Keep tokens at least this likely relative to the likeliest. 0: off.",
    ),
    click.option(
        "--filter-order",
        type=click.Choice(FILTER_ORDERS),
        default=_DEFAULTS.filter_order,
        show_default=True,
        help="Whether top-p counts what top-k left, or both count everything.",
    ),
    click.option("--seed", type=int, help="Same seed, same tokens. Default: others in every run."),
)
"""The fields of ``SamplingParams`` under their own names."""


def checked_params(**fields: Any) -> SamplingParams:
    """Build the sampling parameters of a request; refuse one outside its range here and now.

    :raises InvalidParameterError: names the field and the value.
    :raises SamplerUnavailableError: torch is not installed.
    """
    try:
        from tokendraw._metadata import SamplingMetadata
    except ImportError as error:
        raise SamplerUnavailableError(f"Drawing needs torch, found it not installed; {INSTALL}.") from error
    params = SamplingParams(**fields)
    SamplingMetadata.from_params([params], positions=[0])
    return params
