"""Kernels of triton-gumbel that compile and launch nothing, and note what they would have."""

import threading
import time
from functools import cache

import pytest
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from tokendraw_triton_gumbel import logprobs
from tokendraw_triton_gumbel import plan as triton_plan

SOURCES = {
    "tile_statistics": triton_plan,
    "draw_rows": triton_plan,
    "draw_wide": triton_plan,
    "check_probs": triton_plan,
    "accept_drafts": triton_plan,
    "row_logprobs": logprobs,
    "count_ranks": logprobs,
}


@cache
def binder(kernel):
    """Triton's own function for what a kernel is compiled for, by its arguments: on an H200."""
    return create_function_from_signature(
        kernel.signature, kernel.params, make_backend(GPUTarget("cuda", 90, 32))
    )


class Compiled:
    """What Triton makes of a kernel. Notes its launches."""

    def __init__(self, launches):
        self.launches = launches

    def __getitem__(self, grid):
        return lambda *arguments: self.launches.append((grid, arguments))


class Kernel:
    """Stands for a kernel, and keeps what it compiled as Triton does: by its own key, and without a lock."""

    def __init__(self, original, seconds=0.0):
        self.original, self.seconds = original, seconds
        self.params, self.arg_names = original.params, original.arg_names
        self.compilations, self.launches = [], []
        self.error = None
        self._compiled = {}

    def __getitem__(self, grid):
        def launch(*arguments, **named):
            constants = [named[name] for name in self.arg_names if name in named]
            self.warmup(*arguments, grid=grid, **named)[grid](*arguments, *constants)

        return launch

    def warmup(self, *arguments, grid, **named):
        _, specialization, options = binder(self.original)(*arguments, **named)
        key = str((specialization, options))
        found = self._compiled.get(key)
        if found is None:
            self.compilations.append((key, threading.get_ident()))
            time.sleep(self.seconds)
            if self.error is not None:
                raise self.error
            found = self._compiled[key] = Compiled(self.launches)
        return found


@pytest.fixture
def kernels(monkeypatch):
    """All kernels by name."""
    found = {}
    for name, module in SOURCES.items():
        found[name] = Kernel(getattr(module, name))
        monkeypatch.setattr(module, name, found[name])
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    return found


def compilations(kernels):
    """How many of each kernel there were."""
    return {name: len(kernel.compilations) for name, kernel in kernels.items()}
