"""The kept set from thresholds: masks and lists of ids, and the thresholds of any bound."""

import pytest
import torch

import tokendraw
from tokendraw import InvalidInputError, InvalidParameterError, Need, SamplingMetadata, SamplingParams
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
KEPT = torch.tensor(
    [
        [False, True, True, True, False],
        [True, True, True, False, False],
        [False, True, False, True, False],
        [False, False, False, False, False],
    ]
)


@pytest.fixture(scope="module")
def threshold():
    sampler = tokendraw.load_sampler("native", device="cpu", need=Need(threshold=True))
    params = [SamplingParams(top_k=2), SamplingParams(), SamplingParams(top_k=2), SamplingParams(top_p=0.5)]
    return sampler.sample(LOGITS, SamplingMetadata.from_params(params)).threshold


def test_a_threshold_is_the_least_kept_logit(threshold):
    assert torch.allclose(threshold, torch.tensor([3.0, -INF, INF, NAN]), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_mask_holds_what_may_be_drawn(threshold, dtype):
    assert torch.equal(tokendraw.kept_mask(LOGITS.to(dtype), threshold), KEPT)


def test_ids_are_listed_in_ascending_order(threshold):
    ids, counts, overflow = tokendraw.kept_ids(LOGITS, threshold, 7)
    assert ids.tolist() == [[1, 2, 3] + [-1] * 4, [0, 1, 2] + [-1] * 4, [1, 3] + [-1] * 5, [-1] * 7]
    assert (counts.tolist(), overflow.tolist()) == ([3, 3, 2, 0], [False] * 4)


def test_a_row_that_kept_more_is_counted_and_marked(threshold):
    ids, counts, overflow = tokendraw.kept_ids(LOGITS, threshold, 2)
    assert ids.tolist() == [[1, 2], [0, 1], [1, 3], [-1, -1]]
    assert (counts.tolist(), overflow.tolist()) == ([3, 3, 2, 0], [True, True, False, False])


def test_rows_are_looked_at_in_parts(threshold, monkeypatch):
    whole = tokendraw.kept_ids(LOGITS, threshold, 3)
    monkeypatch.setattr("tokendraw.kept_set._CHUNK_LOGITS", 10)
    for found, needed in zip(tokendraw.kept_ids(LOGITS, threshold, 3), whole, strict=True):
        assert torch.equal(found, needed)


def test_a_ceiling_drops_what_is_larger():
    ceiling = torch.tensor([3.0, 1.0, INF, NAN])
    least = torch.tensor([3.0, -INF, INF, NAN])
    kept = torch.tensor([[2, 3], [0, -1], [1, 3], [-1, -1]])
    assert tokendraw.kept_ids(LOGITS, least, 2, ceiling).ids.tolist() == kept.tolist()
    assert tokendraw.kept_mask(LOGITS, least, ceiling).sum(-1).tolist() == [2, 1, 2, 0]
    with pytest.raises(InvalidInputError) as caught:
        tokendraw.kept_mask(LOGITS, least, ceiling[:3])
    assert str(caught.value) == "'ceiling' needs a number for each of 4 rows, found shape [3]."


@pytest.mark.parametrize("rows", [0, 2])
def test_no_rows_and_one_token(rows):
    logits = torch.zeros(rows, 1)
    ids, counts, overflow = tokendraw.kept_ids(logits, torch.full((rows,), -INF), 2)
    assert (ids.tolist(), counts.tolist()) == ([[0, -1]] * rows, [1] * rows)
    assert not overflow.any()
    assert tokendraw.kept_mask(logits, torch.full((rows,), -INF)).tolist() == [[True]] * rows


@pytest.mark.parametrize(
    ("logits", "threshold", "message"),
    [
        (torch.zeros(3), torch.zeros(1), "'logits' needs floating-point numbers [rows, vocabulary]"),
        (torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1), "found shape [1, 3] of torch.int64"),
        (LOGITS, None, "'threshold' needs a torch.Tensor, found None. Load the sampler with Need(threshold"),
        (LOGITS, torch.zeros(4).double(), "'threshold' needs dtype torch.float32"),
        (LOGITS, torch.zeros(3), "'threshold' needs a number for each of 4 rows, found shape [3]"),
        (LOGITS, torch.zeros(4, device="meta"), "'threshold' needs the device of 'logits', cpu, found meta"),
    ],
)
def test_wrong_tensors_are_refused(logits, threshold, message):
    for call in (tokendraw.kept_mask, lambda *args: tokendraw.kept_ids(*args, 5)):
        with pytest.raises(InvalidInputError) as caught:
            call(logits, threshold)
        assert message in str(caught.value)


@pytest.mark.parametrize("max_ids", [0, -1, 2.0, True, None])
def test_a_wrong_number_of_ids_is_refused(max_ids):
    with pytest.raises(InvalidParameterError, match="'max_ids' needs an integer of at least 1"):
        tokendraw.kept_ids(LOGITS, torch.zeros(4), max_ids)


def test_extremes_of_columns_combine_to_those_of_rows():
    bound = torch.tensor([3.0, -INF, INF, 0.0])
    whole = kept_extremes(LOGITS, bound)
    first, second, none = (
        kept_extremes(LOGITS[:, part], bound) for part in (slice(2), slice(2, 5), slice(0))
    )
    assert torch.equal(torch.maximum(torch.maximum(first.max, second.max), none.max), whole.max)
    least = torch.minimum(torch.minimum(first.least_kept, second.least_kept), none.least_kept)
    assert torch.equal(least, whole.least_kept)
    dropped = torch.maximum(
        torch.maximum(first.largest_dropped, second.largest_dropped), none.largest_dropped
    )
    assert torch.equal(dropped, whole.largest_dropped)
    assert torch.allclose(threshold_between(whole), torch.tensor([3.0, -INF, INF, NAN]), equal_nan=True)


def test_a_batch_without_thresholds_says_none():
    sampler = tokendraw.load_sampler("native", device="cpu")
    output = sampler.sample(LOGITS, SamplingMetadata.from_params([SamplingParams(typical_p=0.5)] * 4))
    assert output.threshold is output.ceiling is None
