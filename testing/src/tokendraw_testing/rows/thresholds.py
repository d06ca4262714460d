"""Compares the thresholds and ceilings of an output with the least and the greatest kept logits of the reference."""

from __future__ import annotations

import math

from tokendraw import SamplingParams
from tokendraw_testing import reference
from tokendraw_testing.kit.trial import Trial


def require_threshold(trial: Trial, what: str, found: float, row: reference.ReferenceRow) -> None:
    """Require the threshold of a row whose kept set the reference knows.

    :param what: the row, in words.
    """
    _require(trial, f"{what} needs the threshold", reference.threshold(row), found)


def require_ceiling(
    trial: Trial, what: str, found: float, row: reference.ReferenceRow, params: SamplingParams
) -> None:
    """Require the ceiling of a row whose kept set the reference knows; +inf where no filter drops from above.

    :param params: of the request.
    """
    has_ceiling = params.typical_p < 1 or params.xtc_probability > 0
    _require(trial, f"{what} needs the ceiling", reference.ceiling(row) if has_ceiling else math.inf, found)


def _require(trial: Trial, needed: str, expected: float, found: float) -> None:
    is_same = found == expected or (math.isnan(found) and math.isnan(expected))
    trial.require(is_same, f"{needed} {expected!r}, found {found!r}")
