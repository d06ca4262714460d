"""What is timed: the cells of a grid, and grids that have a name. Imports no torch: the command line reads it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from tokendraw._params import SamplingParams

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
    def requests(self) -> list[SamplingParams]:
        """What each row asks for, without a seed. ``mixed``: the five others in turn, row after row."""
        if self.filters != MIXED:
            return [_REQUESTS[self.filters]] * self.batch
        kinds = list(_REQUESTS.values())
        return [kinds[row % len(kinds)] for row in range(self.batch)]

    def __str__(self) -> str:
        return f"{self.batch} x {self.vocab_size} {self.dtype}, {self.filters}, {self.family}"


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A grid with a name: every shape with every dtype, family and filters."""

    shapes: tuple[tuple[int, int], ...]
    """(batch, vocabulary)."""
    dtypes: tuple[str, ...]
    filters: tuple[str, ...]
    families: tuple[str, ...]


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


def grid(
    preset: Preset,
    *,
    batches: Sequence[int] = (),
    vocab_sizes: Sequence[int] = (),
    dtypes: Sequence[str] = (),
    filters: Sequence[str] = (),
    families: Sequence[str] = (),
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
    cells = [
        Cell(batch, vocab_size, dtype, which, family)
        for batch, vocab_size in shapes
        for dtype in dtypes or preset.dtypes
        for family in families or preset.families
        for which in filters or preset.filters
    ]
    return _unique(cells)


def _unique(items: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(items))
