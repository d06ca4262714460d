"""Shares the chunks of a batch's rows out among threads; each thread runs torch's operations alone.

torch's own threads meet at the end of each operation and spin until the last one arrives. Where other programs have
the cores, each of a call's hundred meetings waits for a turn of the scheduler. Here a thread takes a chunk of rows,
runs all operations of the chunk, and takes the next one, so a preempted thread holds up one chunk. The threads meet at
the end of a batch: the calling thread, which takes chunks too, sleeps until the last one is done.

Helper threads live as long as one batch is computed: a fork and the end of the interpreter find none at rest. Their
buffers stay for the next batch: on a CPU, fresh memory costs more than the arithmetic done on it.
"""

from __future__ import annotations

import _thread
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import torch
from torch import Tensor

from tokendraw.plugin import one_thread


class Buffers:
    """Hands out buffers by name. Taking a name again hands out the same memory, so its previous contents are lost."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[str, Tensor] = {}
        self._views: dict[str, tuple[tuple[int, int, torch.dtype], Tensor]] = {}

    def take(self, name: str, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        """Return an uninitialised buffer [rows, columns]; a repeated shape takes no operation of torch."""
        shape = rows, columns, dtype
        cached = self._views.get(name)
        if cached is not None and cached[0] == shape:
            return cached[1]
        with torch.inference_mode(False):  # so that calls inside and outside of that mode can write to it
            size, buffer = rows * columns, self._buffers.get(name)
            if buffer is None or len(buffer) < size or buffer.dtype != dtype:
                buffer = self._buffers[name] = torch.empty(size, dtype=dtype, device=self._device)
            view = buffer[:size].view(rows, columns)
        self._views[name] = shape, view
        return view

    def like(self, name: str, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Return an uninitialised buffer with the shape of ``x`` [rows, columns], by default with its dtype too."""
        return self.take(name, x.shape[0], x.shape[1], dtype or x.dtype)


_idle: deque[Buffers] = deque()
"""Buffers of CPUs that no thread uses, the last used ones at the end."""


@contextlib.contextmanager
def borrow(device: torch.device) -> Iterator[Buffers]:
    """Lend buffers to the calling thread. Those of CPUs outlive the call: for fresh memory the system clears pages."""
    if device.type != "cpu":
        yield Buffers(device)
        return
    try:
        buffers = _idle.pop()
    except IndexError:
        buffers = Buffers(device)
    yield buffers
    _idle.append(buffers)  # not after an error, which may have left a part of them to somebody


_T = TypeVar("_T")

CHUNK_LOGITS = 1 << 19
"""Logits of a chunk of rows on a CPU: what its caches hold."""
_DEVICE_CHUNK_LOGITS = 1 << 24
"""Logits of a chunk of rows on other devices: what fills the device."""


class _ThreadState(threading.local):
    """The state of a calling thread."""

    threads = 1
    """Number of threads that share chunks, this one included."""


_thread_state = _ThreadState()


@contextlib.contextmanager
def share_threads(logits: Tensor) -> Iterator[None]:
    """Run torch's operations on the calling thread alone, and chunks on as many threads as torch has.

    Batches of one chunk stay on the calling thread. Devices other than CPUs are left as they are.

    :param logits: the batch, [rows, V].
    """
    if logits.device.type != "cpu":
        yield
        return
    previous, threads = _thread_state.threads, torch.get_num_threads()
    with one_thread():
        _thread_state.threads = threads if logits.numel() > CHUNK_LOGITS else 1
        try:
            yield
        finally:
            _thread_state.threads = previous


def map_chunks(
    compute: Callable[[slice, Buffers], _T], rows: int, logits: Tensor, chunk_logits: int = CHUNK_LOGITS
) -> list[_T]:
    """Compute the results of chunks of rows of V logits, as :func:`map_steps` does.

    :param logits: [_, V], of the same V and device as the rows.
    :param chunk_logits: logits of a chunk on a CPU.
    """
    size = chunk_logits if logits.device.type == "cpu" else _DEVICE_CHUNK_LOGITS
    return map_steps(compute, rows, size // logits.shape[1], logits.device)


def map_steps(
    compute: Callable[[slice, Buffers], _T], rows: int, step: int, device: torch.device
) -> list[_T]:
    """Compute the results of successive chunks of ``step`` rows, in their order. No rows are one empty chunk.

    :param compute: called with the rows of a chunk, and with buffers that the chunks of a thread reuse.
    :param step: at least one row is taken.
    :raises BaseException: the first exception of a chunk; the chunks that have not begun are then left out.
    """
    step = max(1, step)
    parts = [slice(start, min(start + step, rows)) for start in range(0, max(rows, 1), step)]
    helpers = min(_thread_state.threads, len(parts)) - 1
    if helpers < 1:
        with borrow(device) as buffers:
            return [compute(part, buffers) for part in parts]
    return _Batch(compute, parts, device).run(helpers)


class _Batch(Generic[_T]):
    """A queue of chunks, and the results of several threads."""

    def __init__(
        self, compute: Callable[[slice, Buffers], _T], parts: list[slice], device: torch.device
    ) -> None:
        self._compute = compute
        self._device = device
        self._queue = deque(enumerate(parts))
        self._results: dict[int, _T] = {}
        self._error: BaseException | None = None
        self._remaining = len(parts)
        self._lock = threading.Lock()
        self._finished = threading.Event()
        self._modes = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def run(self, helpers: int) -> list[_T]:
        """Compute all chunks on the calling thread and on ``helpers`` new threads."""
        for _ in range(helpers):
            try:
                _thread.start_new_thread(self._help, ())  # threading.Thread would wait for its first turn
            except RuntimeError:  # the system has no more threads, or the interpreter ends
                break
        try:
            self._take_chunks()
            self._finished.wait()
        finally:
            self._queue.clear()  # an interrupt may leave some
        if self._error is not None:
            raise self._error
        return [self._results[index] for index in range(len(self._results))]

    def _help(self) -> None:
        """Compute chunks on a new thread, in the autograd modes of the calling thread."""
        inference, grad = self._modes
        with one_thread(), torch.inference_mode(inference), torch.set_grad_enabled(grad):
            self._take_chunks()

    def _take_chunks(self) -> None:
        with borrow(self._device) as buffers:
            while True:
                try:
                    index, part = self._queue.popleft()
                except IndexError:
                    return
                try:
                    if self._error is None:
                        self._results[index] = self._compute(part, buffers)
                except BaseException as error:
                    self._error = error
                with self._lock:
                    self._remaining -= 1
                    if not self._remaining:
                        self._finished.set()
