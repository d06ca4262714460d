"""The record by which the bench times an operation: axes, presets, inputs and calls. Imports no torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tokendraw_bench.timing import Draw, TimedCall

_T = TypeVar("_T", bound=Hashable)

Prepare: TypeAlias = "Callable[[Any, Any], Sequence[TimedCall]]"
"""Makes the call for a cell and its arguments, after the work of an engine once a batch; or several calls with the same
result, of which the fastest counts. Raises SamplerUnavailableError with the reason if it cannot serve the cell."""


class AnyCell(Hashable, Protocol):
    """A cell of a grid: a frozen dataclass with a field for each axis."""

    operation: ClassVar[str]
    """Operation that is timed."""

    @property
    def nbytes(self) -> int:
        """Return the size of a set of inputs in bytes."""


@dataclass(frozen=True)
class Axis:
    """A field of an operation's cells, with an option of the command. Operations may share an axis."""

    field: str
    """Name in a cell, a preset and JSON."""
    help: str
    subject: str
    """Subject in the error about the option with another operation."""
    _: KW_ONLY
    option: str = ""
    """Name on the command line, ``--seeded/--unseeded`` for true and false; by default that of the field."""
    title: str = ""
    """Title of the column; by default the name of the field."""
    choices: tuple[str, ...] = ()
    """Values; (): numbers from ``minimum`` to ``maximum``, whole ones unless ``is_fraction``."""
    minimum: int = 1
    maximum: int | None = None
    excludes_minimum: bool = False
    is_fraction: bool = False
    allows_none: bool = False
    """Whether a number may be absent: ``none`` on the command line, None in a cell."""
    optional: bool = False
    """Whether a table has the column only where a cell deviates from the default of the field."""
    single: bool = False
    """Whether a run has a single value: it is in the head, has no column, and defaults to the cell's field."""
    changes_inputs: bool = True
    """Whether the inputs of a call depend on it. Cells with equal values of such axes share inputs."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "option", self.option or f"--{self.field.replace('_', '-')}")
        object.__setattr__(self, "title", self.title or self.field)

    @property
    def is_flag(self) -> bool:
        """Whether the values are true and false."""
        return "/" in self.option

    def option_of(self, value: object) -> str:
        """Name the option for a value."""
        return self.option.split("/")[-1 if value is False else 0]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A named grid: every shape with every value of the other axes."""

    shapes: tuple[tuple[Any, ...], ...]
    """Tuples of values of the fields in ``BenchOperation.shape``."""
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values of each other axis, by field; the last varies fastest."""


@dataclass(frozen=True, kw_only=True)
class BenchOperation:
    """How to time the calls of an operation."""

    name: str
    cell: type[Any]
    """Class of the cells, an :class:`AnyCell`."""
    axes: tuple[Axis, ...]
    """In the order of the columns."""
    shape: tuple[str, ...]
    """Fields of the tuples of a preset's ``shapes``."""
    presets: Mapping[str, Preset]
    """Grids by name; every operation has the same names."""
    copied: Callable[[Any], Tensor] | None = None
    """Finds the tensor among the inputs whose copy ratios refer to; None: they refer to a read of the only tensor."""
    make_inputs: Callable[[Any, torch.device, torch.Generator], Any]
    """Makes a set of inputs on a device for the calls and the passes of the floor."""
    arguments: Callable[[Any, torch.device], Any] = lambda cell, device: None
    """Makes the other arguments of calls, as an engine does once a batch."""
    step: Callable[[Any, Any, Any], Draw]
    """Makes the timed function of a set of inputs from (provider, cell, arguments)."""
    need: Callable[[Any], Any] = lambda cell: None
    """Returns the need of a cell's calls, for None that of every cell; None: the default of the operation."""
    renew: Callable[[Any], object] = lambda arguments: None
    """Changes the arguments of a call in place, so that it draws something else."""
    baselines: Callable[[], Mapping[str, Prepare]] = dict
    """Returns the baselines of the operation by name."""
    measured: Callable[[Any, Any], Mapping[str, float]] = lambda cell, inputs: {}
    """Measures the inputs of a cell: figures by the title of their column."""
    head: Callable[[Any], str] = lambda cell: ""
    """Describes the parameters of all calls of a run in a sentence."""
    note: str = ""
    """Note below the table, or ""."""

    @property
    def floor(self) -> str:
        """Name the traffic whose time is the denominator of ratios, ``read`` or ``copy``."""
        return "copy" if self.copied else "read"

    def passes(self, inputs: Any) -> Mapping[str, TimedCall]:
        """Make passes over a set of inputs, by name; the fastest counts."""
        from tokendraw_bench.floor import copies, readers

        return copies(self.copied, inputs) if self.copied else readers(inputs.device)

    def grid(self, preset: str, **overrides: Sequence[Any]) -> tuple[Any, ...]:
        """List the cells of a preset, with some values replaced.

        :param preset: name of the preset.
        :param overrides: values by field; none: those of the preset. A value of a field of the shape is combined with
            every value of the other fields of the shape; without such values the shapes of the preset stay.
        """
        grid = self.presets[preset]
        shapes: Iterable[Sequence[Any]] = grid.shapes
        if any(overrides.get(name) for name in self.shape):
            columns = zip(self.shape, zip(*grid.shapes, strict=True), strict=True)
            values = [overrides.get(name) or _unique(column) for name, column in columns]
            # In the order of the presets: of the fields of a shape the first varies fastest.
            shapes = [shape[::-1] for shape in itertools.product(*reversed(values))]
        others = {**grid.axes, **{name: tuple(values) for name, values in overrides.items() if values}}
        axes = {name: values for name, values in others.items() if name not in self.shape}
        return self.cells_of(Preset(shapes=tuple(map(tuple, shapes)), axes=axes))

    def cells_of(self, preset: Preset) -> tuple[Any, ...]:
        """List the cells of a grid, each once."""
        fields = (*self.shape, *preset.axes)
        return _unique(
            self.cell(**dict(zip(fields, (*shape, *values), strict=True)))
            for shape in preset.shapes
            for values in itertools.product(*preset.axes.values())
        )

    def input_key(self, cell: AnyCell) -> tuple[Any, ...]:
        """Return the values that determine the inputs of a cell."""
        return tuple(getattr(cell, axis.field) for axis in self.axes if axis.changes_inputs)


def _unique(items: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(items))
