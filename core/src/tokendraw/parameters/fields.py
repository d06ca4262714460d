"""The parameters of a request with a tensor in a batch, declared once: names, ranges, neutral values and order."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from tokendraw.backends.description.capabilities import Filter
from tokendraw.parameters.ranges import integer, real

FieldKind: TypeAlias = Literal["real", "integer", "flag"]
Columns: TypeAlias = Mapping[str, Sequence[Any]]
"""Parameters of a batch by name, in the order of :data:`COLUMNS`: an entry a request each."""


class Parameter(NamedTuple):
    """A number in :class:`tokendraw.SamplingParams`, and a tensor in :class:`tokendraw.SamplingMetadata`."""

    name: str
    kind: FieldKind
    least: float
    largest: float
    max_stored: float
    """Largest value in a tensor: any larger one has the same meaning."""
    needed: str
    """Range in words."""
    neutral: float
    """Value in a slot without a request: off."""
    is_optional: bool = False
    """Whether None is a value."""
    filter: Filter | None = None
    """The filter that any value but the neutral one asks for."""
    example: float = 0
    """A filter's active value in a made-up batch."""
    quick: float = 0
    """A filter's value in a row whose token is thrown away: fast for any sampler."""

    def check(self, value: Any, row: int | str | None) -> Any:
        """Return a value of a request as a float or an int of Python.

        :raises InvalidParameterError: the value is out of range; names the parameter and the row.
        """
        if value is None and self.is_optional:
            return None
        read = real if self.kind == "real" else integer
        return read(self.name, value, row, self.least, self.largest, self.needed)


_MAX_FLOAT = sys.float_info.max
MAX_TOP_K = 2**62  # an int64 with room above; any k >= V is off
MAX_LOGPROBS = 2**31 - 1  # an int32; any N >= V is V

PARAMETERS = (
    Parameter("temperature", "real", 0.0, _MAX_FLOAT, _MAX_FLOAT, "a finite number >= 0", 1.0),
    Parameter(
        *("top_k", "integer", -1, math.inf, MAX_TOP_K, "an integer >= -1 (0 and -1: off)", 0),
        filter="top_k",
        example=50,
        quick=1,  # one token at most, and a sampler that needs a k in every row still draws
    ),
    Parameter(
        *("top_p", "real", math.ulp(0.0), 1.0, 1.0, "a number in (0, 1] (1: off)", 1.0),
        filter="top_p",
        example=0.9,
        quick=1.0,
    ),
    Parameter(
        *("min_p", "real", 0.0, 1.0, 1.0, "a number in [0, 1] (0: off)", 0.0),
        filter="min_p",
        example=0.05,
        quick=0.0,
    ),
    Parameter(
        *("typical_p", "real", math.ulp(0.0), 1.0, 1.0, "a number in (0, 1] (1: off)", 1.0),
        filter="typical_p",
        example=0.9,
        quick=1.0,
    ),
    Parameter(
        *("xtc_probability", "real", 0.0, 1.0, 1.0, "a number in [0, 1] (0: off)", 0.0),
        filter="xtc",
        example=0.5,
        quick=0.0,
    ),
    Parameter("xtc_threshold", "real", math.ulp(0.0), 0.5, 0.5, "a number in (0, 0.5]", 0.1),
    Parameter(
        *("seed", "integer", -(2**63), 2**64 - 1, math.inf, "an integer in [-2**63, 2**64) or None", 0),
        is_optional=True,
    ),
    Parameter(
        *("logprobs", "integer", -1, math.inf, MAX_LOGPROBS, "an integer >= -1 (-1: all) or None", 0),
        is_optional=True,
    ),
)
FILTER_PARAMETERS = tuple(parameter for parameter in PARAMETERS if parameter.filter is not None)
"""The parameters that ask for a filter, in the order of ``FILTERS``."""
FACT_OF_COLUMN: dict[str, str] = {
    **{parameter.name: f"any_{parameter.filter}" for parameter in FILTER_PARAMETERS},
    "xtc_threshold": "any_xtc",
    "joint": "any_joint",
    "temperature_last": "any_temperature_last",
}
"""Field of :class:`tokendraw.BatchFacts` that rules out the use of a tensor of filters or orders."""
COLUMNS = (*(parameter.name for parameter in PARAMETERS), "filter_order", "logprob_token_ids", "filters")
"""Fields of :class:`tokendraw.SamplingParams` for the draw; the last two hold a list of each request."""
FILTER_PREFIX = "filters."
"""Of the name of a filter from moments, among names of tensors with an entry a slot."""
SLOT_FIELDS: dict[str, FieldKind] = {
    **{parameter.name: parameter.kind for parameter in PARAMETERS[:-1]},
    "seeded": "flag",
    "joint": "flag",
    "temperature_last": "flag",
    "logprobs": "integer",
}
"""Fields of the metadata with an entry a slot."""
