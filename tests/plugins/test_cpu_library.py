"""The library of the compiled sampler: its absence in words, its threads, and forks."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import isolation
import tokendraw_cpu
from checkout import ROOT
from tokendraw import Need, SamplingMetadata, SamplingParams
from tokendraw.plugin import Host
from tokendraw_cpu import library
from tokendraw_cpu.library import LibraryError, missing_library

REINSTALL = (
    "install a C++ compiler (g++ or clang++) and run `pip install ./plugins/cpu` in tokendraw's checkout"
)
SCRIPT = ROOT / "plugins" / "cpu" / "compile_library.py"

needs_library = pytest.mark.skipif(
    missing_library() is not None, reason=f"the compiled sampler {missing_library()}"
)


@pytest.fixture
def library_file(monkeypatch, tmp_path):
    """A file in place of the library, which does not exist yet."""
    file = tmp_path / "libtokendraw_cpu.so"
    monkeypatch.setattr(library, "_FILE", file)
    library.load_library.cache_clear()
    yield file
    library.load_library.cache_clear()


def test_without_its_library_the_plugin_says_how_to_make_it(library_file):
    reason = tokendraw_cpu.plugin.tokendraw_probe("sample", Host(), Need())
    assert reason == f"needs its compiled library, found none in {str(library_file.parent)!r}; {REINSTALL}"
    with pytest.raises(LibraryError) as raised:
        library.load_library()
    assert str(raised.value) == reason


def test_a_library_of_another_machine_is_refused_when_it_is_loaded(library_file):
    library_file.write_bytes(b"\x7fELF of something else")
    assert tokendraw_cpu.plugin.tokendraw_probe("sample", Host(), Need()) is None
    with pytest.raises(LibraryError) as raised:
        library.load_library()
    text = str(raised.value)
    assert text.startswith("needs a library compiled for ")
    assert ", found one that does not load: " in text
    assert text.endswith(f"; {REINSTALL}")


def compiled_with(path: Path, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *options, str(path / "out.so")],
        env={"PATH": str(path), **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def stub(path: Path, text: str) -> str:
    """Write a program that prints a line."""
    path.write_text(f"#!{sys.executable}\nimport sys\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


FAILING = """
print("#define __x86_64__ 1")
print("#define __linux__ 1")
if "-dM" not in sys.argv:
    sys.exit("in file\\na.h:1: error: no memory")
"""
COMPILERS = {
    "none": (
        None,
        "tokendraw-cpu needs a C++ compiler, found none of c++, g++ and clang++ on PATH. Install one, or name it in "
        "the environment variable CXX. Without tokendraw-cpu native serves CPUs.\n",
    ),
    "none where CXX says": (
        "/nonexistent/c++",
        "tokendraw-cpu needs a C++ compiler, found '/nonexistent/c++': [Errno 2] No such file or directory: "
        "'/nonexistent/c++'. Correct the environment variable CXX, or unset it. Without tokendraw-cpu native serves "
        "CPUs.\n",
    ),
    "one for another machine": (
        "print('#define __riscv 1')",
        "tokendraw-cpu needs a compiler for Linux on x86_64 or aarch64, found '{}' for another machine. native serves "
        "these.\n",
    ),
    "one that fails": (FAILING, "tokendraw-cpu does not compile with {}: a.h:1: error: no memory\n"),
}
"""A compiler, as a path or as the text of a stub, and what an installation says."""


@pytest.mark.parametrize("name", COMPILERS)
def test_an_installation_without_a_compiler_that_serves_says_so_in_a_line(tmp_path, name):
    text, message = COMPILERS[name]
    compiler = stub(tmp_path / "stub", text) if text and "print" in text else text
    environ = {} if compiler is None else {"CXX": compiler}
    ran = compiled_with(tmp_path, **environ)
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", message.format(compiler))
    if "print" not in (text or ""):
        assert compiled_with(tmp_path, "--if-possible", **environ).returncode == 0
        assert compiled_with(tmp_path, "--only-check", **environ).returncode == 1


def test_a_library_of_another_interface_is_refused_when_it_is_loaded(library_file, tmp_path):
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    source = tmp_path / "other.cpp"
    source.write_text('extern "C" int tokendraw_cpu_version() { return 99; }')
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(library_file)], check=True)
    with pytest.raises(LibraryError) as raised:
        library.load_library()
    assert str(raised.value) == (
        f"needs a library of interface {library.INTERFACE_VERSION}, found 99; {REINSTALL}"
    )


def batch(rows=24, size=40_000):
    logits = torch.randn(rows, size, generator=torch.Generator().manual_seed(3))
    filters = ({}, {"top_k": 50, "top_p": 0.9}, {"top_p": 0.9}, {"min_p": 0.01, "logprobs": 3})
    params = [SamplingParams(seed=row, **filters[row % 4]) for row in range(rows)]
    return logits, SamplingMetadata.from_params(params, positions=range(rows))


def running_threads():
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}


@needs_library
def test_a_call_has_the_threads_of_torch_and_the_same_tokens_with_any_number():
    from tokendraw_cpu.sampler import CpuSampler

    logits, metadata = batch()
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3, 2):
            sampler, running = CpuSampler(Need()), len(running_threads())
            torch.set_num_threads(threads)
            found.append(sampler.sample(logits, metadata).token_ids)
            assert len(running_threads()) == running + threads - 1
            sampler.sample(logits[:12], SamplingMetadata())
            del sampler
            assert len(running_threads()) == running
    finally:
        torch.set_num_threads(before)
    assert found[0].equal(found[1])
    assert found[0].equal(found[2])


@needs_library
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_helpers_keep_off_the_core_of_the_caller():
    """Beside OpenMP's threads, which spin after an operation of torch, no core seems idle to the system."""
    from tokendraw_cpu.sampler import CpuSampler

    logits, metadata = batch()
    before, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    torch.set_num_threads(2)
    known, sampler = running_threads(), CpuSampler(Need())
    try:
        sampler.sample(logits, metadata)
        (helper,) = running_threads() - known
        for core in sorted(cores)[:2]:
            os.sched_setaffinity(0, cores - {core})
            os.sched_setaffinity(0, cores)  # the caller stays where it is, or moves
            sampler.sample(logits, metadata)
            assert len(cores - os.sched_getaffinity(helper)) == 1
    finally:
        torch.set_num_threads(before)
        os.sched_setaffinity(0, cores)


@needs_library
@pytest.mark.parametrize("threads", [1, 2])
def test_only_the_first_call_allocates(tmp_path, threads):
    program = tmp_path / "count_allocations"
    source = ROOT / "tests" / "fakes" / "count_allocations.cpp"
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    command = [compiler, "-std=c++17", "-O1", f"-I{SCRIPT.parent / 'cpp'}", str(source), "-o", str(program)]
    subprocess.run([*command, "-ldl", "-pthread"], check=True)
    ran = subprocess.run(
        [str(program), str(library._FILE), str(threads)], capture_output=True, text=True, check=False
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("some 0\n", "", 0)


FORK = """
import json, os, torch
from tokendraw import Need, SamplingMetadata, SamplingParams
from tokendraw_cpu.sampler import CpuSampler

torch.set_num_threads(2)
logits = torch.randn(24, 40_000, generator=torch.Generator().manual_seed(3))
metadata = SamplingMetadata.from_params([SamplingParams(seed=row) for row in range(24)], positions=range(24))
sampler = CpuSampler(Need())

def draw():
    return sampler.sample(logits, metadata).token_ids.tolist()

parent = draw()
read, write = os.pipe()
pid = os.fork()
if not pid:
    os.write(write, json.dumps([draw(), len(os.listdir("/proc/self/task"))]).encode())
    os._exit(0)
os.close(write)
with os.fdopen(read) as answers:
    child, threads = json.load(answers)
assert os.waitpid(pid, 0)[1] == 0
print(json.dumps([child == parent, threads, draw() == parent]))
"""


@needs_library
def test_a_forked_process_makes_helpers_of_its_own():
    ran = isolation.run_forked(f"import sys\nsys.path.insert(0, {str(SCRIPT.parent / 'src')!r})\n{FORK}")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == [True, 2, True]


AT_THE_END = """
import threading, torch
from tokendraw import Need, SamplerOutput, SamplingMetadata, SamplingParams
from tokendraw_cpu.sampler import CpuSampler

torch.set_num_threads(2)
logits = torch.randn(24, 40_000, generator=torch.Generator().manual_seed(3))
sampler, drawn = CpuSampler(Need()), threading.Event()
batch = sampler.read_batch(logits, SamplingMetadata())
output = SamplerOutput(torch.empty(24, dtype=torch.int64), torch.empty(24, dtype=torch.bool))
arguments = sampler.arguments(batch, output)

def draw():  # without operations of torch, which end the process by themselves if they return after Python
    while True:
        sampler._context.sample(arguments)
        drawn.set()

for _ in range(3):
    threading.Thread(target=draw, daemon=True).start()
drawn.wait()
"""


@needs_library
def test_daemon_threads_may_draw_while_python_ends():
    ran = isolation.run_forked(
        f"import sys\nsys.path.insert(0, {str(SCRIPT.parent / 'src')!r})\n{AT_THE_END}"
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
