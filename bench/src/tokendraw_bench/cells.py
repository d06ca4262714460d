"""Cells of operations on logits, their axes and the defaults of their records. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal

from tokendraw import SamplingParams
from tokendraw.plugin import (
    FILTER_ORDERS,
    GUMBEL_DTYPES,
    INPUT_DTYPES,
    LOGPROBS_MODES,
    FilterOrder,
    GumbelDtype,
    LogprobsMode,
    TieNeed,
)
from tokendraw_bench.operation import Axis

TEMPERATURE = 0.8
TOP_K = 50
TOP_P = 0.9
MIN_P = 0.05
ADVERTISED: Final = "advertised"
"""The tie rule of a caller without a need."""

_FILTER_FIELDS = MappingProxyType(
    {
        "none": (),
        "top-k": ("top_k",),
        "top-p": ("top_p",),
        "both": ("top_k", "top_p"),
        "min-p": ("min_p",),
    }
)
MIXED, KINDS = "mixed", "kinds"
FILTERS = (*_FILTER_FIELDS, MIXED, KINDS)

_SPECIAL: Mapping[str, tuple[Mapping[str, Any], ...]] = MappingProxyType(
    {
        "none": (),
        "seeded": ({},),
        "three": ({}, {"temperature": 0.0}, {"logprobs": 5}),
        "top-k-200": ({"top_k": 200},),
        "top-k-1000": ({"top_k": 1000},),
        "top-p-alone": ({"top_k": 0, "top_p": TOP_P},),
        "logprobs-5": ({"logprobs": 5},),
    }
)
"""Changes of the special rows of a batch."""
SPECIAL = tuple(_SPECIAL)

_PEAKED_NUCLEI = (1, 7, 30, 100, 300, 1000, 2000, 3000, 30_000)
PEAKED = MappingProxyType({f"peaked-{nucleus}": nucleus for nucleus in _PEAKED_NUCLEI})
"""Tokens in the nucleus of each peaked family."""
MIXED_NUCLEI = "mixed-nuclei"
COMMON = (*PEAKED, MIXED_NUCLEI, "gaussian", "flat")
UNUSUAL = ("equal", "two-values", "ascending", "descending", "cauchy", "masked")
FAMILIES = (*COMMON, *UNUSUAL)


def nucleus_of_row(family: str, row: int) -> int:
    """Return the tokens in the nucleus of a row of a peaked family or of ``MIXED_NUCLEI``; 0 for other families.

    Of 50 mixed rows one has a wide nucleus, five have 100 tokens, and the others one to three in turn.
    """
    if family != MIXED_NUCLEI:
        return PEAKED.get(family, 0)
    if row % 50 == 0:
        return 3200
    return 100 if row % 10 == 5 else 1 + row % 3


def min_vocab_size(family: str) -> int:
    """Compute the least vocabulary size for the nuclei of a family."""
    return math.ceil(nucleus_of_row(family, 0) / TOP_P)


@dataclass(frozen=True)
class Cell:
    """A cell to time: the shape, requests and family of a buffer of logits.

    The fields are axes, whose ``help`` says what each is; ``batch`` is B, ``vocab_size`` V.
    """

    batch: int
    vocab_size: int
    dtype: str
    filters: str
    family: str
    seeded: bool = field(default=True, kw_only=True)
    gumbel_dtype: GumbelDtype = field(default="fp32", kw_only=True)
    temperature: float = field(default=TEMPERATURE, kw_only=True)
    top_k: int = field(default=TOP_K, kw_only=True)
    top_p: float = field(default=TOP_P, kw_only=True)
    min_p: float = field(default=MIN_P, kw_only=True)
    special: str = field(default="none", kw_only=True)
    filter_order: FilterOrder = field(default="top_k_first", kw_only=True)
    tie_rule: TieNeed | Literal["advertised"] = field(default=ADVERTISED, kw_only=True)
    logprobs: int | None = field(default=None, kw_only=True)
    logprobs_mode: LogprobsMode = field(default="raw_logprobs", kw_only=True)
    logprob_ranks: bool = field(default=True, kw_only=True)
    row_padding: int = field(default=0, kw_only=True)
    operation: ClassVar[str] = "sample"
    """Operation that is timed."""

    @property
    def num_rows(self) -> int:
        """Return the number of rows of a buffer of logits."""
        return self.batch

    @property
    def nbytes(self) -> int:
        """Return the bytes of a buffer of logits."""
        row_size = self.vocab_size + self.row_padding
        return self.num_rows * row_size * (4 if self.dtype == "float32" else 2)

    @property
    def row_index(self) -> list[int] | None:
        """Return the request of each drawing row; None: row i draws for request i."""
        return None

    @property
    def description(self) -> str:
        """Describe the requests of the rows in words."""
        return ", ".join([self.filters, *self.deviations])

    @property
    def deviations(self) -> list[str]:
        """List the optional parameters that differ from their defaults."""
        parts = [f"{self.special} special"] * (self.special != "none")
        parts += [self.filter_order] * (self.filter_order != "top_k_first")
        parts += [f"ties by {self.tie_rule}"] * (self.tie_rule != ADVERTISED)
        parts += [f"{self.logprobs} {self.logprobs_mode}"] * (self.logprobs is not None)
        return parts + [f"rows padded by {self.row_padding}"] * (self.row_padding > 0)

    @property
    def special_rows(self) -> tuple[int, ...]:
        """Return the special requests: the first, one in the middle and the last, as many as there are."""
        requests = dict.fromkeys((0, self.batch // 2, self.batch - 1))
        return tuple(requests)[: len(_SPECIAL[self.special])]

    @property
    def requests(self) -> list[SamplingParams]:
        """Return the request of each row, without a seed.

        ``mixed`` takes the five other filters in turn, ``kinds`` rows with a seed, without, greedy, and with min-p.
        """
        kinds = self._kinds()
        requests = [kinds[row % len(kinds)] for row in range(self.batch)]
        for row, changes in zip(self.special_rows, _SPECIAL[self.special], strict=False):
            requests[row] = replace(requests[row], **changes)
        return requests

    @property
    def seeds(self) -> list[int | None]:
        """Return the seed of each request; None: every draw takes a fresh seed."""
        if self.special in ("seeded", "three"):
            return [0 if row in self.special_rows[:1] else None for row in range(self.batch)]
        if self.special != "none" or not self.seeded:
            return [None] * self.batch
        return [None if self.filters == KINDS and row % 4 == 1 else row for row in range(self.batch)]

    def _kinds(self) -> list[SamplingParams]:
        """Return the requests that rows take in turn."""
        common: dict[str, Any] = {
            "temperature": self.temperature,
            "filter_order": self.filter_order,
            "logprobs": self.logprobs,
        }
        params = [
            SamplingParams(**common, **{name: getattr(self, name) for name in names})
            for filters, names in _FILTER_FIELDS.items()
            if self.filters in (filters, MIXED) or (self.filters, filters) == (KINDS, "both")
        ]
        if self.filters != KINDS:
            return params
        (both,) = params
        return [both, both, replace(both, temperature=0.0), replace(both, min_p=self.min_p)]

    def __str__(self) -> str:
        return f"{self.batch} x {self.vocab_size} {self.dtype}, {self.description}, {self.family}"


_MIN_VOCAB_SIZE = 128
"""Least vocabulary: the peaked families need room for their nucleus, and ``TOP_K`` for something to drop."""
_TIE_NEEDS = ("value", "exact_k", "either")

BATCH = Axis("batch", "Rows, or requests that have drafts or pages; may be given again.", "rows")
VOCABULARY = Axis(
    "vocab_size",
    "Logits a row; may be given again.",
    "logits",
    title="vocabulary",
    minimum=_MIN_VOCAB_SIZE,
)
DTYPE = Axis("dtype", "Of the logits; may be given again.", "logits", choices=INPUT_DTYPES)

_draws = partial(Axis, subject="draws", changes_inputs=False)


def _number(field: str, symbol: str, default: str, **limits: Any) -> Axis:
    return _draws(field, f"{symbol} of the rows that have it. Default: {default}.", single=True, **limits)


def _optional(field: str, words: str, **values: Any) -> Axis:
    title = field.replace("_", " ")
    return _draws(field, f"{words}; may be given again.", title=title, optional=True, **values)


REQUESTS = (
    _draws(
        "filters",
        "What the rows ask for; may be given again. Both: top-k and top-p. Mixed: each row another. Kinds: rows "
        "with a seed, without, greedy and with min-p in turn, top-k and top-p in all.",
        choices=FILTERS,
    ),
    Axis(
        "family",
        "What the logits look like, by the size of the nucleus of p = 0.9: 1 to 30,000 tokens, mixed, thousands, "
        "most of the vocabulary; or unusual ones: equal, of two values, sorted, Cauchy, 99 % -inf. May be given again.",
        "logits",
        title="logits",
        choices=FAMILIES,
    ),
    _draws(
        "seeded",
        "Whether each row has a seed. Samplers make those of rows without. Default: seeded.",
        option="--seeded/--unseeded",
        single=True,
    ),
    _draws(
        "gumbel_dtype",
        "Precision of the random numbers. Default: fp32.",
        choices=GUMBEL_DTYPES,
        single=True,
    ),
    _number("temperature", "T", "0.8", minimum=0, is_fraction=True),
    _number("top_k", "k", "50", minimum=0),
    _number("top_p", "p", "0.9", minimum=0, excludes_minimum=True, maximum=1, is_fraction=True),
    _number("min_p", "Min-p", "0.05", minimum=0, maximum=1, is_fraction=True),
    _optional(
        "special",
        "Rows of another kind in a batch without seeds: a seeded one; three, seeded, greedy and with five "
        "log-probabilities; or one with another k, with top-p alone, or with log-probabilities",
        choices=SPECIAL,
    ),
    _optional("filter_order", "Order of top-k and top-p", choices=FILTER_ORDERS),
    _optional("tie_rule", "Tie rule that samplers are held to", choices=(ADVERTISED, *_TIE_NEEDS)),
    _optional("logprobs", "Log-probabilities of each row, or none", minimum=0, allows_none=True),
    _optional("logprobs_mode", "What log-probabilities are of", choices=LOGPROBS_MODES),
    _draws(
        "logprob_ranks",
        "Whether log-probabilities come with ranks. Default: with ranks.",
        option="--logprob-ranks/--no-logprob-ranks",
        single=True,
    ),
    Axis(
        "row_padding",
        "Unused elements behind each row of logits; may be given again.",
        "logits",
        title="row padding",
        optional=True,
        minimum=0,
    ),
)
"""Axes of every operation on logits, apart from the shape."""
