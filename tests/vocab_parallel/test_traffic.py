"""Traffic between ranks: the number of collectives of a call, and the bytes of each a row and rank."""

import pytest

import shard_cases
from gloo_world import world
from tokendraw import Need, SamplingParams

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


def rounds(count):
    """The sums of a search by digits."""
    return [("sum", HISTOGRAM)] * count


LARGEST_OF_50 = ("gather", 50 * 4 + 4)
NUCLEUS = ("gather", LARGEST + HISTOGRAM)
BEST = ("gather", 40 + 3 * 8 + 3 * 4 + 5 * 8)
TRAFFIC = {
    "greedy rows send their maximum": ({"temperature": 0.0, "seed": None}, {}, [("gather", 12)]),
    "rows without a seed get it from rank 0": ({"seed": None}, {}, [("broadcast", 8), DRAW]),
    "top-k sends its k largest values": ({"top_k": 50}, {}, [LARGEST_OF_50, DRAW]),
    "a nucleus of them": ({"top_k": 50, "top_p": 0.9, "min_p": 0.1}, {}, [LARGEST_OF_50, DRAW]),
    "another order": ({"top_k": 50, "filter_order": "joint"}, {}, [LARGEST_OF_50, DRAW]),
    "seeds travel with the largest values": ({"top_k": 50, "seed": None}, {}, [("gather", 204 + 8), DRAW]),
    "a joint top-p needs the mass of the row too": (
        {"top_k": 50, "top_p": 0.9, "filter_order": "joint"},
        {},
        [("gather", 204 + 8), DRAW],
    ),
    "min-p needs the largest value alone": ({"min_p": 0.1}, {}, [("gather", 8), DRAW]),
    "a narrow nucleus lies among the largest values": ({"top_p": 0.9}, {"scale": 8.0}, [NUCLEUS, DRAW]),
    "a wide one is searched for by digits": ({"top_p": 0.9}, {}, [NUCLEUS, *rounds(3), DRAW]),
    "of float16 there are fewer": ({"top_p": 0.9}, {"dtype": "float16"}, [NUCLEUS, *rounds(2), DRAW]),
    "of bfloat16 still fewer": ({"top_p": 0.9}, {"dtype": "bfloat16"}, [NUCLEUS, *rounds(1), DRAW]),
    "a wide nucleus of what another filter keeps takes a round more": (
        {"top_p": 0.9, "min_p": 1e-3},
        {},
        [("gather", LARGEST + 8), *rounds(4), DRAW],
    ),
    "a large k is searched for by digits": ({"top_k": 1500}, {}, [("gather", 8), *rounds(4), DRAW]),
    "a k of the whole vocabulary is off": ({"top_k": shard_cases.VOCAB_SIZE}, {}, [("gather", 8), DRAW]),
    "filters send the sums behind their moments": (
        {"filters": {"top_n_sigma": 1.0}},
        {},
        [("gather", 8 + 3 * 8), DRAW],
    ),
    "all shipped filters at once": (
        {"filters": {"top_n_sigma": 1.0, "epsilon_cutoff": 1e-3, "eta_cutoff": 1e-3, "p_less": 1.0}},
        {},
        [("gather", 8 + 6 * 8), DRAW],
    ),
    "beside other filters": (
        {"filters": {"p_less": 1.0}, "top_k": 50, "top_p": 0.9},
        {},
        [("gather", 204 + 2 * 8), DRAW],
    ),
    "logprobs send masses and the best, then ranks": ({"logprobs": 5}, {}, [BEST, ("sum", 8)]),
    "without ranks": ({"logprobs": 5}, {"need": Need(logprob_ranks=False)}, [BEST]),
    "scores in float64 take two words": ({}, {"need": Need(gumbel_dtype="fp64")}, [("gather", 40 + 5 * 4)]),
    "bytes a row do not depend on the number of rows": ({}, {"rows": 33}, [DRAW]),
    "nor is a single row another case": ({}, {"rows": 1}, [DRAW]),
}


@pytest.mark.parametrize("case", TRAFFIC)
def test_a_call_takes_these_collectives(case):
    params, settings, collectives = TRAFFIC[case]
    assert said(SamplingParams(**{"seed": 7} | params), **settings) == collectives


@pytest.mark.parametrize(("dtype", "count"), [("float32", 4), ("float16", 3), ("bfloat16", 2)])
def test_where_the_host_may_not_look_every_nucleus_takes_the_rounds_of_a_wide_one(dtype, count):
    for scale in (1.0, 8.0):
        asked = SamplingParams(seed=7, top_p=0.9), dtype, scale, 4, Need()
        found = world(2).run(shard_cases.said_as_on_a_gpu, 2, *asked)
        assert found[0] == [("gather", LARGEST_ON_GPUS + 8), *rounds(count), DRAW]


def test_where_the_host_may_not_look_nothing_is_weighed_for_a_nucleus_that_is_found():
    narrow, wide = (
        world(2).run(shard_cases.weighed_as_on_a_gpu, 2, SamplingParams(seed=7, top_p=0.9), scale, 4)[0]
        for scale in (8.0, 1.0)
    )
    assert narrow == [0, 0, 0, 0]
    assert all(wide)
