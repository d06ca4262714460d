"""Makes up batches of every kind, for the warmups of operations on logits.

Kernels are compiled, or loaded, when they are first launched, and anew for another dtype of the logits, another layout
of their rows and another set of parameters. These batches cause the compilations.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from tokendraw.backends.description.capabilities import INPUT_DTYPES
from tokendraw.calls.routing import Selection, is_served
from tokendraw.calls.row_requirements import RowGroup
from tokendraw.calls.rows import RowCall
from tokendraw.calls.warmup import CallGroup, CallGroups
from tokendraw.errors.exceptions import InvalidInputError
from tokendraw.errors.formatting import one_of
from tokendraw.parameters.fields import FILTER_PARAMETERS
from tokendraw.parameters.metadata import SamplingMetadata
from tokendraw.parameters.params import SamplingParams

_Value = TypeVar("_Value")
SEEDINGS = ("none", "positions", "some", "all")
"""Rows that have a seed; those of ``none`` have no position either."""


class Batch(NamedTuple):
    """Metadata for a number of rows or requests."""

    rows: int
    metadata: SamplingMetadata
    is_required: bool
    """Whether it is drawn in any case: the plainest, to report what no backend supports, and examples of callers."""


class Batches:
    """The batches of a warmup, from the checked arguments of :meth:`tokendraw.Sampler.warmup`."""

    def __init__(
        self,
        vocab_size: int,
        *,
        dtypes: Iterable[torch.dtype],
        batch_sizes: Iterable[int] = (1, 64),
        row_stride: int | None = None,
        seeds: bool = True,
        logprobs: Iterable[int] = (5,),
        row_index: bool = False,
        metadata: Iterable[SamplingMetadata] | None = None,
    ) -> None:
        self.vocab_size = checked_integer("vocab_size", vocab_size, 1)
        self.dtypes = checked_choices("dtypes", dtypes, "dtypes of logits", dtypes_by_name(INPUT_DTYPES))
        sizes = _items("batch_sizes", batch_sizes, "numbers")
        # Ascending, so that the first, which may be drawn from a copy, is small.
        self.batch_sizes = sorted({checked_integer("batch_sizes", size, 1) for size in sizes})
        counts = _items("logprobs", logprobs, "numbers", least=0)
        self.logprobs = dict.fromkeys((None, *(checked_integer("logprobs", n, -1) for n in counts)))
        self.examples = None if metadata is None else _items("metadata", metadata, "SamplingMetadata")
        for example in self.examples or ():
            if not isinstance(example, SamplingMetadata):
                raise InvalidInputError(f"'metadata' needs SamplingMetadata, found {example!r}.")
        self.row_stride = self.vocab_size
        if row_stride is not None:
            self.row_stride = checked_integer("row_stride", row_stride, self.vocab_size)
        self.seedings = SEEDINGS if seeds else SEEDINGS[:1]
        self.row_index = bool(row_index)

    def drawn_by(self, title: str, call: Callable[[Tensor, SamplingMetadata], RowCall]) -> CallGroups:
        """Draw every batch in each dtype, kinds without a supporting backend left out."""

        def groups(selection: Selection, device: torch.device) -> Iterator[CallGroup]:
            batches = [
                batch
                for batch in self.each(device, self.seedings, by_slot=self.row_index)
                if batch.is_required
                or selection.companion is not None
                or is_served(selection, RowGroup(batch.metadata.facts, self.vocab_size))
            ]
            logits_by_dtype = self.logits(max(batch.rows for batch in batches), device)
            calls = [
                call(logits[: batch.rows], batch.metadata) for logits in logits_by_dtype for batch in batches
            ]
            yield CallGroup(title, calls, len(calls))

        return groups

    def logits(self, rows: int, device: torch.device) -> list[Tensor]:
        """Make logits [rows, V] of each dtype, all 0, in one memory: a warmup depends on no values."""
        width = max(dtype.itemsize for dtype in self.dtypes)
        buffer = torch.zeros(rows * self.row_stride * width, dtype=torch.uint8, device=device)
        flat = [buffer.view(dtype)[: rows * self.row_stride] for dtype in self.dtypes]
        return [logits.view(rows, self.row_stride)[:, : self.vocab_size] for logits in flat]

    def each(self, device: torch.device, seedings: Iterable[str], *, by_slot: bool) -> Iterator[Batch]:
        """Make every combination of filters, seeds and logprobs, ``by_slot`` with a ``row_index`` too; or examples."""
        for example in self.examples or ():
            rows = example.num_rows
            yield from (Batch(n, example, True) for n in (self.batch_sizes if rows is None else (rows,)))
        if self.examples is not None:
            return
        kinds = list(product(_requests(self.vocab_size), seedings, self.logprobs))
        for rows in self.batch_sizes:
            index = torch.arange(rows, device=device)
            for i, (requests, seeding, count) in enumerate(kinds):
                params = [replace(requests[row % len(requests)], logprobs=count) for row in range(rows)]
                for row in {"some": range(1, rows, 2), "all": range(rows)}.get(seeding, ()):
                    params[row] = replace(params[row], seed=row)
                positions = None if seeding == "none" else index
                for slots in (None, index)[: 1 + by_slot]:
                    metadata = SamplingMetadata.from_params(
                        params, device=device, positions=positions, row_index=slots
                    )
                    yield Batch(rows, metadata, is_required=i == 0 and slots is None)


def _requests(vocab_size: int) -> Iterator[tuple[SamplingParams, ...]]:
    """List sets of requests, to alternate in a batch."""
    plain, greedy = SamplingParams(), SamplingParams(temperature=0.0)
    examples: dict[str, Any] = {p.name: p.example for p in FILTER_PARAMETERS}
    examples["top_k"] = k = min(examples["top_k"], vocab_size)
    alone = {name: replace(plain, **{name: value}) for name, value in examples.items()}
    filtered = SamplingParams(temperature=0.8, top_k=k, top_p=examples["top_p"])
    others = [alone["min_p"]]
    yield (plain,)
    yield from ((params,) for params in alone.values())
    yield (filtered,)
    yield (filtered, plain, greedy, *others)
    yield (replace(filtered, filter_order="joint"), filtered, greedy, *others)
    yield (replace(filtered, filter_order="temperature_last"),)
    yield (greedy,)


def checked_integer(name: str, value: Any, least: int) -> int:
    """Check an argument for an integer of at least ``least``."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise InvalidInputError(f"'{name}' needs integers >= {least}, found {value!r}.")
    return number


def checked_choices(name: str, values: Any, what: str, permitted: Mapping[str, _Value]) -> tuple[_Value, ...]:
    """Check an argument for a sequence of permitted values, described by ``what``, and drop repetitions."""
    items = _items(name, values, what)
    for value in items:
        if value not in permitted.values():
            raise InvalidInputError(f"'{name}' needs {one_of(permitted)}, found {value!r}.")
    return tuple(dict.fromkeys(items))


def dtypes_by_name(names: Iterable[str]) -> dict[str, torch.dtype]:
    """Look up dtypes of torch."""
    return {name: getattr(torch, name) for name in names}


def _items(name: str, values: Any, what: str, least: int = 1) -> tuple[Any, ...]:
    try:
        items = None if isinstance(values, (str, bytes)) else tuple(values)
    except TypeError:
        items = None
    if items is None or len(items) < least:
        raise InvalidInputError(f"'{name}' needs a sequence of {what}, found {values!r}.")
    return items
