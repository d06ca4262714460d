"""What ranks draw together is what one device draws, and what they say to each other."""

import socket
from dataclasses import replace
from itertools import product

import pytest
import torch
import torch.multiprocessing

from rank_threads import FAMILIES, MODES, batch_of, both, gloo, judge, load, on_ranks, split
from tokendraw import SamplingMetadata, SamplingParams
from tokendraw_ranks import VocabShard, thresholds

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture
def hidden(monkeypatch):
    """Let the host read no value, as on a GPU."""
    monkeypatch.setattr(thresholds, "reads_values", lambda device: False)


def compare(size, families, sizes, dtypes, widths=(None,), **need):
    for seed, about in enumerate(product(families, sizes, dtypes)):
        family, vocab_size, dtype = about
        logits, metadata = batch_of(vocab_size, family, seed, dtype, widths)
        alone, outputs = both(size, logits, metadata, seed, **need)
        for output in outputs:
            judge(alone, output, (size, *about))


def test_the_tokens_of_three_ranks_are_those_of_one_device():
    compare(3, FAMILIES, (3500,), FLOATS[:1])


def test_they_are_where_the_host_may_read_no_value(hidden):
    compare(2, ("top-p", "mixed", "large k", "filters"), (3500,), FLOATS[:2])


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_tokens_of_any_number_of_ranks_are_those_of_one_device(size):
    compare(size, FAMILIES, (1, 7, 1024, 3500), FLOATS)


@pytest.mark.parametrize("mode", MODES)
def test_log_probabilities_and_thresholds_are_those_of_one_device(mode):
    need = {"logprobs_mode": mode, "threshold": True}
    compare(3, ("mixed", "filters"), (3500,), FLOATS[:1], (None, 0, 3, 20), **need, gumbel_dtype="fp64")
    compare(3, ("greedy", "mixed"), (7,), FLOATS[:1], (-1, 2), **need)


def test_a_batch_without_rows_says_nothing():
    def work(rank):
        shard = VocabShard(10 * rank.rank, 20, rank)
        output = load(threshold=True).sample(torch.zeros(0, 10), SamplingMetadata.from_params([]), shard)
        return output.token_ids.shape, output.valid.shape, output.threshold.shape, rank.notes

    assert on_ranks(2, work) == [((0,), (0,), (0,), [])] * 2


def test_the_logits_stay_as_they_are_and_nothing_behind_the_columns_is_read():
    logits, metadata = batch_of(3500, "mixed", 2, torch.float32)
    wide = torch.cat((logits, torch.full((len(logits), 9), float("nan"))), 1)
    pristine = wide.clone()
    alone, outputs = both(2, wide[:, :3500], metadata, 2)
    assert all(torch.equal(output.token_ids, alone.token_ids) for output in outputs)
    assert torch.equal(wide.nan_to_num(1.0), pristine.nan_to_num(1.0))


SEEDED = SamplingParams(seed=3, temperature=0.8)
MESSAGES = {  # bytes a row and rank
    "plain": (SEEDED, 1.0, [("gather", 40)]),
    "greedy": (SamplingParams(temperature=0.0), 1.0, [("gather", 40)]),
    "top-k, top-p": (replace(SEEDED, top_k=50, top_p=0.9), 1.0, [("gather", 204), ("gather", 40)]),
    "min-p": (replace(SEEDED, min_p=0.1), 1.0, [("gather", 8), ("gather", 40)]),
    "narrow top-p": (replace(SEEDED, top_p=0.9), 8.0, [("gather", 3076), ("gather", 40)]),
    "wide top-p": (
        replace(SEEDED, top_p=0.99),
        0.1,
        [("gather", 3076), *[("sum", 2048)] * 3, ("gather", 40)],
    ),
    "large top-k": (replace(SEEDED, top_k=1500), 1.0, [("gather", 8), *[("sum", 2048)] * 4, ("gather", 40)]),
    "no seeds": (SamplingParams(), 1.0, [("broadcast", 8), ("gather", 40)]),
    "a moment": (replace(SEEDED, filters={"top_n_sigma": 1.0}), 1.0, [("gather", 32), ("gather", 40)]),
}


@pytest.mark.parametrize(("params", "scale", "said"), MESSAGES.values(), ids=MESSAGES)
def test_ranks_send_few_bytes_in_few_collectives(params, scale, said):
    logits = scale * torch.randn(8, 3000, generator=torch.Generator().manual_seed(0))
    metadata = SamplingMetadata.from_params([params] * 8, positions=range(8))

    def work(rank):
        sampler, (columns, shard) = load(), split(rank, logits, 0)
        for _ in range(2):
            rank.notes.clear()
            sampler.sample(columns, metadata, shard)
        return [(name, nbytes / 8) for name, nbytes in rank.notes]

    assert on_ranks(2, work) == [said] * 2


def test_ranks_of_gloo_draw_alike(installed_ranks):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.start_processes(gloo, (port,), nprocs=2, start_method="spawn")
