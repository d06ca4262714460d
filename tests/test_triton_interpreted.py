"""The kernels of triton-gumbel on a CPU, in Triton's interpreter: exactness, without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "tests" / "triton_kernels.py"


def interpreted(what):
    """What the script prints, from a process in which Triton interprets its kernels."""
    path = os.pathsep.join([str(ROOT / "plugins/triton_gumbel/src"), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, str(SCRIPT), what],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.slow
def test_the_exact_lines_of_the_kit_are_green():
    found = interpreted("kit")
    assert len(found) == 5
    assert {name: line for name, line in found.items() if line[0] != "passed"} == {}


@pytest.mark.slow
def test_seeded_draws_equal_the_reference_under_every_filter():
    found = interpreted("draws")
    assert found["wrong"] == []
    assert found["judged"] > 200
