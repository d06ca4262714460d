"""An impossible need, machine or set of batch facts is refused when written."""

import pytest

from tokendraw import BatchFacts, InvalidParameterError, Need
from tokendraw.plugin import Host

SLIPS = [
    (Need, "batch_invariant", "no", "True or False", "False."),
    (Need, "graph_safe", 1, "True or False", "True."),
    (Need, "sync_free", "maybe", "True or False", "one, or leave out sync_free=."),
    (Need, "vocab_size", -5, "an integer >= 1 or None", "one, or leave out vocab_size=."),
    (Need, "vocab_size", 2.5, "an integer >= 1 or None", "one, or leave out vocab_size=."),
    (Need, "max_logprobs", True, "an integer >= 0 or None", "one, or leave out max_logprobs=."),
    (Need, "seeding", "yes", "'none', 'launch' or 'counter'", "one of these."),
    (Need, "seeding", "couter", "'none', 'launch' or 'counter'", "'counter', the nearest."),
    (Need, "tie_rule", "exact", "'value', 'exact_k', 'either' or None", "'exact_k', the nearest."),
    (Need, "dtype", "bfloat", "'float32', 'bfloat16', 'float16' or None", "'bfloat16', the nearest."),
    (Need, "dtype", "float64", "'float32', 'bfloat16', 'float16' or None", "one of these."),
    (Need, "gumbel_dtype", "fp16", "'fp32' or 'fp64'", "one of these."),
    (Need, "gumbel_dtype", None, "'fp32' or 'fp64'", "one of these."),
    (
        Need,
        "filter_orders",
        "joint",
        "a tuple of 'top_k_first', 'joint' or 'temperature_last'",
        "('joint',).",
    ),
    (
        Need,
        "filter_orders",
        ("jont",),
        "a tuple of 'top_k_first', 'joint' or 'temperature_last'",
        "'joint', the nearest.",
    ),
    (
        *(Host, "compute_capability", 9.0, "a tuple (an integer >= 0, an integer >= 0) or None"),
        "one, or leave out compute_capability=.",
    ),
    (Host, "device_type", None, "a string", "one, or leave out device_type=."),
    (Host, "sm_count", -1, "an integer >= 0 or None", "one, or leave out sm_count=."),
    (BatchFacts, "any_greedy", None, "True or False", "one, or leave out any_greedy=."),
    (BatchFacts, "max_logprobs", "5", "an integer >= -1 or None", "one, or leave out max_logprobs=."),
    (BatchFacts, "max_top_k", -2, "an integer >= 0 or None", "one, or leave out max_top_k=."),
]


@pytest.mark.parametrize(("record", "field", "bad", "needed", "mend"), SLIPS)
def test_a_slip_is_named_with_what_was_needed_and_the_nearest(record, field, bad, needed, mend):
    with pytest.raises(InvalidParameterError) as caught:
        record(**{field: bad})
    message = f"'{field}' of {record.__name__} needs {needed}, found {bad!r}. Pass {mend}"
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
