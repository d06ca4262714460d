"""``benchmarks/cold_start.py``: a row for each thing that compiles."""

import re
import subprocess
import sys

import pytest

from checkout import ROOT

OPTIONS = ("--sampler", "native", "--device", "cpu", "--vocab-size", "3000")


@pytest.mark.slow
def test_it_prints_what_each_start_takes_and_compiles():
    run = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "cold_start.py", *OPTIONS],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = re.findall(r"^\| (.+?) \| (\d+\.\d) \| (\d+) \|$", run.stdout, re.MULTILINE)
    starts = ["load_sampler", "first batch of 64", "warmup", "warmup with max_drafts=4"]
    assert [name for name, *_ in rows] == starts
    assert {kernels for *_, kernels in rows} == {"0"}
