"""Cells of operations on logits: shapes, filters and families of logits. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

from tokendraw import SamplingParams
from tokendraw.plugin import GumbelDtype

TEMPERATURE, TOP_K, TOP_P, MIN_P = 0.8, 50, 0.9, 0.05

_REQUESTS = MappingProxyType(
    {
        "none": SamplingParams(temperature=TEMPERATURE),
        "top-k": SamplingParams(temperature=TEMPERATURE, top_k=TOP_K),
        "top-p": SamplingParams(temperature=TEMPERATURE, top_p=TOP_P),
        "both": SamplingParams(temperature=TEMPERATURE, top_k=TOP_K, top_p=TOP_P),
        "min-p": SamplingParams(temperature=TEMPERATURE, min_p=MIN_P),
    }
)
MIXED = "mixed"
FILTERS = (*_REQUESTS, MIXED)

PEAKED = MappingProxyType({f"peaked-{nucleus}": nucleus for nucleus in (7, 30, 100, 300, 1000, 2000)})
"""Tokens in the nucleus of each peaked family."""
FAMILIES = (*PEAKED, "gaussian", "flat")


def min_vocab_size(family: str) -> int:
    """Compute the least vocabulary size for the nucleus of a family."""
    return math.ceil(PEAKED.get(family, 0) / TOP_P)


@dataclass(frozen=True)
class Cell:
    """A cell to time: the shape, requests and family of a buffer of logits.

    :ivar batch: Number of requests B.
    :ivar vocab_size: Vocabulary size V.
    :ivar dtype: Dtype of the logits by its torch name.
    :ivar filters: Filters of the rows, one of ``FILTERS``.
    :ivar family: Family of the logits, one of ``FAMILIES``.
    :ivar seeded: Whether every row has a seed; if not, a sampler makes fresh seeds in a launch.
    :ivar gumbel_dtype: Dtype of the noise that samplers draw with.
    """

    batch: int
    vocab_size: int
    dtype: str
    filters: str
    family: str
    seeded: bool = field(default=True, kw_only=True)
    gumbel_dtype: GumbelDtype = field(default="fp32", kw_only=True)
    operation: ClassVar[str] = "sample"
    """Operation that is timed."""

    @property
    def num_rows(self) -> int:
        """Return the number of rows of a buffer of logits."""
        return self.batch

    @property
    def nbytes(self) -> int:
        """Return the bytes of a buffer of logits."""
        return self.num_rows * self.vocab_size * (4 if self.dtype == "float32" else 2)

    @property
    def row_index(self) -> list[int] | None:
        """Return the request of each drawing row; None: row i draws for request i."""
        return None

    @property
    def asked(self) -> str:
        """Describe the requests of the rows in words."""
        return self.filters

    @property
    def requests(self) -> list[SamplingParams]:
        """Return the request of each row, without a seed; ``mixed`` takes the five other filters in turn."""
        if self.filters != MIXED:
            return [_REQUESTS[self.filters]] * self.batch
        kinds = list(_REQUESTS.values())
        return [kinds[row % len(kinds)] for row in range(self.batch)]

    def __str__(self) -> str:
        return f"{self.batch} x {self.vocab_size} {self.dtype}, {self.asked}, {self.family}"
