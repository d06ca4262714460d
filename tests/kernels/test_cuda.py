"""Compilations of triton-gumbel on a CUDA device, and their time."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from triton import knobs

import tokendraw
from tokendraw import SamplingMetadata, SamplingParams
from tokendraw_triton_gumbel import plan

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

V = 4000
TENSORS = ("temperature", "top_k", "top_p", "min_p", "seed", "positions", "joint", "logprobs")
FILTERED = SamplingParams(temperature=0.7, top_k=20, top_p=0.9, seed=1)
BATCHES = {
    "plain": (SamplingParams(),),
    "filtered": (FILTERED, SamplingParams(temperature=0.0), SamplingParams(min_p=0.1)),
    "logprobs": (SamplingParams(logprobs=5), SamplingParams()),
    "filtered, logprobs": (replace(FILTERED, logprobs=5), SamplingParams()),
}


def load():
    return tokendraw.load_sampler("triton-gumbel", device="cuda")


def metadata_of(rows, kind):
    requests = BATCHES[kind]
    params = [requests[i % len(requests)] for i in range(rows)]
    return SamplingMetadata.from_params(params, device="cuda", positions=range(rows))


@pytest.fixture
def compiled(monkeypatch):
    """Record the names of kernels compiled, or read from Triton's cache on disk."""
    result = []
    hook = "triton.knobs.runtime.jit_post_compile_hook"
    monkeypatch.setattr(hook, lambda *, fn, **_: result.append(fn.name))
    return result


def test_eight_threads_compile_each_kernel_once(tmp_path):
    run = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("cold_start.py"))],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path)},
    )
    result = json.loads(run.stdout.splitlines()[-1])
    assert result["same"]
    assert len(result["compiled"]) >= 2
    assert set(result["compiled"]) == {1}


def test_after_a_warmup_no_number_of_rows_compiles_anything(compiled):
    sampler = load()
    sampler.warmup(V, dtypes=[torch.bfloat16], batch_sizes=[1, 256])
    compiled.clear()
    logits = torch.randn(310, V, device="cuda").to(torch.bfloat16)
    for rows in range(1, 301):
        for kind in BATCHES:
            metadata = metadata_of(rows, kind)
            sampler.sample(logits[:rows], metadata)
            later = replace(metadata, temperature=torch.cat([metadata.temperature] * 2)[rows:])
            sampler.sample(logits[rows % 7 : rows % 7 + rows], later)
        assert compiled == [], (rows, kind)


def test_a_graph_captures_the_first_call_of_a_sampler_with_compiled_kernels(compiled):
    rows, metadata = 37, metadata_of(37, "filtered, logprobs")
    metadata = replace(metadata, seeded=None)
    logits = torch.randn(rows, V, device="cuda").to(torch.bfloat16)
    expected = load().sample(logits, metadata)
    load().sample(logits[:5], metadata_of(5, "filtered"))
    sampler, graph = load(), torch.cuda.CUDAGraph()
    compiled.clear()
    with torch.cuda.graph(graph):
        result = sampler.sample(logits, metadata)
    for _ in range(3):
        result.token_ids.zero_()
        graph.replay()
        load().sample(logits[:5], metadata_of(5, "filtered"))  # other scratch in between
        assert torch.equal(result.token_ids, expected.token_ids)
        assert torch.equal(result.logprobs.logprobs, expected.logprobs.logprobs)
    assert compiled == []


def seeded_metadata(rows, kind):
    requests = BATCHES[kind]
    params = [replace(requests[i % len(requests)], seed=i) for i in range(rows)]
    return SamplingMetadata.from_params(params, device="cuda", positions=range(rows))


def copied(metadata):
    """The same values in tensors of their own."""
    tensors = {name: tensor.clone() for name in TENSORS if (tensor := getattr(metadata, name)) is not None}
    return replace(metadata, **tensors, row_kinds=None)


def test_values_changed_in_place_act_like_new_metadata():
    sampler, metadata = load(), seeded_metadata(24, "filtered, logprobs")
    logits = torch.randn(24, V, device="cuda").to(torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    sampler.sample(logits, metadata)
    with torch.cuda.graph(graph):
        captured = sampler.sample(logits, metadata)
    drawn = []
    for step in range(1, 5):
        metadata.positions.add_(step)
        metadata.seed.mul_(3)
        metadata.temperature.mul_(1.5)
        metadata.top_k.add_(5)
        logits.mul_(0.9)
        expected = load().sample(logits, copied(metadata))
        for result in (sampler.sample(logits, metadata), sampler.sample(logits, copied(metadata))):
            assert torch.equal(result.token_ids, expected.token_ids)
            assert torch.equal(result.logprobs.logprobs, expected.logprobs.logprobs)
        graph.replay()
        assert torch.equal(captured.token_ids, expected.token_ids)
        drawn.append(expected.token_ids)
    assert not torch.equal(drawn[0], drawn[-1])


def test_threads_on_separate_streams_draw_the_tokens_of_a_single_thread():
    sampler = load()
    kinds = ("plain", "filtered", "logprobs", "filtered, logprobs") * 2
    batches = []
    for rows, kind in enumerate(kinds, 16):
        batches.append((torch.randn(rows, V, device="cuda"), seeded_metadata(rows, kind)))
    expected = [sampler.sample(*batch).token_ids for batch in batches]
    torch.cuda.synchronize()

    def draw(number):
        with torch.cuda.stream(torch.cuda.Stream()):
            result = [sampler.sample(*batches[number]).token_ids for _ in range(50)]
            torch.cuda.current_stream().synchronize()
            return all(torch.equal(each, expected[number]) for each in result)

    with ThreadPoolExecutor(len(batches)) as pool:
        assert all(pool.map(draw, range(len(batches))))


def test_a_hook_of_a_profiler_is_called_and_changes_nothing():
    sampler, metadata = load(), seeded_metadata(8, "filtered")
    logits, seen = torch.randn(8, V, device="cuda"), []
    expected = sampler.sample(logits, metadata).token_ids

    def hook(launched):
        seen.append(launched.get()["name"])

    hooks = knobs.runtime.launch_enter_hook
    hooks.add(hook)
    try:
        result = sampler.sample(logits, metadata).token_ids
    finally:
        hooks.remove(hook)
    assert torch.equal(result, expected)
    assert seen[:2] == ["tile_statistics", "draw_rows"]
    assert len(seen) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_configuration_draws_the_same_tokens(dtype):
    """Log-probabilities may differ in their last bits, since tiles of other sizes add in another order."""
    sampler = load()
    configurations = [how for name, how in plan.TABLE.items() if name.startswith("cuda")]
    assert len(configurations) > 1
    for rows in (1, 65, 300):
        metadata = seeded_metadata(rows, "filtered, logprobs")
        logits = torch.randn(rows, V, device="cuda").to(dtype)
        expected = sampler.sample(logits, metadata)
        for configuration in configurations:
            with plan.override(configuration):
                output = sampler.sample(logits, metadata)
            assert torch.equal(output.token_ids, expected.token_ids)
            torch.testing.assert_close(
                output.logprobs.logprobs, expected.logprobs.logprobs, rtol=0, atol=1e-5
            )


def test_rows_behind_two_to_the_32_elements_draw_as_contiguous_copies():
    """The stride is odd, and no row begins at an even element."""
    stride = 2**31 + 5
    storage = torch.empty(1 + 2 * stride + V, dtype=torch.float16, device="cuda")
    copies = torch.randn(3, V, device="cuda").half()
    logits = storage[1:].as_strided((3, V), (stride, 1)).copy_(copies)
    for kind in BATCHES:
        metadata = seeded_metadata(3, kind)
        distant, contiguous = (load().sample(rows, metadata) for rows in (logits, copies))
        assert torch.equal(distant.token_ids, contiguous.token_ids)
