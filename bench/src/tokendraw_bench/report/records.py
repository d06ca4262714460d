"""The measurements of a run from its JSON, for pages. Imports no torch: the JSON may be of another machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tokendraw_bench import operations
from tokendraw_bench.operation import Axis, BenchOperation
from tokendraw_bench.sweeps import SWEEPS

_NO_FIGURES = ("buffers", "nbytes", "entries")
_CLEAR_VALUES = ("dtype", "family")
"""Axes whose values need no title."""
_TITLES = {"top_k": "top-k", "top_p": "top-p", "min_p": "min-p", "logprobs": "log-probabilities"}


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The time of a contender in a cell."""

    cell: Mapping[str, Any]
    """The cell under its keys of JSON."""
    contender: str
    us: float
    """Median in microseconds."""
    floor_us: float
    """Time of the pass that ratios refer to, in microseconds."""
    q1_us: float
    q3_us: float
    largest_us: float | None
    edge: float
    """Growth of the ratio where it is an edge, else 0."""

    @property
    def ratio(self) -> float:
        """Return the time as a multiple of the floor's."""
        return self.us / self.floor_us

    @property
    def excess(self) -> float:
        """Return the largest time as a multiple of the median; 0 if unknown."""
        return (self.largest_us or 0.0) / self.us


@dataclass(frozen=True)
class RunRecord:
    """A run, or a sweep, as ``tokendraw bench --json`` writes it."""

    json: Mapping[str, Any]

    @property
    def operation(self) -> BenchOperation:
        """Return the record of the timed operation."""
        return operations.get(self.json["operation"])

    @property
    def floor(self) -> str:
        """Return ``read`` or ``copy``."""
        return self.operation.floor.name

    @property
    def contenders(self) -> Sequence[str]:
        """List the names of the contenders, in the order of the columns."""
        contenders: Sequence[str] = self.json["contenders"]
        return contenders

    @property
    def cells(self) -> Sequence[Mapping[str, Any]]:
        """List the cells under their keys of JSON."""
        cells: Sequence[Mapping[str, Any]] = self.json["cells"]
        return cells

    @property
    def floors(self) -> str:
        """Return the plural of the floor."""
        return "copies" if self.floor == "copy" else f"{self.floor}s"

    @property
    def is_sweep(self) -> bool:
        """Whether the cells are those of a sweep."""
        return "sweep" in self.json

    @property
    def swept(self) -> tuple[str, ...]:
        """List the swept fields of a sweep; (): the run is none."""
        sweep = SWEEPS.get(self.json.get("sweep", ""))
        return sweep.fields if sweep else ()

    @property
    def axes(self) -> tuple[Axis, ...]:
        """List the axes along which cells differ."""
        return tuple(axis for axis in self._cell_axes if len(self.values(axis.field)) > 1)

    @property
    def constants(self) -> dict[str, str]:
        """Map titles of axes to the value that all cells share, defaults of optional axes left out."""
        alike = [axis for axis in self._cell_axes if len(self.values(axis.field)) == 1]
        values = {axis: self.cells[0][axis.field] for axis in alike}
        shown = {a: v for a, v in values.items() if not (a.optional and v == self._default(a))}
        single = {a: self.json[a.field] for a in self.operation.axes if a.field in self.json}
        return {title_of(axis): text_of(value) for axis, value in (shown | single).items()}

    @property
    def figures(self) -> list[str]:
        """List the measures of the inputs, such as ``nucleus``."""
        axes = {axis.field for axis in self._cell_axes}
        keys = dict.fromkeys(key for cell in self.cells for key in cell)
        return [key for key in keys if key not in axes and key not in (*_NO_FIGURES, self.floor)]

    @cached_property
    def measurements(self) -> list[Measurement]:
        """List the times of all cells and contenders."""
        return [
            Measurement(
                cell=cell,
                contender=name,
                us=entry["us"],
                floor_us=cell[self.floor]["us"],
                q1_us=entry["q1_us"],
                q3_us=entry["q3_us"],
                largest_us=entry["largest_us"],
                edge=entry.get("edge") or 0.0,
            )
            for cell in self.cells
            for name, entry in cell["entries"].items()
            if entry["us"] and cell[self.floor]["us"]
        ]

    def values(self, field: str) -> list[Any]:
        """List the different values of a field of the cells, in the order of the cells."""
        return list(dict.fromkeys(cell.get(field) for cell in self.cells))

    def label(self, cell: Mapping[str, Any], axes: Iterable[Axis]) -> str:
        """Name a cell by its values along some axes, without the default values of optional axes."""
        values = {axis: cell[axis.field] for axis in axes}
        shown = {a: v for a, v in values.items() if not (a.optional and v == self._default(a))}
        return ", ".join(_named(axis, value) for axis, value in (shown or values).items())

    def _default(self, axis: Axis) -> Any:
        return self.operation.cell.__dataclass_fields__[axis.field].default

    @property
    def _cell_axes(self) -> list[Axis]:
        return [axis for axis in self.operation.axes if axis.field in self.cells[0]]


def title_of(axis: Axis) -> str:
    """Return the title of an axis in words: ``top-k``, ``page size``."""
    return _TITLES.get(axis.field, axis.heading.replace("_", " "))


def text_of(value: Any) -> str:
    """Write a value of a cell."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else value


def _named(axis: Axis, value: Any) -> str:
    return text_of(value) if axis.field in _CLEAR_VALUES else f"{title_of(axis)} {text_of(value)}"


def us_text(us: float) -> str:
    """Write microseconds."""
    return f"{us:.1f}" if us < 999.95 else f"{us:,.0f}"
