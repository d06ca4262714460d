"""Programs that begin with torch imported: forks of one process that has, since the import outlasts what they do."""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping

SECONDS = 120
"""After so many a program is ended by a signal."""

# A fork leaves the loop and runs its program where one of `python -c` runs: exceptions and exits are the interpreter's.
FORKING = f"""
import json, os, signal, sys
import gc, torch

gc.freeze()

def program():
    for line in sys.stdin:
        start = json.loads(line)
        pid = os.fork()
        if pid:
            os.write(1, b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            continue
        signal.alarm({SECONDS})
        os.environ.clear()
        os.environ.update(start["environ"])
        sys.path[1:1] = filter(None, start["environ"].get("PYTHONPATH", "").split(os.pathsep))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(start["stdout"], os.O_WRONLY), 1)
        os.dup2(os.open(start["stderr"], os.O_WRONLY), 2)
        return start["code"]
    return ""

exec(program(), {{"__name__": "__main__"}})
"""


@functools.cache
def _forking() -> subprocess.Popen[str]:
    # Without settings of malloc: the programs measure what a call needs under the system's own.
    environ = {
        name: text for name, text in os.environ.items() if not name.startswith(("TOKENDRAW_", "MALLOC_"))
    }
    process = subprocess.Popen(
        [sys.executable, "-c", FORKING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        env=environ,
    )
    atexit.register(process.communicate)
    return process


def run(code: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``code`` as ``python -c`` does, with torch imported before it begins."""
    environ = dict(os.environ if environ is None else environ)
    if sys.platform != "linux":  # elsewhere what lies below torch may not survive a fork
        return subprocess.run(
            [sys.executable, "-c", f"import torch\n{code}"],
            env=environ,
            capture_output=True,
            encoding="utf-8",
            timeout=SECONDS,
            check=False,
        )
    process = _forking()
    assert process.stdin is not None
    assert process.stdout is not None
    with (
        tempfile.NamedTemporaryFile("r", encoding="utf-8") as stdout,
        tempfile.NamedTemporaryFile("r", encoding="utf-8") as stderr,
    ):
        start = {"code": code, "environ": environ, "stdout": stdout.name, "stderr": stderr.name}
        process.stdin.write(json.dumps(start) + "\n")
        process.stdin.flush()
        returncode = int(process.stdout.readline())
        return subprocess.CompletedProcess(code, returncode, stdout.read(), stderr.read())
