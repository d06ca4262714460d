"""What ranks draw together is what one device draws: tokens, flags, log-probabilities, thresholds; and their messages."""

from itertools import product

import pytest
import torch

import tokendraw
from rank_threads import FAMILIES, MODES, batch_of, load, on_ranks, split
from tokendraw import SamplingMetadata, SamplingParams
from tokendraw_ranks import VocabShard, thresholds

ROWS = 12
SIZES = (1, 7, 1024, 3500)
HALVES = (torch.bfloat16, torch.float16)


def both(size, logits, metadata, seed, **need):
    """Return the output of one device by native, and that of each rank."""
    torch.manual_seed(seed)
    alone = load("sample", **need).sample(logits, metadata)
    sampler = load(**need)
    torch.manual_seed(seed)  # rank 0 draws first, and decides
    return alone, on_ranks(size, lambda rank: draw(sampler, rank, logits, metadata, seed))


def draw(sampler, rank, logits, metadata, seed):
    columns, shard = split(rank, logits, seed)
    return sampler.sample(columns, metadata, shard)


def judge(size, families, sizes, dtypes, **need):
    """Compare batches with one device; every rank has the same tokens."""
    for seed, (family, vocab_size, dtype) in enumerate(product(families, sizes, dtypes)):
        logits, metadata = batch_of(ROWS, vocab_size, family, seed, dtype)
        alone, outputs = both(size, logits, metadata, seed, **need)
        for output in outputs:
            about = size, family, vocab_size, dtype
            assert output.token_ids.tolist() == alone.token_ids.tolist(), about
            assert output.valid.tolist() == alone.valid.tolist(), about


@pytest.fixture
def hidden(monkeypatch):
    """Let the host read no value, and send no masses by digit, as on a GPU."""
    plan = thresholds.Plan.of.__func__
    monkeypatch.setattr(
        thresholds.Plan,
        "of",
        classmethod(lambda *given, on_cpu, has_digits: plan(*given, on_cpu=False, has_digits=False)),
    )


def test_the_tokens_of_three_ranks_are_those_of_one_device():
    judge(3, FAMILIES, (3500,), (torch.float32,))


def test_they_are_where_the_host_may_read_no_value(hidden):
    judge(2, ("top-p", "mixed", "large k", "filters"), (3500,), (torch.float32, torch.bfloat16))


def test_noise_in_float64_draws_alike():
    judge(2, ("plain", "mixed"), (3500,), (torch.float32,), gumbel_dtype="fp64")


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_tokens_of_any_number_of_ranks_are_those_of_one_device(size):
    judge(size, FAMILIES, SIZES, (torch.float32, *HALVES))


@pytest.mark.parametrize("mode", MODES)
def test_log_probabilities_and_thresholds_are_those_of_one_device(mode):
    close = {"rtol": 2e-6, "atol": 2e-6}
    for seed, (family, vocab_size) in enumerate((("mixed", 3500), ("filters", 3500), ("greedy", 7))):
        logits, metadata = batch_of(ROWS, vocab_size, family, seed, torch.float32)
        widths = [-1, 2] if vocab_size < 10 else [None, 0, 3, 20]
        params = [tokendraw.SamplingParams(**request) for request in ()] or _asking(
            family, vocab_size, seed, widths
        )
        metadata = SamplingMetadata.from_params(params, positions=range(ROWS))
        alone, outputs = both(3, logits, metadata, seed, logprobs_mode=mode, threshold=True)
        for output in outputs:
            assert torch.equal(output.token_ids, alone.token_ids)
            assert torch.equal(output.logprobs.token_ids, alone.logprobs.token_ids), (family, mode)
            assert torch.equal(output.logprobs.ranks, alone.logprobs.ranks)
            torch.testing.assert_close(output.logprobs.logprobs, alone.logprobs.logprobs, **close)
            torch.testing.assert_close(output.log_kept_mass, alone.log_kept_mass, **close)
            torch.testing.assert_close(output.threshold, alone.threshold, rtol=0, atol=0, equal_nan=True)


def _asking(family, vocab_size, seed, widths):
    from dataclasses import replace

    from rank_threads import params_of

    params = params_of(ROWS, vocab_size, family, seed)
    return [replace(p, logprobs=widths[i % len(widths)]) for i, p in enumerate(params)]


def test_a_batch_without_rows_says_nothing():
    metadata = SamplingMetadata.from_params([])

    def work(rank):
        sampler = load(threshold=True)
        output = sampler.sample(torch.zeros(0, 10), metadata, VocabShard(10 * rank.rank, 20, rank))
        return output.token_ids.shape, output.valid.shape, output.threshold.shape, rank.notes

    assert on_ranks(2, work) == [((0,), (0,), (0,), [])] * 2


def test_the_logits_stay_as_they_are_and_nothing_behind_the_columns_is_read():
    logits, metadata = batch_of(ROWS, 3500, "mixed", 2, torch.float32)
    wide = torch.cat((logits, torch.full((ROWS, 9), float("nan"))), 1)
    pristine = wide.clone()
    alone, outputs = both(2, wide[:, :3500], metadata, 2)
    assert all(torch.equal(output.token_ids, alone.token_ids) for output in outputs)
    assert torch.equal(wide.nan_to_num(1.0), pristine.nan_to_num(1.0))


# Messages: bytes a row and rank.

SEEDED = {"seed": 3, "temperature": 0.8}
MESSAGES = {
    "plain": (SEEDED, 1.0, [("gather", 40)]),
    "greedy": ({"temperature": 0.0}, 1.0, [("gather", 40)]),
    "top-k, top-p": ({**SEEDED, "top_k": 50, "top_p": 0.9}, 1.0, [("gather", 204), ("gather", 40)]),
    "min-p": ({**SEEDED, "min_p": 0.1}, 1.0, [("gather", 8), ("gather", 40)]),
    "narrow top-p": ({**SEEDED, "top_p": 0.9}, 8.0, [("gather", 3076), ("gather", 40)]),
    "wide top-p": ({**SEEDED, "top_p": 0.99}, 0.1, [("gather", 3076), *[("sum", 2048)] * 3, ("gather", 40)]),
    "large top-k": ({**SEEDED, "top_k": 1500}, 1.0, [("gather", 8), *[("sum", 2048)] * 4, ("gather", 40)]),
    "no seeds": ({}, 1.0, [("broadcast", 8), ("gather", 40)]),
    "a moment": ({**SEEDED, "filters": {"top_n_sigma": 1.0}}, 1.0, [("gather", 32), ("gather", 40)]),
}


@pytest.mark.parametrize(("asked", "scale", "said"), MESSAGES.values(), ids=MESSAGES)
def test_ranks_send_few_bytes_in_few_collectives(asked, scale, said):
    rows, vocab_size = 8, 3000
    logits = scale * torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(0))
    metadata = SamplingMetadata.from_params([SamplingParams(**asked)] * rows, positions=range(rows))
    sampler = load()

    def work(rank):
        columns, shard = split(rank, logits, 0)
        for _ in range(2):
            rank.notes.clear()
            sampler.sample(columns, metadata, shard)
        return [(name, nbytes / rows) for name, nbytes in rank.notes]

    assert on_ranks(2, work) == [said] * 2


def test_a_rank_says_the_same_of_bfloat16_in_half_the_rounds(hidden):
    logits = torch.randn(4, 3000, generator=torch.Generator().manual_seed(0)).bfloat16()
    metadata = SamplingMetadata.from_params([SamplingParams(top_p=0.9, seed=1)] * 4, positions=range(4))
    sampler = load()

    def work(rank):
        columns, shard = split(rank, logits, 0)
        sampler.sample(columns, metadata, shard)
        return [name for name, _ in rank.notes]

    assert on_ranks(2, work) == [["gather", "sum", "sum", "gather"]] * 2
