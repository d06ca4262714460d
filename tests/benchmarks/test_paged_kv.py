"""``benchmarks/paged_kv.py`` on a CPU, small: native alone, beside the copy."""

import re
import subprocess
import sys

import pytest

from checkout import ROOT

SCRIPT = ROOT / "benchmarks" / "paged_kv.py"
SMALL = ["--device", "cpu", "--small", "--repeats", "3", "--planner", "native"]


@pytest.mark.slow
def test_it_prints_what_plans_take_beside_a_copy_and_writes_the_same(tmp_path):
    path = tmp_path / "paged_kv.md"
    result = subprocess.run(
        [sys.executable, SCRIPT, *SMALL, "--output", path], capture_output=True, encoding="utf-8", check=True
    )
    assert result.stdout.strip() == path.read_text(encoding="utf-8").strip()
    command, *_ = result.stdout.splitlines()
    assert command.startswith("`python benchmarks/paged_kv.py --device cpu --small")
    device, host = (part.splitlines() for part in result.stdout.split("\n\n") if part.startswith("| "))
    titles = "| B x W | copy | native | native, no page_indices |"
    assert (device[0], host[0]) == (titles, titles)
    number = r"\d+\.\d"
    assert len(device) == len(host) == 4
    for line, batch in zip(device[2:], ("0 x 4", "16 x 64"), strict=True):
        assert re.fullmatch(rf"\| {batch} \| {number}( \| {number} \({number}\d+x\)){{2}} \|", line), line
    for line in host[2:]:
        assert re.fullmatch(rf"\| \d+ x \d+( \| {number} \({number}\)){{3}} \|", line), line
