"""Triton without a GPU: fake kernels with notes of calls, compilation for targets, and the interpreter."""

import json
import os
import threading
import time
from functools import cache
from pathlib import Path

import torch
import triton
from triton._utils import find_paths_if, get_iterable_path
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature

import isolation
from tokendraw import Drafts, Need, RequestSlots, SamplingParams
from tokendraw_triton_gumbel import compilation, plan
from tokendraw_triton_gumbel.kernels import edits, interval, large_set, logprobs, row_draw, tile_pass, verify
from tokendraw_triton_gumbel.kernels.edits import ProcessLaunches
from tokendraw_triton_gumbel.processor import TritonLogitsProcessor
from tokendraw_triton_gumbel.sampler import TritonGumbelSampler

ROOT = Path(__file__).parents[2]
TARGETS = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "sm_120": ("cuda", 120, 32),
    "gfx90a": ("hip", "gfx90a", 64),
    "gfx942": ("hip", "gfx942", 64),
    "gfx950": ("hip", "gfx950", 64),
    "gfx1201": ("hip", "gfx1201", 32),
}

ENDS = ("sm_80", "gfx90a", "gfx1201")
"""The oldest target of each vendor, with warps of 32 and of 64 lanes, and the newest of AMD, on which nothing runs.

The kernels run on NVIDIA's newer ones. What compiles for both ends compiles for the targets between them.
"""
SOME = ("sm_80", "gfx1201")
"""A target of each vendor, for slow compilations."""
LAUNCHED = {
    edits: "append_tokens process_logits",
    tile_pass: "tile_statistics row_moments combine_floors",
    row_draw: "draw_rows",
    large_set: "draw_large_sets",
    interval: "filter_params redraw_rows",
    logprobs: "count_ranks row_logprobs given_logprobs score_rows",
    verify: "check_probs weigh_blocks accept_drafts",
}
SOURCES = {name: module for module, names in LAUNCHED.items() for name in names.split()}
"""The kernels that are launched, by name, and the module of each."""


@cache
def binder(kernel):
    """Return Triton's function for the specialization of a kernel by arguments, on an H200."""
    return create_function_from_signature(
        kernel.signature, kernel.params, make_backend(GPUTarget("cuda", 90, 32))
    )


class Compiled:
    """A compiled kernel. Notes launches."""

    function, packed_metadata = "the function", "its metadata"

    def __init__(self, launches):
        self.launches = launches
        self.direct_launches = []

    def run(self, *arguments):
        """Triton's launcher: grid, stream, function, metadata and hooks precede the arguments."""
        self.direct_launches.append(arguments[:9])
        self.launches.append((arguments[:3], arguments[9:]))

    def __getitem__(self, grid):
        return lambda *arguments: self.launches.append((grid, arguments))


class Kernel:
    """A fake kernel with a cache of compilations like Triton: by Triton's key, without a lock."""

    def __init__(self, original, seconds=0.0):
        self.original, self.seconds, self.__name__ = original, seconds, original.__name__
        self.params, self.arg_names = original.params, original.arg_names
        self.constants = sum(param.is_constexpr for param in original.params)
        """How many constants there are behind the arguments."""
        self.compilations, self.launches = [], []
        self.calls = []
        """Kernel, arguments and what is named of each compilation, as compiled_call takes them."""
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
        result = self._compiled.get(key)
        if result is None:
            self.compilations.append((key, threading.get_ident()))
            self.calls.append((self.original, arguments, named))
            self.begin()
            time.sleep(self.seconds)
            self.end()
            if self.error is not None:
                raise self.error
            result = self._compiled[key] = Compiled(self.launches)
        return result


def use_stand_ins(patch, folder):
    """Put a stand-in in the place of every kernel: all of them by name.

    :param folder: of the locks, so that no other process waits for these compilations.
    """
    patch.setattr(compilation, "_folder", lambda: folder)
    stand_ins = {}
    for name, module in SOURCES.items():
        stand_ins[name] = Kernel(getattr(module, name))
        patch.setattr(module, name, stand_ins[name])
    patch.delenv("TRITON_INTERPRET", raising=False)
    return stand_ins


def compilations(kernels):
    """How many of each kernel there were."""
    return {name: len(kernel.compilations) for name, kernel in kernels.items()}


def sampler_for(target, **need):
    """A sampler that launches for a target, on the CPU's tensors: with the stand-ins, nothing runs."""
    sampler = TritonGumbelSampler(torch.device("cpu"), Need(**need))
    calls = sampler._calls
    calls.target = calls.target._replace(family=TARGETS[target][0], processors=132)
    return sampler


# Edits of three rows, for the stand-ins to record.


EVERYTHING = {
    "repetition_penalty": 1.5,
    "logit_bias": {3: 1.0},
    "allowed_token_ids": [1, 2],
    "bad_words": [[1, 2]],
    "min_tokens": 2,
    "stop_token_ids": [5],
}
"""Fields of a request that asks for every edit."""


def slots_for(vocab_size, **params):
    """Create slots with one request."""
    slots = RequestSlots(4, 8, vocab_size)
    slots.add(2, SamplingParams(**params), prompt_token_ids=[1, 2])
    return slots


def two_drafts(dtype=torch.int64):
    """Create two drafts of one request: three rows."""
    ids, offsets = torch.tensor([4, 5], dtype=dtype), torch.tensor([0, 3], dtype=dtype)
    return Drafts(draft_token_ids=ids, cu_num_logits=offsets, max_drafts=2)


def processed(
    slots, family="cuda", dtype=torch.float32, *, index=torch.int64, drafts=None, bitmask=False, offset=0
):
    """Edit three rows; return the processor."""
    size = slots.vocab_size
    logits = torch.zeros(3 * size + offset, dtype=dtype)[offset:].view(3, size)
    words = torch.full((3, size // 32 + 2), -1, dtype=torch.int32)[:, : -(-size // 32)] if bitmask else None
    processor = TritonLogitsProcessor(torch.device("cpu"))
    processor._launches = ProcessLaunches(family, processors=132)
    assert processor.process(logits, slots, torch.tensor([2, 0, 1], dtype=index), words, drafts) is logits
    return processor


# Compilation for targets, and the interpreter.


def machine_code(kernel, types, constants, target, *, warps=4):
    """Compile a kernel to machine code: bytes.

    :param types: of its arguments by name; int32 where they say nothing.
    """
    signature = {
        name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return code_of(
        triton.compile(source, target=GPUTarget(*TARGETS[target]), options={"num_warps": warps}).asm
    )


def code_of(asm):
    """Return the machine code among the stages of a compilation: bytes."""
    return asm.get("cubin") or asm.get("hsaco") or b""


def compiled_call(call, target):
    """Compile a kernel for the arguments of a call; return the code by stage.

    :param call: as :attr:`Kernel.calls` keeps it: kernel, arguments, named.
    """
    source, options = _source(call, target)
    return triton.compile(source, target=GPUTarget(*TARGETS[target]), options=options).asm


def _source(call, target):
    """Return the source of a call, with types and constants, and the compiler's options."""
    kernel, arguments, named = call
    backend = make_backend(GPUTarget(*TARGETS[target]))
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, _ = bind(*arguments, **named)
    types, facts = ([each[part] for each in specialization] for part in (0, 1))
    constants = find_paths_if(types, lambda _, each: each == "constexpr")
    known = {
        path: backend.parse_attr(get_iterable_path(facts, path))
        for path in find_paths_if(facts, lambda _, each: isinstance(each, str))
    }
    source = ASTSource(
        fn=kernel,
        signature=dict(zip(kernel.arg_names, types, strict=True)),
        constexprs={path: get_iterable_path(list(bound.values()), path) for path in constants},
        attrs=known,
    )
    return source, {name: value for name, value in named.items() if name not in kernel.arg_names}


FOLDERS = (
    "tests/kernels/interpreted",
    "tests/fakes",
    "plugins/triton_gumbel/src",
    "plugins/flashinfer/src",
    "integrations/vllm/src",
)
INTERPRETING = f"""
sys.path[1:1] = {[str(ROOT / folder) for folder in FOLDERS]}
torch.set_num_threads(1)
import fast_interpreter
import tokendraw_bench, tokendraw_native.sampler, tokendraw_testing, tokendraw_triton_gumbel.sampler
fast_interpreter.prepare()
"""


def interpreted(script, function, *arguments):
    """Run a function of tests/kernels/interpreted in a process with Triton's interpreter; return its JSON."""
    code = f"fast_interpreter.main{(script, function, *map(str, arguments))}"
    environ = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = isolation.run_forked(f"import fast_interpreter\n{code}", environ, preload=INTERPRETING, seconds=600)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def compiled(kernel, target):
    """Compile the last call of a kernel, and return the code by stages."""
    return compiled_call(kernel.calls[-1], target)


def has_machine_code(asm):
    return len(code_of(asm)) > 1000


def configurations_of(target):
    """Look up the configurations of a kind of device, for many rows and for few."""
    return [how for name, how in plan.TABLE.items() if name.startswith(TARGETS[target][0])]
