"""Modules loaded by an import, in a fresh interpreter."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import isolation
import tokendraw
from tokendraw import operations

HEAVY = ("torch", "numpy", "triton", "flashinfer", "aiter", "transformers", "safetensors")


def python(code):
    """Return the output of a fresh interpreter without the developer's settings."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("TOKENDRAW_")}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ
    )
    return run.stdout


REPORT = "import json, sys; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"


def loaded_after(code):
    """Top-level names in sys.modules after ``code``."""
    return set(json.loads(python(f"{code}\n{REPORT}").splitlines()[-1]))


def printed_after_torch(code):
    """Return the last line that ``code`` prints in a process that has imported torch, from JSON."""
    run = isolation.run_forked(code)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


LIGHT = """
import tokendraw
from tokendraw import Need, SamplingParams, SamplerOutput
from tokendraw.plugin import Call, Capabilities, Operation, PluginInfo, Requirement
from tokendraw.resolution import Candidate
tokendraw.discover()
tokendraw.resolve(device="cpu").explain()
tokendraw.SamplingParams(seed=1).check(100)
import tokendraw_native
import tokendraw_testing.commands.check, tokendraw_testing.commands.new, tokendraw_bench.commands.bench
"""


def test_neither_torch_nor_a_backend_is_loaded_before_a_sampler_is():
    assert loaded_after(LIGHT).isdisjoint(HEAVY)


def test_a_name_that_needs_torch_says_so_where_it_is_missing():
    code = """
import sys
sys.modules["torch"] = None
for statement in ("from tokendraw import SamplingMetadata", "import tokendraw; tokendraw.Drafts"):
    try:
        exec(statement)
    except ImportError as error:
        print(error)
"""
    assert python(code).splitlines() == [
        f"{name!r} needs torch, found it not installed; run `pip install torch`."
        for name in ("SamplingMetadata", "Drafts")
    ]


def test_importing_tokendraw_loads_its_own_package_and_the_standard_library_alone():
    foreign = {
        name
        for name in loaded_after("import tokendraw") - loaded_after("pass")
        if name not in sys.stdlib_module_names
    }
    assert foreign == {"tokendraw"}


@pytest.mark.slow
def test_draws_of_large_batches_load_no_symbolic_algebra():
    """``torch.broadcast_shapes`` loads sympy: half a second, three without cached bytecode."""
    code = """
import torch, tokendraw

sampler = tokendraw.load_sampler("native", device="cpu")
every = {"temperature": 0.9, "top_k": 50, "top_p": 0.9, "min_p": 0.01, "logprobs": 3}
params = [tokendraw.SamplingParams(**given) for given in ({}, {"seed": 7}, every, every | {"seed": 7})]
metadata = tokendraw.SamplingMetadata.from_params(params * 16, positions=range(64))
logits = torch.randn(64, 5000)
sampler.sample(logits, metadata)
drafts = tokendraw.Drafts.from_lists([[1, 2, 3]] * 16, device="cpu")
for mode in ("rejection", "coupled", "block"):
    sampler.verify(logits, drafts, metadata, mode=mode)
"""
    assert "sympy" not in set(printed_after_torch(f"{code}\n{REPORT}")) - loaded_after("import torch")


def test_importing_tokendraw_reads_no_setting():
    code = """
import os

class Watched(type(os.environ)):
    def __getitem__(self, key):
        assert not str(key).startswith("TOKENDRAW_"), key
        return super().__getitem__(key)

    def __iter__(self):
        raise AssertionError("read the whole environment")

os.environ.__class__ = Watched
import tokendraw, tokendraw.providers.load
"""
    python(code)


@pytest.mark.parametrize("operation", operations.RECORDS)
def test_nothing_in_the_core_branches_on_the_name_of_an_operation(operation):
    comparison = re.compile(rf"""([!=]=|\bin|\bcase)\s*\(?["']{operation}["']|["']{operation}["']\s*[!=]=""")
    sources = Path(str(tokendraw.__file__)).parent.rglob("*.py")
    assert [path for path in sources if comparison.search(path.read_text(encoding="utf-8"))] == []
