"""Replaces transformers' warpers by sampling parameters with the values of the prepared processors.

``generate`` prepares one list: processors, then the warpers temperature, top-h, top-k, top-p, min-p, typical-p, epsilon
and eta, then perhaps a watermark, then perhaps the normalisation, which changes no draw. The warpers are taken from its
end. A processor behind a warper has to see the warper's result, so then the warper stays in the list: slower, and the
same distribution.

transformers applies min-p after top-p; tokendraw applies it before top-k and top-p. It is relative to the largest
probability, so with top-k alone both are the same. With top-p, whose mass min-p must not reduce, the order "joint" has
top-p count the whole row; with all three the row is first cut to its k largest.

The last three look at the probabilities of what the warpers before left, renormalised. tokendraw's floors look at the
whole row, and its typical-p stands before top-p: :data:`_TAKEN` says beside which warpers both are the same. Beside
others, the warpers before stay in the list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    LogitNormalization,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from tokendraw import SamplingParams

SUPPORTED: dict[type, str] = {
    TemperatureLogitsWarper: "temperature",
    TopKLogitsWarper: "top_k",
    TopPLogitsWarper: "top_p",
    MinPLogitsWarper: "min_p",
}
"""Warpers that tokendraw replaces beside each other, in the order in which transformers applies them, and their
attributes, which are fields of :class:`SamplingParams` too."""


class _Taken(NamedTuple):
    """The replacement of a warper beside few others."""

    params: Callable[[Any], dict[str, Any]]
    """Makes fields of :class:`SamplingParams` from the warper."""
    beside: tuple[type, ...]
    """Warpers beside which both keep the same tokens."""


_TAKEN: dict[type, _Taken] = {
    TypicalLogitsWarper: _Taken(
        lambda warper: {"typical_p": warper.mass},
        (TemperatureLogitsWarper, TopKLogitsWarper, MinPLogitsWarper),
    ),
    EpsilonLogitsWarper: _Taken(
        lambda warper: {"filters": {"epsilon_cutoff": warper.epsilon}}, (TemperatureLogitsWarper,)
    ),
    EtaLogitsWarper: _Taken(
        lambda warper: {"filters": {"eta_cutoff": float(warper.epsilon)}}, (TemperatureLogitsWarper,)
    ),
}
"""Warpers that tokendraw replaces beside some, in the order in which transformers applies them, behind the others."""
_ORDER = (*SUPPORTED, *_TAKEN)
_FIELDS = frozenset(field.name for field in fields(SamplingParams))


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
    """Divide a list of prepared processors between transformers and tokendraw."""
    if not do_sample:
        return StepPlan(LogitsProcessorList(prepared), SamplingParams(temperature=0.0))
    end = len(prepared)
    if end and type(prepared[-1]) is LogitNormalization:
        end -= 1
    start, index = end, len(_ORDER)
    while start and (previous := _warper_index(prepared[start - 1])) is not None and previous < index:
        start, index = start - 1, previous
    while not _is_expressible(prepared[start:end]):
        start += 1
    warpers = {type(processor): processor for processor in prepared[start:end]}
    params, narrowing = _sampling_params(warpers)
    return StepPlan(
        processors=LogitsProcessorList(prepared[:start]),
        params=params,
        narrowing=LogitsProcessorList(narrowing),
        recorded=LogitsProcessorList(prepared[start:]),
    )


def _is_expressible(warpers: Sequence[Any]) -> bool:
    """Whether sampling parameters mean the same as these successive warpers."""
    kinds = {type(warper) for warper in warpers}
    return all(
        kinds <= {kind, *taken.beside} and taken.params(warper).keys() <= _FIELDS
        for warper in warpers
        if (kind := type(warper)) in _TAKEN
        for taken in [_TAKEN[kind]]
    )


def _warper_index(processor: Any) -> int | None:
    """Return the index of a warper in ``SUPPORTED``; None if it is unsupported, or built with another behaviour."""
    if type(processor) not in _ORDER:
        return None
    if getattr(processor, "filter_value", float("-inf")) != float("-inf"):
        return None
    # top-k already includes min_tokens_to_keep
    if type(processor) is not TopKLogitsWarper and getattr(processor, "min_tokens_to_keep", 1) != 1:
        return None
    return _ORDER.index(type(processor))


def _sampling_params(warpers: dict[type, Any]) -> tuple[SamplingParams, list[Any]]:
    fields = {name: getattr(warpers[kind], name) for kind, name in SUPPORTED.items() if kind in warpers}
    if fields.get("top_p", 1.0) <= 0:  # transformers keeps one token
        fields |= {"top_p": 1.0, "temperature": 0.0}
    for kind, taken in _TAKEN.items():
        if kind in warpers:
            fields |= taken.params(warpers[kind])
    params = SamplingParams(**fields)
    if params.min_p == 0 or params.top_p == 1:
        return params, []
    narrowing = [warpers[TopKLogitsWarper]] if params.top_k else []
    return replace(params, filter_order="joint"), narrowing
