"""Compiles the library of tokendraw-cpu: a hook of hatchling, and a script.

    python compile_library.py [--flags="-O1 -g -fsanitize=address"] [--only-baseline] [--if-possible] [OUTPUT]
    python compile_library.py --only-check

The compiler is that of the environment variable CXX, with arguments if it has some, else the first of c++, g++ and
clang++ on PATH. CXX may be a cross compiler: the processor is asked of the compiler, and the wheel is tagged with it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a script
    BuildHookInterface = object  # type: ignore[misc,assignment]

ROOT = Path(__file__).resolve().parent
LIBRARY = ROOT / "src" / "tokendraw_cpu" / "libtokendraw_cpu.so"
FLAGS = [
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-pthread",
    "-ffp-contract=off",
    "-fno-math-errno",
]
_AVX2 = ["-mavx2", "-mfma", "-mf16c", "-mbmi", "-mpopcnt"]
TARGET_FLAGS = {
    "x86_64": {
        "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", *_AVX2],
        "avx2": _AVX2,
        "baseline": [],
    },
    "aarch64": {"baseline": []},
}
"""Flags of each instruction set by processor. NEON belongs to every aarch64."""


class CompilerError(RuntimeError):
    """The compiler is one for an unknown processor, or it failed."""


class NoCompilerError(CompilerError):
    """There is no compiler, or none where CXX says."""


def find_compiler() -> list[str]:
    """Return the command of the C++ compiler."""
    if named := os.environ.get("CXX"):
        return shlex.split(named)
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise NoCompilerError(
        "tokendraw-cpu needs a C++ compiler, found none of c++, g++ and clang++ on PATH. Install one, or name it in "
        "the environment variable CXX. Without tokendraw-cpu native serves CPUs."
    )


def machine_of(compiler: list[str]) -> str:
    """Ask a compiler for the processor that it compiles for, by its macros: cross compilers have them all."""
    macros = _run([*compiler, "-dM", "-E", "-x", "c++", os.devnull])
    machine = next((name for name in TARGET_FLAGS if f"#define __{name}__ 1" in macros), None)
    if machine is None or "#define __linux__ 1" not in macros:
        raise CompilerError(
            f"tokendraw-cpu needs a compiler for Linux on x86_64 or aarch64, found {shlex.join(compiler)!r} for "
            "another machine. native serves these."
        )
    return machine


def compile_library(
    output: Path = LIBRARY, flags: list[str] | None = None, *, only_baseline: bool = False
) -> str:
    """Compile and link the library; returns the processor that it is for.

    :param flags: added behind those of the release.
    :param only_baseline: leave the other instruction sets out, as for sanitizers.
    """
    compiler = find_compiler()
    machine = machine_of(compiler)
    flags = [*FLAGS, *(flags or []), *(["-DTOKENDRAW_ONLY_BASELINE"] if only_baseline else [])]
    with tempfile.TemporaryDirectory() as folder:
        kernel = ROOT / "cpp" / "kernel.cpp"
        jobs = [
            (kernel, Path(folder, f"{target}.o"), [f"-DTOKENDRAW_TARGET={target}", *extra])
            for target, extra in TARGET_FLAGS[machine].items()
            if target == "baseline" or not only_baseline
        ]
        jobs += [(ROOT / "cpp" / f"{name}.cpp", Path(folder, f"{name}.o"), []) for name in ("api", "threads")]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            commands = [
                [*compiler, *flags, *extra, "-c", str(source), "-o", str(o)] for source, o, extra in jobs
            ]
            list(pool.map(_run, commands))
        linked = Path(folder, output.name)
        _run([*compiler, *flags, "-shared", *(str(job[1]) for job in jobs), "-o", str(linked)])
        # Replaced whole: a process that has the previous one loaded keeps it.
        beside = output.with_suffix(".new")
        shutil.copy(linked, beside)
        beside.replace(output)
    return machine


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoCompilerError(
            f"tokendraw-cpu needs a C++ compiler, found {command[0]!r}: {error}. Correct the environment variable CXX, "
            "or unset it. Without tokendraw-cpu native serves CPUs."
        ) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        last = lines[-1] if lines else f"status {done.returncode}"
        reason = next((line for line in lines if "error" in line), last)
        raise CompilerError(f"tokendraw-cpu does not compile with {shlex.join(command[:1])}: {reason}")
    return done.stdout


class CompileHook(BuildHookInterface):  # type: ignore[misc,valid-type]
    """Compiles the library before a wheel is made, and tags the wheel with the platform."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, for any version of a wheel."""
        try:
            machine = compile_library()
        except CompilerError as error:
            sys.exit(str(error))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{os.environ.get('AUDITWHEEL_PLAT') or f'linux_{machine}'}"


if __name__ == "__main__":
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("output", nargs="?", type=Path, default=LIBRARY)
    parser.add_argument("--flags", type=shlex.split, default=[], help="flags behind those of the release")
    parser.add_argument("--only-baseline", action="store_true", help="no instruction set but the plain one")
    parser.add_argument("--if-possible", action="store_true", help="exit with 0 where there is no compiler")
    parser.add_argument("--only-check", action="store_true", help="look for a compiler, and compile nothing")
    options = parser.parse_args()
    try:
        if options.only_check:
            machine_of(find_compiler())
            sys.exit()
        compile_library(options.output, options.flags, only_baseline=options.only_baseline)
    except NoCompilerError as error:
        print(error, file=sys.stderr)
        sys.exit(0 if options.if_possible else 1)
    except CompilerError as error:
        sys.exit(str(error))
