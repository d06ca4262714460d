"""Triton kernels without a GPU: compiled for targets, and run by the interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import triton
from triton._utils import find_paths_if, get_iterable_path
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature

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


def compiled_call(call, target, *, attributes=None):
    """Compile a kernel for the arguments of a call; return the code by stage.

    :param call: as :attr:`triton_stand_ins.Kernel.calls` keeps it: kernel, arguments, named.
    :param attributes: by the path of an argument whether it is known to be a multiple of 16, whatever the call says.
    """
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
    for path, is_multiple in (attributes or {}).items():
        known[path] = [["tt.divisibility", 16]] if is_multiple else []
    source = ASTSource(
        fn=kernel,
        signature=dict(zip(kernel.arg_names, types, strict=True)),
        constexprs={path: get_iterable_path(list(bound.values()), path) for path in constants},
        attrs=known,
    )
    options = {name: value for name, value in named.items() if name not in kernel.arg_names}
    return triton.compile(source, target=GPUTarget(*TARGETS[target]), options=options).asm


def interpreted(script, *what):
    """Return the JSON that a script of tests/kernels/interpreted prints, in a process where Triton interprets."""
    folders = ["tests/fakes", "plugins/triton_gumbel/src", "plugins/flashinfer/src"]
    sources = [str(ROOT / folder) for folder in folders]
    path = os.pathsep.join([*sources, os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, str(ROOT / "tests/kernels/interpreted" / script), *map(str, what)],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    return json.loads(run.stdout.splitlines()[-1])
