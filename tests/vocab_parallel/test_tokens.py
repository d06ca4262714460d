"""Ranks together draw the tokens of a single device over all columns."""

from itertools import cycle, product

import pytest

import shard_cases
from gloo_world import world
from shard_cases import DTYPES, FAMILIES, MODES

SIZES = [3, 1, 8]
ROWS = 130
BATCHES = [
    (family, dtype, size)
    for (family, size), dtype in zip(product(FAMILIES, (1, 7, 1024, 3500)), cycle(DTYPES), strict=False)
]


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_rows_of_every_kind_get_the_tokens_of_one_device_on_every_rank(size):
    """All sizes together are 14,040 rows."""
    found = world(size).run(shard_cases.tokens, size, BATCHES, ROWS)
    drawn, differ = found[0]
    assert len(drawn) == ROWS * len(BATCHES)
    assert len(differ) <= len(drawn) // 10_000, differ[:3]
    assert all(tokens == drawn for tokens, _ in found)


@pytest.mark.slow
def test_a_nucleus_that_is_wider_than_what_the_only_rank_tells_of_it_is_found():
    ((_, differ),) = world(1).run(shard_cases.tokens, 1, [("top-p", "float32", 3500)], ROWS)
    assert differ == []


@pytest.mark.slow
def test_noise_in_float64_gives_the_tokens_of_one_device():
    batches = [(family, "float32", 3500) for family in ("mixed", "plain")]
    for _, differ in world(3).run(shard_cases.tokens, 3, batches, ROWS, "fp64"):
        assert differ == []


@pytest.mark.slow
def test_where_the_host_may_not_look_the_tokens_are_those_of_one_device():
    """A nucleus is searched for by digits then, in every row."""
    batches = [(family, dtype, 3500) for family in ("mixed", "top-p", "large k", "joint") for dtype in DTYPES]
    for _, differ in world(3).run(shard_cases.tokens_as_on_a_gpu, 3, batches, 60):
        assert differ == []


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "size"), [*zip(MODES, cycle(SIZES), strict=False)])
def test_logprobs_ranks_and_the_kept_mass_are_those_of_one_device(size, mode):
    batches = [(family, "float32", v) for family, v in product(FAMILIES, (7, 2100))] + [
        ("mixed", "bfloat16", 1)
    ]
    equal, rows = world(size).run(shard_cases.logprobs, size, mode, batches, 24)[0]
    assert equal >= rows - 1


@pytest.mark.slow
def test_a_caller_who_wants_no_ranks_gets_none():
    batches = [("mixed", "float32", 2100)]
    equal, rows = world(3).run(shard_cases.logprobs, 3, "raw_logprobs", batches, 24, False)[0]
    assert equal == rows
