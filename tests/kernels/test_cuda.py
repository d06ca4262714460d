"""What the kit does not see of triton-gumbel on a CUDA device: compilations, configurations, edits that meet."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from triton import knobs

import tokendraw
from tokendraw import SamplingMetadata, SamplingParams
from tokendraw_testing import sync_is_an_error
from tokendraw_triton_gumbel import plan

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

V = 4000
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


def seeded_metadata(rows, kind):
    requests = BATCHES[kind]
    params = [replace(requests[i % len(requests)], seed=i) for i in range(rows)]
    return SamplingMetadata.from_params(params, device="cuda", positions=range(rows))


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


# Edits of logits.


def load_processor(plugin="triton-gumbel"):
    return tokendraw.load("process_logits", plugin, device="cuda")


def bits(tensor):
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("biased", [False, True])
def test_a_mask_keeps_edits_beside_forbidden_ids(dtype, biased):
    """Programs have no order: reading, choosing and writing entire words might undo another program's edits."""
    rows, vocab_size = 256, 8192
    edited = list(range(0, vocab_size, 2))
    bias = {"logit_bias": dict.fromkeys(edited[:1000], 3.0)} if biased else {}
    params = tokendraw.SamplingParams(repetition_penalty=1.5, **bias)
    slots = tokendraw.RequestSlots(rows, vocab_size // 2, vocab_size, device="cuda", max_bias=1000)
    for slot in range(rows):
        slots.add(slot, params, prompt_token_ids=edited)
    logits = torch.randn(rows, vocab_size, device="cuda").to(dtype)
    row_index = torch.arange(rows, device="cuda")
    mask = torch.full((rows, vocab_size // 32), 0x55555555, dtype=torch.int32, device="cuda")  # the even ids
    mask[:, ::3] = 0x55000055  # some words have vectors that are forbidden as a whole
    expected = load_processor("native").process(logits.clone(), slots, row_index, mask)
    processor, result = load_processor(), torch.empty_like(logits)
    for _ in range(100):
        result.copy_(logits)
        processor.process(result, slots, row_index, mask)
        assert torch.equal(bits(result), bits(expected))


def requested(rows, vocab_size, limit):
    """Return slots whose requests have penalties, biases and bad words, and a prompt."""
    rng, slots = np.random.default_rng(4), tokendraw.RequestSlots(rows, limit, vocab_size, device="cuda")
    for slot in range(rows):
        ids = rng.integers(0, vocab_size, 5).tolist()
        params = tokendraw.SamplingParams(
            repetition_penalty=1.5,
            presence_penalty=0.5,
            logit_bias={ids[0]: 2.0},
            bad_words=[ids[:2], ids[2:]],
        )
        slots.add(slot, params, rng.integers(0, vocab_size, limit // 3).tolist())
    return slots


@pytest.mark.parametrize("width", [None, 1, 4])
def test_appended_tokens_leave_the_tables_as_torch_does_without_a_wait_and_in_a_graph(width):
    rng, vocab_size, limit = np.random.default_rng(4), 5000, 60
    by_launch, by_torch = (requested(32, vocab_size, limit) for _ in range(2))
    load_processor().process(
        torch.zeros(32, vocab_size, device="cuda"), by_launch, torch.arange(32, device="cuda"), None
    )
    assert by_launch.appender is not None
    assert by_torch.appender is None
    rows = torch.arange(32, device="cuda", dtype=torch.int32)
    tokens = torch.zeros(32 if width is None else (32, width), dtype=torch.int64, device="cuda")

    def step(slots):
        slots._append(None, rows, tokens)

    with sync_is_an_error():
        by_launch.appender(by_launch.tables, rows, tokens)
        by_torch._histories.append(rows, tokens)
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
        step(by_launch)
    for _ in range(40):  # the last ones find no room
        tokens.copy_(torch.tensor(rng.choice([-1, vocab_size, *range(50)], tuple(tokens.shape))))
        rows.copy_(torch.tensor(rng.permutation(34)[:32]))
        graph.replay()
        by_torch._histories.append(rows, tokens)
    for name, table in vars(by_torch.tables).items():
        pair = torch.stack((getattr(by_launch.tables, name), table))
        if name == "distinct":  # in any order
            pair = pair.sort(2).values
        assert torch.equal(*pair), name
