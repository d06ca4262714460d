"""The sequences of kernels to draw and to verify with FlashInfer: entry points by kind of batch, in order. Data alone.

Each step of a sequence is a call: an entry point and its parameters. The requirements on the installed version, the
name in a benchmark, and the draw (:mod:`tokendraw_flashinfer.sampler`) all follow from the steps. This
module imports no torch, since a plugin describes itself before torch is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from tokendraw.plugin import Filter, Release, TieNeed, TieRule, Upstream
from tokendraw_flashinfer.signatures import DISTRIBUTION, EntryPoints, Step

Kind: TypeAlias = Literal["none", "top_k", "top_p", "min_p", "top_k_first", "joint", "both orders"]
"""Kinds of batches, by the filters of their rows. Min-p beside another filter is applied first and makes no kind."""


@dataclass(frozen=True, kw_only=True)
class KernelSequence:
    """A sequence of kernels that draws."""

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
        """List the entry points in order."""
        return ", ".join(step.entry_point.removeprefix("sampling.") for step in self.steps)

    @property
    def is_general(self) -> bool:
        """Return whether the sequence serves every batch of its kind, on every device and in a graph too."""
        return self.graph_safe and self.max_top_k is None and self.compute_capability == (0, 0)

    def serves(self, largest_top_k: int | None, *, all_top_k: bool, vocab_size: int, capturing: bool) -> bool:
        """Return whether the sequence may draw a batch, by the host's facts about the batch.

        :param largest_top_k: the largest active k; None: unknown.
        :param all_top_k: whether every row has one.
        :param capturing: whether the batch becomes part of a CUDA graph.
        """
        if capturing and not self.graph_safe:
            return False
        if self.max_top_k is None:
            return True
        most = min(self.max_top_k, vocab_size - 1)
        return all_top_k and largest_top_k is not None and largest_top_k <= most


_NOISE = ("seed", "offset")
_DRAW = (*_NOISE, "return_valid")

SOFTMAX = Step("sampling.softmax", ("temperature",))
"""Step before every sequence."""
FROM_PROBS = Step("sampling.sampling_from_probs", _DRAW)
_TOP_P_FROM_PROBS = Step("sampling.top_p_sampling_from_probs", ("top_p", *_DRAW))
RENORMS: Mapping[Filter, Step] = {
    "top_k": Step("sampling.top_k_renorm_probs", ("top_k",)),
    "top_p": Step("sampling.top_p_renorm_probs", ("top_p", "is_deterministic"), top_p_off=1e30),
}
"""The steps that leave probabilities of what a filter keeps; min-p needs nothing of FlashInfer."""

PLAIN = KernelSequence(steps=(FROM_PROBS,))
MIN_P = KernelSequence(steps=(Step("sampling.min_p_sampling_from_probs", ("min_p", *_DRAW)),))
TOP_K = KernelSequence(steps=(Step("sampling.top_k_sampling_from_probs", ("top_k", *_DRAW)),))
TOP_P = KernelSequence(steps=(_TOP_P_FROM_PROBS,))
TOP_K_RENORM_TOP_P = KernelSequence(steps=(RENORMS["top_k"], _TOP_P_FROM_PROBS))
JOINT = KernelSequence(
    steps=(
        Step("sampling.top_k_top_p_sampling_from_probs", ("top_k", "top_p", "filter_apply_order", *_DRAW)),
    )
)
FUSED = KernelSequence(
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

SEQUENCES: Mapping[Kind, tuple[KernelSequence, ...]] = {
    "none": (PLAIN,),
    "min_p": (MIN_P, PLAIN),
    "top_k": (FUSED, TOP_K),
    "top_p": (TOP_P,),
    "top_k_first": (FUSED, TOP_K_RENORM_TOP_P),
    "joint": (JOINT, TOP_K_RENORM_TOP_P),
    "both orders": (TOP_K_RENORM_TOP_P,),
}
"""The sequences for each kind of batch; the first that suits version, device, need and batch draws.

The order within a line is that of the times on an H200 (``benchmarks/results/h200_flashinfer.md``). One table serves
all versions: a sequence that a version lacks is passed over.
"""

SAMPLE = (SOFTMAX, FROM_PROBS)
"""Steps required to sample."""
CHAIN = Step("sampling.chain_speculative_sampling", _NOISE)
VERIFY = (SOFTMAX, CHAIN, FROM_PROBS)
"""Steps required to verify drafts. Filters add the steps of :data:`RENORMS`."""


def available(
    sequences: Mapping[Kind, Sequence[KernelSequence]],
    entry_points: EntryPoints,
    tie_rule: TieNeed | None = None,
    compute_capability: tuple[int, int] | None = None,
) -> dict[Kind, list[KernelSequence]]:
    """List the sequences of a version in their order; a kind without a general sequence is left out.

    :param tie_rule: the need of the caller; ``either`` admits sequences that keep exactly k of tied tokens.
    :param compute_capability: None: any.
    """
    sequences_by_kind: dict[Kind, list[KernelSequence]] = {}
    for kind, candidates in sequences.items():
        supported = [
            sequence
            for sequence in candidates
            if entry_points.unsupported(SOFTMAX, *sequence.steps) is None
            and (sequence.ties == "value" or tie_rule == "either")
            and (compute_capability is None or sequence.compute_capability <= compute_capability)
        ]
        if any(sequence.is_general for sequence in supported):
            sequences_by_kind[kind] = supported
    return sequences_by_kind


# The releases of FlashInfer in use, and their expected properties, as read from the wheels. Functions change between
# versions with the same first two numbers, and some changes were taken back. So the installed files decide, and the
# reason is given in the words of the table.

_PLAIN = "draws by rejection"
_FUSED = "draws by rejection, or fused where every row has a k up to 1024"

UPSTREAM = Upstream(
    DISTRIBUTION,
    ">=0.6.7,<0.8",
    tested=("0.6.11.post2", "0.7.2.post1"),
    releases=(
        Release("0", "returns no valid flag", refused=True),
        Release("0.6.7", "returns a valid flag"),
        Release("0", _PLAIN, "sample"),
        Release("0.7.1", _FUSED, "sample"),
    ),
)


def upstream(entry_points: EntryPoints) -> Upstream:
    """Return the table, with the properties of the installed version as its files show them."""
    found = {}
    if entry_points.unsupported(*SAMPLE) is None:
        found["sample"] = _PLAIN if entry_points.unsupported(*FUSED.steps) else _FUSED
    return replace(UPSTREAM, found=found)
