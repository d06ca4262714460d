"""Two ways to look at kernels of Triton without a GPU: compiled for targets, and run by the interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

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


def machine_code(kernel, types, constants, target, *, aligned=False, warps=4):
    """What the compiler makes of a kernel: bytes. The arguments as :func:`compiled` takes them."""
    asm = compiled(kernel, types, constants, target, aligned=aligned, warps=warps)
    return asm.get("cubin") or asm.get("hsaco") or b""


def compiled(kernel, types, constants, target, *, aligned=False, anywhere=(), warps=4):
    """What the compiler makes of a kernel, by the name of the stage.

    :param types: of its arguments by name; int32 where they say nothing.
    :param aligned: whether addresses and strides are multiples of 16, as those of torch mostly are.
    :param anywhere: arguments that are not, all the same.
    """
    signature = {
        name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names
    }
    facts = {
        (i,): [["tt.divisibility", 16]]
        for i, (name, kind) in enumerate(signature.items())
        if aligned and name not in anywhere and (kind.startswith("*") or kind == "i64")
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=facts)
    return triton.compile(source, target=GPUTarget(*TARGETS[target]), options={"num_warps": warps}).asm


def interpreted(script, *what):
    """The JSON that a script of this folder prints, from a process in which Triton interprets its kernels."""
    sources = [str(ROOT / "plugins" / plugin / "src") for plugin in ("triton_gumbel", "flashinfer")]
    path = os.pathsep.join([*sources, os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / script), *map(str, what)],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    return json.loads(run.stdout.splitlines()[-1])
