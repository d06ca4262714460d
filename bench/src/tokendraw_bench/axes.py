"""Axes shared by several operations: the shape and the family of logits, filters, seeds. Imports no torch."""

from __future__ import annotations

from tokendraw.plugin import GUMBEL_DTYPES, INPUT_DTYPES
from tokendraw_bench.cells import FAMILIES, FILTERS
from tokendraw_bench.operation import Axis

_MIN_VOCAB_SIZE = 128
"""Least vocabulary: the peaked families need room for their nucleus, and ``TOP_K`` for something to drop."""

BATCH = Axis(
    field="batch",
    option="--batch",
    help="Rows, or requests that have drafts or pages; may be given again.",
    subject="rows",
)
VOCABULARY = Axis(
    field="vocab_size",
    option="--vocab-size",
    title="vocabulary",
    help="Logits a row; may be given again.",
    subject="logits",
    minimum=_MIN_VOCAB_SIZE,
)
DTYPE = Axis(
    field="dtype",
    option="--dtype",
    help="Of the logits; may be given again.",
    subject="logits",
    choices=INPUT_DTYPES,
)
REQUESTS = (
    Axis(
        field="filters",
        option="--filters",
        help="What the rows ask for; may be given again. Both: top-k and top-p. Mixed: each row another.",
        subject="draws",
        choices=FILTERS,
        changes_inputs=False,
    ),
    Axis(
        field="family",
        option="--family",
        title="logits",
        help="What the logits look like, by the size of the nucleus of p = 0.9: 7 or 30 tokens, thousands, most of "
        "the vocabulary; may be given again.",
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
        option="--gumbel-dtype",
        help="Precision of the random numbers. Default: fp32.",
        subject="draws",
        choices=GUMBEL_DTYPES,
        single=True,
        changes_inputs=False,
    ),
)
"""Axes of every operation on logits, apart from the shape."""
