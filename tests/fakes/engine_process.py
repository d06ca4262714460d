"""Runs a script with a vLLM in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

from checkout import ROOT

FAILED = "tokendraw failed on rank"
"""Where the last words of a rank's process begin."""


def run_script(script: Path, *arguments: object, **variables: str) -> tuple[object, list[str]]:
    """Return the last printed line, which is JSON, and the lines of the log about tokendraw.

    :param variables: of the environment, beside those that have vLLM serve a small model in the script's process.
    """
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests/fakes"), os.environ.get("PYTHONPATH", "")]),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        **variables,
    }
    process = subprocess.run(
        [sys.executable, script, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    lines = (process.stdout + process.stderr).splitlines()
    log_lines = [line.partition("tokendraw: ")[2] for line in lines if "tokendraw: " in line]
    log_lines += sorted({line[line.index(FAILED) :] for line in lines if FAILED in line})
    return json.loads(process.stdout.splitlines()[-1]), log_lines
