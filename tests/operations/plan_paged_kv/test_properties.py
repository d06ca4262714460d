"""Any batch gives the plan of a plain loop, whatever its lengths, sizes and strides."""

import functools

import torch
from hypothesis import example, given
from hypothesis import strategies as st

import tokendraw
from paged_kv_model import require_plan, sentinels

LENGTHS = st.one_of(st.integers(-3, 200), st.integers(-(2**31), 2**31 - 1))
PAGE_SIZES = st.one_of(st.integers(1, 40), st.integers(1, 2**31 - 1))


@functools.cache
def planner():
    return tokendraw.load("plan_paged_kv", "native", device="cpu")


@given(
    seq_lens=st.lists(LENGTHS, max_size=6),
    columns=st.integers(0, 6),
    page_size=PAGE_SIZES,
    pad=st.integers(-(2**31), 2**31 - 1),
    gap=st.integers(0, 3),
    pages=st.integers(-(2**31), 2**31 - 41),
    asked=st.booleans(),
)
@example(seq_lens=[2**31 - 1], columns=2, page_size=2**30, pad=0, gap=0, pages=0, asked=True)
def test_a_plan_is_that_of_a_loop(seq_lens, columns, page_size, pad, gap, pages, asked):
    requests = len(seq_lens)
    wide = torch.arange(requests * (columns + gap)).add(pages).to(torch.int32).view(requests, columns + gap)
    table = wide[:, gap:]
    out = sentinels(requests, columns, "cpu", page_indices=asked)
    require_plan(planner(), seq_lens, table, page_size, "cpu", pad=pad, page_indices=asked, out=out)


@given(
    seq_lens=st.lists(st.integers(0, 90), min_size=1, max_size=8),
    page_size=st.integers(1, 20),
    at=st.integers(0, 8),
)
def test_plans_of_two_segments_are_the_plan_of_the_whole(seq_lens, page_size, at):
    """Page for page, with continued offsets."""
    at, width = min(at, len(seq_lens)), 5
    lengths = torch.tensor(seq_lens, dtype=torch.int32)
    table = torch.arange(len(seq_lens) * width, dtype=torch.int32).view(-1, width)
    whole = planner().plan(lengths, table, page_size)
    first, second = (planner().plan(lengths[s], table[s], page_size) for s in (slice(at), slice(at, None)))
    taken = int(first.page_indptr[-1])
    assert torch.equal(whole.page_indptr, torch.cat((first.page_indptr, second.page_indptr[1:] + taken)))
    assert torch.equal(whole.last_page_len, torch.cat((first.last_page_len, second.last_page_len)))
    total = int(whole.page_indptr[-1])
    pages = torch.cat((first.page_indices[:taken], second.page_indices[: total - taken]))
    assert torch.equal(whole.page_indices[:total], pages)
