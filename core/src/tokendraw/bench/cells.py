"""A cell of a grid, which is timed. Imports no torch, since the command line reads it."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from tokendraw._exchange.params import SamplingParams

TEMPERATURE, TOP_K, TOP_P, MIN_P = 0.8, 50, 0.9, 0.05
DTYPES = ("float32", "bfloat16", "float16")
LEAST_VOCAB_SIZE = 128
"""Least vocabulary: the peaked families need room for their nucleus, and ``TOP_K`` for something to drop."""

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

PEAKED = MappingProxyType({"peaked-7": 7, "peaked-30": 30})
"""Tokens in the nucleus of each peaked family."""
FAMILIES = (*PEAKED, "gaussian", "flat")


@dataclass(frozen=True)
class Cell:
    """A cell to time: a shape, the requests of its rows, and the family of their logits."""

    batch: int
    vocab_size: int
    dtype: str
    """Dtype of the logits by its torch name."""
    filters: str
    """Filters of the rows, one of ``FILTERS``."""
    family: str
    """Family of the logits, one of ``FAMILIES``."""
    operation: ClassVar[str] = "sample"
    """Operation that is timed."""

    @property
    def num_rows(self) -> int:
        """Return the number of rows of a buffer of logits."""
        return self.batch

    @property
    def row_index(self) -> list[int] | None:
        """Return the request of each row that draws; None: there is one request a row."""
        return None

    @property
    def asked(self) -> str:
        """Describe the requests of the rows in words."""
        return self.filters

    @property
    def requests(self) -> list[SamplingParams]:
        """Return the request of each row, without a seed. ``mixed``: the five others in turn, row after row."""
        if self.filters != MIXED:
            return [_REQUESTS[self.filters]] * self.batch
        kinds = list(_REQUESTS.values())
        return [kinds[row % len(kinds)] for row in range(self.batch)]

    def __str__(self) -> str:
        return f"{self.batch} x {self.vocab_size} {self.dtype}, {self.asked}, {self.family}"
