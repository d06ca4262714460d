"""Rules that a request of an engine asks tokendraw for, beside the engine's own parameters. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tokendraw.backends.resolution.candidate import State
from tokendraw.errors.exceptions import InvalidParameterError
from tokendraw.errors.formatting import all_of, format_value, nearest, type_name
from tokendraw.filters.installed import installed_filters
from tokendraw.parameters.fields import PARAMETERS
from tokendraw.parameters.params import SamplingParams

_OF_ENGINES = ("temperature", "top_k", "top_p", "min_p", "seed", "logprobs")
RULE_FIELDS = tuple(parameter.name for parameter in PARAMETERS if parameter.name not in _OF_ENGINES)
"""Fields of :class:`SamplingParams` that engines have no parameter for, each with a tensor in a batch."""


def read_rules(rules: Any, source: str) -> SamplingParams:
    """Check the rules of a request: names of filters from moments and of :data:`RULE_FIELDS`, each with its value.

    :param rules: {name: value}, or its JSON text, since some engines pass on no mappings; None: none.
    :param source: argument of the engine with the rules, for messages: ``extra_args['tokendraw']``.
    :returns: parameters with these rules and no others.
    :raises InvalidParameterError: a ValueError: a name is unknown, or belongs to the engine, or a value is bad.
    """
    if rules is None:
        return SamplingParams()
    if isinstance(rules, str):
        try:
            rules = json.loads(rules)
        except ValueError:
            raise InvalidParameterError(
                f"{source} needs {{name: value}} or its JSON text, found {format_value(rules)}. Correct it."
            ) from None
    if not isinstance(rules, Mapping):
        raise InvalidParameterError(f"{source} needs {{name: value}}, found {type_name(rules)}. Pass a dict.")
    values = {name: value for name, value in rules.items() if name in RULE_FIELDS}
    filters = {name: value for name, value in rules.items() if name not in RULE_FIELDS}
    names = [record.name for record in installed_filters() if record.state is State.AVAILABLE]
    for name in filters:
        if name not in names:
            raise InvalidParameterError(_refusal(name, [*names, *RULE_FIELDS], source))
    try:
        return SamplingParams(filters=filters or None, **values).check()
    except InvalidParameterError as error:
        words = str(error).removeprefix("'filters': ")
        raise InvalidParameterError(f"{source}: {words}") from None


def _refusal(name: object, known: list[str], source: str) -> str:
    """Say why a request cannot name a rule."""
    if name in {field.name for field in fields(SamplingParams)}:
        return (
            f"{source} needs rules that the engine has no parameter for, {all_of(known)}, found {name!r}. Pass the "
            "engine's own parameter, or leave it out."
        )
    near = nearest(name, known) if isinstance(name, str) else None
    hint = f"known are {all_of(known)}" if near is None else f"the nearest is {near!r}"
    return f"{source} needs names of filters or parameters, found {format_value(name)}, {hint}. Correct it."
