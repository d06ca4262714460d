"""Compares the log-probabilities of a call with float64."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tokendraw import LogprobsTensors
from tokendraw_testing.kit.trial import Trial

TOLERANCE: Final = 1e-5
_ROUNDING: Final = 5e-7
"""Rounding error of float32 itself, relative to a large value."""

Array = NDArray[Any]


def require_values(trial: Trial, what: str, ids: Array, values: Array, expected: Array) -> None:
    """Require values to agree with float64 to 1e-5.

    :param what: where they were shown, for the message.
    :param ids: of which tokens ``values`` are, [N] each; ``expected`` is [V], by id.
    """
    if not len(ids):
        return
    expected_by_id = expected[ids]
    excess = _excess_error(values, expected_by_id)
    worst = excess.argmax()
    trial.require(
        excess[worst] <= 0,
        f"{what}: token {ids[worst]} needs {expected_by_id[worst]:.7g}, found {values[worst]:.7g}",
    )


def given_columns(logprobs: LogprobsTensors) -> tuple[Array, Array]:
    """Return ``given_token_ids`` and ``given_logprobs`` on the host; without any, of no columns."""
    ids, values = logprobs.given_token_ids, logprobs.given_logprobs
    if ids is None or values is None:
        ids, values = logprobs.token_ids[..., :0], logprobs.logprobs[..., :0]
    return ids.cpu().numpy(), values.cpu().numpy()


def _excess_error(values: Array, expected: Array) -> Array:
    """Measure the excess of each value over the tolerance; inf for -inf against a finite value."""
    values = values.astype(np.float64)
    with np.errstate(invalid="ignore"):
        distance = np.abs(values - expected)
        excess: Array = distance - (TOLERANCE + _ROUNDING * np.abs(expected))
    return np.where(values == expected, 0.0, np.where(np.isnan(excess), np.inf, excess))
