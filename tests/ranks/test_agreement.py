"""What the ranks of a shard agree on at its first call, and what they refuse together."""

from dataclasses import replace

import pytest
import torch

import tokendraw
from rank_threads import load, on_ranks, results_and_errors
from tokendraw import InvalidInputError, SamplingMetadata, SamplingParams
from tokendraw_ranks import VocabShard
from tokendraw_ranks.shard import Layout

V = 3000
PLAIN = SamplingParams(seed=1, top_k=20)
ALONE = (
    "needs all columns of the logits on one device, found a shard of the vocabulary. Gather the logits, or"
)


def batch(*params):
    return SamplingMetadata.from_params(params or [PLAIN] * 2, positions=[0] * len(params or [0, 0]))


def errors_of(make, size=2, calls=2):
    """Call ``make(rank)`` = (logits, metadata, shard) some times on every rank; return the errors of each rank."""
    sampler = load()

    def work(rank):
        logits, metadata, shard = make(rank)
        errors = []
        for _ in range(calls):
            try:
                sampler.sample(logits, metadata, shard)
            except tokendraw.TokendrawError as error:
                errors.append(error)
        return errors

    return on_ranks(size, work)


def held(rank, start=None, n=None, vocab_size=V, rows=2, dtype=torch.float32, metadata=None):
    """Return the call of a rank of two, of which each holds a half."""
    start = 1500 * rank.rank if start is None else start
    logits = torch.zeros(rows, 1500 if n is None else n, dtype=dtype)
    return logits, metadata or batch(*[PLAIN] * rows), VocabShard(start, vocab_size, rank)


ALIKE = "needs to be the same on every rank, found"
BATCH = "on rank 1. Call every rank with the same batch."
START = "'start' of the shard on rank 1 needs to be 1500, where the shard of rank 0 ends, found"
ORDER = "Let the ranks hold successive ids in rank order."
END = "the shards need to end at 3000, their 'vocab_size', found"
WHOLE = "Let the ranks hold all ids and no padding: pass logits[:, :n] where columns are padded."
DISAGREEMENTS = {
    "a gap": (lambda r: held(r, start=1501 * r.rank), f"{START} 1501: a gap. {ORDER}"),
    "an overlap": (lambda r: held(r, start=1499 * r.rank), f"{START} 1499: an overlap. {ORDER}"),
    "padding": (lambda r: held(r, n=1500 + 8 * r.rank), f"{END} 3008 on rank 1: more. {WHOLE}"),
    "less": (lambda r: held(r, n=1500 - r.rank), f"{END} 2999 on rank 1: a gap. {WHOLE}"),
    "another V": (lambda r: held(r, vocab_size=V + r.rank),
                  f"'vocab_size' of the shard {ALIKE} 3000 on rank 0 and 3001 {BATCH}"),
    "another dtype": (lambda r: held(r, dtype=[torch.float16, torch.float32][r.rank]),
                      f"the dtype of 'logits' {ALIKE} 'float16' on rank 0 and 'float32' {BATCH}"),
    "other rows": (lambda r: held(r, rows=2 + r.rank),
                   f"the number of rows of 'logits' {ALIKE} 2 on rank 0 and 3 {BATCH}"),
    "a fault": (lambda r: held(r, metadata=batch(PLAIN) if r.rank else None), "'shard' needs a call that "
                "every rank can serve, found on rank 1: 'metadata' needs as many rows as 'logits', 2, found 1."),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), DISAGREEMENTS.values(), ids=DISAGREEMENTS)
def test_ranks_that_disagree_raise_the_same_error_now_and_later(make, message):
    for errors in errors_of(make):
        assert [(type(error), str(error)) for error in errors] == [(InvalidInputError, message)] * 2
        assert isinstance(errors[0], ValueError)


def test_another_value_of_a_parameter_is_named_with_digests():
    def make(rank):
        return held(rank, metadata=batch(PLAIN, replace(PLAIN, top_p=[0.5, 0.6][rank.rank])))

    for (error,) in errors_of(make, calls=1):
        assert str(error).startswith(
            "'top_p' of the metadata needs to be the same on every rank, found 'values of digest"
        )


USE = "use min_p, top_k and top_p."


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"typical_p": 0.5}, f"'typical_p' {ALONE} {USE}"),
        ({"xtc_probability": 0.5}, f"'xtc_probability' {ALONE} {USE}"),
        (
            {"top_k": 2, "filter_order": "temperature_last"},
            f"'filter_order' temperature_last {ALONE} use top_k_first or joint.",
        ),
        ({"logprob_token_ids": [3]}, f"'logprob_token_ids' {ALONE} ask for the best tokens with logprobs=."),
    ],
)
def test_what_needs_all_columns_is_refused_on_every_rank(asked, message):
    metadata = batch(*[SamplingParams(**asked)] * 2)
    for (error,) in errors_of(lambda rank: held(rank, metadata=metadata), calls=1):
        assert str(error) == f"'shard' needs a call that every rank can serve, found on rank 0: {message}"


def test_a_shard_has_integers_and_a_group_and_later_calls_as_many_columns():
    with pytest.raises(
        tokendraw.InvalidParameterError, match="'start' of VocabShard needs an integer, found"
    ):
        VocabShard(1.5, V)
    for shard, message in (
        (3, "'shard' needs a tokendraw_ranks"),
        (VocabShard(0, V), "'shard' needs the ranks"),
        (VocabShard(0, V, "tp"), "'shard' needs the ranks"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            load().sample(torch.zeros(2, V), batch(), shard)

    def work(rank):
        sampler, shard = load(), VocabShard(0, V, rank)
        sampler.sample(torch.zeros(2, V), batch(), shard)
        sampler.sample(torch.zeros(2, V - 1), batch(), shard)

    _, errors = results_and_errors(1, work)
    assert str(errors[0]) == (
        f"'logits' needs {V} columns, as this shard had when its ranks agreed, found {V - 1}. "
        "Make a new VocabShard on every rank."
    )


def test_a_rank_that_raises_behind_the_agreement_raises_and_nothing_takes_its_place():
    def work(rank):
        sampler, (logits, metadata, shard) = load(), held(rank)
        sampler.sample(logits, metadata, shard)
        if rank.rank:
            rank.all_gather = lambda tensor: (_ for _ in ()).throw(RuntimeError("lost"))
        return sampler.sample(logits, metadata, shard)

    _, errors = results_and_errors(2, work)
    assert (type(errors[1]), str(errors[1])) == (RuntimeError, "lost")


def test_the_parts_of_tiles_are_listed_in_the_order_of_their_ids():
    shards = [(0, 500), (500, 500), (500, 900), (900, 3000), (3000, 4096)]
    layouts = [Layout.of(shards, rank, 4096, torch.device("cpu")) for rank in range(5)]
    places = [(each.first_tile, each.tiles, each.whole_first, each.whole_end) for each in layouts]
    assert places == [(0, 1, 0, 0), (0, 1, 0, 1), (0, 1, 1, 1), (0, 3, 1, 2), (2, 2, 1, 2)]
    parts = layouts[0].parts.T.tolist()
    assert (parts[2], parts[6], parts[9]) == ([2, 6, 9], [2, 6, 9], [2, 6, 9])  # of tile 0
    assert (parts[11], parts[12]) == ([11, 12, 0], [11, 12, 0])  # of tile 2
    assert (parts[10], parts[13], parts[0]) == ([10, 0, 0], [13, 0, 0], [0, 0, 0])
    assert Layout.of([(0, 1024), (1024, 3000)], 0, 3000, torch.device("cpu")).parts is None


def test_what_moved_here_says_so():
    with pytest.raises(ImportError, match="'tokendraw.VocabShard' is tokendraw_ranks".replace(".", r"\.")):
        _ = tokendraw.VocabShard
    with pytest.raises(TypeError, match="pass it a tokendraw_ranks"):
        load("sample").sample(torch.zeros(2, V), batch(), shard=VocabShard(0, V))
