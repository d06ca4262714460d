"""Makes up the calls of a warmup and makes them, so that no request waits for a kernel to be compiled or loaded.

Kernels are compiled, or loaded, when they are first launched, and anew for another dtype of the logits, another layout
of their rows and another set of parameters. A verification depends, beside these, on its mode, on what is known of the
drafts' distribution, on how their ids lie and, by powers of two, on the most drafts of a request; an edit on the dtypes
of all indices, on the drafts, and on which edits occur together.
"""

from __future__ import annotations

import contextlib
import logging
import operator
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from itertools import compress, product
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tokendraw._torch.tensors import is_capturing
from tokendraw.backends.description import INPUT_DTYPES, Operation
from tokendraw.calls.call import Call
from tokendraw.calls.dispatch import dispatch
from tokendraw.calls.negotiator import Negotiator, random_state_kept
from tokendraw.calls.routing import Selection, is_served
from tokendraw.calls.rows import RowCall
from tokendraw.errors import InvalidInputError, one_of
from tokendraw.output import PAD_TOKEN_ID
from tokendraw.parameters.drafts import Drafts
from tokendraw.parameters.fields import FILTER_PARAMETERS
from tokendraw.parameters.metadata import SamplingMetadata
from tokendraw.parameters.params import SamplingParams

_log = logging.getLogger("tokendraw")
_Fields: TypeAlias = dict[str, Any]
_EDITS: tuple[_Fields, ...] = (
    {"repetition_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": 0.1, "penalty_last_n": 1},
    {"logit_bias": {0: 1.0}},
    {"allowed_token_ids": [0]},
    {"bad_words": [[0]]},
    {"min_tokens": 1, "stop_token_ids": [0]},
    {"dry_multiplier": 1.0, "thinking_budget": (0, [0], [0])},
)
"""Fields of a request that are asked for together, in every combination with the others."""
_DraftForm: TypeAlias = tuple[torch.dtype, torch.dtype, bool]
"""Dtypes of the drafts' ids and offsets, and whether the ids are padded."""
CallGroup: TypeAlias = tuple[str, int, Iterable[Sequence[Call]]]
"""Title, number of calls, and lists of calls: those of a list are made side by side, when those before are over."""
CallGroups: TypeAlias = Callable[[Selection], Iterable[CallGroup]]


def warm_up(
    negotiator: Negotiator, warmups: Sequence[tuple[Operation, CallGroups]], *, progress: bool | None
) -> float:
    """Make the calls of each warmup in several threads, and restore torch's random state and the counted rows."""
    if is_capturing():
        raise InvalidInputError(
            "'warmup' needs a stream that captures no CUDA graph, found one that does: its calls would become "
            "part of the graph. Call it before the capture."
        )
    start = time.perf_counter()
    for operation, _ in warmups:
        negotiator.select(operation)
    device = torch.empty(0, device=negotiator.device, dtype=torch.float32).device  # with its index
    if not (most := max_calls_in_flight(device)):
        _log.info("warmup calls nothing: on %s there is nothing to compile", device)
        return 0.0
    stream = None if device.type == "cpu" else torch.accelerator.current_stream(device)
    rows, context = negotiator.stats(), copy_context()

    def begin_thread() -> None:
        torch.set_grad_enabled(False)
        if stream is not None:
            torch.accelerator.set_stream(stream)

    def make(operation: Operation, selection: Selection, call: Call) -> None:
        if negotiator.select(operation) is selection:
            context.copy().run(dispatch, negotiator, operation, call)

    with (
        random_state_kept(device),
        torch.no_grad(),
        _progress_line(progress) as show,
        ThreadPoolExecutor(most, initializer=begin_thread) as pool,
    ):
        for operation, groups in warmups:
            selection = None
            while selection is not negotiator.select(operation):  # a successor starts from the beginning
                selection = negotiator.select(operation)
                for title, total, parts in groups(selection):
                    count_one = show(title, total)
                    for part in parts:
                        for _ in pool.map(partial(make, operation, selection), part):
                            count_one()
    negotiator.restore_stats(rows)
    if stream is not None:
        torch.accelerator.synchronize(device)
    return time.perf_counter() - start


def max_calls_in_flight(device: torch.device) -> int:
    """Return the limit of parallel calls; 0 on a CPU, where samplers have nothing to compile or load.

    Most calls wait for a kernel that another one compiles, so the limit is far above the number of cores. Threads that
    parse source at once, as Triton does, make Python 3.11 raise.
    """
    if device.type == "cpu":
        return 0
    return 64 if sys.hexversion >= 0x030C0000 else 1


@contextlib.contextmanager
def _progress_line(is_shown: bool | None) -> Iterator[Callable[[str, int], Callable[[], object]]]:
    """Show a title beside a count with a total on stderr, by a function that returns the one that adds one."""
    if not (sys.stderr.isatty() if is_shown is None else is_shown):
        yield lambda title, total: lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("tokendraw warms up: {task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as line:
        yield lambda title, total: partial(line.advance, line.add_task(title, total=total))


class Batches:
    """The batches of a warmup, from the checked arguments of :meth:`tokendraw.Sampler.warmup`."""

    def __init__(
        self,
        device: torch.device,
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
        self.device, self.vocab_size = device, checked_integer("vocab_size", vocab_size, 1)
        permitted = [getattr(torch, name) for name in INPUT_DTYPES]
        self.dtypes = checked_choices("dtypes", dtypes, "dtypes of logits", permitted)
        sizes = _items("batch_sizes", batch_sizes, "numbers")
        # Ascending, so that the first, which may be drawn from a copy, is small.
        self.batch_sizes = sorted({checked_integer("batch_sizes", size, 1) for size in sizes})
        stride = self.vocab_size if row_stride is None else row_stride
        self.row_stride = checked_integer("row_stride", stride, self.vocab_size)
        # Rows that have a seed; those of ``none`` have no position either.
        self.seedings = ("none", "positions", "some", "all") if seeds else ("none",)
        counts = _items("logprobs", logprobs, "numbers", least=0)
        self.logprobs = dict.fromkeys((None, *(checked_integer("logprobs", n, -1) for n in counts)))
        self.row_index = bool(row_index)
        self.examples = None if metadata is None else _items("metadata", metadata, "SamplingMetadata")
        for example in self.examples or ():
            if not isinstance(example, SamplingMetadata):
                raise InvalidInputError(f"'metadata' needs SamplingMetadata, found {example!r}.")

    def logits(self, rows: int) -> list[Tensor]:
        """Make logits [rows, V] of each dtype, all 0, in one memory: a warmup depends on no values."""
        width = max(dtype.itemsize for dtype in self.dtypes)
        buffer = torch.zeros(rows * self.row_stride * width, dtype=torch.uint8, device=self.device)
        flat = [buffer.view(dtype)[: rows * self.row_stride] for dtype in self.dtypes]
        return [logits.view(rows, self.row_stride)[:, : self.vocab_size] for logits in flat]

    def drawn(self, title: str, call: Callable[..., RowCall], selection: Selection) -> Iterator[CallGroup]:
        """Draw every batch in each dtype, kinds without a supporting backend left out."""
        batches, calls = list(self._each(self.seedings, self.row_index)), []
        for logits in self.logits(max(rows for rows, _ in batches)):
            for i, (rows, metadata) in enumerate(batches):
                draw = call(logits[:rows], metadata)
                # The plainest is drawn in any case, to report what no backend supports.
                is_drawn = i == 0 or self.examples is not None or selection.companions
                calls += [draw] if is_drawn or is_served(selection, draw) else []
        yield title, len(calls), (calls[:1], calls[1:])

    def verified(
        self, call: Callable[..., Call], max_drafts: int, ways: list[tuple[str, str]], selection: Selection
    ) -> Iterator[CallGroup]:
        """Draw drafts for every batch, and judge them in ``ways``: modes, each with a kind of draft distribution."""
        yield from self.drawn("drafts", partial(RowCall, is_draft=True), selection)
        batches, calls, kinds = list(self._with_drafts(max_drafts)), [], {kind for _, kind in ways}
        rows, most = (max(column) for column in zip(*(each[:2] for each in batches), strict=True))
        shape = (most * ("probs" in kinds), self.vocab_size)
        uniform = torch.full(shape, 1 / self.vocab_size, device=self.device, dtype=torch.float32)
        memory = zip(self.logits(rows), self.logits(most * ("logits" in kinds)), strict=True)
        for (target, q), (rows, count, chosen, metadata, is_required) in product(memory, batches):
            distributions: dict[str, Any] = {"probs": uniform[:count], "logits": q[:count]}
            # An empty draft has no distribution.
            for mode, kind in ways if count else dict.fromkeys((mode, "chosen") for mode, _ in ways):
                given = {} if kind == "chosen" else {f"draft_{kind}": distributions[kind]}
                drafts = replace(chosen, **given)
                vague = replace(drafts, num_drafts=None, any_placeholder=True)
                # A companion may get drafts of which the host knows little.
                for each in (drafts, vague)[: 1 + bool(selection.companions)]:
                    verification = call(target[:rows], each, metadata, mode=mode)
                    is_verified = (is_required and each is drafts) or is_served(selection, verification)
                    calls += [verification] if is_verified else []
        yield "verifications", len(calls), (calls[:1], calls[1:])

    def edited(
        self,
        call: Callable[..., Call],
        make_slots: Callable[..., Any],
        index_dtypes: Sequence[torch.dtype],
        max_drafts: int,
        bitmask: bool,
        selection: Selection,
    ) -> Iterator[CallGroup]:
        """Edit logits in every combination, or report what no processor serves; ``max_drafts`` may be 0.

        Requests that the chosen processor serves come before all those that its companion may get.
        """
        most, device, capabilities = max(self.batch_sizes), self.device, selection.backend.capabilities
        families = [(_EDITS, bitmask)]
        if capabilities is not None:
            names = {*capabilities.edits, *(["stop_token_ids"] if "min_tokens" in capabilities.edits else [])}
            served = [{name: edit[name] for name in edit if name in names} for edit in _EDITS]
            own = (tuple(filter(None, served)), bitmask and "bitmask" in names)
            families = [own, *families[: bool(selection.companions)]]
        requests = [
            ({name: value for edit in compress(edits, chosen) for name, value in edit.items()}, is_masked)
            for edits, may_be_masked in families
            for *chosen, is_masked in product((True, False), repeat=len(edits) + 1)
            if (is_masked or any(chosen)) and is_masked <= may_be_masked
        ]
        layouts = [None, *product(index_dtypes, index_dtypes, (False, True))][: None if max_drafts else 1]
        forms = [
            (torch.arange(n, dtype=dtype, device=device), form and _drafts([max_drafts] * n, form, device))
            for n, dtype, form in product(self.batch_sizes, index_dtypes, layouts)
        ]

        def edits() -> Iterator[Sequence[Call]]:
            slots = make_slots(most, 8, self.vocab_size, device=device)
            memory = self.logits(most * (1 + max_drafts))
            words = memory[0].new_full((len(memory[0]), -(-self.vocab_size // 32)), -1, dtype=torch.int32)
            for logits, (fields, is_masked) in product(memory, requests):
                slots.add(0, SamplingParams(**fields), prompt_token_ids=[0])
                for index, drafts in forms:
                    rows = len(index) if drafts is None else drafts.num_rows
                    mask = words[:rows] if is_masked else None
                    # One after the other: they edit the same logits, for requests in the same slots.
                    yield [call(logits[:rows], slots, index, mask, drafts)]
                slots.remove(0)

        yield "edits", len(self.dtypes) * len(requests) * len(forms), edits()

    def _each(self, seedings: Iterable[str], by_slot: bool = False) -> Iterator[tuple[int, SamplingMetadata]]:
        """Make examples; or every combination of filters, seeds and logprobs, ``by_slot`` with a ``row_index`` too.

        The plainest comes first, each with its number of rows or requests.
        """
        device = self.device
        for example in self.examples or ():
            rows = example.num_rows
            yield from ((n, example) for n in (self.batch_sizes if rows is None else (rows,)))
        for rows in self.batch_sizes if self.examples is None else ():
            index = torch.arange(rows, device=device)
            for requests, seeding, count in product(_requests(self.vocab_size), seedings, self.logprobs):
                params = [replace(requests[row % len(requests)], logprobs=count) for row in range(rows)]
                for row in {"some": range(1, rows, 2), "all": range(rows)}.get(seeding, ()):
                    params[row] = replace(params[row], seed=row)
                positions = None if seeding == "none" else index
                describe = partial(SamplingMetadata.from_params, params, device=device, positions=positions)
                yield from ((rows, describe(row_index=slots)) for slots in (None, index)[: 1 + by_slot])

    def _with_drafts(self, most: int) -> Iterator[tuple[int, int, Drafts, SamplingMetadata, bool]]:
        """Make batches with K drafts and fewer, with flat and with padded ids; last, without drafts.

        How ids lie and how many there are has little to do with seeds, so but for one layout, none meets batches in
        which some rows have a seed. Kernels are compiled for numbers of steps that are powers of two from 8 on.

        :returns: numbers of rows and drafts, both, and whether they are verified in any case, as in :meth:`drawn`.
        """
        widths = (most, *(steps - 1 for steps in (8 << n for n in range(8)) if steps <= most))
        for width, is_padded in (*product(widths, (False, True)), (0, False)):
            is_main = width == most and not is_padded  # with every seeding
            seedings = self.seedings if is_main else dict.fromkeys((self.seedings[0], self.seedings[-1]))
            # Rows that are verified have a row_index in any case, so parameters by slot are no other kind.
            for i, (rows, metadata) in enumerate(self._each(seedings)):
                counts, by_row = [width] * rows, metadata.row_index is not None
                if by_row:  # as many requests as these rows make
                    requests, rest = divmod(rows, width + 1)
                    counts = [width] * requests + ([rest - 1] if rest else [])
                is_required = is_main and not by_row and (i == 0 or self.examples is not None)
                drafts = _drafts(counts, (torch.int64, torch.int64, is_padded), self.device)
                yield sum(counts) + len(counts), sum(counts), drafts, metadata, is_required


def _requests(vocab_size: int) -> Iterator[tuple[SamplingParams, ...]]:
    examples: _Fields = {p.name: p.example for p in FILTER_PARAMETERS}
    examples["top_k"] = k = min(examples["top_k"], vocab_size)
    alone = {name: SamplingParams(**{name: value}) for name, value in examples.items()}
    plain, greedy = SamplingParams(), SamplingParams(temperature=0.0)
    filtered = SamplingParams(temperature=0.8, top_k=k, top_p=examples["top_p"])
    yield (plain,)
    yield from ((params,) for params in alone.values())
    yield (filtered,)
    yield (filtered, plain, greedy, alone["min_p"])
    yield (replace(filtered, filter_order="joint"), filtered, greedy, alone["min_p"])
    yield (replace(filtered, filter_order="temperature_last"),)
    yield (greedy,)


def _drafts(counts: Sequence[int], form: _DraftForm, device: torch.device) -> Drafts:
    """Make drafts without a distribution, and with everything known to the host."""
    (ids, offsets, is_padded), widest = form, max(counts, default=0)
    padded = [[0] * count + [PAD_TOKEN_ID] * (widest - count) for count in counts]
    tokens = torch.tensor(padded if is_padded else [0] * sum(counts), dtype=ids, device=device)
    drafts = Drafts.from_counts(tokens, counts, any_placeholder=False)
    return replace(drafts, cu_num_logits=drafts.cu_num_logits.to(offsets))


def checked_integer(name: str, value: Any, least: int) -> int:
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise InvalidInputError(f"'{name}' needs integers >= {least}, found {value!r}.")
    return number


def checked_choices(name: str, values: Any, what: str, permitted: Sequence[Any]) -> tuple[Any, ...]:
    """Check an argument for a sequence of permitted values, described by ``what``, and drop repetitions."""
    items = _items(name, values, what)
    for value in items:
        if value not in permitted:
            names = [str(each).removeprefix("torch.") for each in permitted]
            raise InvalidInputError(f"'{name}' needs {one_of(names)}, found {value!r}.")
    return tuple(dict.fromkeys(items))


def _items(name: str, values: Any, what: str, least: int = 1) -> tuple[Any, ...]:
    try:
        items = None if isinstance(values, (str, bytes)) else tuple(values)
    except TypeError:
        items = None
    if items is None or len(items) < least:
        raise InvalidInputError(f"'{name}' needs a sequence of {what}, found {values!r}.")
    return items
