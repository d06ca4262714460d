"""An impossible plan is refused with argument, needed and found, before anything runs or is written."""

import numpy as np
import pytest
import torch

import tokendraw
from paged_kv_model import (
    SENTINEL,
    ints,
    lists,
    model,
    planner_of,
    sentinels,
    table_of,
)
from tokendraw import InvalidInputError, InvalidParameterError, PagedKVPlan
from tokendraw_native.paged_kv import NativePlanner

MEND = "Pass PagedKVPlan.empty(B, W, device=...)."
LENGTHS, TABLE = ints([5, 0, 33], "cpu"), ints(table_of(3, 4), "cpu")
INPUTS = {
    "'seq_lens' needs a torch.Tensor, found list. Pass a tensor.": {"seq_lens": [5, 0, 33]},
    "'seq_lens' needs one dimension, found shape [3, 1].": {"seq_lens": LENGTHS.view(3, 1)},
    "'seq_lens' needs dtype torch.int32, found torch.int64. Pass seq_lens.to(torch.int32).": {
        "seq_lens": LENGTHS.long()
    },
    "'seq_lens' needs device cpu, where the planner was built, found meta. Move it, or load a planner for meta.": {
        "seq_lens": LENGTHS.to("meta")
    },
    "'seq_lens' needs its lengths one behind the other, found stride 2. Pass seq_lens.contiguous().": {
        "seq_lens": ints([5, 1, 0, 1, 33, 1], "cpu")[::2]
    },
    "'block_table' needs a torch.Tensor, found numpy.ndarray. Pass a tensor.": {
        "block_table": np.zeros((3, 4), "i4")
    },
    "'block_table' needs shape [B, W], found [12].": {"block_table": TABLE.view(-1)},
    "'block_table' needs dtype torch.int32, found torch.int64. Pass block_table.to(torch.int32).": {
        "block_table": TABLE.long()
    },
    "'block_table' needs device cpu, where the planner was built, found meta. Move it, or load a planner for meta.": {
        "block_table": TABLE.to("meta")
    },
    "'block_table' needs a row for each length in 'seq_lens', 3, found 2.": {"block_table": TABLE[:2]},
    "'block_table' needs the pages of a row one behind the other, found stride 3. Pass block_table.contiguous().": {
        "block_table": ints(table_of(4, 3), "cpu").T
    },
    "'block_table' needs the pages of a row one behind the other, found stride 0. Pass block_table.contiguous().": {
        "block_table": TABLE[:, :1].expand(3, 4)
    },
    "'page_size' needs an integer in [1, 2147483647], found 0.": {"page_size": 0},
    "'page_size' needs an integer in [1, 2147483647], found True.": {"page_size": True},
    "'page_size' needs an integer in [1, 2147483647], found 2147483648.": {"page_size": 2**31},
    "'pad' needs an integer in [-2147483648, 2147483647], found 2147483648.": {"pad": 2**31},
    "'pad' needs an integer in [-2147483648, 2147483647], found -2147483649.": {"pad": -(2**31) - 1},
    "'pad' needs an integer in [-2147483648, 2147483647], found False.": {"pad": False},
    "'page_indices' needs True or False, found 1.": {"page_indices": 1},
}


class Tripwire(NativePlanner):
    """Fails at any call."""

    def plan(self, *arguments):
        raise AssertionError("a call that cannot be needs to be refused before anything runs")


def refused(out=None, **given):
    """Return the message of a refused plan, after checking that nothing ran or was written."""
    arguments = {"seq_lens": LENGTHS, "block_table": TABLE, "page_size": 16} | given
    held = list(vars(out).values()) if isinstance(out, PagedKVPlan) else []
    held = [buffer for buffer in held if isinstance(buffer, torch.Tensor) and not buffer.is_meta]
    before = [buffer.clone() for buffer in held]
    with pytest.raises((InvalidInputError, InvalidParameterError)) as error:
        planner_of(Tripwire(), "cpu").plan(**arguments, out=out)
    assert isinstance(error.value, ValueError)
    assert all(torch.equal(*pair) for pair in zip(held, before, strict=True))
    return str(error.value)


@pytest.mark.parametrize("message", INPUTS)
def test_an_argument_that_cannot_be_is_refused(message):
    assert refused(**INPUTS[message]) == message
    assert refused(out=sentinels(3, 4, "cpu"), **INPUTS[message]) == message


def test_more_pages_than_int32_counts_are_refused():
    wide = torch.zeros(1, 65536, dtype=torch.int32).expand(32768, 65536)
    message = refused(seq_lens=torch.zeros(32768, dtype=torch.int32), block_table=wide)
    assert message == (
        "'block_table' needs at most 2147483647 pages, as many as int32 counts, found 32768 rows of 65536. "
        "Plan fewer requests in a call."
    )


def buffers(**other):
    """Make fitting buffers, except for ``other``."""
    return PagedKVPlan(
        **{
            "page_indptr": torch.full((4,), SENTINEL, dtype=torch.int32),
            "last_page_len": torch.full((3,), SENTINEL, dtype=torch.int32),
            "page_indices": torch.full((12,), SENTINEL, dtype=torch.int32),
        }
        | other
    )


MEMORY = torch.full((40,), SENTINEL, dtype=torch.int32)
OUTS = {
    f"'out' needs a tokendraw.PagedKVPlan, found tuple. {MEND}": (MEMORY[:4], MEMORY[4:7], MEMORY[7:19]),
    f"'out.page_indptr' needs [4] torch.int32 on cpu, found [3] torch.int32 on cpu. {MEND}": buffers(
        page_indptr=MEMORY[:3]
    ),
    f"'out.last_page_len' needs [3] torch.int32 on cpu, found [3] torch.int64 on cpu. {MEND}": buffers(
        last_page_len=torch.zeros(3, dtype=torch.int64)
    ),
    f"'out.page_indices' needs [12] torch.int32 on cpu, found [12] torch.int32 on meta. {MEND}": buffers(
        page_indices=torch.empty(12, dtype=torch.int32, device="meta")
    ),
    f"'out.page_indptr' needs its elements one behind the other, found stride 2. {MEND}": buffers(
        page_indptr=MEMORY[:8:2]
    ),
    f"'out.last_page_len' needs its elements one behind the other, found stride 0. {MEND}": buffers(
        last_page_len=MEMORY[:1].expand(3)
    ),
    "'out.page_indptr' needs a torch.Tensor, found list. Pass a tensor.": buffers(page_indptr=[0] * 4),
    f"'out.last_page_len' needs memory of its own, found some of 'out.page_indptr'. {MEND}": buffers(
        page_indptr=MEMORY[:4], last_page_len=MEMORY[3:6]
    ),
    f"'out.page_indices' needs memory of its own, found some of 'out.last_page_len'. {MEND}": buffers(
        last_page_len=MEMORY[:3], page_indices=MEMORY[2:14]
    ),
}


@pytest.mark.parametrize("message", OUTS)
def test_buffers_that_do_not_fit_are_refused(message):
    assert refused(out=OUTS[message]) == message


def test_pages_are_written_if_and_only_if_they_were_asked_for():
    assert refused(out=buffers(page_indices=None)) == (
        "'out.page_indices' needs a buffer with page_indices=True, found None. Pass other buffers, or "
        "page_indices=False."
    )
    assert refused(out=buffers(), page_indices=False) == (
        "'out.page_indices' needs None with page_indices=False, found torch.Tensor. Pass other buffers, or "
        "page_indices=True."
    )


def test_buffers_that_share_memory_with_an_input_are_refused():
    memory = ints([5, 0, 33, *range(40)], "cpu")
    lengths, table = memory[:3], memory[4:24].view(4, 5)[:3, :4]
    given = {"seq_lens": lengths, "block_table": table}
    assert refused(out=buffers(last_page_len=lengths), **given) == (
        f"'out.last_page_len' needs memory of its own, found some of 'seq_lens'. {MEND}"
    )
    assert refused(out=buffers(page_indices=memory[17:29]), **given) == (
        f"'out.page_indices' needs memory of its own, found some of 'block_table'. {MEND}"
    )


def test_buffers_beside_each_other_and_the_inputs_are_served():
    """A single arena, each part right behind the last: B + 1, B and B * W elements behind lengths and block table."""
    planner = tokendraw.load("plan_paged_kv", "native", device="cpu")
    memory = ints([5, 0, 33, *range(12), *[SENTINEL] * 19], "cpu")
    lengths, table = memory[:3], memory[3:15].view(3, 4)
    out = PagedKVPlan(page_indptr=memory[15:19], last_page_len=memory[19:22], page_indices=memory[22:])
    assert planner.plan(lengths, table, 16, out=out) is out
    assert lists(out) == model([5, 0, 33], table.tolist(), 16)


def test_integers_of_numpy_serve_as_numbers():
    """A provider gets integers of Python, as any launcher takes."""

    class Picky(NativePlanner):
        def plan(self, seq_lens, block_table, page_size, page_indices=True, pad=-1, out=None):
            assert (type(page_size), type(pad)) == (int, int)
            return super().plan(seq_lens, block_table, page_size, page_indices, pad, out)

    planner = planner_of(Picky(), "cpu")
    plan = planner.plan(LENGTHS, TABLE, np.int64(16), pad=np.int32(7))
    assert lists(plan) == model([5, 0, 33], TABLE.tolist(), 16, 7)


def test_a_wrong_plan_is_named_with_the_setting_debug(monkeypatch):
    class Wrong(NativePlanner):
        def plan(self, *arguments):
            out = super().plan(*arguments)
            out.last_page_len[2] += 1
            return out

    with pytest.raises(tokendraw.PluginError) as error:
        planner_of(Wrong(), "cpu", debug=True).plan(LENGTHS, TABLE, 16)
    assert str(error.value) == (
        "'planted' needs to return last_page_len[2] 1, found 2. Mend the plugin, or set TOKENDRAW_DISABLE=planted."
    )


def test_a_planner_whose_plan_is_not_the_known_one_is_not_accepted():
    from tokendraw.operations.plan_paged_kv.provider import prove

    class Full(NativePlanner):
        def plan(self, seq_lens, *arguments):
            return super().plan(seq_lens + 1, *arguments)

    prove(NativePlanner(), None, torch.device("cpu"), None)
    with pytest.raises(tokendraw.PluginError) as error:
        prove(Full(), None, torch.device("cpu"), None)
    assert str(error.value) == (
        "the proof call needs page_indptr [0, 2, 2, 4], last_page_len [1, 0, 4] and page_indices "
        "[10, 11, 16, 17, -1, -1, -1, -1, -1], found [0, 2, 3, 6], [2, 1, 1] and "
        "[10, 11, 13, 16, 17, 18, -1, -1, -1]"
    )
