"""What a process pays for its calls: the memory of one, and one loaded object for several Python threads."""

import os
import re
from pathlib import Path

import pytest

import isolation
from checkout import ROOT
from tokendraw_cpu.library import missing_library

SLACK = 128 << 20  # bytes: threads, allocator, and the few numbers a row and a tile

# VmHWM starts at what a fork holds; ru_maxrss of a child starts at its parent's peak.
MEASURE = """
import re
from pathlib import Path
import torch, tokendraw

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

rows, size, settings = ARGUMENTS
sampler = tokendraw.load_sampler("native", device="cpu")
params = [tokendraw.SamplingParams(**settings)] * rows
logits = torch.randn(rows, size)
sampler.sample(logits[:1], tokendraw.SamplingMetadata.from_params(params[:1]))
metadata = tokendraw.SamplingMetadata.from_params(params)
before = peak()
sampler.sample(logits, metadata)
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc/self/status")
@pytest.mark.parametrize(
    "settings", [{}, {"top_k": 50, "top_p": 0.9}, {"top_p": 0.9, "logprobs": 5}], ids=str
)
@pytest.mark.parametrize(("rows", "size"), [(64, 128_256), (3000, 40)])
def test_a_call_needs_at_most_two_float32_copies_of_its_logits(rows, size, settings):
    result = isolation.run_forked(MEASURE.replace("ARGUMENTS", repr((rows, size, settings))))
    assert result.returncode == 0, result.stderr
    extra = int(result.stdout)
    assert extra <= 2 * 4 * rows * size + SLACK


OPERATIONS = {"cpu": 3, "native": 4, "transformers": 1, "aiter": 1, "flashinfer": 2}


@pytest.mark.slow
@pytest.mark.parametrize("backend", OPERATIONS)
def test_every_output_has_the_bits_of_a_call_by_one_thread(backend):
    """In a process of its own: where threads share scratch, it may end by a signal."""
    if backend == "cpu" and (reason := missing_library()):
        pytest.skip(f"the compiled sampler {reason}")
    folders = [ROOT / "tests/fakes", *ROOT.glob("plugins/*/src")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    options = "--seconds", "2", "--threads", "4", "--only", backend
    ran = isolation.run_module("concurrent_calls", *options, environ=environ)
    lines = re.findall(r"^\S+, 4 threads: \d+ calls, 0 others$", ran.stdout, re.MULTILINE)
    assert (ran.returncode, len(lines)) == (0, OPERATIONS[backend]), ran.stdout + ran.stderr
