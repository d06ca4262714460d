"""Programs that set torch's default dtype or device, as engines do while they load, get the same outputs."""

import ast
import os
import re

import pytest

import isolation
from checkout import ROOT
from tokendraw_cpu.library import missing_library

PROGRAM = """
import importlib
from dataclasses import fields
import torch, tokendraw
from tokendraw import Drafts, RequestSlots, SamplingMetadata, SamplingParams, operations

CPU, ROWS, SIZE = torch.device("cpu"), {rows}, {size}
REQUESTS = [SamplingParams(seed=1, top_k=50, top_p=0.9, logprobs=3), SamplingParams(seed=2, min_p=0.01)]
REQUESTS += [SamplingParams(temperature=0.0), SamplingParams(seed=3, filters={{"top_n_sigma": 1.0}})]
EDITS = SamplingParams(repetition_penalty=1.2, penalty_last_n=4, dry_multiplier=0.5, logit_bias={{3: 2.0}})
LOGITS = torch.randn(ROWS, SIZE, generator=torch.Generator().manual_seed(1))

def load():
    plugin = importlib.import_module("tokendraw_{name}").plugin
    offered = plugin.tokendraw_describe().operations
    return {{op: plugin.tokendraw_build(op, CPU, operations.find_operation(op).need()) for op in offered}}

METADATA = SamplingMetadata.from_params([REQUESTS[row % 4] for row in range(ROWS)], device=CPU, positions=range(ROWS))
Q = LOGITS.view(-1, 4, SIZE)[:, :3].reshape(-1, SIZE) + 0.5
DRAFTS = Drafts.from_counts(Q.argmax(-1), [3] * (ROWS // 4), draft_logits=Q)
SLOTS, ROW_INDEX = RequestSlots(ROWS, 16, SIZE, device=CPU), torch.arange(ROWS)
for row in range(ROWS):
    SLOTS.add(row, EDITS, [row % SIZE, 5, 6, 5])
CALLS = {{
    "sample": lambda backend: backend.sample(LOGITS, METADATA),
    "verify": lambda backend: backend.verify(LOGITS, DRAFTS, METADATA, mode="rejection"),
    "score": lambda backend: backend.score(LOGITS, ROW_INDEX, METADATA),
    "process_logits": lambda backend: backend.process(LOGITS.clone(), SLOTS, ROW_INDEX),
}}

def outputs(backends):
    return [bits for op, backend in backends.items() for bits in bits_of(CALLS[op](backend))]

def bits_of(out):
    if isinstance(out, torch.Tensor):
        return [out.contiguous().view(torch.uint8)]
    parts = [getattr(out, field.name) for field in fields(out)]
    return [bits for part in parts if part is not None for bits in bits_of(part)]

loaded = load()
expected = outputs(loaded)
for device, dtype in {defaults}:
    torch.set_default_device(device)
    torch.set_default_dtype(getattr(torch, dtype))
    tokendraw.load_sampler("native", device="cpu")
    for backends in (loaded, load()):
        assert all(map(torch.equal, outputs(backends), expected)), (device, dtype)
print("alike")
"""
DEFAULTS = [("meta", "float32"), ("cpu", "float16"), ("cpu", "bfloat16")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cpu", "native", "triton_gumbel"])
def test_before_a_load_and_before_a_call_the_defaults_change_nothing(name):
    """The interpreter takes long: its only one is a model's device and dtype together."""
    if name == "cpu" and (reason := missing_library()):
        pytest.skip(f"the compiled sampler {reason}")
    is_interpreted = name == "triton_gumbel"
    rows, size, defaults = (4, 300, [("meta", "float16")]) if is_interpreted else (256, 3000, DEFAULTS)
    folders = [ROOT / "tests/fakes", *ROOT.glob("plugins/*/src")]
    environ = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(map(str, folders))}
    program = PROGRAM.format(name=name, rows=rows, size=size, defaults=defaults)
    preload = ""
    if is_interpreted:
        preload = pytest.importorskip("triton_stand_ins", reason="Triton is not installed").INTERPRETING
    ran = isolation.run_forked(program, environ, preload=preload, seconds=500)
    assert (ran.returncode, ran.stdout) == (0, "alike\n"), ran.stderr


MAKES_A_TENSOR = re.compile(
    "arange|as_tensor|asarray|empty|empty_strided|eye|full|linspace|logspace|ones|rand|randint|randn|randperm|"
    "scalar_tensor|tensor|tril_indices|triu_indices|zeros"
)


def unnamed(path):
    """Calls that make a tensor of torch's default dtype or device. A range of integers has its dtype by itself."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name("torch"), attr=made)) if MAKES_A_TENSOR.fullmatch(
                made
            ):
                named = {keyword.arg for keyword in node.keywords} | (
                    {"dtype"} if made == "arange" else set()
                )
                if missing := {"dtype", "device"} - named:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: torch.{made} names no {' and no '.join(missing)}"


@pytest.mark.parametrize("folder", ["core", "plugins", "integrations"])
def test_every_tensor_names_its_dtype_and_its_device(folder):
    assert [line for path in sorted((ROOT / folder).glob("**/src/**/*.py")) for line in unnamed(path)] == []
