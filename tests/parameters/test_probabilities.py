"""Logits and parameters in the form of kernels that draw from probabilities."""

import numpy as np
import pytest
import torch

from goodness_of_fit import INF, NAN, POISON, V, gaussians
from tokendraw import BatchFacts, SamplingMetadata, SamplingParams
from tokendraw.probabilities import OFF_TOP_P, Filters, drop_below, relative, sample_in_parts, top_p_of_kept
from tokendraw_testing.reference import prepare

KNOWN = torch.tensor([[0.35, 0.25, 0.20, 0.05, 0.03, 0.03, 0.03, 0.03, 0.03]])


def reference_row(logits):
    """Return the cleaned values of a row, and whether it held no NaN and a value above -inf, in numpy."""
    x = np.where(np.isnan(logits), -np.inf, logits.astype(np.float64))
    return x, not np.isnan(logits).any() and bool((x > -np.inf).any())


@pytest.mark.parametrize("name", POISON)
def test_a_poisoned_row_becomes_one_that_any_softmax_takes(name):
    y, valid = relative(POISON[name][None])
    probs = torch.softmax(y, -1)[0].double().numpy()
    x, is_valid = reference_row(POISON[name].numpy())
    assert valid.tolist() == [is_valid]
    assert y.max() == 0.0
    assert probs.sum() == pytest.approx(1, abs=1e-5)
    if (x == -np.inf).all():
        assert probs[0] == 1.0
    elif (x == np.inf).any():
        assert probs == pytest.approx((x == np.inf) / (x == np.inf).sum(), rel=1e-5)
    else:
        exact = np.exp(x - x.max())
        assert probs == pytest.approx(exact / exact.sum(), rel=1e-4, abs=1e-37)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_result_is_contiguous_and_the_logits_are_left_alone(dtype):
    storage = torch.full((6, 2 * V), INF, dtype=dtype)
    storage[:, ::2] = gaussians(6).to(dtype)
    for logits in (storage[:, :V], storage[:, ::2], storage.T, storage[:1].expand(4, -1)):
        before = logits.clone()
        y, _ = relative(logits)
        assert y.is_contiguous()
        assert (y.dtype, y.shape) == (torch.float32, logits.shape)
        assert torch.equal(logits, before)


def test_infinities_of_halves_are_as_infinite_as_those_of_float32():
    row = torch.tensor([[1.0, INF, 65504.0, NAN]])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert torch.softmax(relative(row.to(dtype))[0], -1).tolist() == [[0.0, 1.0, 0.0, 0.0]]


def test_no_rows_are_fine():
    y, valid = relative(torch.empty(0, 7))
    assert (list(y.shape), list(valid.shape), valid.dtype) == ([0, 7], [0], torch.bool)


def test_ready_tensors_are_brought_into_range():
    metadata = SamplingMetadata(
        temperature=torch.tensor([0.0, -1.0, NAN, 1e-300, 1e300, 0.5], dtype=torch.float64),
        top_k=torch.tensor([0, -1, 2**40, 7, 8, 9]),
        top_p=torch.tensor([NAN, 1.0, -0.5, 0.0, 0.25, 3.0], dtype=torch.float64),
        min_p=torch.tensor([NAN, -1.0, 2.0, 0.0, 0.25, 1.0], dtype=torch.float64),
    )
    found = Filters.of(metadata, 8)
    assert found.temperature.reciprocal().isfinite().all()
    assert found.temperature.tolist()[5] == 0.5
    assert found.top_k.tolist() == [8, 8, 8, 7, 8, 8]
    assert (found.top_k.dtype, found.top_p.dtype) == (torch.int32, torch.float32)
    least = pytest.approx(1e-30)
    assert found.top_p.tolist() == [OFF_TOP_P, OFF_TOP_P, least, least, 0.25, OFF_TOP_P]
    assert found.min_p.tolist() == [0.0, 0.0, 1.0, 0.0, 0.25, 1.0]


def test_what_no_row_asks_for_is_none():
    found = Filters.of(SamplingMetadata.from_params([SamplingParams()] * 2), 8)
    assert (found.top_k, found.top_p, found.min_p, found.joint) == (None, None, None, None)
    assert not found.any_top_k_first
    assert Filters.of(SamplingMetadata(), 8).temperature is None


def test_parameters_by_slot_are_spread_over_the_rows():
    metadata = SamplingMetadata.from_params(
        [SamplingParams(top_k=2), SamplingParams(top_k=5, filter_order="joint")], row_index=[1, 0, 1]
    )
    found = Filters.of(metadata, 8)
    assert found.top_k.tolist() == [5, 2, 5]
    assert found.chunk(slice(1, 3)).joint.tolist() == [False, True]


def test_min_p_drops_and_renormalises_in_place():
    probs = KNOWN.repeat(2, 1)
    mass = drop_below(probs, torch.tensor([0.5, 0.0]))
    assert mass.tolist() == pytest.approx([0.80, 1.0])
    assert probs[0].tolist() == pytest.approx([0.35 / 0.8, 0.25 / 0.8, 0.2 / 0.8, 0, 0, 0, 0, 0, 0])
    assert probs[1].tolist() == pytest.approx(KNOWN[0].tolist())


def test_min_p_of_one_keeps_the_maxima():
    probs = torch.tensor([[0.4, 0.2, 0.4]])
    assert drop_below(probs, torch.ones(1)).tolist() == pytest.approx([0.8])
    assert probs.tolist() == [pytest.approx([0.5, 0.0, 0.5])]


def test_a_share_of_probabilities_whose_rounded_sum_exceeds_1_is_1():
    """A larger share would raise the log of a kept mass above 0, and lower the p of joint rows."""
    above = torch.tensor([[0.5, 0.5, 2.0**-22]])
    assert drop_below(above, torch.zeros(1)).tolist() == [1.0]
    assert top_p_of_kept(torch.tensor([0.5]), None, torch.tensor([1 + 2.0**-22])).tolist() == [0.5]


def test_the_top_p_of_joint_rows_grows_as_the_others_shrink():
    top_p, mass = torch.tensor([0.82, 0.82, 0.9, OFF_TOP_P]), torch.tensor([0.85, 0.85, 0.85, 0.85])
    joint = torch.tensor([True, False, True, True])
    found = top_p_of_kept(top_p, joint, mass)
    assert found.tolist() == pytest.approx([0.82 / 0.85, 0.82, OFF_TOP_P, OFF_TOP_P])
    assert torch.equal(top_p_of_kept(top_p, None, mass)[:1], found[:1])


def test_temperatures_at_the_ends_of_float32_leave_no_nan():
    metadata = SamplingMetadata(temperature=torch.tensor([1e-45, 1e38]), facts=BatchFacts(any_greedy=False))
    y, _ = relative(torch.tensor([[3e38, -3e38, 3.3e38]]).repeat(2, 1))
    scaled = y * Filters.of(metadata, 3).temperature.reciprocal().unsqueeze(-1)
    assert torch.softmax(scaled, -1)[0].tolist() == [0.0, 0.0, 1.0]
    assert torch.softmax(scaled, -1)[1].sum() == pytest.approx(1)
    assert int(np.argmax(prepare(np.array([3e38, -3e38, 3.3e38], np.float32), SamplingParams()).x)) == 2


@pytest.mark.parametrize(
    ("max_elements", "sizes"), [(1 << 31, [7]), (3 * V, [3, 3, 1]), (3 * V + 1, [3, 3, 1]), (1, [1] * 7)]
)
def test_rows_are_drawn_in_parts_that_a_kernel_can_count(max_elements, sizes):
    wanted = Filters.of(SamplingMetadata(top_k=torch.arange(1, 8)), V)
    parts = []

    def draw(logits, own):
        parts.append(own.top_k.tolist())
        return own.top_k.long() + 100, logits[:, 0] > 0

    logits = torch.ones(7, V)
    logits[4] = -1
    output = sample_in_parts(logits, wanted, draw, max_elements=max_elements)
    assert [len(part) for part in parts] == sizes
    assert output.token_ids.tolist() == [101, 102, 103, 104, 105, 106, 107]
    assert output.valid.tolist() == [True] * 4 + [False] + [True] * 2


@pytest.mark.parametrize("logits", [torch.zeros(0, V), torch.tensor([[3.0], [NAN]])])
def test_nothing_is_drawn_where_there_is_no_choice(logits):
    def draw(logits, own):
        raise AssertionError("it was called")

    output = sample_in_parts(logits, Filters.of(SamplingMetadata(), logits.shape[1]), draw)
    assert output.token_ids.tolist() == [0] * len(logits)
    assert output.valid.tolist() == [True, False][: len(logits)]
