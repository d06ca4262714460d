"""The kept set from thresholds: masks and lists of ids, and the thresholds of any bound."""

import re

import pytest
import torch

import call_tables
import tokendraw
from tokendraw import InvalidInputError, Need, SamplingMetadata, SamplingParams
from tokendraw.plugin import kept_extremes, threshold_between

INF, NAN = float("inf"), float("nan")
LOGITS = torch.tensor(
    [
        [1.0, 5.0, 3.0, 3.0, -INF],  # two tokens of top-k = 2, and a tie
        [1.0, 5.0, 3.0, NAN, -INF],  # without a filter
        [1.0, INF, 3.0, INF, 0.0],
        [-INF, NAN, -INF, -INF, -INF],
    ]
)
KEPT = [[1, 2, 3], [0, 1, 2], [1, 3], []]


@pytest.fixture(scope="module")
def threshold():
    sampler = tokendraw.load_sampler("native", device="cpu", need=Need(threshold=True))
    params = [SamplingParams(top_k=2), SamplingParams(), SamplingParams(top_k=2), SamplingParams(top_p=0.5)]
    return sampler.sample(LOGITS, SamplingMetadata.from_params(params)).threshold


def test_a_threshold_is_the_least_kept_logit_and_a_mask_holds_what_may_be_drawn(threshold):
    assert torch.allclose(threshold, torch.tensor([3.0, -INF, INF, NAN]), equal_nan=True)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        mask = tokendraw.kept_mask(LOGITS.to(dtype), threshold)
        assert [row.nonzero().flatten().tolist() for row in mask] == KEPT


@pytest.mark.parametrize("chunk", [10, 1 << 20], ids=["in parts", "at once"])
def test_ids_are_listed_in_ascending_order_and_a_row_that_kept_more_is_marked(threshold, monkeypatch, chunk):
    monkeypatch.setattr("tokendraw.kept_set._CHUNK_LOGITS", chunk)
    for width, overflows in ((7, [False] * 4), (2, [True, True, False, False])):
        ids, counts, overflow = tokendraw.kept_ids(LOGITS, threshold, width)
        assert ids.tolist() == [(row + [-1] * width)[:width] for row in KEPT]
        assert (counts.tolist(), overflow.tolist()) == ([3, 3, 2, 0], overflows)


def test_a_ceiling_drops_what_is_larger():
    ceiling, least = torch.tensor([3.0, 1.0, INF, NAN]), torch.tensor([3.0, -INF, INF, NAN])
    assert tokendraw.kept_ids(LOGITS, least, 2, ceiling).ids.tolist() == [[2, 3], [0, -1], [1, 3], [-1, -1]]
    assert tokendraw.kept_mask(LOGITS, least, ceiling).sum(-1).tolist() == [2, 1, 2, 0]


def test_wrong_tensors_and_numbers_of_ids_are_refused():
    def both(*given):
        """Return the common mask of two functions, or their common refusal."""
        with pytest.raises(InvalidInputError) as caught:
            tokendraw.kept_ids(*given[:2], 5, *given[2:])
        with pytest.raises(InvalidInputError, match=re.escape(str(caught.value))):
            tokendraw.kept_mask(*given)
        raise caught.value

    table = call_tables.Table(__file__, "kept_set_refusals.txt")
    names = {"both": both, "LOGITS": LOGITS, "torch": torch, "kept_ids": tokendraw.kept_ids}
    assert table.found(lambda: dict(names)) == table.text


def test_extremes_of_columns_combine_to_those_of_rows():
    bound = torch.tensor([3.0, -INF, INF, 0.0])
    whole = kept_extremes(LOGITS, bound)
    parts = [kept_extremes(LOGITS[:, part], bound) for part in (slice(2), slice(2, 5), slice(0))]
    for name, merged in (("max", torch.amax), ("least_kept", torch.amin), ("largest_dropped", torch.amax)):
        assert torch.equal(
            merged(torch.stack([getattr(part, name) for part in parts]), 0), getattr(whole, name)
        )
    assert torch.allclose(threshold_between(whole), torch.tensor([3.0, -INF, INF, NAN]), equal_nan=True)


def test_a_batch_without_thresholds_says_none():
    sampler = tokendraw.load_sampler("native", device="cpu")
    output = sampler.sample(LOGITS, SamplingMetadata.from_params([SamplingParams(typical_p=0.5)] * 4))
    assert output.threshold is output.ceiling is None
