"""One loaded object, called by several Python threads at once."""

import os
import re

import pytest

import isolation
from checkout import ROOT
from tokendraw_cpu.library import missing_library

OPERATIONS = {"cpu": 3, "native": 4, "transformers": 1, "aiter": 1, "flashinfer": 2}


@pytest.mark.slow
@pytest.mark.parametrize("backend", OPERATIONS)
def test_every_output_has_the_bits_of_a_call_by_one_thread(backend):
    """In a process of its own: where threads share scratch, it may end by a signal."""
    if backend == "cpu" and (reason := missing_library()):
        pytest.skip(f"the compiled sampler {reason}")
    folders = [ROOT / "tests/fakes", *ROOT.glob("plugins/*/src")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    options = "--seconds", "2", "--threads", "4", "--only", backend
    ran = isolation.run_module("concurrent_calls", *options, environ=environ)
    lines = re.findall(r"^\S+, 4 threads: \d+ calls, 0 others$", ran.stdout, re.MULTILINE)
    assert (ran.returncode, len(lines)) == (0, OPERATIONS[backend]), ran.stdout + ran.stderr
