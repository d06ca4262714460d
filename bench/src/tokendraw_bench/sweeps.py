"""Sweeps of the preset ``cliffs``: one parameter at a time, to find edges where the time jumps. Imports no torch.

A series is the cells of a sweep that differ in the swept fields alone. A cell is an edge of a contender whose ratio to
the read is more than twice the ratio in the cell before it in its series, or in the first cell.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

from tokendraw_bench import operations
from tokendraw_bench.cells import MIXED_NUCLEI, SPECIAL, Cell, min_vocab_size
from tokendraw_bench.operation import Preset
from tokendraw_bench.report import CellResult
from tokendraw_bench.timing import Timing

CLIFFS = "cliffs"
BATCHES = 60
"""Samples of a median, each of other logits."""
SMALL_BATCHES = 3
EDGE_GROWTH = 2.0
_SMALL_BATCH_SIZE = 2
_SMALL_VOCAB_SIZE = 4096

_Item = TypeVar("_Item")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Cells along one parameter."""

    title: str
    fields: tuple[str, ...]
    """Swept fields of the cells."""
    parts: tuple[Preset, ...]
    """Grids whose cells are those of the sweep; in a series they are in the order of the grids."""
    operation: str = "sample"
    compares_with_first: bool = False
    """Whether growth is relative to the first cell of a series, not to the cell before."""

    def cells(self, *, small: bool = False) -> tuple[Cell, ...]:
        """List the cells; those of equal logits are neighbours.

        :param small: whether to shrink the cells to a size for a test on a CPU.
        """
        operation = operations.get(self.operation)
        cells = [cell for part in self.parts for cell in operation.cells_of(part)]
        if small:
            cells = [_shrink(cell) for cell in cells]
        return tuple(_grouped(dict.fromkeys(cells), operation.input_key))

    def with_edges(self, lines: Sequence[CellResult]) -> tuple[CellResult, ...]:
        """Order results by series, and mark the edges."""
        ordered = _grouped(lines, lambda line: self._series(line.cell))
        origins: dict[Hashable, CellResult] = {}
        marked = []
        for line in ordered:
            series = self._series(line.cell)
            origin = origins.setdefault(series, line)
            marked.append(replace(line, edges=_edges(origin, line)))
            if not self.compares_with_first:
                origins[series] = line
        return tuple(marked)

    def _series(self, cell: Cell) -> Hashable:
        neutral: dict[str, Any] = dict.fromkeys(self.fields)
        return replace(cell, **neutral)


def _grouped(items: Iterable[_Item], key: Any) -> list[_Item]:
    """Bring items of equal keys together, in the order of their first occurrence."""
    groups: dict[Hashable, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return [item for group in groups.values() for item in group]


def _shrink(cell: Cell) -> Cell:
    vocab_size = min(cell.vocab_size, max(_SMALL_VOCAB_SIZE, min_vocab_size(cell.family)))
    return replace(cell, batch=min(cell.batch, _SMALL_BATCH_SIZE), vocab_size=vocab_size)


def _edges(origin: CellResult, line: CellResult) -> dict[str, float]:
    """Find the growth of the ratio of every contender for which a cell is an edge."""
    growths = {
        name: line.ratio(entry) / origin.ratio(before)
        for name, entry in line.entries.items()
        if isinstance(entry, Timing) and isinstance(before := origin.entries[name], Timing) and before.us
    }
    return {name: growth for name, growth in growths.items() if growth > EDGE_GROWTH}


_VOCABULARY = 151_936
_FULL = ((256, _VOCABULARY),)
_SMALL = ((64, _VOCABULARY), (1, _VOCABULARY))
_VERIFIED = ((64, _VOCABULARY),)
_DTYPES = ("float32", "bfloat16")
_TOP_K = (50, 64, 100, 128, 129, 200, 256, 400, 512, 600, 800, 1000, 1024, 2000, 5000, 20_000)
_LOGPROBS = (0, 1, 5, 20, 64, 65, 100, 128, 256, 512, 1024)
_VOCABULARIES = (
    *(1000, 1024, 2000, 4096, 32_000, 100_277),
    *(100_352, 128_256, 151_936, 200_019, 200_064, 256_000),
)


def _grid(shapes: tuple[tuple[int, int], ...], **values: Any) -> Preset:
    """Make a grid at T = 1 of bfloat16 Gaussian logits, unless values say otherwise; a single value may be bare."""
    axes = {"temperature": 1.0, "dtype": "bfloat16", "family": "gaussian", "filters": "none"} | values
    return Preset(
        shapes=shapes,
        axes={name: value if isinstance(value, tuple) else (value,) for name, value in axes.items()},
    )


def _top_k(filters: str, **more: Any) -> tuple[Preset, ...]:
    """Make grids along k: all values and families in a large batch, some in small ones and in another order."""
    values: dict[str, Any] = {"dtype": _DTYPES, "filters": filters, **more}
    return (
        _grid(_FULL, **values, family=("gaussian", "peaked-30", "flat"), top_k=_TOP_K),
        _grid(_SMALL, **values, top_k=(50, 128, 512, 600, 1000, 1024, 5000)),
    )


def _both(shapes: tuple[tuple[int, int], ...], k: int | tuple[int, ...], p: float, **more: Any) -> Preset:
    return _grid(shapes, filters="both", top_k=k, top_p=p, **more)


_MIXED: dict[str, Any] = {"family": MIXED_NUCLEI, "temperature": 0.8}
_LARGE = (*_FULL, _SMALL[0])

SWEEPS = MappingProxyType(
    {
        "logprobs": Sweep(
            title="N log-probabilities of each row",
            fields=("logprobs",),
            parts=(
                _grid(_FULL, dtype=_DTYPES, logprobs=_LOGPROBS),
                _grid(_SMALL, logprobs=(5, 64, 65, 256, 1024)),
            ),
        ),
        "verify-logprobs": Sweep(
            title="N log-probabilities of each row, four drafts a request",
            fields=("logprobs",),
            parts=(_grid(_VERIFIED, dtype=_DTYPES, logprobs=(5, 64, 65, 100, 256)),),
            operation="verify",
        ),
        "top-k-top-p": Sweep(
            title="k with p = 0.95",
            fields=("top_k",),
            parts=(
                *_top_k("both", top_p=0.95),
                _both(_FULL, (50, 512, 1000), 0.95, dtype=_DTYPES, filter_order="joint"),
            ),
        ),
        "top-k": Sweep(title="k alone", fields=("top_k",), parts=_top_k("top-k")),
        "verify-top-k": Sweep(
            title="k with p, four drafts a request",
            fields=("top_k", "top_p"),
            parts=tuple(_both(_VERIFIED, k, p, dtype=_DTYPES) for k, p in ((50, 0.9), (1000, 0.95))),
            operation="verify",
        ),
        "vocabulary": Sweep(
            title="logits of a row",
            fields=("vocab_size",),
            parts=(
                _grid(tuple((256, size) for size in _VOCABULARIES), filters=("none", "both", "top-p")),
                _grid(tuple((1, size) for size in _VOCABULARIES), filters="both"),
            ),
        ),
        "row-padding": Sweep(
            title="padding of rows, beside rows without",
            fields=("row_padding",),
            parts=(
                _grid(((256, 128_256),), filters=("none", "both", "top-p"), row_padding=(0, 1, 2, 4, 7, 8)),
            ),
            compares_with_first=True,
        ),
        "nucleus": Sweep(
            title="width of the nucleus, p = 0.9 alone",
            fields=("family",),
            parts=(
                _grid(
                    (*_FULL, *_SMALL),
                    filters="top-p",
                    temperature=0.8,
                    family=(*(f"peaked-{nucleus}" for nucleus in (1, 30, 300, 3000, 30_000)), "flat"),
                ),
            ),
        ),
        "family": Sweep(
            title="logits, k = 50 with p = 0.9",
            fields=("family",),
            parts=(_grid((*_FULL, *_SMALL), filters="both", family=("peaked-30", "gaussian", "flat")),),
        ),
        "special-row": Sweep(
            title="one row of another kind, beside a batch without, k = 50 with p = 0.9, unseeded",
            fields=("special",),
            parts=(
                _grid(
                    _FULL,
                    filters="both",
                    seeded=False,
                    special=tuple(special for special in SPECIAL if special != "three"),
                ),
            ),
            compares_with_first=True,
        ),
        "mixed-nuclei": Sweep(
            title="filters of rows with nuclei of different widths",
            fields=("filters", "top_k", "top_p"),
            parts=(
                _grid(_LARGE, filters="top-p", **_MIXED),
                _both(_LARGE, 50, 0.9, **_MIXED),
                _both(_LARGE, 1000, 0.95, **_MIXED),
            ),
        ),
    }
)
"""Sweeps by name, in the order of a run."""
