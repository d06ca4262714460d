"""``benchmarks/routing.py`` on a CPU, small: a native that advertises less, beside native itself."""

import os
import re
import subprocess
import sys

import pytest

from checkout import ROOT
from fake_dists import install_limited

SCRIPT = ROOT / "benchmarks" / "routing.py"
SMALL = ["--device", "cpu", "--small", "--repeats", "3", "--chosen", "limited", "--companion", "native"]


@pytest.mark.slow
def test_it_prints_every_way_to_draw_a_batch_and_writes_the_same(tmp_path):
    path = tmp_path / "routing.md"
    site = install_limited(tmp_path, {"greedy": False, "seeding": "launch", "logprobs_modes": ()})
    result = subprocess.run(
        [sys.executable, SCRIPT, *SMALL, "--output", path],
        capture_output=True,
        encoding="utf-8",
        check=True,
        env={**os.environ, "PYTHONPATH": str(site)},
    )
    assert result.stdout.strip() == path.read_text(encoding="utf-8").strip()
    first, second = (
        [line.strip("| ").split(" | ") for line in part.splitlines()[2:]]  # without titles and rule
        for part in result.stdout.split("\n\n")
        if part.startswith("| ")
    )
    assert [row[:2] for row in first] == [
        [f"32 x 2000 {dtype}", who]
        for dtype in ("float32", "bfloat16")
        for who in ("all rows limited, none of them special", "three rows to native", "all rows native")
    ]
    assert [row[0] for row in second] == ["16 x 2000 float32", "32 x 2000 float32"]
    times = [row[2] for row in first] + [time for row in second for time in row[1:]]
    assert len(times) == 12
    assert all(re.fullmatch(r"\d+", time) for time in times)
