"""Replaces transformers' warpers by sampling parameters with the values of the prepared processors.

``generate`` prepares one list: processors, then the warpers temperature, top-k, top-p and min-p, then perhaps a
watermark, then perhaps the normalisation, which changes no draw. The warpers are taken from its end. A processor
behind a warper has to see the warper's result, so then the warper stays in the list: slower, and the same distribution.

transformers applies min-p last; tokendraw applies it before top-k and top-p. It is relative to the largest
probability, so with top-k alone both are the same. With top-p, whose mass min-p must not reduce, the order "joint" has
top-p count the whole row; with all three the row is first cut to its k largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    LogitNormalization,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from tokendraw import InvalidParameterError, SamplingParams

SUPPORTED = (TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper)
"""Warpers that tokendraw replaces, in the order in which transformers applies them."""
REFUSED = {
    TopHLogitsWarper: "top_h",
    TypicalLogitsWarper: "typical_p",
    EpsilonLogitsWarper: "epsilon_cutoff",
    EtaLogitsWarper: "eta_cutoff",
}


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The division of a step between transformers' processors and tokendraw."""

    processors: LogitsProcessorList
    """Processors of transformers, in order; they run first."""
    params: SamplingParams
    """Parameters for tokendraw's draw from the processed scores."""
    narrowing: LogitsProcessorList = field(default_factory=LogitsProcessorList)
    """Processors for the scores of the draw alone."""
    recorded: LogitsProcessorList = field(default_factory=LogitsProcessorList)
    """Processors for ``output_scores``."""


def plan(prepared: Sequence[Any], *, do_sample: bool) -> StepPlan:
    """Divide a list of prepared processors between transformers and tokendraw.

    :raises InvalidParameterError: a warper is unknown to tokendraw.
    """
    if not do_sample:
        return StepPlan(LogitsProcessorList(prepared), SamplingParams(temperature=0.0))
    for processor in prepared:
        name = REFUSED.get(type(processor))
        if name is not None:
            raise InvalidParameterError(
                f"'custom_generate=tokendraw_transformers.generate' needs warpers among temperature, top_k, top_p and "
                f"min_p, found {name}. Leave out {name}, or custom_generate."
            )
    end = len(prepared)
    if end and type(prepared[-1]) is LogitNormalization:
        end -= 1
    start, index = end, len(SUPPORTED)
    while start and (previous := _warper_index(prepared[start - 1])) is not None and previous < index:
        start, index = start - 1, previous
    warpers = {type(processor): processor for processor in prepared[start:end]}
    params, narrowing = _sampling_params(warpers)
    return StepPlan(
        processors=LogitsProcessorList(prepared[:start]),
        params=params,
        narrowing=LogitsProcessorList(narrowing),
        recorded=LogitsProcessorList(prepared[start:]),
    )


def _warper_index(processor: Any) -> int | None:
    """Return the index of a warper in ``SUPPORTED``; None if it is unsupported, or built with another behaviour."""
    if type(processor) not in SUPPORTED:
        return None
    if getattr(processor, "filter_value", float("-inf")) != float("-inf"):
        return None
    # top-k already includes min_tokens_to_keep
    if type(processor) is not TopKLogitsWarper and getattr(processor, "min_tokens_to_keep", 1) != 1:
        return None
    return SUPPORTED.index(type(processor))


def _sampling_params(warpers: dict[type, Any]) -> tuple[SamplingParams, list[Any]]:
    params = SamplingParams()
    if TemperatureLogitsWarper in warpers:
        params = replace(params, temperature=warpers[TemperatureLogitsWarper].temperature)
    if TopKLogitsWarper in warpers:
        params = replace(params, top_k=warpers[TopKLogitsWarper].top_k)
    if TopPLogitsWarper in warpers:
        top_p = warpers[TopPLogitsWarper].top_p
        # transformers keeps one token at top_p 0
        params = replace(params, top_p=top_p) if top_p > 0 else replace(params, temperature=0.0)
    if MinPLogitsWarper in warpers:
        params = replace(params, min_p=warpers[MinPLogitsWarper].min_p)
    if params.min_p == 0 or params.top_p == 1:
        return params, []
    narrowing = [warpers[TopKLogitsWarper]] if params.top_k else []
    return replace(params, filter_order="joint"), narrowing
