"""Ranks of gloo, each in a process forked after the import of torch and tokendraw."""

import atexit
import functools
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

SECONDS = 60
"""After so many a call of all ranks counts as one that hangs, and they are ended."""
_PRELOADED = ["torch.distributed", "tokendraw.operations.row_methods", "gloo_world"]


class World:
    """A group of ranks for functions of a test."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        self._folder = tempfile.TemporaryDirectory()
        store = os.path.join(self._folder.name, "store")  # noqa: PTH118 (a name for torch)
        self._ends, self._processes = [], []
        for rank in range(size):
            own, other = context.Pipe()
            process = context.Process(target=_serve, args=(other, rank, size, store), daemon=True)
            process.start()
            other.close()
            self._ends.append(own)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call ``function(rank, *arguments)`` of an importable module on every rank; return the results by rank.

        :raises AssertionError: a rank raised, with its traceback, or they took too long.
        """
        for end in self._ends:
            end.send((function, arguments))
        returned: dict[int, Any] = {}
        while len(returned) < len(self._ends):
            missing = [end for rank, end in enumerate(self._ends) if rank not in returned]
            ready = wait(missing, timeout=SECONDS)
            if not ready:
                late = [rank for rank in range(len(self._ends)) if rank not in returned]
                self.end()
                raise AssertionError(f"ranks {late} of {len(self._ends)} hang in {function.__name__}")
            for end in ready:
                assert isinstance(end, Connection)
                returned[self._ends.index(end)] = end.recv()
        for rank in sorted(returned):
            ok, value = returned[rank]
            assert ok, f"rank {rank} of {len(self._ends)}:\n{value}"
        return [returned[rank][1] for rank in sorted(returned)]

    def end(self) -> None:
        """End the processes."""
        world.cache_clear()
        for process in self._processes:
            process.kill()
            process.join()
        self._folder.cleanup()


@functools.cache
def world(size: int) -> World:
    """Return the cached world of ``size`` ranks."""
    made = World(size)
    atexit.register(made.end)
    return made


def _serve(end: Connection, rank: int, size: int, store: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=2 * SECONDS),
    )
    while True:
        try:
            function, arguments = end.recv()
        except EOFError:
            return
        try:
            end.send((True, function(rank, *arguments)))
        except BaseException:
            end.send((False, traceback.format_exc()))
