"""docs/vocab-parallel.md agrees with the code: its Python runs on two ranks, and its tables are computed."""

import re

import pytest
import torch

import gloo_world
import pages
import tokendraw
from gloo_world import world
from tokendraw_bench.ranks.traffic import CountingTransport
from tokendraw_testing.shards.thread_ranks import on_ranks

PAGE = pages.text_of("docs/vocab-parallel.md")


@pytest.mark.slow
def test_the_python_draws_the_tokens_of_a_single_device_on_two_ranks():
    names = ["local", "n", "params"]
    result = world(2).run(gloo_world.run_page, pages.blocks(PAGE, "python"), [*names, "out"])
    values, printed = zip(*result, strict=True)
    logits = torch.cat([value["local"][:, : value["n"]] for value in values], 1)
    assert logits.shape == (2, 50257)
    metadata = tokendraw.SamplingMetadata.from_params(values[0]["params"], positions=[11, 4])
    alone = tokendraw.load_sampler("native", device="cpu").sample(logits, metadata).token_ids
    assert all(torch.equal(value["out"].token_ids, alone) for value in values)
    assert list(printed) == [pages.blocks(PAGE, "")[0]] * 2


def padded(vocab_size: int, ranks: int, *, grows: bool) -> int | None:
    """Return the columns of a rank by the rules of vLLM and SGLang; None for refused sizes."""
    to = 64
    if -(-vocab_size // to) * to % ranks:
        to *= ranks if grows else 0
    return -(-vocab_size // to) * to // ranks if to else None


def test_the_table_of_padding_follows_from_the_stated_rules():
    rows = [row for row in pages.rows(PAGE, 5) if row[0].isdigit() and row[4]]
    rows = [row for row in rows if row[1].isdigit()]
    assert len(rows) == 4
    for v, r, vllm, sglang, held in rows:
        size, ranks = int(v), int(r)
        width = padded(size, ranks, grows=True)
        assert vllm == str(padded(size, ranks, grows=False) or "refused")
        assert sglang == str(width)
        own = [max(0, min(width, size - rank * width)) for rank in range(ranks)]
        assert held in (", ".join(map(str, own)), f"{own[0]} on each" if len(set(own)) == 1 else "")


KINDS = {
    "greedy alone": tokendraw.SamplingParams(temperature=0),
    "without filters, all seeded": tokendraw.SamplingParams(seed=1),
    "top-k of 50, with or without top-p and min-p": tokendraw.SamplingParams(seed=1, top_k=50, top_p=0.9),
    "min-p alone": tokendraw.SamplingParams(seed=1, min_p=0.1),
    "`top_n_sigma` alone": tokendraw.SamplingParams(seed=1, filters={"top_n_sigma": 1.0}),
    "`eta_cutoff` beside a top-k of 50": tokendraw.SamplingParams(
        seed=1, top_k=50, filters={"eta_cutoff": 0.001}
    ),
    "top-k above 1,024, or unknown to the host": tokendraw.SamplingParams(seed=1, top_k=1500),
    "top-p alone on a CPU, of a narrow nucleus": tokendraw.SamplingParams(seed=1, top_p=0.1),
    "without filters, 5 log-probabilities, ranks": tokendraw.SamplingParams(seed=1, logprobs=5),
}


def test_the_table_of_collectives_equals_the_messages_of_ranks():
    rows = {row[0]: row[1:] for row in pages.rows(PAGE, 5) if row[0] in KINDS}
    assert rows.keys() == KINDS.keys()
    sampler = tokendraw.load_sampler("native", device="cpu")
    for name, (before, sums, last, collectives) in rows.items():
        metadata = tokendraw.SamplingMetadata.from_params([KINDS[name]] * 3, positions=[0, 1, 2])

        def work(rank, metadata=metadata):
            counting = CountingTransport(rank)
            sampler.sample(
                torch.randn(3, 1000), metadata, shard=tokendraw.VocabShard(1000 * rank.rank, 2000, counting)
            )
            return counting.collectives, counting.received / 3

        sent = int(before) + int(sums) + int(last)
        assert on_ranks(2, work) == [(int(collectives), sent)] * 2, name


@pytest.mark.slow
def test_the_command_prints_the_documented_output():
    ((command, documented),) = pages.commands(PAGE)
    assert re.fullmatch(pages.pattern(documented), pages.run(command))


def test_the_model_is_computed_by_the_stated_formula():
    logits = 256 * 151_936 * 2
    for row in pages.rows(PAGE, 3):
        if row[0].isdigit():
            ranks = int(row[0])
            gathered = 15 + 1e6 * (logits * (ranks - 1) / ranks / 450e9 + 3 * logits / 4.8e12)
            sharded = 15 + 1e6 * ((ranks - 1) * 40 * 256 / 450e9 + logits / ranks / 4.8e12)
            assert row[1:] == [f"{gathered:.0f}", f"{sharded:.0f}"]
