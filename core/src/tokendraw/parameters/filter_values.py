"""Checks the values of filters from moments in a request. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokendraw.backends.discovery.guard import format_origin, package_of
from tokendraw.errors.exceptions import FilterError, InvalidParameterError
from tokendraw.errors.formatting import format_error, type_name
from tokendraw.filters.base import Filter
from tokendraw.filters.installed import find_filter
from tokendraw.parameters.ranges import LARGEST_FLOAT32, of_row, real


def read_filters(filters: Any, row: int | str | None) -> tuple[tuple[str, float], ...]:
    """Check ``SamplingParams.filters``, and return the active filters by name, each with its value."""
    if filters is None:
        return ()
    owner = of_row(row)
    if not isinstance(filters, Mapping):
        raise InvalidParameterError(
            f"'filters'{owner} needs {{name: value}}, found {type_name(filters)}. Pass a dict."
        )
    active = []
    for name, value in filters.items():
        rule = find_filter(name, owner)
        _check(rule, value, owner)
        number = real(name, value, row, -LARGEST_FLOAT32, LARGEST_FLOAT32, "a finite float32")
        if number != rule.off:
            active.append((name, number))
    return tuple(sorted(active))


def _check(rule: Filter, value: Any, owner: str) -> None:
    """Call the check of a filter, whose code may be anybody's."""
    try:
        rule.check(value)
    except InvalidParameterError as error:
        raise InvalidParameterError(f"'filters'{owner}: {error}") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        origin = format_origin(error, package_of(rule))
        raise FilterError(
            f"The check of the filter {rule.name!r} failed: it raised {format_error(error)}{origin}. Report it to "
            "the author of the filter, or leave it out of SamplingParams.filters."
        ) from error
