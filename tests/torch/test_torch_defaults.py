"""Programs that set torch's default dtype or device, as engines do while they load, get the same outputs."""

import ast
import os

import pytest

import isolation
from checkout import ROOT
from tokendraw_cpu.library import missing_library

DEFAULTS = (
    "torch.set_default_device('meta')",
    "torch.set_default_dtype(torch.float16)",
    "torch.set_default_dtype(torch.bfloat16)",
)
PROGRAM = """
import tempfile
from pathlib import Path
import concurrent_calls as calls
import torch, tokendraw
from tokendraw import Need

NAME = {name!r}
calls.SHAPES = (({rows}, {size}, torch.float32),)

def load():
    if NAME == "triton-gumbel":  # in Triton's interpreter, which no plugin advertises
        from tokendraw_triton_gumbel.processor import TritonLogitsProcessor
        from tokendraw_triton_gumbel.sampler import TritonGumbelSampler

        cpu = torch.device("cpu")
        return TritonGumbelSampler(cpu, Need(threshold=True)), TritonLogitsProcessor(cpu)
    sampler = tokendraw.load_sampler(NAME, device="cpu", need=Need(threshold=True))
    return sampler, tokendraw.load("process_logits", NAME, device="cpu")

def outputs(sampler, processor):
    made = calls.sample_calls(sampler, "cpu", calls.SEEDED) + calls.verify_calls(sampler, "cpu", calls.SEEDED)
    if NAME != "cpu":
        made += calls.score_calls(sampler, "cpu", calls.SEEDED)
    return [calls.bits_of(call()) for call in made + calls.process_calls(processor, "cpu")]

with tempfile.TemporaryDirectory() as folder:
    calls.install(Path(folder))
    loaded = load()
    expected = outputs(*loaded)
    {default}
    for objects in (loaded, load())[NAME == "triton-gumbel" :]:  # the interpreter takes its time
        found = outputs(*objects)
        assert all(map(calls.are_alike, found, expected)), list(map(calls.are_alike, found, expected))
print("alike")
"""


CASES = [(name, default) for name in ("cpu", "native") for default in DEFAULTS]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "default"), [*CASES, ("triton-gumbel", "; ".join(DEFAULTS[:2]))])
def test_before_a_load_and_before_a_call_the_defaults_change_nothing(name, default):
    if name == "cpu" and (reason := missing_library()):
        pytest.skip(f"the compiled sampler {reason}")
    rows, size = (4, 300) if name == "triton-gumbel" else (256, 3000)
    folders = [ROOT / "tests/fakes", *ROOT.glob("plugins/*/src")]
    environ = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(map(str, folders))}
    program = PROGRAM.format(name=name, rows=rows, size=size, default=default)
    ran = isolation.run_forked(program, environ, seconds=500)
    assert (ran.returncode, ran.stdout) == (0, "alike\n"), ran.stderr


TENSORS = {
    "arange",
    "as_tensor",
    "asarray",
    "empty",
    "empty_strided",
    "eye",
    "full",
    "linspace",
    "logspace",
    "ones",
}
TENSORS |= {
    "rand",
    "randint",
    "randn",
    "randperm",
    "scalar_tensor",
    "tensor",
    "tril_indices",
    "triu_indices",
    "zeros",
}


def unnamed(path):
    """Calls that make a tensor of torch's default dtype or device. A range of integers has its dtype by itself."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name("torch"), attr=made)) if made in TENSORS:
                named = {keyword.arg for keyword in node.keywords} | (
                    {"dtype"} if made == "arange" else set()
                )
                if missing := {"dtype", "device"} - named:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: torch.{made} names no {' and no '.join(missing)}"


@pytest.mark.parametrize("folder", ["core", "plugins", "integrations"])
def test_every_tensor_names_its_dtype_and_its_device(folder):
    assert [line for path in sorted((ROOT / folder).glob("**/src/**/*.py")) for line in unnamed(path)] == []
