"""The record of an operation that can be timed: all that the bench knows about it. Imports no torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    import torch

    from tokendraw_bench.timing.timer import Call, Draw

_T = TypeVar("_T", bound=Hashable)

Prepare: TypeAlias = "Callable[[Any, Any], Sequence[Call]]"
"""Makes the call for a cell and its arguments, with everything done that an engine does once a batch; or several, each
another way to the same result, of which the fastest counts. Raises SamplerUnavailableError with the reason if it cannot
serve the cell."""


class AnyCell(Hashable, Protocol):
    """A cell of a grid, which is timed: a frozen dataclass, with a field for each axis."""

    operation: ClassVar[str]
    """Operation that is timed."""

    @property
    def nbytes(self) -> int:
        """Return the bytes of one set of inputs."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A field of the cells of an operation; the command has an option for it. Operations can share one."""

    field: str
    """Its name in a cell, a preset and JSON."""
    option: str
    """Its name on the command line, such as ``--drafts``; ``--seeded/--unseeded`` for true and false."""
    help: str
    about: str
    """Names its subject in an error, when it is given with another operation."""
    title: str = ""
    """Its column in a table; "": that of its field."""
    choices: tuple[str, ...] = ()
    """Its values; none: whole numbers from ``least``."""
    least: int = 1
    single: bool = False
    """Whether all cells of a run have one value, which the head tells: no column, no preset, the cell's default."""
    changes_inputs: bool = True
    """Whether it changes the inputs of a call. Cells that differ in nothing that does share their inputs."""

    @property
    def heading(self) -> str:
        """The title of its column."""
        return self.title or self.field

    @property
    def is_flag(self) -> bool:
        """Whether its values are true and false."""
        return "/" in self.option

    def option_of(self, value: object) -> str:
        """Name the option that gives a value."""
        return self.option.split("/")[-1 if value is False else 0]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A grid with a name: every shape with every value of the other axes."""

    shapes: tuple[tuple[Any, ...], ...]
    """Values that go together, of the fields in ``BenchOperation.shape``."""
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values of each other axis, by field; the last varies fastest."""


@dataclass(frozen=True, kw_only=True)
class Floor:
    """The passes that ratios refer to: what moving the bytes takes that a call cannot do without."""

    name: str
    """``read`` or ``copy``."""
    note: str
    """Sentence about it, with ``{}`` for the names of the passes that were the fastest."""
    passes: Callable[[Any], Mapping[str, Call]]
    """Makes the passes over inputs like these, by name; the fastest counts."""


def _read(inputs: Any) -> Mapping[str, Call]:
    from tokendraw_bench.timing.floor import readers

    return readers(inputs.device)


def _copy(source: Callable[[Any], Any], inputs: Any) -> Mapping[str, Call]:
    from tokendraw_bench.timing.floor import copies

    return copies(source, inputs)


READ = Floor(name="read", note="The read is the fastest of several: {}.", passes=_read)
"""Reads of the inputs, which are one tensor."""


def copy_of(what: str, source: Callable[[Any], Any]) -> Floor:
    """Describe the copy of a tensor.

    :param what: names it in a sentence.
    :param source: finds it among the inputs.
    """
    return Floor(name="copy", note=f"The copy is of {what}, by {{}}.", passes=partial(_copy, source))


@dataclass(frozen=True, kw_only=True)
class BenchOperation:
    """A record that says how the calls of one operation are timed."""

    name: str
    cell: type[Any]
    """Its cells: an :class:`AnyCell`."""
    axes: tuple[Axis, ...]
    """In the order of the columns."""
    shape: tuple[str, ...]
    """Fields whose values go together in a preset."""
    presets: Mapping[str, Preset]
    """Grids by name; every operation has the same names."""
    floor: Floor = READ
    make_inputs: Callable[[Any, torch.device, torch.Generator], Any]
    """Makes one set of inputs on a device: whatever the calls and the passes of the floor take."""
    arguments: Callable[[Any, torch.device], Any] = lambda cell, device: None
    """Makes what calls take beside their inputs, as an engine does once a batch."""
    step: Callable[[Any, Any, Any], Draw]
    """Makes the call that is timed, on a set of inputs: (provider, cell, arguments)."""
    need: Callable[[Any], Any] = lambda cell: None
    """Says what calls of a cell need, or, for None, those of any cell. None: what the operation's need says."""
    load: Callable[[str, torch.device, Any], Any] | None = None
    """Loads a provider by its name, for a device and a need, without a companion; None: :func:`tokendraw.load`."""
    baselines: Callable[[], Mapping[str, Prepare]] = dict
    """Says how each baseline that can do this prepares a cell, by its name."""
    measured: Callable[[Any, Any], Mapping[str, float]] = lambda cell, inputs: {}
    """Measures the inputs of a cell: figures that have columns of their own, by title."""
    head: Callable[[Any], str] = lambda cell: ""
    """Says what all calls of a run have in common, in a sentence."""
    note: str = ""
    """Note for readers of its table, or ""."""
    of_baselines: Callable[[Any, Sequence[str]], str] = lambda cell, names: ""
    """Says what baselines of these names do otherwise than the cells of a run ask, or ""."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Return what all calls have in common, for JSON."""
    has_picture: bool = False
    """Whether :mod:`tokendraw_bench.report.plot` can draw its tables."""

    def grid(self, preset: str, **given: Sequence[Any]) -> tuple[Any, ...]:
        """List the cells of a preset, with what is given in the place of its own.

        :param preset: its name.
        :param given: values by field; none: those of the preset. A shape's are given with every value of the others of
            the shape; the preset's shapes are kept where none of them is.
        """
        own = self.presets[preset]
        shapes: Iterable[Sequence[Any]] = own.shapes
        if any(given.get(name) for name in self.shape):
            columns = zip(self.shape, zip(*own.shapes, strict=True), strict=True)
            values = [given.get(name) or _unique(column) for name, column in columns]
            # In the order of the presets: of the fields of a shape the first varies fastest.
            shapes = [shape[::-1] for shape in itertools.product(*reversed(values))]
        others = {**own.axes, **{name: values for name, values in given.items() if values}}
        fields = [name for name in others if name not in self.shape]
        rest = list(itertools.product(*(others[name] for name in fields)))
        return _unique(
            self.cell(**dict(zip((*self.shape, *fields), (*shape, *more), strict=True)))
            for shape in shapes
            for more in rest
        )

    def about_inputs(self, cell: AnyCell) -> tuple[Any, ...]:
        """Return what decides about the inputs of a cell."""
        return tuple(getattr(cell, axis.field) for axis in self.axes if axis.changes_inputs)


def _unique(items: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(items))
