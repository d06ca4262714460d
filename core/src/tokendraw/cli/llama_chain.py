"""llama.cpp's words for the stages of a chain, ``penalties;dry;top_k;temperature``, as sampling parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokendraw.backends.resolution.candidate import State
from tokendraw.errors.exceptions import InvalidParameterError
from tokendraw.errors.formatting import nearest_or_all
from tokendraw.filters.installed import installed_filters

TEMPERATURE_LAST = "temperature_last"
FLOORS = "floors"
"""The place of filters from moments, top_n_sigma among them."""
_WORDS = ("penalties", "dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
_ALIASES = {
    "temp": "temperature",
    "typical_p": "typ_p",
    "typical": "typ_p",
    "typ": "typ_p",
    "nucleus": "top_p",
}
_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "temperature": {"temperature": 1.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    FLOORS: {"filters": None},
}
"""Fields of each stage, with the values that are off."""
_SEQUENTIAL = (
    ("penalties", "dry", "temperature", FLOORS, "min_p", "top_k", "typ_p", "top_p", "xtc"),
    ("penalties", "dry", "temperature", FLOORS, "top_k", "min_p", "typ_p", "top_p", "xtc"),
    ("penalties", "dry", "top_k", "temperature", "min_p", "typ_p", "top_p", "xtc"),
)
"""Orders that mean the same as ``top_k_first``: min-p and top-k may change places, and temperature and top-k."""
_LAST = ("penalties", "dry", FLOORS, "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
"""The order of ``temperature_last``, llama.cpp's default."""


def chain_fields(text: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of :class:`SamplingParams` for a chain: stages without a word are off.

    :param text: words with a semicolon between two.
    :param fields: values of the stages, by name.
    :raises InvalidParameterError: a word is unknown or twice there, or no filter order means this order.
    """
    filters = {record.name for record in installed_filters() if record.state is State.AVAILABLE}
    words = [word.strip().lower().replace("-", "_") for word in text.split(";") if word.strip()]
    words = [_ALIASES.get(word, word) for word in words]
    for word in words:
        if word not in filters and word not in _WORDS:
            hint = nearest_or_all(word, [*_WORDS, *sorted(filters)])
            raise InvalidParameterError(
                f"'samplers' needs stages of a chain, found {word!r}, {hint}. Correct it."
            )
        if words.count(word) > 1:
            raise InvalidParameterError(
                f"'samplers' needs each stage once, found {word!r} twice. Leave out one."
            )
    stages = list(dict.fromkeys(FLOORS if word in filters else word for word in words))
    chain = dict(fields) | {
        name: off for stage, values in _FIELDS.items() if stage not in stages for name, off in values.items()
    }
    if chain.get("filters"):
        chain["filters"] = {name: value for name, value in chain["filters"].items() if name in words} or None
    return chain | {"filter_order": _order(words, [FLOORS if word in filters else word for word in words])}


def _order(words: Sequence[str], stages: Sequence[str]) -> str:
    """Return the filter order that means this order of stages."""
    if any(_is_within(stages, order) for order in _SEQUENTIAL):
        return "top_k_first"
    if not _is_within(stages, _LAST):
        raise InvalidParameterError(
            f"'samplers' needs an order that a filter order means, found {_misplaced(words, stages)}. Put the stages "
            f"in the order {_written(_SEQUENTIAL[0])}, or {_written(_LAST)}; any may be left out."
        )
    return TEMPERATURE_LAST


def _is_within(stages: Sequence[str], order: Sequence[str]) -> bool:
    """Whether an order has all of the stages, one behind the other; floors may be several."""
    places = [order.index(stage) for stage in stages if stage in order]
    return len(places) == len(stages) and places == sorted(places)


def _misplaced(words: Sequence[str], stages: Sequence[str]) -> str:
    """Name the first two neighbours that stand in no order as they do here."""
    order = _LAST if stages[-1] == "temperature" else _SEQUENTIAL[0]
    for i in range(len(stages) - 1):
        if order.index(stages[i]) > order.index(stages[i + 1]):
            return f"{words[i]!r} before {words[i + 1]!r}"
    return ";".join(words)


def _written(order: Sequence[str]) -> str:
    return ";".join("top_n_sigma" if stage == FLOORS else stage for stage in order)
