"""Traffic between ranks: the number of collectives of a call, and the bytes of each a row and rank."""

import pytest

import shard_cases
from gloo_world import world
from tokendraw import Need, SamplingParams

SEEDED = SamplingParams(seed=7)
LARGEST = 256 * 4 + 4  # a nucleus is looked for among the 256 largest values of each rank, and their ties
LARGEST_ON_GPUS = 64 * 4 + 4
HISTOGRAM = 256 * 8
DRAW = ("gather", 40)


def said(params, dtype="float32", scale=1.0, rows=4, need=None):
    """Return the collectives of a call, the same on every rank."""
    need = need or Need()
    found = world(2).run(shard_cases.said, 2, params, dtype, scale, rows, need)
    assert found[0] == found[1]
    return found[0]


def test_greedy_rows_send_their_maximum():
    assert said(SamplingParams(temperature=0.0)) == [("gather", 12)]


@pytest.mark.slow
def test_rows_without_filters_send_forty_bytes():
    assert said(SEEDED) == [DRAW]


def test_rows_without_a_seed_get_it_from_rank_0_by_a_broadcast_of_their_own():
    assert said(SamplingParams()) == [("broadcast", 8), DRAW]


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9, "min_p": 0.1}, {"filter_order": "joint"}])
def test_rows_with_top_k_send_their_k_largest_values_first(filters):
    params = SamplingParams(seed=7, top_k=50, **filters)
    assert said(params) == [("gather", 204), DRAW]


def test_seeds_travel_with_the_largest_values_where_there_are_any():
    assert said(SamplingParams(top_k=50)) == [("gather", 204 + 8), DRAW]


def test_a_joint_top_p_needs_the_mass_of_the_row_too():
    params = SamplingParams(seed=7, top_k=50, top_p=0.9, filter_order="joint")
    assert said(params) == [("gather", 204 + 8), DRAW]


def test_min_p_needs_the_largest_value_alone():
    assert said(SamplingParams(seed=7, min_p=0.1)) == [("gather", 8), DRAW]


def test_a_narrow_nucleus_lies_among_the_largest_values():
    assert said(SamplingParams(seed=7, top_p=0.9), scale=8.0) == [("gather", LARGEST + HISTOGRAM), DRAW]


@pytest.mark.parametrize(("dtype", "rounds"), [("float32", 3), ("float16", 2), ("bfloat16", 1)])
def test_a_wide_nucleus_is_searched_for_by_digits_as_many_as_the_dtype_has(dtype, rounds):
    rest = [("sum", HISTOGRAM)] * rounds
    assert said(SamplingParams(seed=7, top_p=0.9), dtype) == [("gather", LARGEST + HISTOGRAM), *rest, DRAW]


def test_a_wide_nucleus_of_what_another_filter_keeps_takes_a_round_more():
    params = SamplingParams(seed=7, top_p=0.9, min_p=1e-3)
    assert said(params) == [("gather", LARGEST + 8), *[("sum", HISTOGRAM)] * 4, DRAW]


@pytest.mark.parametrize(("dtype", "rounds"), [("float32", 4), ("float16", 3), ("bfloat16", 2)])
def test_where_the_host_may_not_look_every_nucleus_takes_the_rounds_of_a_wide_one(dtype, rounds):
    for scale in (1.0, 8.0):
        asked = SamplingParams(seed=7, top_p=0.9), dtype, scale, 4, Need()
        found = world(2).run(shard_cases.said_as_on_a_gpu, 2, *asked)
        assert found[0] == [("gather", LARGEST_ON_GPUS + 8), *[("sum", HISTOGRAM)] * rounds, DRAW]


def test_where_the_host_may_not_look_nothing_is_weighed_for_a_nucleus_that_is_found():
    narrow, wide = (
        world(2).run(shard_cases.weighed_as_on_a_gpu, 2, SamplingParams(seed=7, top_p=0.9), scale, 4)[0]
        for scale in (8.0, 1.0)
    )
    assert narrow == [0, 0, 0, 0]
    assert all(wide)


def test_a_large_k_is_searched_for_by_digits_of_the_values():
    assert said(SamplingParams(seed=7, top_k=1500)) == [("gather", 8), *[("sum", HISTOGRAM)] * 4, DRAW]


def test_a_k_of_the_whole_vocabulary_is_off_and_searched_for_by_nobody():
    assert said(SamplingParams(seed=7, top_k=shard_cases.VOCAB_SIZE)) == [("gather", 8), DRAW]


def test_logprobs_send_masses_values_and_the_best_and_then_ranks():
    params = SamplingParams(seed=7, logprobs=5)
    with_best = ("gather", 40 + 3 * 8 + 3 * 4 + 5 * 8)
    assert said(params) == [with_best, ("sum", 8)]
    assert said(params, need=Need(logprob_ranks=False)) == [with_best]


def test_scores_in_float64_take_two_words():
    assert said(SEEDED, need=Need(gumbel_dtype="fp64")) == [("gather", 40 + 5 * 4)]


def test_bytes_a_row_do_not_depend_on_the_number_of_rows():
    assert said(SEEDED, rows=1) == said(SEEDED, rows=33) == [DRAW]
