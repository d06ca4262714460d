"""Compares the thresholds of an output with the least kept logits of the reference."""

from __future__ import annotations

import math

from tokendraw_testing import reference
from tokendraw_testing.kit.trial import Trial


def require_threshold(trial: Trial, what: str, found: float, row: reference.ReferenceRow) -> None:
    """Require the threshold of a row whose kept set the reference knows.

    :param what: the row, in words.
    """
    expected = reference.threshold(row)
    is_same = found == expected or (math.isnan(found) and math.isnan(expected))
    trial.require(is_same, f"{what} needs the threshold {expected!r}, found {found!r}")
