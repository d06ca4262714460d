"""Axes shared by several operations: the shape and the family of logits, filters, seeds. Imports no torch."""

from __future__ import annotations

from typing import Any

from tokendraw.plugin import FILTER_ORDERS, GUMBEL_DTYPES, INPUT_DTYPES, LOGPROBS_MODES
from tokendraw_bench.cells import ADVERTISED, FAMILIES, FILTERS, SPECIAL
from tokendraw_bench.operation import Axis

_MIN_VOCAB_SIZE = 128
"""Least vocabulary: the peaked families need room for their nucleus, and ``TOP_K`` for something to drop."""
_TIE_NEEDS = ("value", "exact_k", "either")

BATCH = Axis(
    field="batch",
    help="Rows, or requests that have drafts or pages; may be given again.",
    subject="rows",
)
VOCABULARY = Axis(
    field="vocab_size",
    title="vocabulary",
    help="Logits a row; may be given again.",
    subject="logits",
    minimum=_MIN_VOCAB_SIZE,
)
DTYPE = Axis(
    field="dtype",
    help="Of the logits; may be given again.",
    subject="logits",
    choices=INPUT_DTYPES,
)


def _single(field: str, symbol: str, default: str, **limits: Any) -> Axis:
    return Axis(
        field=field,
        help=f"{symbol} of the rows that have it. Default: {default}.",
        subject="draws",
        single=True,
        changes_inputs=False,
        **limits,
    )


def _optional(field: str, words: str, subject: str = "draws", **values: Any) -> Axis:
    return Axis(
        field=field,
        title=field.replace("_", " "),
        help=f"{words}; may be given again.",
        subject=subject,
        optional=True,
        changes_inputs=subject == "logits",
        **values,
    )


REQUESTS = (
    Axis(
        field="filters",
        help="What the rows ask for; may be given again. Both: top-k and top-p. Mixed: each row another. Kinds: rows "
        "with a seed, without, greedy and with min-p in turn, top-k and top-p in all.",
        subject="draws",
        choices=FILTERS,
        changes_inputs=False,
    ),
    Axis(
        field="family",
        title="logits",
        help="What the logits look like, by the size of the nucleus of p = 0.9: 1 to 30,000 tokens, mixed, thousands, "
        "most of the vocabulary; or unusual ones: equal, of two values, sorted, Cauchy, 99 % -inf. May be given again.",
        subject="logits",
        choices=FAMILIES,
    ),
    Axis(
        field="seeded",
        option="--seeded/--unseeded",
        help="Whether each row has a seed. Samplers make those of rows without. Default: seeded.",
        subject="draws",
        single=True,
        changes_inputs=False,
    ),
    Axis(
        field="gumbel_dtype",
        help="Precision of the random numbers. Default: fp32.",
        subject="draws",
        choices=GUMBEL_DTYPES,
        single=True,
        changes_inputs=False,
    ),
    _single("temperature", "T", "0.8", minimum=0, is_fraction=True),
    _single("top_k", "k", "50", minimum=0),
    _single("top_p", "p", "0.9", minimum=0, excludes_minimum=True, maximum=1, is_fraction=True),
    _single("min_p", "Min-p", "0.05", minimum=0, maximum=1, is_fraction=True),
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
    Axis(
        field="logprob_ranks",
        option="--logprob-ranks/--no-logprob-ranks",
        help="Whether log-probabilities come with ranks. Default: with ranks.",
        subject="draws",
        single=True,
        changes_inputs=False,
    ),
    _optional("row_padding", "Unused elements behind each row of logits", "logits", minimum=0),
)
"""Axes of every operation on logits, apart from the shape."""
