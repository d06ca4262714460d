"""Ways to draw with FlashInfer: which entry points, for which rows, and in which order of preference. Data alone.

So is the one way to verify drafts. Imports no torch, since what the installed version can do is read off these tables
before anything is drawn; how each way calls its entry points is in :mod:`tokendraw_flashinfer.draws` and
:mod:`tokendraw_flashinfer.verifier`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tokendraw.plugin import Filter, TieNeed, TieRule
from tokendraw_flashinfer.signatures import EntryPoints

Kind: TypeAlias = Literal["none", "top_k", "top_p", "min_p", "top_k_first", "joint", "both orders"]
"""What the rows of a batch may ask for. Min-p beside another filter is applied first, and is no kind of its own."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to draw."""

    name: str
    """The entry points that it calls on probabilities, in their order."""
    needs: tuple[tuple[str, tuple[str, ...]], ...]
    """Each of these with the parameters that it is given."""
    ties: TieRule = "value"
    graph_safe: bool = True
    max_top_k: int | None = None
    """If it has a limit: every row needs a k, of at most that and below V. None: rows may have any, or none."""
    compute_capability: tuple[int, int] = (0, 0)
    """The least."""

    @property
    def is_general(self) -> bool:
        """Whether it serves every batch of its kind, on every device and in a graph too."""
        return self.graph_safe and self.max_top_k is None and self.compute_capability == (0, 0)

    def serves(self, largest_top_k: int | None, *, all_top_k: bool, vocab_size: int, capturing: bool) -> bool:
        """Whether it may draw a batch, by what the host knows of it.

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


_NOISE = ("seed", "offset", "return_valid")
_SOFTMAX = ("sampling.softmax", ("temperature",))
_FROM_PROBS = ("sampling.sampling_from_probs", _NOISE)
_TOP_P_FROM_PROBS = ("sampling.top_p_sampling_from_probs", ("top_p", *_NOISE))

PLAIN = Way(name="sampling_from_probs", needs=(_SOFTMAX, _FROM_PROBS))
MIN_P = Way(
    name="min_p_sampling_from_probs",
    needs=(_SOFTMAX, ("sampling.min_p_sampling_from_probs", ("min_p", *_NOISE))),
)
TOP_K = Way(
    name="top_k_sampling_from_probs",
    needs=(_SOFTMAX, ("sampling.top_k_sampling_from_probs", ("top_k", *_NOISE))),
)
TOP_P = Way(name="top_p_sampling_from_probs", needs=(_SOFTMAX, _TOP_P_FROM_PROBS))
TOP_K_RENORM_TOP_P = Way(
    name="top_k_renorm_probs, top_p_sampling_from_probs",
    needs=(_SOFTMAX, ("sampling.top_k_renorm_probs", ("top_k",)), _TOP_P_FROM_PROBS),
)
JOINT = Way(
    name="top_k_top_p_sampling_from_probs(joint)",
    needs=(
        _SOFTMAX,
        ("sampling.top_k_top_p_sampling_from_probs", ("top_k", "top_p", "filter_apply_order", *_NOISE)),
    ),
)
FUSED = Way(
    name="cake_sampling.top_k_top_p_sampling_from_probs",
    needs=(_SOFTMAX, ("cake_sampling.top_k_top_p_sampling_from_probs", ("top_k", "top_p", "top_k_max"))),
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
"""For each kind of batch the ways that serve it: the first one that version, device, need and batch allow draws.

The order within a line is that of the times on an H200 (``benchmarks/results/h200_flashinfer.md``). One table serves
all versions: a way that a version lacks is passed over.
"""

CHAIN = Way(
    name="chain_speculative_sampling",
    needs=(
        _SOFTMAX,
        ("sampling.chain_speculative_sampling", ("seed", "offset")),
        ("sampling.sampling_from_probs", _NOISE),
    ),
)
"""Verifies drafts against probabilities that hold what the filters keep."""
RENORMS: Mapping[Filter, tuple[str, tuple[str, ...]]] = {
    "top_k": ("sampling.top_k_renorm_probs", ("top_k",)),
    "top_p": ("sampling.top_p_renorm_probs", ("top_p", "is_deterministic")),
}
"""What :data:`CHAIN` needs beside for each filter; min-p needs nothing of FlashInfer."""


def able(
    ways: Mapping[Kind, Sequence[Way]],
    entry_points: EntryPoints,
    tie_rule: TieNeed | None = None,
    compute_capability: tuple[int, int] | None = None,
) -> dict[Kind, list[Way]]:
    """Those of ``ways`` that a version has, in their order; a kind that they do not serve in full is left out.

    :param tie_rule: what the caller needs; ``either`` admits ways that keep exactly k of tied tokens.
    :param compute_capability: None: any.
    """
    found: dict[Kind, list[Way]] = {}
    for kind, candidates in ways.items():
        there = [
            way
            for way in candidates
            if entry_points.lacking(dict(way.needs)) is None
            and (way.ties == "value" or tie_rule == "either")
            and (compute_capability is None or way.compute_capability <= compute_capability)
        ]
        if any(way.is_general for way in there):
            found[kind] = there
    return found
