"""docs/paged-kv.md is true: its loop runs with the printed results, and its table equals ``requirements``."""

import dataclasses
import itertools
import re

import pytest

import pages
from tokendraw import PagedKVPlan
from tokendraw.paged_kv import requirements

PAGE = pages.text_of("docs/paged-kv.md")
TABLE = {
    tuple(cells[:4]): (cells[4].strip("`"), cells[5])
    for cells in pages.rows(PAGE, 6)
    if cells[5] in ("yes", "no")
}


def test_the_loop_prints_the_shown_results():
    names = {}
    (source,) = pages.blocks(PAGE, "python")
    exec(source, names)
    shown = {cells[0]: cells[1] for cells in pages.rows(PAGE, 2) if re.fullmatch(r"[-\d, ]+", cells[1])}
    assert len(shown) == 7
    for expression, values in shown.items():
        result = eval(expression.strip("`"), names).tolist()
        assert result[: len(shown[expression].split(", "))] == [int(value) for value in values.split(", ")], (
            expression
        )
    assert names["prefill_query_indptr"].tolist() == [0, 60]
    assert names["decodes"] is names["decode_buffers"]
    assert names["prefills"] is names["prefill_buffers"]


def test_the_page_describes_each_field_of_a_plan():
    named = {cells[0].split("`")[1] for cells in pages.rows(PAGE, 2) if "[B" in cells[0]}
    assert named == {field.name for field in dataclasses.fields(PagedKVPlan)}


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("drafts", [0, 3])
def test_its_table_is_that_of_the_function(drafts, bound):
    flags = itertools.product((0, 2), (0, 2), (False, True), (False, True), (False, True), (False, True))
    for prefills, decodes, prefill_on_device, decode_on_device, dcp, causal in flags:
        result = requirements(
            num_prefills=prefills,
            num_decodes=decodes,
            prefill_on_device=prefill_on_device,
            decode_on_device=decode_on_device,
            dcp=dcp,
            causal=causal,
            num_speculative=drafts,
            upper_bound_known=bound,
        )
        on_device = (not prefills or prefill_on_device) and (not decodes or decode_on_device)
        kernels = (
            ("all on device", "yes" if dcp or not causal else "no") if on_device else ("one is not", "any")
        )
        rows = [row for row in TABLE if row[:2] == kernels]
        rows = [row for row in rows if row[2] in ("any", "more" if drafts else "0")]
        (row,) = [row for row in rows if row[3] in ("any", "yes" if bound else "no")]
        assert TABLE[row] == (result.host_seq_lens, "yes" if result.page_indices else "no")
