"""What the kit does not see of triton-gumbel on a CUDA device: compilations, configurations, edits that meet."""

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")


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
