"""Makes up batches of every kind, for the warmups of operations on logits.

Kernels are compiled, or loaded, when they are first launched, and anew for another dtype of the logits, another layout
of their rows and another set of parameters. These batches cause the compilations.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from tokendraw.backends.description.capabilities import INPUT_DTYPES
from tokendraw.calls.drawing import Sample
from tokendraw.calls.routing import is_served
from tokendraw.calls.row_requirements import RowGroup
from tokendraw.calls.selection import Selection
from tokendraw.calls.warmup import CallGroups, Stages
from tokendraw.errors.exceptions import InvalidInputError
from tokendraw.errors.formatting import one_of
from tokendraw.parameters.fields import FILTER_PARAMETERS
from tokendraw.parameters.metadata import SamplingMetadata
from tokendraw.parameters.params import SamplingParams

_Name = TypeVar("_Name", bound=str)
_SEEDINGS = ("none", "positions", "some", "all")
"""Rows that have a seed; those of ``none`` have no position either."""


@dataclass(frozen=True, kw_only=True)
class Batches:
    """The batches to make. Built by :meth:`of`, which checks the arguments of :meth:`tokendraw.Sampler.warmup`."""

    vocab_size: int
    dtypes: tuple[torch.dtype, ...]
    batch_sizes: tuple[int, ...]
    """Ascending, so that the first, which may be drawn from a copy, is small."""
    row_stride: int
    seedings: tuple[str, ...]
    logprobs: tuple[int | None, ...]
    row_index: bool
    examples: tuple[SamplingMetadata, ...] | None
    """Metadata to use in place of all kinds."""

    @classmethod
    def of(
        cls,
        vocab_size: int,
        *,
        dtypes: Iterable[torch.dtype],
        batch_sizes: Iterable[int] = (1, 64),
        row_stride: int | None = None,
        seeds: bool = True,
        logprobs: Iterable[int] = (5,),
        row_index: bool = False,
        metadata: Iterable[SamplingMetadata] | None = None,
    ) -> Self:
        """Check the arguments."""
        size = checked_integer("vocab_size", vocab_size, 1)
        logits_dtypes = checked_dtypes("dtypes", dtypes, "dtypes of logits", INPUT_DTYPES)
        sizes = [checked_integer("batch_sizes", n, 1) for n in _items("batch_sizes", batch_sizes, "numbers")]
        counts = [
            checked_integer("logprobs", n, -1) for n in _items("logprobs", logprobs, "numbers", least=0)
        ]
        examples = None if metadata is None else _items("metadata", metadata, "SamplingMetadata")
        for example in examples or ():
            if not isinstance(example, SamplingMetadata):
                raise InvalidInputError(f"'metadata' needs SamplingMetadata, found {example!r}.")
        return cls(
            vocab_size=size,
            dtypes=logits_dtypes,
            batch_sizes=tuple(sorted({*sizes})),
            row_stride=size if row_stride is None else checked_integer("row_stride", row_stride, size),
            seedings=_SEEDINGS if seeds else _SEEDINGS[:1],
            logprobs=(None, *dict.fromkeys(counts)),
            row_index=bool(row_index),
            examples=examples,
        )

    def drawn_by(self, title: str, call: type[Sample]) -> Stages:
        """Make a stage that draws every batch in each dtype, kinds without a supporting backend left out."""

        def stages(selection: Selection, device: torch.device) -> Iterator[CallGroups]:
            batches = list(self._batches(selection, device))
            logits_by_dtype = self.logits(max(rows for rows, _ in batches), device)
            calls = [
                call(logits[:rows], metadata) for logits in logits_by_dtype for rows, metadata in batches
            ]
            yield CallGroups(title, [calls], len(calls))

        return stages

    def logits(self, rows: int, device: torch.device) -> list[Tensor]:
        """Make logits [rows, V] of each dtype, all 0, in one memory: a warmup depends on no values."""
        width = max(dtype.itemsize for dtype in self.dtypes)
        buffer = torch.zeros(rows * self.row_stride * width, dtype=torch.uint8, device=device)
        flat = [buffer.view(dtype)[: rows * self.row_stride] for dtype in self.dtypes]
        return [logits.view(rows, self.row_stride)[:, : self.vocab_size] for logits in flat]

    def kinds(
        self, rows: int, device: torch.device, seedings: Iterable[str], *, by_slot: bool
    ) -> Iterator[SamplingMetadata]:
        """Make every combination of filters, seeds and logprobs; ``by_slot`` with a ``row_index`` too."""
        index, requests_of_kind = torch.arange(rows, device=device), _requests(self.vocab_size)
        for requests, seeding, count in product(requests_of_kind, seedings, self.logprobs):
            params = [replace(requests[i % len(requests)], logprobs=count) for i in range(rows)]
            if seeding in ("some", "all"):
                is_mixed = seeding == "some"
                params = [p if is_mixed and i % 2 == 0 else replace(p, seed=i) for i, p in enumerate(params)]
            positions = None if seeding == "none" else index
            for slots in (None, index)[: 1 + by_slot]:
                yield SamplingMetadata.from_params(
                    params, device=device, positions=positions, row_index=slots
                )

    def _batches(self, selection: Selection, device: torch.device) -> Iterator[tuple[int, SamplingMetadata]]:
        for example in self.examples or ():
            rows = example.num_rows
            yield from ((n, example) for n in (self.batch_sizes if rows is None else (rows,)))
        for rows in self.batch_sizes if self.examples is None else ():
            for i, metadata in enumerate(self.kinds(rows, device, self.seedings, by_slot=self.row_index)):
                is_plain = i == 0  # drawn in any case: whoever cannot serve that says why
                group = RowGroup(metadata.facts, self.vocab_size)
                if is_plain or selection.companion is not None or is_served(selection, group):
                    yield rows, metadata


def _requests(vocab_size: int) -> Iterator[tuple[SamplingParams, ...]]:
    """List sets of requests, to alternate in a batch."""
    plain, greedy = SamplingParams(), SamplingParams(temperature=0.0)
    examples: dict[str, Any] = {p.name: p.example for p in FILTER_PARAMETERS}
    examples["top_k"] = k = min(examples["top_k"], vocab_size)
    alone = {name: replace(plain, **{name: value}) for name, value in examples.items()}
    filtered = SamplingParams(temperature=0.8, top_k=k, top_p=examples["top_p"])
    others = [params for name, params in alone.items() if name not in ("top_k", "top_p")]
    yield (plain,)
    yield from ((params,) for params in alone.values())
    yield (filtered,)
    yield (filtered, plain, greedy, *others)
    yield (replace(filtered, filter_order="joint"), filtered, greedy, *others)
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


def checked_words(name: str, values: Any, what: str, words: Sequence[_Name]) -> tuple[_Name, ...]:
    """Check an argument for a sequence of some of the words, and drop repetitions."""
    return _checked(name, values, what, {word: word for word in words})


def checked_dtypes(name: str, values: Any, what: str, dtypes: Sequence[str]) -> tuple[torch.dtype, ...]:
    """Check an argument for a sequence of some of the torch dtypes, given by name, and drop repetitions."""
    return _checked(name, values, what, {dtype: getattr(torch, dtype) for dtype in dtypes})


def _checked(name: str, values: Any, what: str, permitted: Mapping[str, Any]) -> tuple[Any, ...]:
    items = _items(name, values, what)
    for value in items:
        if value not in permitted.values():
            raise InvalidInputError(f"'{name}' needs {one_of(permitted)}, found {value!r}.")
    return tuple(dict.fromkeys(items))


def _items(name: str, values: Any, what: str, least: int = 1) -> tuple[Any, ...]:
    try:
        items = None if isinstance(values, (str, bytes)) else tuple(values)
    except TypeError:
        items = None
    if items is None or len(items) < least:
        raise InvalidInputError(f"'{name}' needs a sequence of {what}, found {values!r}.")
    return items
