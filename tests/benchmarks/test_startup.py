"""``benchmarks/startup.py``: a row for each start."""

import re
import subprocess
import sys

from checkout import ROOT


def test_every_start_has_a_row():
    run = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "startup.py", "--repeats", "1"],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = re.findall(r"^\| (.+?) \| (\d+) \| (-?\d+) \|$", run.stdout, re.MULTILINE)
    assert [name for name, *_ in rows] == ["python -c pass", "import tokendraw", "tokendraw list"]
    assert rows[0][2] == "0"
