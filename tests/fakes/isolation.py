"""A host process with misbehaving plugins really installed."""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from fake_dists import FakeDists

RESOLVE = """
import json, tokendraw

resolution = tokendraw.resolve(device="cpu")
decisions = {d.name: [d.state, d.reason] for d in resolution.decisions if d.name != "native"}
print(json.dumps([resolution.chosen, decisions]))
"""

LOAD = """
import json, sys, warnings
import torch
import tokendraw
from tokendraw import SamplingMetadata, SamplingParams

warned = []
warnings.simplefilter("always")
warnings.showwarning = lambda message, category, filename, line, *rest: warned.append(
    [category.__name__, str(message), filename]
)
LOGITS = [[0.0, 9.0, 1.0], [5.0, 0.0, 0.0]]
GREEDY = SamplingMetadata.from_params([SamplingParams(temperature=0.0)] * 2)
PLAIN = SamplingMetadata.from_params([SamplingParams()] * 2)


def draw(sampler, metadata=GREEDY, **options):
    return sampler.sample(torch.tensor(LOGITS), metadata, **options).token_ids.tolist()


def reasons(sampler):
    return {d.name: d.reason for d in sampler.resolution.decisions}


def attempt(call):
    try:
        return call()
    except BaseException as error:
        return [type(error).__name__, str(error), *getattr(error, "__notes__", ()), repr(error.__cause__)]
"""
"""What a host does first: torch imported, its warnings kept, a batch whose greedy tokens are 1 and 0."""


def _environ(dists: FakeDists, settings: dict[str, str]) -> dict[str, str]:
    """Return the environment of a host: fake distributions on the path, and settings."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("TOKENDRAW_")}
    inherited = [path] if (path := environ.get("PYTHONPATH")) else []
    environ["PYTHONPATH"] = os.pathsep.join([*map(str, dists.folders), *inherited])
    return environ | settings


def run(dists: FakeDists, *command: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run this interpreter with the fake distributions on the path, and ``settings`` as variables."""
    return subprocess.run(
        [sys.executable, *command],
        env=_environ(dists, settings),
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


def _answer(result: subprocess.CompletedProcess[str]) -> Any:
    """Return the last line of a host as JSON, after exit code 0 and an empty stderr."""
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout.splitlines()[-1])


def resolved(dists: FakeDists, **settings: str) -> Any:
    """Return the chosen sampler on the CPU, and the state and reason of each plugin except native."""
    return _answer(run(dists, "-c", RESOLVE, **settings))


def drawn(dists: FakeDists, code: str, **settings: str) -> Any:
    """Run the statements ``code`` after LOAD, and return the value of ``result``."""
    return _answer(run_forked(f"{LOAD}\n{code}\nprint(json.dumps(result))", _environ(dists, settings)))


# Forks of a process that has imported torch, since the import outlasts most programs.

# A fork leaves the loop and runs its program where one of `python -c` runs: exceptions and exits are the interpreter's.
FORKING = """
import json, os, signal, sys
import gc, torch
PRELOAD

gc.freeze()

def program():
    for line in sys.stdin:
        start = json.loads(line)
        pid = os.fork()
        if pid:
            os.write(1, b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            continue
        signal.alarm(start["seconds"])
        os.environ.clear()
        os.environ.update(start["environ"])
        sys.path[1:1] = filter(None, start["environ"].get("PYTHONPATH", "").split(os.pathsep))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(start["stdout"], os.O_WRONLY), 1)
        os.dup2(os.open(start["stderr"], os.O_WRONLY), 2)
        return start["code"]
    return ""

exec(program(), {"__name__": "__main__"})
"""


@functools.cache
def _forking(preload: str) -> subprocess.Popen[str]:
    # Without settings of malloc: the programs measure what a call needs under the system's own.
    environ = {
        name: text for name, text in os.environ.items() if not name.startswith(("TOKENDRAW_", "MALLOC_"))
    }
    process = subprocess.Popen(
        [sys.executable, "-c", FORKING.replace("PRELOAD", preload)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        env=environ,
    )
    atexit.register(process.communicate)
    return process


def run_forked(
    code: str, environ: Mapping[str, str] | None = None, *, preload: str = "", seconds: int = 120
) -> subprocess.CompletedProcess[str]:
    """Run ``code`` like ``python -c``, after the import of torch.

    :param preload: what the forked process has run before, besides the import. One process is kept for each.
    :param seconds: after so many the program is ended by a signal.
    """
    environ = dict(os.environ if environ is None else environ)
    if sys.platform != "linux":  # elsewhere what lies below torch may not survive a fork
        return subprocess.run(
            [sys.executable, "-c", f"import torch\n{preload}\n{code}"],
            env=environ,
            capture_output=True,
            encoding="utf-8",
            timeout=seconds,
            check=False,
        )
    process = _forking(preload)
    assert process.stdin is not None
    assert process.stdout is not None
    with (
        tempfile.NamedTemporaryFile("r", encoding="utf-8") as stdout,
        tempfile.NamedTemporaryFile("r", encoding="utf-8") as stderr,
    ):
        start = {"code": code, "environ": environ, "seconds": seconds}
        start |= {"stdout": stdout.name, "stderr": stderr.name}
        process.stdin.write(json.dumps(start) + "\n")
        process.stdin.flush()
        returncode = int(process.stdout.readline())
        return subprocess.CompletedProcess(code, returncode, stdout.read(), stderr.read())
