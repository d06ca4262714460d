"""An impossible need, machine or set of batch facts is refused when written."""

import pytest

from tokendraw import BatchFacts, InvalidParameterError, Need
from tokendraw.plugin import Host

SLIPS = {
    "'batch_invariant' of Need needs True or False, found 'no'. Pass False.": (
        Need,
        {"batch_invariant": "no"},
    ),
    "'graph_safe' of Need needs True or False, found 1. Pass True.": (Need, {"graph_safe": 1}),
    "'sync_free' of Need needs True or False, found 'maybe'. Pass one, or leave out sync_free=.": (
        Need,
        {"sync_free": "maybe"},
    ),
    "'vocab_size' of Need needs an integer >= 1 or None, found -5. Pass one, or leave out vocab_size=.": (
        Need,
        {"vocab_size": -5},
    ),
    "'vocab_size' of Need needs an integer >= 1 or None, found 2.5. Pass one, or leave out vocab_size=.": (
        Need,
        {"vocab_size": 2.5},
    ),
    "'max_logprobs' of Need needs an integer >= 0 or None, found True. Pass one, or leave out max_logprobs=.": (
        Need,
        {"max_logprobs": True},
    ),
    "'seeding' of Need needs 'none', 'launch' or 'counter', found 'yes'. Pass one of these.": (
        Need,
        {"seeding": "yes"},
    ),
    "'seeding' of Need needs 'none', 'launch' or 'counter', found 'couter'. Pass 'counter', the nearest.": (
        Need,
        {"seeding": "couter"},
    ),
    "'tie_rule' of Need needs 'value', 'exact_k', 'either' or None, found 'exact'. Pass 'exact_k', the nearest.": (
        Need,
        {"tie_rule": "exact"},
    ),
    "'dtype' of Need needs 'float32', 'bfloat16', 'float16' or None, found 'bfloat'. Pass 'bfloat16', the nearest.": (
        Need,
        {"dtype": "bfloat"},
    ),
    "'dtype' of Need needs 'float32', 'bfloat16', 'float16' or None, found 'float64'. Pass one of these.": (
        Need,
        {"dtype": "float64"},
    ),
    "'gumbel_dtype' of Need needs 'fp32' or 'fp64', found 'fp16'. Pass one of these.": (
        Need,
        {"gumbel_dtype": "fp16"},
    ),
    "'gumbel_dtype' of Need needs 'fp32' or 'fp64', found None. Pass one of these.": (
        Need,
        {"gumbel_dtype": None},
    ),
    "'filter_orders' of Need needs a tuple of 'top_k_first' or 'joint', found 'joint'. Pass ('joint',).": (
        Need,
        {"filter_orders": "joint"},
    ),
    "'filter_orders' of Need needs a tuple of 'top_k_first' or 'joint', found ('jont',). Pass 'joint', the nearest.": (
        Need,
        {"filter_orders": ("jont",)},
    ),
    "'compute_capability' of Host needs a tuple (an integer >= 0, an integer >= 0) or None, found 9.0. Pass one, or "
    "leave out compute_capability=.": (Host, {"compute_capability": 9.0}),
    "'device_type' of Host needs a string, found None. Pass one, or leave out device_type=.": (
        Host,
        {"device_type": None},
    ),
    "'sm_count' of Host needs an integer >= 0 or None, found -1. Pass one, or leave out sm_count=.": (
        Host,
        {"sm_count": -1},
    ),
    "'any_greedy' of BatchFacts needs True or False, found None. Pass one, or leave out any_greedy=.": (
        BatchFacts,
        {"any_greedy": None},
    ),
    "'max_logprobs' of BatchFacts needs an integer >= -1 or None, found '5'. Pass one, or leave out max_logprobs=.": (
        BatchFacts,
        {"max_logprobs": "5"},
    ),
    "'max_top_k' of BatchFacts needs an integer >= 0 or None, found -2. Pass one, or leave out max_top_k=.": (
        BatchFacts,
        {"max_top_k": -2},
    ),
}


@pytest.mark.parametrize("message", SLIPS)
def test_a_slip_is_named_with_what_was_needed_and_the_nearest(message):
    record, values = SLIPS[message]
    with pytest.raises(InvalidParameterError) as caught:
        record(**values)
    assert str(caught.value) == message


def test_torch_s_own_dtype_is_named_by_its_word():
    import torch

    with pytest.raises(InvalidParameterError, match=r"found torch.float16. Pass 'float16', the nearest\.$"):
        Need(dtype=torch.float16)


def test_what_is_meant_is_taken():
    import numpy as np

    assert Need(vocab_size=np.int64(5), dtype="float16", tie_rule="either", max_logprobs=0).vocab_size == 5
    assert Need(filter_orders=()).filter_orders == ()
    assert Host(compute_capability=(9, 0), sm_count=132).sm_count == 132
    assert BatchFacts(max_logprobs=-1, max_top_k=0).max_logprobs == -1


@pytest.mark.parametrize(("n", "width"), [(None, None), (0, 0), (4, 4), (5, 5), (6, 5), (10**9, 5), (-1, 5)])
def test_logprobs_are_at_most_as_wide_as_the_vocabulary(n, width):
    assert BatchFacts(max_logprobs=n).logprobs_width(5) == width
