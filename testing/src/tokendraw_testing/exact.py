"""Exact lines of every operation, written once over its examples.

Calls leave memory alone and wait for nothing, and no layout, thread, batch, graph or later call changes what they
return.
"""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from tokendraw import SamplingMetadata
from tokendraw.plugin import Call
from tokendraw.tools import find_operation
from tokendraw_testing.kit.device import capture, require_no_wait
from tokendraw_testing.kit.property import Properties, Property, Refusal
from tokendraw_testing.kit.threads import RepeatedCall, require_cpu_threads, require_thread_free, thread_words
from tokendraw_testing.kit.trial import (
    Trial,
    bits,
    named_tensors,
    poisoned,
    require_unmodified,
    written_guards,
)
from tokendraw_testing.row_judge import TOLERANCE

Columns = dict[str, Any]
"""What is known of a row of an output, by name; None where noise or rounding decides."""

Examples = Callable[[Any, Generator, int, int], Iterator["Batch"]]
"""Makes batches of an operation in every dtype and of every kind: of about so many rows in a vocabulary."""

_SHAPE: Final = (12, 1101)
"""Rows and an odd vocabulary of more than a tile."""
_MANY_ROWS: Final = (256, 1101)
"""Enough rows for any backend to share them out among threads."""
MANY: Final = 100
"""Rows from which on examples make fewer batches."""
_WIDE_SIZE: Final = 131_113
_BATCHES: Final = (2, 7, 64, 65, 1000)


class Batch(ABC):
    """The requests of a call, each of some rows, and what is known of its output."""

    method: str
    need: Any = None
    """Of the call; None: the usual one."""
    most = 1000
    """Requests of the largest batch that a request is looked at in."""
    edits = False
    """Whether the call edits its logits in place."""
    options: dict[str, Any] = {}  # noqa: RUF012 - of the method, never changed

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __str__(self) -> str: ...

    @abstractmethod
    def select(self, order: Sequence[int]) -> Batch:
        """Take requests by number, in another order or several times."""

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """Make the arguments of the call anew, tensors and dataclasses of them; the logits come first."""

    @abstractmethod
    def columns(self, output: Any) -> list[Columns]:
        """List what is known of each request's output."""

    def state(self) -> dict[str, Any]:
        """Return the tensors read by a call beside its arguments, by name."""
        return {}

    def followed(self, output: Any) -> list[Tensor]:
        """List the tensors of an output that no noise decides."""
        return [tensor for _, tensor in named_tensors("", output)]

    def changing(self, arguments: dict[str, Any]) -> list[Tensor]:
        """List the tensors of some arguments that change between replays of a graph."""
        return [each for each in arguments.values() if isinstance(each, Tensor)]

    def call(self, view: Any, arguments: dict[str, Any] | None = None) -> Call:
        arguments = self.arguments() if arguments is None else arguments
        call: Call = view.new_call(self.method, *arguments.values(), **self.options)
        return call

    def found(self, view: Any) -> list[Columns]:
        """Make the call, and list the known columns of its output."""
        return self.columns(view.make(self.call(view), self.need))


def difference(expected: Sequence[Columns], found: Sequence[Columns]) -> str | None:
    """Describe the first difference of two lists of columns; None if there is none."""
    for index, (needed, row) in enumerate(zip(expected, found, strict=True)):
        for name, value in needed.items():
            if value is not None and row[name] is not None and not _is_alike(value, row[name]):
                return f"{name} of row {index} of {len(expected)} needs {_short(value)}, found {_short(row[name])}"
    return None


def _is_alike(left: Any, right: Any) -> bool:
    left, right = np.asarray(left), np.asarray(right)
    if left.shape != right.shape or left.dtype.kind != "f":
        return np.array_equal(left, right)
    with np.errstate(invalid="ignore"):  # what a filter dropped is -inf in both
        is_near = np.abs(left - right) <= 2 * TOLERANCE * np.maximum(1.0, np.abs(left))
    return bool((is_near | (left == right) | (np.isnan(left) & np.isnan(right))).all())


def _short(value: Any) -> str:
    return str(np.asarray(value).ravel()[:8].tolist()) if np.ndim(value) else str(value)


def lines(
    operation: str,
    prefix: str,
    examples: Examples,
    flat: Callable[[Any], tuple[Batch, str]] | None = None,
    *,
    alike: Examples | None = None,
    device_shape: tuple[int, int] = (64, 32_000),
    graph: bool = True,
) -> tuple[Property, ...]:
    """Return the exact lines of an operation.

    :param prefix: of the lines' names.
    :param flat: makes a batch of rows without seeds over thousands of equal tokens, and names a row of its output.
    :param alike: makes batches for which backends have launches of their own, of rows with like requests; None: those
        of ``examples``. A device that sleeps queues about 1,000 launches, and a call with more of them waits.
    :param device_shape: rows and vocabulary of batches on a CUDA device.
    :param graph: whether a replay of a graph is compared with a fresh call; elsewhere the operation has its own line.
    """
    properties = Properties(operation)

    @properties.required(f"{prefix}inputs unmodified")
    def inputs_unmodified(view: Any, trial: Trial) -> str:
        """Logits, drafts, ids and the tensors of the requests keep every bit."""
        count = 0
        for batch in examples(view, trial.generator("rows"), *_SHAPE):
            arguments = batch.arguments()
            kept = dict([*arguments.items()][batch.edits :])
            with require_unmodified(trial, **kept, **batch.state()):
                view.make(batch.call(view, arguments), batch.need)
            count += 1
        return f"{count} calls"

    @properties.required(f"{prefix}outputs outlive calls")
    def outputs_outlive(view: Any, trial: Trial) -> str:
        """What a call returned stays as it is in the calls after it, of the same shape and of others."""
        outputs: list[tuple[Batch, Any, list[Tensor]]] = []
        for batch in examples(view, trial.generator("rows"), *_SHAPE):
            orders = range(len(batch)), range(len(batch))[::-1], range(len(batch)), range(1)
            for order in orders[:: 1 if view.effort.fewer == 1 else 2]:
                part = batch.select(order)
                output = view.make(part.call(view), part.need)
                outputs.append((part, output, [bits(each).clone() for _, each in named_tensors("", output)]))
        for part, output, before in outputs:
            after = [bits(each) for _, each in named_tensors("", output)]
            is_kept, what = all(map(torch.equal, after, before)), f"the output of {part}"
            trial.require(is_kept, f"{what} needs to stay as it is, found changed by a later call")
        return f"{len(outputs)} calls"

    @properties.required(f"{prefix}strides")
    def strides(view: Any, trial: Trial) -> str:
        """Rows of any stride, with +inf and NaN between them, give what contiguous ones give, and so do parameters."""
        limit, count, num_far = view.capabilities.max_vocab_size, 0, 0
        sizes = (_SHAPE[1], 3, *[v for v in view.effort.crossed_sizes if v > 1 << 16][:1])
        served = [size for size in sizes if size <= (limit or size)] or [limit]
        for size in served[:: view.effort.fewer]:
            rows = view.effort.rows(_SHAPE[0], least=5) if size < 1 << 16 else 3
            batches = list(examples(view, trial.generator(f"rows {size}"), rows, size))
            for batch, layout in itertools.product(batches, _GUARDED):
                _require_layout(view, trial, batch, layout)
            if not (count or view.effort.interpreted):
                narrow = min(batches, key=lambda batch: next(iter(batch.arguments().values())).itemsize)
                # Three rows, or as many as there is memory for.
                parts = ((n, narrow.select(range(n))) for n in (3, 2, 1))
                num_far = next((n for n, part in parts if _require_layout(view, trial, part, _FAR)), 0)
            count += len(batches)
        far = f", {num_far} rows behind 2**31 elements" * bool(num_far)
        return f"{count} batches in {len(served)} vocabularies{far}"

    if hasattr(find_operation(operation).capabilities, "batch_invariant"):

        @properties.advertised(
            f"{prefix}batch invariance",
            lambda c: c.batch_invariant,
            Refusal({"batch_invariant": True}) if operation in ("sample", "verify") else None,
        )
        def batch_invariance(view: Any, trial: Trial) -> str:
            """A request gets the same alone, in any batch, in any place, and beside any others."""
            rng, largest = trial.generator("rows"), max(view.effort.batch_sizes)
            count = max(5, view.effort.rows(2 * _SHAPE[0]))
            for batch in examples(view, rng, count, _SHAPE[1]):
                alone = [batch.select([i]).found(view)[0] for i in range(len(batch))]
                for rows in [n for n in _BATCHES if n <= min(largest, batch.most)]:
                    order = (rng.permutation(rows) % len(batch)).tolist()
                    reason = difference([alone[i] for i in order], batch.select(order).found(view))
                    trial.require(reason is None, f"{batch}: {reason}; needed is what the request alone gets")
            return f"requests alone and in batches of up to {min(largest, batch.most)}"

    @properties.required(f"{prefix}threads")
    def threads(view: Any, trial: Trial) -> str:
        """Large calls give one thread's outputs with several threads, and in two at once."""
        require_cpu_threads(view, trial)
        rng, limit = trial.generator("rows"), view.capabilities.max_vocab_size or _WIDE_SIZE
        batches = list(examples(view, rng, _MANY_ROWS[0], min(_MANY_ROWS[1], limit)))
        if not view.effort.fewer > 1 and operation == "sample":
            batches += itertools.islice(examples(view, rng, 6, min(_WIDE_SIZE, limit)), 1)
        for turn, batch in enumerate(batches):
            calls = [_repeated(view, part) for part in (batch, batch.select(range(len(batch))[::-1]))]
            of_need = view if batch.need is None else view.with_need(logprobs_mode=batch.need.logprobs_mode)
            require_thread_free(of_need, trial, str(batch), calls, turn)
        return f"{len(batches)} batches of {_MANY_ROWS[0]} rows, {thread_words()}"

    @properties.promised(f"{prefix}sync-free", "sync_free")
    def sync_free(view: Any, trial: Trial) -> str:
        """No call waits for the device: by torch's own check, and by a stopwatch behind a sleeping device."""
        count = 0
        for batch in (alike or examples)(view, trial.generator("rows"), *device_shape):
            require_no_wait(trial, str(batch), _work(view, batch.call(view), batch.need))
            count += 1
        return f"{count} kinds of batches"

    if graph:

        @properties.promised(f"{prefix}graph capture", "graph_safe")
        def graph_capture(view: Any, trial: Trial) -> str:
            """A captured call follows logits, ids and positions that change in place, and draws anew at each replay."""
            count, rng = 0, trial.generator("rows")
            makers = [examples] if alike is None else [examples, alike]
            for batch in itertools.chain(*(make(view, rng, *device_shape) for make in makers)):
                arguments = batch.arguments()
                call, need = batch.call(view, arguments), batch.need or view.usual_need
                work = _work(view, call, need)
                replay, output = capture(work)
                for step in (1, 2):
                    for tensor in batch.changing(arguments):
                        tensor.copy_(tensor.clone().roll(step, 0))
                    expected = [each.cpu() for each in batch.followed(work())]
                    replay()
                    reason = call.output_check(need)(output) or call.wrong_values(output, need)
                    trial.require(reason is None, f"{batch}: a replay needs to return {reason}")
                    found = [each.cpu() for each in batch.followed(output)]
                    is_same = all(map(torch.equal, map(bits, found), map(bits, expected)))
                    what = f"{batch}: a replay needs the output of a fresh call, found another"
                    trial.require(is_same, what)
                count += 1
            if flat is not None:
                batch, words = flat(view)
                replay, output = capture(_work(view, batch.call(view), batch.need))
                draws = []
                for _ in range(3):
                    replay()
                    draws.append(output.token_ids.cpu().view(len(batch), -1))
                for left, right in itertools.combinations(draws, 2):
                    num_repeated = int((left == right).all(1).sum())
                    what = f"{num_repeated} of {len(batch)} {words} again"
                    trial.require(num_repeated <= 3, f"replays need to draw anew, found {what}")
            return f"{count} kinds of batches"

    return tuple(properties.all)


def _work(view: Any, call: Call, need: Any) -> Callable[[], Any]:
    """Return a call without the checks of the kit, because the checks wait."""
    backend = view.built(need)

    @torch.no_grad()
    def work() -> Any:
        return call.run(backend)

    return work


def _repeated(view: Any, batch: Batch) -> RepeatedCall:
    known = list[list[Columns]]()  # of the first output, which all others are compared with

    def differs(first: Any, output: Any) -> str | None:
        known.extend([batch.columns(first)] * (not known))
        return difference(known[0], batch.columns(output))

    return RepeatedCall(functools.partial(batch.call, view), differs)


# Layouts.

_Layout = tuple[str, Callable[[int], int], int]
"""In words; the elements from row to row, for a vocabulary; those in front of the first row."""
_GUARDED: Final[tuple[_Layout, ...]] = (
    ("rows of a wider buffer", lambda size: size + 37, 5),
    ("every other row", lambda size: 2 * size, 0),
)
_FAR: Final[_Layout] = "rows 2**30 elements apart", lambda size: 1 << 30, 0
"""The third row begins 2**31 elements behind the first."""


def _require_layout(view: Any, trial: Trial, batch: Batch, layout: _Layout) -> bool:
    """Require equal outputs from another layout; tell whether there is memory for the layout."""
    expected, arguments, buffers = batch.found(view), batch.arguments(), list[Tensor]()
    words, stride_of, offset = layout

    def laid_out(rows: Tensor) -> Tensor:
        count, size = rows.shape
        stride = stride_of(size)
        if layout is _FAR:  # memory that is never written to is not there yet on a CPU
            made = rows.new_empty((count - 1) * stride + size + 1).as_strided((count, size), (stride, 1))
        else:
            made = poisoned(count, size, stride, offset, rows.dtype, rows.device)
            buffers.append(made)
        return made.copy_(rows)

    try:
        given = {name: _laid_out(value, laid_out) for name, value in arguments.items()}
    except RuntimeError:  # no memory for 2**31 elements
        return False
    what = f"{batch}, {words}"
    reason = difference(expected, batch.columns(view.make(batch.call(view, given), batch.need)))
    trial.require(reason is None, f"{what}: {reason}, as of contiguous ones")
    is_kept = not any(map(written_guards, buffers))
    trial.require(is_kept, f"{what}: memory beside them needs to stay as it is")
    return True


def _laid_out(value: Any, layout: Callable[[Tensor], Tensor]) -> Any:
    """Lay out the rows of a value, and columns of parameters as every other entry of a buffer."""
    if isinstance(value, SamplingMetadata):
        columns = {f.name: getattr(value, f.name) for f in fields(value)}
        spread = {n: _spread(c) for n, c in columns.items() if isinstance(c, Tensor) and c.dim() == 1}
        return replace(value, **spread)  # type: ignore[arg-type]
    if isinstance(value, Tensor) and value.dim() == 2 and len(value):
        return layout(value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: getattr(value, f.name) for f in fields(value)}
        is_rows = {n: isinstance(part, Tensor) and part.is_floating_point() for n, part in parts.items()}
        return replace(value, **{n: _laid_out(part, layout) for n, part in parts.items() if is_rows[n]})
    return value


def _spread(column: Tensor) -> Tensor:
    buffer = column.repeat_interleave(2)
    buffer[1::2] = column.flip(0)
    return buffer[::2]
