"""Which kinds of rows a sampler cannot serve, so that a companion has to.

A need holds for every batch and is looked at once, by :mod:`tokendraw._resolution.checks`. Seeds, greedy rows, filters
and logprobs belong to single rows: a sampler that lacks one of them is still the right one for all the
others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tokendraw._exchange.capabilities import (
    DRAFT_KINDS,
    FILTER_ORDERS,
    VERIFY_MODES,
    Capabilities,
    DraftKind,
    Filter,
    Need,
    Operation,
    VerifyMode,
)

if TYPE_CHECKING:
    from tokendraw._exchange.facts import BatchFacts
    from tokendraw.operations.verify.drafts import Drafts

_FILTERS: tuple[Filter, ...] = ("top_k", "top_p", "min_p")
_FROM: dict[DraftKind, str] = {
    "probs": "drafts with probabilities",
    "logits": "drafts with logits",
    "chosen": "drafts that were not drawn",
}
_VOCABULARY = "rows of a vocabulary above its limit"


def beyond(capabilities: Capabilities, need: Need, operation: Operation = "sample") -> tuple[str, ...]:
    """Name the kinds of rows that are beyond a sampler; two samplers that lack the same say the same."""
    return tuple(_gaps(capabilities, need, operation))


def covers(
    capabilities: Capabilities, kinds: tuple[str, ...], need: Need, operation: Operation = "sample"
) -> bool:
    """Whether a sampler serves every one of ``kinds``, as named by :func:`beyond`.

    A vocabulary is the whole batch's, so whoever serves it meets every other kind of row in it.
    """
    gaps = set(_gaps(capabilities, need, operation))
    return not (gaps if _VOCABULARY in kinds else gaps & set(kinds))


def _gaps(capabilities: Capabilities, need: Need, operation: Operation) -> Iterator[str]:
    if not capabilities.greedy:
        yield "greedy rows"
    if capabilities.seeding != "counter":
        yield "seeded rows"
    for name in _FILTERS:
        if (name, "per_row") not in capabilities.filters:
            yield f"{name} per row"
    if capabilities.max_top_k is not None:
        yield "a top_k above its limit"
    if capabilities.max_vocab_size is not None and need.vocab_size is None:
        yield _VOCABULARY
    for order in FILTER_ORDERS:
        if order not in capabilities.filter_orders:
            yield f"filter order {order}"
    if need.logprobs_mode not in capabilities.logprobs_modes:
        yield f"rows that ask for {need.logprobs_mode}"
    if operation == "verify":
        yield from _draft_gaps(capabilities)


def _draft_gaps(capabilities: Capabilities) -> Iterator[str]:
    for mode in VERIFY_MODES:
        if mode not in capabilities.verify_modes:
            yield f"the mode {mode}"
    for kind in DRAFT_KINDS:
        if kind not in capabilities.draft_kinds:
            yield _FROM[kind]
    if not capabilities.ragged_drafts:
        yield "requests with different numbers of drafts"
    if not capabilities.placeholder_drafts:
        yield "placeholders among drafts"


def undrafted(capabilities: Capabilities, drafts: Drafts, mode: VerifyMode) -> str | None:
    """What of the drafts of a batch a verifier cannot serve, or may not be able to; None if it serves them."""
    if mode not in capabilities.verify_modes:
        return f"the mode {mode}"
    if drafts.kind not in capabilities.draft_kinds:
        return _FROM[drafts.kind]
    if not capabilities.ragged_drafts and not drafts.is_uniform:
        return "requests with different numbers of drafts"
    if not capabilities.placeholder_drafts and drafts.any_placeholder:
        return "placeholders among drafts"
    return None


def unserved(capabilities: Capabilities, facts: BatchFacts, vocab_size: int = 0) -> str | None:
    """A kind of row that a batch may hold and a sampler cannot serve, or None. Costs a few comparisons."""
    if capabilities.max_vocab_size is not None and vocab_size > capabilities.max_vocab_size:
        return f"rows of a vocabulary above {capabilities.max_vocab_size}"
    if facts.any_greedy and not capabilities.greedy:
        return "greedy rows"
    if facts.any_seeded and capabilities.seeding != "counter":
        return "seeded rows"
    for name, wanted in (
        ("top_k", facts.max_top_k != 0),
        ("top_p", facts.any_top_p),
        ("min_p", facts.any_min_p),
    ):
        if wanted and (name, "per_row") not in capabilities.filters:
            return f"{name} per row"
    limit = capabilities.max_top_k
    if limit is not None and (facts.max_top_k is None or facts.max_top_k > limit):
        return f"top_k above {limit}"
    if facts.any_joint and "joint" not in capabilities.filter_orders:
        return "filter order joint"
    if facts.any_top_k_first and "top_k_first" not in capabilities.filter_orders:
        return "filter order top_k_first"
    if facts.max_logprobs is not None and not capabilities.logprobs_modes:
        return "rows with logprobs"
    return None
