"""Calls the ``floor`` of a filter, and tells a fault with filter and line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, Final

import torch
from torch import Tensor

from tokendraw.filters import Filter, RowMoments
from tokendraw.tools import format_error
from tokendraw_testing.filters.host_reads import HostRead
from tokendraw_testing.kit.trial import Violation

_READS: Final = ("std", "mean", "log_mass", "entropy")
"""Moments that floors are sums of: their size bounds the rounding of a floor."""
_EDGE: Final = 1e-5


def call_floor(rule: Filter, moments: RowMoments, value: Tensor) -> Any:
    """Call ``floor``.

    :raises Violation: it raised; the message has the filter and the line.
    """
    try:
        return rule.floor(moments, value)
    except KeyboardInterrupt:
        raise
    except HostRead as error:
        raise Violation(f"{place_of(rule, error)} needs to wait for nothing, found that {error}") from error
    except BaseException as error:
        raise Violation(f"{place_of(rule, error)} raised {format_error(error)}") from error


def floors(rule: Filter, moments: RowMoments, value: Tensor) -> Tensor:
    """Return the floors of some rows, [rows] float64 in [-inf, 0], clamped as samplers clamp them.

    :raises Violation: ``floor`` raised, or returned anything but a number a row.
    """
    found = call_floor(rule, moments, value)
    if not isinstance(found, Tensor) or found.shape != value.shape:
        raise Violation(f"{place_of(rule)} needs to return shape {list(value.shape)}, found {form_of(found)}")
    clamped = found.double().nan_to_num(nan=-torch.inf, posinf=0.0, neginf=-torch.inf).clamp(max=0.0)
    return clamped.masked_fill((value == rule.off) | value.isnan(), -torch.inf)


def read_moments(rule: Filter, make: Callable[[str], Tensor]) -> RowMoments:
    """Make the moments named by a filter."""
    return RowMoments(**{name: make(name) for name in rule.moments})


def rounding(moments: RowMoments, floor: Tensor) -> Tensor:
    """Bound how far a float32 floor may lie from the float64 one: [rows] float64."""
    parts = [getattr(moments, name) for name in _READS]
    sizes = [part.double().abs().nan_to_num(posinf=0.0) for part in parts if part is not None]
    largest = torch.stack([floor.abs().nan_to_num(posinf=0.0), torch.ones_like(floor), *sizes])
    return _EDGE * largest.amax(0)


def form_of(value: object) -> str:
    """Describe the result of a floor."""
    if not isinstance(value, Tensor):
        return f"the {type(value).__name__} {value!r}"[:80]
    return f"shape {list(value.shape)}, {value.dtype} on {value.device}"


def place_of(rule: Filter, error: BaseException | None = None) -> str:
    """Name a filter's floor with file and line: the line of the error, or the first line of the method."""
    path, line = _source(rule)
    trace = None if error is None else error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"the floor of {rule.name!r} ({PurePath(path).name}:{line})"


def _source(rule: Filter) -> tuple[str, int]:
    """Return the file and the first line of a filter's method ``floor``."""
    code = inspect.unwrap(type(rule).floor).__code__
    return code.co_filename, code.co_firstlineno
