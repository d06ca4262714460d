"""``benchmarks/cold_start.py``: a row for each start with compilations, or a single row for several processes."""

import re
import subprocess
import sys

import pytest

from checkout import ROOT

OPTIONS = ("--sampler", "native", "--device", "cpu", "--vocab-size", "3000")


def printed(*options):
    """Return the rows of the table."""
    run = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "cold_start.py", *OPTIONS, *options],
        capture_output=True,
        text=True,
        check=True,
    )
    return re.findall(r"^\| (.+?) \| (\d+\.\d) \| (\d+) \|$", run.stdout, re.MULTILINE)


@pytest.mark.slow
def test_every_start_has_a_row_with_time_and_kernels():
    rows = printed()
    starts = ["load_sampler", "first batch of 64", "warmup", "warmup with max_drafts=4"]
    assert [name for name, *_ in rows] == starts
    assert {kernels for *_, kernels in rows} == {"0"}


@pytest.mark.slow
def test_processes_started_together_are_a_single_row():
    ((name, _, kernels),) = printed("--processes", "2")
    assert (name, kernels) == ("load_sampler and first batch of 64, the slowest of 2", "0")
