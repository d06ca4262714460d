"""Makes up batches of every kind, for the warmups of operations on logits.

Kernels are compiled, or loaded, when they are first launched, and anew for another dtype of the logits, another layout
of their rows and another set of parameters. These batches cause the compilations.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from tokendraw.backends.description.capabilities import INPUT_DTYPES
from tokendraw.calls.drawing import Sample
from tokendraw.calls.row_requirements import Rows
from tokendraw.calls.selection import Selection
from tokendraw.calls.warmup import CallGroups
from tokendraw.errors.exceptions import InvalidInputError
from tokendraw.errors.formatting import one_of
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
    seeds: bool
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
        """Check the arguments.

        :raises InvalidInputError: one of them cannot be drawn; the message names it.
        """
        size = whole("vocab_size", vocab_size, 1)
        logits_dtypes = some_dtypes("dtypes", dtypes, "dtypes of logits", INPUT_DTYPES)
        batches = {whole("batch_sizes", rows, 1) for rows in _several("batch_sizes", batch_sizes, "numbers")}
        widths = [whole("logprobs", n, -1) for n in _several("logprobs", logprobs, "numbers", least=0)]
        examples = None
        if metadata is not None:
            examples = tuple(_several("metadata", metadata, "SamplingMetadata"))
            for example in examples:
                if not isinstance(example, SamplingMetadata):
                    raise InvalidInputError(f"'metadata' needs SamplingMetadata, found {example!r}.")
        return cls(
            vocab_size=size,
            dtypes=logits_dtypes,
            batch_sizes=tuple(sorted(batches)),
            row_stride=size if row_stride is None else whole("row_stride", row_stride, size),
            seeds=bool(seeds),
            logprobs=(None, *dict.fromkeys(widths)),
            row_index=bool(row_index),
            examples=examples,
        )

    @property
    def seedings(self) -> tuple[str, ...]:
        """List the seedings: rows with a seed and with a position."""
        return _SEEDINGS if self.seeds else _SEEDINGS[:1]

    def stage(self, title: str, call: type[Sample], selection: Selection, device: torch.device) -> CallGroups:
        """Make a call of every batch in each dtype, kinds without a supporting backend left out."""
        batches = list(self._batches(selection, device))
        logits_by_dtype = self.logits(max(rows for rows, _ in batches), device)
        calls = [call(logits[:rows], metadata) for logits in logits_by_dtype for rows, metadata in batches]
        return CallGroups(title, [calls], len(calls))

    def logits(self, rows: int, device: torch.device) -> list[Tensor]:
        """Make logits [rows, V] of each dtype, all 0, in one memory: a warmup depends on no values."""
        width = max(dtype.itemsize for dtype in self.dtypes)
        buffer = torch.zeros(rows * self.row_stride * width, dtype=torch.uint8, device=device)
        flat = [buffer.view(dtype)[: rows * self.row_stride] for dtype in self.dtypes]
        return [logits.view(rows, self.row_stride)[:, : self.vocab_size] for logits in flat]

    def kinds(
        self, rows: int, device: torch.device, seedings: Iterable[str], *, by_slot: bool
    ) -> Iterator[SamplingMetadata]:
        """Make every combination of filters, seeds and logprobs, as ``from_params`` lays them out.

        :param by_slot: with a ``row_index`` too, and not only without.
        """
        index = torch.arange(rows, device=device)
        for requests in _requests(min(50, self.vocab_size)):
            for seeded in seedings:
                for wanted in self.logprobs:
                    params = [replace(requests[i % len(requests)], logprobs=wanted) for i in range(rows)]
                    params = [
                        replace(p, seed=i) if seeded == "all" or (seeded == "some" and i % 2) else p
                        for i, p in enumerate(params)
                    ]
                    positions = None if seeded == "none" else index
                    for slots in (None, index)[: 1 + by_slot]:
                        yield SamplingMetadata.from_params(
                            params, device=device, positions=positions, row_index=slots
                        )

    def _batches(self, selection: Selection, device: torch.device) -> Iterator[tuple[int, SamplingMetadata]]:
        if self.examples is not None:
            for example in self.examples:
                own = example.num_rows
                yield from ((rows, example) for rows in (self.batch_sizes if own is None else (own,)))
            return
        for rows in self.batch_sizes:
            for i, metadata in enumerate(self.kinds(rows, device, self.seedings, by_slot=self.row_index)):
                is_plain = i == 0  # drawn in any case: whoever cannot serve that says why
                if is_plain or selection.companion is not None or self._is_served(metadata, selection):
                    yield rows, metadata

    def _is_served(self, metadata: SamplingMetadata, selection: Selection) -> bool:
        return selection.backend.reason_against(Rows(metadata.facts, self.vocab_size)) is None


def _requests(k: int) -> Iterator[tuple[SamplingParams, ...]]:
    """List sets of requests, to alternate in a batch."""
    plain, filtered = SamplingParams(), SamplingParams(temperature=0.8, top_k=k, top_p=0.9)
    greedy, floor = SamplingParams(temperature=0.0), SamplingParams(min_p=0.05)
    yield (plain,)
    yield (SamplingParams(top_k=k),)
    yield (SamplingParams(top_p=0.9),)
    yield (floor,)
    yield (filtered,)
    yield (filtered, plain, greedy, floor)
    yield (replace(filtered, filter_order="joint"), filtered, greedy, floor)
    yield (greedy,)


def whole(name: str, value: Any, least: int) -> int:
    """Check an argument for an integer of at least ``least``.

    :raises InvalidInputError: it is none.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise InvalidInputError(f"'{name}' needs integers >= {least}, found {value!r}.")
    return number


def some_of(name: str, values: Any, what: str, known: Sequence[_Name]) -> tuple[_Name, ...]:
    """Check an argument for a sequence of words among ``known``, and drop repetitions.

    :raises InvalidInputError: it does not.
    """
    return _among(_several(name, values, what), name, known, known)


def some_dtypes(name: str, values: Any, what: str, known: Sequence[str]) -> tuple[torch.dtype, ...]:
    """Check an argument for a sequence of torch dtypes among ``known``, and drop repetitions.

    :raises InvalidInputError: it does not.
    """
    return _among(_several(name, values, what), name, [getattr(torch, each) for each in known], known)


def _among(found: tuple[Any, ...], name: str, known: Sequence[Any], names: Sequence[str]) -> tuple[Any, ...]:
    for value in found:
        if value not in known:
            raise InvalidInputError(f"'{name}' needs {one_of(names)}, found {value!r}.")
    return tuple(dict.fromkeys(found))


def _several(name: str, values: Any, what: str, least: int = 1) -> tuple[Any, ...]:
    try:
        found = None if isinstance(values, (str, bytes)) else tuple(values)
    except TypeError:
        found = None
    if found is None or len(found) < least:
        raise InvalidInputError(f"'{name}' needs a sequence of {what}, found {values!r}.")
    return found
