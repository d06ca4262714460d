"""What is timed: the cells of a grid, and grids that have a name. Imports no torch: the command line reads it."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from tokendraw._exchange.params import SamplingParams
from tokendraw.operations.verify.capabilities import VERIFY_MODES, VerifyMode

_T = TypeVar("_T", bound=Hashable)

TEMPERATURE, TOP_K, TOP_P, MIN_P = 0.8, 50, 0.9, 0.05
DTYPES = ("float32", "bfloat16", "float16")
LEAST_VOCAB_SIZE = 128
"""So that the peaked families have room for their nucleus, and ``TOP_K`` for something to drop."""

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
    """One thing to time: a shape, what its rows ask for, and what their logits look like."""

    batch: int
    vocab_size: int
    dtype: str
    """By its torch name."""
    filters: str
    """One of ``FILTERS``."""
    family: str
    """One of ``FAMILIES``."""

    @property
    def operation(self) -> str:
        """What is timed of it."""
        return "sample"

    @property
    def num_rows(self) -> int:
        """Of a buffer of logits."""
        return self.batch

    @property
    def asked(self) -> str:
        """What is asked of the rows, in words."""
        return self.filters

    @property
    def requests(self) -> list[SamplingParams]:
        """What each row asks for, without a seed. ``mixed``: the five others in turn, row after row."""
        if self.filters != MIXED:
            return [_REQUESTS[self.filters]] * self.batch
        kinds = list(_REQUESTS.values())
        return [kinds[row % len(kinds)] for row in range(self.batch)]

    def __str__(self) -> str:
        return f"{self.batch} x {self.vocab_size} {self.dtype}, {self.asked}, {self.family}"


@dataclass(frozen=True)
class VerifyCell(Cell):
    """A verification to time: of ``batch`` requests, each with as many drafts.

    A buffer holds the target's logits [L, V] and below them, where the mode looks at them, those of the drafts.
    """

    drafts: int = 4
    """K, of each request."""
    mode: VerifyMode = "rejection"

    @property
    def operation(self) -> str:
        """What is timed of it."""
        return "verify"

    @property
    def num_target_rows(self) -> int:
        """L."""
        return self.batch * (self.drafts + 1)

    @property
    def num_rows(self) -> int:
        """Of a buffer of logits: what a verification has to read."""
        return self.num_target_rows + (self.batch * self.drafts if self.mode == "rejection" else 0)

    @property
    def asked(self) -> str:
        """What is asked of the rows, in words."""
        return f"{self.filters}, {self.mode} of {self.drafts}"


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A grid with a name: every shape with every dtype, family and filters."""

    shapes: tuple[tuple[int, int], ...]
    """(batch, vocabulary)."""
    dtypes: tuple[str, ...]
    filters: tuple[str, ...]
    families: tuple[str, ...]
    drafts: tuple[int, ...] = ()
    """Of each request; of the operation verify, as are ``modes``."""
    modes: tuple[VerifyMode, ...] = ()

    @property
    def operation(self) -> str:
        """What is timed."""
        return "verify" if self.modes else "sample"


PRESETS = MappingProxyType(
    {
        "quick": Preset(
            shapes=((1, 32_000), (64, 32_000)),
            dtypes=("float32",),
            filters=("none", "both"),
            families=("peaked-30",),
        ),
        # The shapes that samplers for GPUs are held to. Top-k alone costs what it costs with top-p behind it.
        "design": Preset(
            shapes=((1024, 151_936), (256, 151_936), (64, 128_256), (1, 128_256)),
            dtypes=("float32", "bfloat16"),
            filters=("none", "both", "top-p"),
            families=FAMILIES,
        ),
    }
)
VERIFY_PRESETS = MappingProxyType(
    {
        "quick": Preset(
            shapes=((1, 32_000), (16, 32_000)),
            dtypes=("float32",),
            filters=("none", "both"),
            families=("peaked-30",),
            drafts=(4,),
            modes=VERIFY_MODES,
        ),
        "design": Preset(
            shapes=tuple((batch, size) for size in (151_936, 128_256) for batch in (256, 64, 1)),
            dtypes=("float32", "bfloat16"),
            filters=("none", "both"),
            families=("peaked-30", "gaussian"),
            drafts=(4,),
            modes=VERIFY_MODES,
        ),
    }
)
"""As ``PRESETS``, of the operation verify."""


def grid(
    preset: Preset,
    *,
    batches: Sequence[int] = (),
    vocab_sizes: Sequence[int] = (),
    dtypes: Sequence[str] = (),
    filters: Sequence[str] = (),
    families: Sequence[str] = (),
    drafts: Sequence[int] = (),
    modes: Sequence[VerifyMode] = (),
) -> tuple[Cell, ...]:
    """List the cells of a preset, with what is given in the place of its own. Cells of equal logits are neighbours.

    :param batches: with every vocabulary, and so are ``vocab_sizes`` with every batch; the preset's pairs are
        kept where neither is given.
    """
    shapes: Sequence[tuple[int, int]] = preset.shapes
    if batches or vocab_sizes:
        shapes = [
            (batch, vocab_size)
            for vocab_size in vocab_sizes or _unique(v for _, v in preset.shapes)
            for batch in batches or _unique(b for b, _ in preset.shapes)
        ]
    rows = itertools.product(shapes, dtypes or preset.dtypes, families or preset.families)
    which = filters or preset.filters
    if preset.operation == "verify":
        kinds = list(itertools.product(drafts or preset.drafts, modes or preset.modes, which))
        return _unique(
            VerifyCell(*shape, dtype, name, family, count, mode)
            for shape, dtype, family in rows
            for count, mode, name in kinds
        )
    return _unique(Cell(*shape, dtype, name, family) for shape, dtype, family in rows for name in which)


def _unique(items: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(items))
