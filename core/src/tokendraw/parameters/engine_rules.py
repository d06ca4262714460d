"""Rules that a request of an engine asks tokendraw for, beside the engine's own parameters. Imports no torch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import combinations
from typing import Any

from tokendraw.backends.discovery.settings import WARMUP_RULES
from tokendraw.backends.resolution.candidate import State
from tokendraw.errors import (
    InvalidParameterError,
    SettingsError,
    all_of,
    format_value,
    nearest_or_all,
    type_name,
)
from tokendraw.filters.installed import find_filter, installed_filters
from tokendraw.parameters.fields import ORDERS, PARAMETERS
from tokendraw.parameters.params import SamplingParams

_PARAMETERS = tuple(parameter.name for parameter in PARAMETERS if not parameter.is_common)
_FIELDS = (*_PARAMETERS, "filter_order")
"""Fields of :class:`SamplingParams` that engines have no parameter for."""
RULE_FIELDS = (*_PARAMETERS, *ORDERS)
"""Fields of the metadata for them, each with a tensor in a batch."""
_PLAIN = SamplingParams()


def read_rules(rules: Any, source: str, plain: SamplingParams = _PLAIN) -> SamplingParams:
    """Check the rules of a request: a filter order, and filters that the engine has no parameter for, by name.

    :param rules: {name: value}, or its JSON text, since some engines pass on no mappings; None: none.
    :param source: argument of the engine with the rules, for messages: ``extra_args['tokendraw']``.
    :param plain: parameters of a request without rules: the engine's filter order.
    :returns: parameters with these rules and no others.
    :raises InvalidParameterError: a ValueError: a name is unknown, or belongs to the engine, or a value is bad.
    """
    if rules is None:
        return plain
    if isinstance(rules, str):
        try:
            rules = json.loads(rules)
        except ValueError:
            raise InvalidParameterError(
                f"{source} needs {{name: value}} or its JSON text, found {format_value(rules)}. Correct it."
            ) from None
    if not isinstance(rules, Mapping):
        raise InvalidParameterError(f"{source} needs {{name: value}}, found {type_name(rules)}. Pass a dict.")
    values = {name: value for name, value in rules.items() if name in _FIELDS}
    filters = {name: value for name, value in rules.items() if name not in _FIELDS}
    known = _known()
    for name in filters:
        if name not in known:
            raise InvalidParameterError(_refusal(name, known, source))
    try:
        return replace(plain, filters=filters or None, **values).check()
    except InvalidParameterError as error:
        words = str(error).removeprefix("'filters': ")
        raise InvalidParameterError(f"{source}: {words}") from None


def rule_values(params: SamplingParams, plain: SamplingParams = _PLAIN) -> dict[str, float]:
    """Return the entries of a request in tensors of a batch, by filter from moments and by :data:`RULE_FIELDS`.

    :param params: result of :func:`read_rules`.
    :param plain: as there. Entries that it has too are left out.
    :returns: numbers; bools for orders.
    """
    fields = _field_values(params)
    changed = {name: value for name, value in fields.items() if value != _field_values(plain)[name]}
    return changed | {name: float(value) for name, value in (params.filters or {}).items()}


def rule_off(name: str, plain: SamplingParams = _PLAIN) -> float:
    """Return the entry of requests that do not ask for a rule of :func:`rule_values`."""
    return _field_values(plain)[name] if name in RULE_FIELDS else float(find_filter(name).off)


def warmup_rules(plain: SamplingParams = _PLAIN) -> list[dict[str, float]]:
    """Return the entries of made-up requests, one for each set of the rules named by ``TOKENDRAW_WARMUP_RULES``.

    Kernels differ by the rules that stand together in a batch.

    :param plain: as in :func:`read_rules`.
    :raises SettingsError: a name is unknown.
    """
    given = [name.strip() for name in os.environ.get(WARMUP_RULES, "").split(",")]
    names, known = [name for name in dict.fromkeys(given) if name], _known()
    for name in names:
        if name not in known:
            raise SettingsError(_refusal(name, known, repr(WARMUP_RULES)))
    examples: dict[str, Any] = {parameter.name: parameter.example for parameter in PARAMETERS}
    examples["filter_order"] = "temperature_last"
    result = []
    for chosen in (each for size in range(len(names)) for each in combinations(names, size + 1)):
        values = {name: examples[name] for name in chosen if name in _FIELDS}
        filters = {name: find_filter(name).off + 1.0 for name in chosen if name not in _FIELDS}
        result.append(rule_values(replace(plain, filters=filters, **values), plain))
    return result


def _known() -> list[str]:
    return [record.name for record in installed_filters() if record.state is State.AVAILABLE] + [*_FIELDS]


def _field_values(params: SamplingParams) -> dict[str, float]:
    numbers = {name: float(getattr(params, name)) for name in _PARAMETERS}
    return {**numbers, **{order: params.filter_order == order for order in ORDERS}}


def _refusal(name: object, known: list[str], source: str) -> str:
    if name in {field.name for field in fields(SamplingParams)}:
        return (
            f"{source} needs rules that the engine has no parameter for, {all_of(known)}, found {name!r}. Pass the "
            "engine's own parameter, or leave it out."
        )
    hint = nearest_or_all(name, known)
    return f"{source} needs names of filters or parameters, found {format_value(name)}, {hint}. Correct it."
