"""The ways to draw and to verify with FlashInfer: which entry points, for which rows, in which order. Data alone.

Each step of a way is one call: an entry point and the parameters that it is given. What the installed version must
have, what a way is called in a benchmark, and how it draws (:mod:`tokendraw_flashinfer.draws`) all follow from its
steps. This module imports no torch, since a plugin describes itself before torch is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tokendraw.plugin import Filter, TieNeed, TieRule
from tokendraw_flashinfer.signatures import EntryPoints, Step

Kind: TypeAlias = Literal["none", "top_k", "top_p", "min_p", "top_k_first", "joint", "both orders"]
"""Kinds of batches, by the filters of their rows. Min-p beside another filter is applied first and makes no kind."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to draw."""

    steps: tuple[Step, ...]
    """Calls on the probabilities, in order; the last one draws."""
    ties: TieRule = "value"
    graph_safe: bool = True
    max_top_k: int | None = None
    """Limit of k: every row needs one, at most this and below V. None: rows may have any, or none."""
    compute_capability: tuple[int, int] = (0, 0)
    """Least compute capability that runs it."""

    @property
    def name(self) -> str:
        """List the entry points that it calls, in their order."""
        return ", ".join(step.entry_point.removeprefix("sampling.") for step in self.steps)

    @property
    def is_general(self) -> bool:
        """Whether it serves every batch of its kind, on every device and in a graph too."""
        return self.graph_safe and self.max_top_k is None and self.compute_capability == (0, 0)

    def serves(self, largest_top_k: int | None, *, all_top_k: bool, vocab_size: int, capturing: bool) -> bool:
        """Return whether it may draw a batch, by what the host knows of the batch.

        :param largest_top_k: the largest active k; None: unknown.
        :param all_top_k: whether every row has one.
        :param capturing: whether the batch becomes part of a CUDA graph.
        """
        if capturing and not self.graph_safe:
            return False
        if self.max_top_k is None:
            return True
        return (
            all_top_k and largest_top_k is not None and largest_top_k <= min(self.max_top_k, vocab_size - 1)
        )


_NOISE = ("seed", "offset")
_DRAW = (*_NOISE, "return_valid")

SOFTMAX = Step("sampling.softmax", ("temperature",))
"""Step before every way."""
FROM_PROBS = Step("sampling.sampling_from_probs", _DRAW)
_TOP_P_FROM_PROBS = Step("sampling.top_p_sampling_from_probs", ("top_p", *_DRAW))
RENORMS: Mapping[Filter, Step] = {
    "top_k": Step("sampling.top_k_renorm_probs", ("top_k",)),
    "top_p": Step("sampling.top_p_renorm_probs", ("top_p", "is_deterministic"), top_p_off=1e30),
}
"""The steps that leave probabilities of what a filter keeps; min-p needs nothing of FlashInfer."""

PLAIN = Way(steps=(FROM_PROBS,))
MIN_P = Way(steps=(Step("sampling.min_p_sampling_from_probs", ("min_p", *_DRAW)),))
TOP_K = Way(steps=(Step("sampling.top_k_sampling_from_probs", ("top_k", *_DRAW)),))
TOP_P = Way(steps=(_TOP_P_FROM_PROBS,))
TOP_K_RENORM_TOP_P = Way(steps=(RENORMS["top_k"], _TOP_P_FROM_PROBS))
JOINT = Way(
    steps=(
        Step(
            "sampling.top_k_top_p_sampling_from_probs",
            ("top_k", "top_p", "filter_apply_order", *_DRAW),
        ),
    )
)
FUSED = Way(
    steps=(
        Step(
            "cake_sampling.top_k_top_p_sampling_from_probs",
            ("top_k", "top_p", "top_k_max"),  # without the last it would wait for the device
            top_p_off=1.0,
        ),
    ),
    ties="exact_k",
    graph_safe=False,  # its seed is passed by value, so every replay would draw the same tokens
    max_top_k=1024,
    compute_capability=(9, 0),
)

WAYS: Mapping[Kind, tuple[Way, ...]] = {
    "none": (PLAIN,),
    "min_p": (MIN_P, PLAIN),
    "top_k": (FUSED, TOP_K),
    "top_p": (TOP_P,),
    "top_k_first": (FUSED, TOP_K_RENORM_TOP_P),
    "joint": (JOINT, TOP_K_RENORM_TOP_P),
    "both orders": (TOP_K_RENORM_TOP_P,),
}
"""Lists the ways that serve each kind of batch: the first one that version, device, need and batch allow draws.

The order within a line is that of the times on an H200 (``benchmarks/results/h200_flashinfer.md``). One table serves
all versions: a way that a version lacks is passed over.
"""

SAMPLE = (SOFTMAX, FROM_PROBS)
"""The steps without which nothing is sampled."""
CHAIN = Step("sampling.chain_speculative_sampling", _NOISE)
VERIFY = (SOFTMAX, CHAIN, FROM_PROBS)
"""The steps without which no draft is verified. Those of :data:`RENORMS` come between them where there are filters."""


def able(
    ways: Mapping[Kind, Sequence[Way]],
    entry_points: EntryPoints,
    tie_rule: TieNeed | None = None,
    compute_capability: tuple[int, int] | None = None,
) -> dict[Kind, list[Way]]:
    """List those of ``ways`` that a version has, in their order; a kind that they do not serve in full is left out.

    :param tie_rule: what the caller needs; ``either`` admits ways that keep exactly k of tied tokens.
    :param compute_capability: None: any.
    """
    found: dict[Kind, list[Way]] = {}
    for kind, candidates in ways.items():
        there = [
            way
            for way in candidates
            if entry_points.lacking(SOFTMAX, *way.steps) is None
            and (way.ties == "value" or tie_rule == "either")
            and (compute_capability is None or way.compute_capability <= compute_capability)
        ]
        if any(way.is_general for way in there):
            found[kind] = there
    return found
