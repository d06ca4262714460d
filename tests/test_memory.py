"""Memory of a call on the CPU beside its logits: two [B, V] float32 buffers, whatever the shape of the batch."""

import subprocess
import sys
from pathlib import Path

import pytest

SLACK = 128 << 20  # bytes: threads, allocator, and the few numbers a row and a tile

# VmHWM is the peak of this program alone; ru_maxrss of a child starts at its parent's peak.
MEASURE = """
import re, sys
from pathlib import Path
import torch, tokendraw

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

rows, size, settings = int(sys.argv[1]), int(sys.argv[2]), eval(sys.argv[3])
sampler = tokendraw.load_sampler("native", device="cpu")
params = [tokendraw.SamplingParams(**settings)] * rows
logits = torch.randn(rows, size)
sampler.sample(logits[:1], tokendraw.SamplingMetadata.from_params(params[:1]))
metadata = tokendraw.SamplingMetadata.from_params(params)
before = peak()
sampler.sample(logits, metadata)
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc/self/status")
@pytest.mark.parametrize(
    "settings", [{}, {"top_k": 50, "top_p": 0.9}, {"top_p": 0.9, "logprobs": 5}], ids=str
)
@pytest.mark.parametrize(("rows", "size"), [(64, 128_256), (512, 1024), (3000, 40)])
def test_a_call_needs_at_most_two_float32_copies_of_its_logits(rows, size, settings):
    arguments = [sys.executable, "-c", MEASURE, str(rows), str(size), str(settings)]
    extra = int(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)
    assert extra <= 2 * 4 * rows * size + SLACK
