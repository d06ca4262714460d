"""Kernels of triton-gumbel that compile and launch nothing, and note what they would have."""

import threading
import time
from functools import cache

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from tokendraw import Need
from tokendraw_triton_gumbel.host import compile_lock
from tokendraw_triton_gumbel.launches import draw, logits_processing, logprobs, paged_kv, verify
from tokendraw_triton_gumbel.ranks import column_launches, merge_launches, search_launches
from tokendraw_triton_gumbel.sampler import TritonGumbelSampler
from triton_on_a_cpu import TARGETS

SOURCES = {
    "tile_statistics": draw,
    "draw_rows": draw,
    "draw_large_sets": draw,
    "check_probs": verify,
    "accept_drafts": verify,
    "row_logprobs": logprobs,
    "count_ranks": logprobs,
    "write_plan": paged_kv,
    "process_logits": logits_processing,
    "merge_draws": merge_launches,
    "find_thresholds": merge_launches,
    "next_digit": merge_launches,
    "shard_statistics": column_launches,
    "weigh_kept": column_launches,
    "draw_shard": column_launches,
    "survey_columns": search_launches,
    "add_by_digit": search_launches,
}


@cache
def binder(kernel):
    """Triton's own function for what a kernel is compiled for, by its arguments: on an H200."""
    return create_function_from_signature(
        kernel.signature, kernel.params, make_backend(GPUTarget("cuda", 90, 32))
    )


class Compiled:
    """What Triton makes of a kernel. Notes its launches."""

    function, packed_metadata = "the function", "its metadata"

    def __init__(self, launches):
        self.launches = launches
        self.direct_launches = []

    def run(self, *arguments):
        """The launcher that Triton made, which is given the grid, stream, function, metadata and hooks in front."""
        self.direct_launches.append(arguments[:9])
        self.launches.append((arguments[:3], arguments[9:]))

    def __getitem__(self, grid):
        return lambda *arguments: self.launches.append((grid, arguments))


class Kernel:
    """Stands for a kernel, and keeps what it compiled as Triton does: by its own key, and without a lock."""

    def __init__(self, original, seconds=0.0):
        self.original, self.seconds, self.__name__ = original, seconds, original.__name__
        self.params, self.arg_names = original.params, original.arg_names
        self.constants = sum(param.is_constexpr for param in original.params)
        """How many constants there are behind the arguments."""
        self.compilations, self.launches = [], []
        self.calls = []
        """Kernel, arguments and what is named of each compilation, as triton_on_a_cpu.compiled_call takes them."""
        self.error = None
        self.begin = self.end = lambda: None
        """Called where a compilation begins and where it ends."""
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
            self.calls.append((self.original, arguments, named))
            self.begin()
            time.sleep(self.seconds)
            self.end()
            if self.error is not None:
                raise self.error
            found = self._compiled[key] = Compiled(self.launches)
        return found


def use_stand_ins(patch, folder):
    """Put a stand-in in the place of every kernel: all of them by name.

    :param folder: of the locks, so that no other process waits for these compilations.
    """
    patch.setattr(compile_lock, "_folder", lambda: folder)
    stand_ins = {}
    for name, module in SOURCES.items():
        stand_ins[name] = Kernel(getattr(module, name))
        patch.setattr(module, name, stand_ins[name])
    patch.delenv("TRITON_INTERPRET", raising=False)
    return stand_ins


@pytest.fixture
def kernels(monkeypatch, tmp_path):
    """All kernels by name."""
    return use_stand_ins(monkeypatch, tmp_path)


def compilations(kernels):
    """How many of each kernel there were."""
    return {name: len(kernel.compilations) for name, kernel in kernels.items()}


def sampler_for(target, **need):
    """A sampler that launches for a target, on the CPU's tensors: with the stand-ins, nothing runs."""
    sampler = TritonGumbelSampler(torch.device("cpu"), Need(**need))
    sampler._target = sampler._target._replace(family=TARGETS[target][0], processors=132)
    return sampler


def flat(arguments):
    """The arguments of a launch, and the fields of those that are groups."""
    return [field for each in arguments for field in (flat(each) if isinstance(each, tuple) else (each,))]
