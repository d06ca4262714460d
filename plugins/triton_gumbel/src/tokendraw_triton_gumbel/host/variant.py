"""Variants of calls: the properties in the choice of kernels, without sizes and addresses."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tokendraw.plugin import Moment
from tokendraw_triton_gumbel.host.row_layout import RowAccess, RowLayout
from tokendraw_triton_gumbel.host.tuning import Configuration
from tokendraw_triton_gumbel.kernels.verify import draft_kinds

CHOSEN: int = draft_kinds.CHOSEN.value
LOGITS: int = draft_kinds.LOGITS.value
PROBS: int = draft_kinds.PROBS.value
COUPLED: int = draft_kinds.COUPLED.value
"""Kinds of drafts, by what a verification knows about their distribution."""


class Target(NamedTuple):
    """The device of the launches, and the precision of their noise."""

    family: str
    """``cuda`` or ``hip``; ``cpu`` for the interpreter."""
    processors: int
    """Multiprocessors of the device."""
    fp64: bool
    """Whether the noise is float64."""

    @property
    def is_nvidia(self) -> bool:
        """Return whether kernels may use PTX."""
        return self.family == "cuda"

    def options(self, warps: int, registers: int | None = None) -> dict[str, int]:
        """Return compiler options: warps a program and, on NVIDIA, a limit of registers a thread."""
        return {"num_warps": warps} | ({"maxnreg": registers} if registers and self.is_nvidia else {})


class VerifyVariant(NamedTuple):
    """The properties of drafts in the choice of the kernels of a verification."""

    draft_kind: int
    is_block: bool
    """Whether the drafts of a request are judged together."""
    max_steps: int
    """A power of two above K, the upper limit of drafts a request."""
    is_padded: bool
    """Whether the ids of drafts are [requests, K], padded."""
    q: RowAccess | None
    """Logits or probabilities of the drafts, if they are known."""
    id_dtype: torch.dtype
    offset_dtype: torch.dtype

    @classmethod
    def of(
        cls,
        draft_kind: int,
        is_block: bool,
        max_drafts: int,
        id_dimensions: int,
        q: RowLayout | None,
        id_dtype: torch.dtype,
        offset_dtype: torch.dtype,
    ) -> VerifyVariant:
        """Derive the variant from a call: K, the dimensions of the ids, the layout of q, and dtypes."""
        max_steps, access = max(8, 1 << max_drafts.bit_length()), None if q is None else RowAccess.of(q)
        return cls(draft_kind, is_block, max_steps, id_dimensions == 2, access, id_dtype, offset_dtype)


class Variant(NamedTuple):
    """The properties of a call in the choice of kernels and constants."""

    logits: RowAccess
    vocab_size: int
    has_filters: bool
    num_best: int | None
    """N of the logprobs, at most V; None: no row wants any."""
    wants_ranks: bool
    """Whether ranks of drawn tokens come with their logprobs."""
    given_dtype: torch.dtype | None
    """Dtype of the ids whose logprobs rows ask for; None: no row gives any."""
    wants_least_kept: bool
    """Whether the least kept logit of each row is wanted."""
    has_raw_sums: bool
    """Whether the mass at T = 1 is needed beside the mass at the row's temperature."""
    is_aligned: bool
    """Whether the rows of drafts, too, begin at multiples of 16 bytes where their logits are drawn from."""
    configuration: Configuration
    param_dtypes: tuple[torch.dtype | None, ...]
    """Dtypes of the parameters of the batch, in the order of :mod:`.params_layout`."""
    has_fresh_seeds: bool
    """Whether a row may have no seed of its own."""
    verify: VerifyVariant | None = None
    is_scored: bool = False
    """Whether tokens are given, to be scored."""
    is_drawn: bool = True
    """Whether the rows are drawn: for their tokens, for the argmax of greedy rows, or for the thresholds of filters."""
    has_entropy_sums: bool = False
    """Whether the pass over the logits sums up entropies too."""
    moments: tuple[Moment, ...] = ()
    """The moments of rows that filters read."""
    interval: tuple[torch.dtype | None, ...] | None = None
    """Dtypes of ``params_layout.INTERVAL_FIELDS``; None: no row may ask for XTC or ``temperature_last``."""

    @property
    def has_logprobs(self) -> bool:
        """Return whether any row wants logprobs."""
        return self.num_best is not None

    @property
    def has_ceiling(self) -> bool:
        """Return whether a row may ask for XTC."""
        return self.interval is not None and self.interval[1] is not None

    @property
    def is_tempered_last(self) -> bool:
        """Return whether the filters of a row may look at another temperature than the draw."""
        return self.interval is not None and self.interval[0] is not None

    @property
    def has_second_sums(self) -> bool:
        """Return whether the pass sums up each tile at a second temperature."""
        has_temperature = self.param_dtypes[0] is not None
        return self.has_raw_sums or (self.is_tempered_last and self.has_logprobs and has_temperature)

    @property
    def draws_logprobs(self) -> bool:
        """Return whether the draw itself writes the logprobs of drawn tokens: N = 0 asks for no more."""
        return self.num_best == 0 and not self.has_filters and self.verify is None and not self.is_scored

    @property
    def weighs_kept(self) -> bool:
        """Return whether a score has the entropy of kept tokens, which the pass over the logits cannot sum up."""
        return self.is_scored and not self.has_entropy_sums

    @property
    def searches_best(self) -> bool:
        """Return whether a launch looks for the best tokens; it writes the drawn token's logprob beside theirs."""
        return self.has_logprobs and not self.draws_logprobs and not (self.is_scored and self.num_best == 0)

    @property
    def draws_drafts(self) -> bool:
        """Return whether rows of drafts follow those of the target."""
        return self.verify is not None and self.verify.draft_kind == LOGITS

    @property
    def is_plain_draw(self) -> bool:
        """Return whether the launch over rows does nothing but draw, without filters."""
        return not self.has_filters and self.verify is None and not self.draws_logprobs

    @property
    def needs_thresholds(self) -> bool:
        """Return whether exact thresholds and kept masses are needed, not just tokens."""
        return self.is_exact or self.interval is not None

    @property
    def is_exact(self) -> bool:
        """Return whether the exact thresholds and kept masses of all rows are needed."""
        judges_by_probs = self.verify is not None and self.verify.draft_kind != COUPLED
        return self.has_logprobs or self.wants_least_kept or judges_by_probs


class CallSize(NamedTuple):
    """The counts of rows, requests and drafts in a call."""

    rows: int
    """Number of rows of the target, or of the logits that are sampled."""
    requests: int = 0
    draft_rows: int = 0
    """Rows of logits or probabilities of drafts, if they are known."""
    max_drafts: int = 0
    """K."""
