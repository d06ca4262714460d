"""Memory of a process during its calls."""

from pathlib import Path

import pytest

import isolation

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
