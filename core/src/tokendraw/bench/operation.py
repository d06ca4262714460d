"""The record of an operation that can be timed: all that the bench knows about it. Imports no torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tokendraw._exchange.metadata import SamplingMetadata
    from tokendraw.bench.cells import Cell
    from tokendraw.bench.timing.timer import Call, Draw

_T = TypeVar("_T", bound=Hashable)

Prepare: TypeAlias = "Callable[[Cell, SamplingMetadata], Sequence[Call]]"
"""Makes the call for a cell, with everything done that an engine does once a batch; or several, each another way to
the same tokens, of which the fastest counts. Raises SamplerUnavailableError with the reason if it cannot serve the
cell."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A field that the cells of one operation have beside those of all cells; the command has an option for it."""

    field: str
    """Its name in a cell, a preset and a table."""
    option: str
    """Its name on the command line, such as ``--drafts``."""
    help: str
    about: str
    """Names its subject in an error, when it is given with another operation."""
    choices: tuple[str, ...] = ()
    """Its values; none: whole numbers from 1."""

    @property
    def parameter(self) -> str:
        """The name of the option's value."""
        return self.option.removeprefix("--").replace("-", "_")


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A grid with a name: every shape with every dtype, family and filters."""

    shapes: tuple[tuple[int, int], ...]
    """(batch, vocabulary)."""
    dtypes: tuple[str, ...]
    filters: tuple[str, ...]
    families: tuple[str, ...]
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values of the operation's own axes, by field."""


@dataclass(frozen=True, kw_only=True)
class BenchOperation:
    """A record that says how the calls of one operation are timed."""

    name: str
    cell: type[Cell]
    presets: Mapping[str, Preset]
    """Grids by name; every operation has the same names."""
    axes: tuple[Axis, ...] = ()
    note: str = ""
    """Note for readers of its table, or ""."""
    need: Any = None
    """Need of its calls, whatever the cell; None: what the operation's need says by default."""
    make_buffer: Callable[[Any, torch.device, torch.Generator], Tensor]
    """Makes one float32 buffer of logits [``cell.num_rows``, V] on a device."""
    load: Callable[[str, torch.device, str, int], Any]
    """Loads a provider by its name, for a device, a dtype and a vocabulary, without a companion."""
    lacking: Callable[[Any, Any, SamplingMetadata], str | None]
    """Names the part of a cell that capabilities do not serve, or None: (capabilities, cell, metadata)."""
    step: Callable[[Any, Any, SamplingMetadata], Draw]
    """Makes the call that is timed, on a buffer: (provider, cell, metadata)."""
    baselines: Callable[[], Mapping[str, Prepare]] = dict
    """Says how each baseline that can do this prepares a cell, by its name."""

    def grid(
        self,
        preset: str,
        *,
        batches: Sequence[int] = (),
        vocab_sizes: Sequence[int] = (),
        dtypes: Sequence[str] = (),
        filters: Sequence[str] = (),
        families: Sequence[str] = (),
        axes: Mapping[str, Sequence[Any]] = MappingProxyType({}),
    ) -> tuple[Cell, ...]:
        """List the cells of a preset, with what is given in the place of its own. Cells of equal logits are neighbours.

        :param preset: its name.
        :param batches: with every vocabulary, and so are ``vocab_sizes`` with every batch; the preset's pairs are
            kept where neither is given.
        :param axes: values of the operation's own axes, by field.
        """
        own = self.presets[preset]
        shapes: Sequence[tuple[int, int]] = own.shapes
        if batches or vocab_sizes:
            shapes = [
                (batch, vocab_size)
                for vocab_size in vocab_sizes or _unique(v for _, v in own.shapes)
                for batch in batches or _unique(b for b, _ in own.shapes)
            ]
        fields = [axis.field for axis in self.axes]
        values = [axes.get(field) or own.axes[field] for field in fields]
        logits = itertools.product(shapes, dtypes or own.dtypes, families or own.families)
        asked = list(itertools.product(*values, filters or own.filters))
        return _unique(
            self.cell(*shape, dtype, name, family, **dict(zip(fields, more, strict=True)))
            for shape, dtype, family in logits
            for *more, name in asked
        )


def _unique(items: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(items))
