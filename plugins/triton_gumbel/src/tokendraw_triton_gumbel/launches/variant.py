"""Variants of calls: the properties that decide which kernels a call launches, apart from its number of rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokendraw_triton_gumbel.configurations import Configuration
from tokendraw_triton_gumbel.kernels.verify import draft_kinds
from tokendraw_triton_gumbel.launches.compiled import Pointer

CHOSEN: int = draft_kinds.CHOSEN.value
LOGITS: int = draft_kinds.LOGITS.value
PROBS: int = draft_kinds.PROBS.value
COUPLED: int = draft_kinds.COUPLED.value
"""Kinds of drafts, by what a verification knows about their distribution."""

Layout = tuple[torch.dtype, int, int, int]
"""Type of a tensor [rows, columns]; its row stride modulo 16, and above 31 bits; its address modulo 16."""


def layout_of(tensor: Tensor) -> Layout:
    """Return what of a tensor decides how kernels read its rows."""
    stride = tensor.stride(0)
    return tensor.dtype, stride % 16, stride >> 31, tensor.data_ptr() % 16


class Rows(NamedTuple):
    """The properties of a caller's tensor that a kernel reading its rows is compiled for."""

    dtype: torch.dtype
    aligned: bool
    """Whether every row begins at a multiple of 16 bytes: the address of the first says nothing by itself."""
    far: bool
    """Whether the row stride takes more than 31 bits."""
    paired: bool
    """Whether it holds bfloat16 that stand at even addresses in every row, so that they may be read two at a time."""

    @classmethod
    def of(cls, layout: Layout) -> Rows:
        """Conclude it from what :func:`layout_of` returned."""
        dtype, stride, high, address = layout
        paired = dtype == torch.bfloat16 and stride % 2 == 0 and address % 4 == 0
        return cls(dtype, stride == 0 and address == 0, high > 0, paired)

    @property
    def pointer(self) -> Pointer:
        """Return stand-ins for them."""
        return Pointer(self.dtype, self.aligned)

    @property
    def stride(self) -> int:
        """A stride like theirs: that it is a multiple of 16 is of use only where the rows are aligned."""
        return (1 << 32 if self.far else 0) + (16 if self.aligned else 3)


class Target(NamedTuple):
    """The device that kernels are launched on, and the noise that they draw with."""

    family: str
    """``cuda`` or ``hip``; ``cpu`` for the interpreter."""
    processors: int
    """Multiprocessors of the device."""
    fp64: bool
    """Whether the noise is float64."""


class VerifyVariant(NamedTuple):
    """The properties that decide which kernels a verification launches, beside those of a draw."""

    known: int
    """Kind of the drafts, by what is known about their distribution."""
    steps: int
    """A power of two above K, the most drafts that a request may have."""
    padded: bool
    """Whether the ids stand in a row for each request."""
    q: Rows | None
    """Logits or probabilities of the drafts, if they are known."""
    ids: torch.dtype
    offsets: torch.dtype

    @classmethod
    def of(
        cls,
        known: int,
        width: int,
        dims: int,
        q: Layout | None,
        ids: torch.dtype,
        offsets: torch.dtype,
    ) -> VerifyVariant:
        """Conclude it from a call: K, the dimensions of the ids, the layout of q, and types."""
        return cls(
            known, max(8, 1 << width.bit_length()), dims == 2, None if q is None else Rows.of(q), ids, offsets
        )


class Variant(NamedTuple):
    """The properties that decide which kernels a call launches and what they get, without sizes and addresses."""

    logits: Rows
    vocab_size: int
    filtered: bool
    num_best: int | None
    """N of the logprobs, at most V; None: no row wants any."""
    ranked: bool
    """Whether the ranks of drawn tokens are wanted beside their logprobs."""
    raw: bool
    """Whether the mass at T = 1 is wanted beside the one at the row's temperature."""
    paired: bool
    """Whether logits are read two at a time."""
    how: Configuration
    params: tuple[torch.dtype | None, ...]
    """Types of the parameters that the batch has, in the order of :mod:`.parameters`."""
    fresh: bool
    """Whether a row may have no seed of its own."""
    verify: VerifyVariant | None = None

    @property
    def described(self) -> bool:
        """Whether any row wants logprobs."""
        return self.num_best is not None

    @property
    def describes_drawn(self) -> bool:
        """Whether the draw itself describes the drawn tokens, which is all that N = 0 asks for."""
        return self.num_best == 0 and not self.filtered and self.verify is None

    @property
    def only_draws(self) -> bool:
        """Whether the launch over rows does nothing but draw, without filters."""
        return not self.filtered and self.verify is None and not self.describes_drawn


class Size(NamedTuple):
    """The counts of everything in a call."""

    rows: int
    """Number of rows of the target, or of the logits that are sampled."""
    requests: int = 0
    drafts: int = 0
    """Rows of logits or probabilities of drafts, if they are known."""
    width: int = 0
    """K."""
