"""DESIGN section 2, properties of the filters for any row and any request."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calling import call, kept_sets, shown_values
from tokendraw import SamplingParams
from tokendraw_testing import reference


@pytest.fixture(scope="module")
def processed(load_native):
    return load_native("processed_logprobs")


LEVELS = [-np.inf, -3.0, -1.0, -0.5, -0.0, 0.0, 0.25, 2.0]
rows = st.lists(st.one_of(st.sampled_from(LEVELS), st.floats(-30, 30, width=32)), min_size=1, max_size=40)
requests = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([-1, 0, 1, 2, 3, 5, 20, 39, 40, 2**30]),
    top_p=st.one_of(st.just(1.0), st.floats(1e-6, 1.0)),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
    filter_order=st.sampled_from(["top_k_first", "joint"]),
    seed=st.integers(-(2**63), 2**64 - 1),
    logprobs=st.just(-1),
)


@pytest.mark.slow
@given(logits=rows, params=requests)
@settings(max_examples=300)
def test_for_any_row_and_request_the_kept_set_is_that_of_the_reference(processed, logits, params):
    row = reference.prepare(np.float32(logits), params)
    if not row.certain or row.empty:
        return
    out = call(processed, np.float32([logits]), params)
    kept = np.isfinite(shown_values(out)[0])
    assert np.array_equal(kept, row.kept)
    assert kept[out.token_ids[0]]


@given(logits=rows, params=requests)
@settings(max_examples=150)
@pytest.mark.slow
def test_for_any_row_and_request_the_kept_set_is_never_empty_and_closed_upwards(processed, logits, params):
    """At least a token is kept; every token above or tied with a kept token is kept."""
    x = np.float32(logits)
    if np.isneginf(x).all():
        return
    out = call(processed, x[None], params)
    kept = np.isfinite(shown_values(out)[0])
    assert kept.any()
    assert kept[x >= x[kept].min()].all()
    assert kept[out.token_ids[0]]


@given(logits=rows, params=requests, loosened=st.sampled_from(["top_k", "top_p", "min_p"]))
@settings(max_examples=150)
@pytest.mark.slow
def test_for_any_row_switching_a_filter_off_keeps_every_token_that_was_kept(
    processed, logits, params, loosened
):
    """Except that top_p after top_k counts less mass, so only the joint order is monotone in top_k and min_p."""
    x = np.float32(logits)
    if np.isneginf(x).all() or (params.filter_order != "joint" and loosened != "top_p"):
        return
    fields = {
        name: getattr(params, name) for name in ("temperature", "filter_order", "top_k", "top_p", "min_p")
    }
    fields[loosened] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}[loosened]
    strict, loose = kept_sets(processed, np.stack([x, x]), [params, SamplingParams(logprobs=-1, **fields)])
    assert (loose | ~strict).all()
