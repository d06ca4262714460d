"""Cells and logits of ``tokendraw bench``: presets, options, and the size of the nucleus."""

import numpy as np
import pytest
import torch

from command_line import call
from tokendraw import SamplingParams
from tokendraw.backends.description.capabilities import INPUT_DTYPES
from tokendraw_bench import make_inputs, operations
from tokendraw_bench.cells import FAMILIES, FILTERS, Cell, min_vocab_size
from tokendraw_bench.logits import mean_nucleus
from tokendraw_testing import reference

CPU = torch.device("cpu")
grid = operations.get("sample").grid
SMALL_FAMILIES = [family for family in FAMILIES if min_vocab_size(family) <= 4000]


def test_the_design_grid_has_every_combination_of_shapes_dtypes_filters_and_families():
    cells = grid("design")
    assert {(c.batch, c.vocab_size) for c in cells} == {
        (1024, 151_936),
        (256, 151_936),
        (64, 128_256),
        (1, 128_256),
    }
    assert {c.dtype for c in cells} == {"float32", "bfloat16"}
    assert {c.filters for c in cells} == {"none", "both", "top-p"}
    assert {c.family for c in cells} == {"peaked-7", "peaked-30", "gaussian", "flat"}
    assert len(cells) == len(set(cells)) == 4 * 2 * 3 * 4


def test_options_replace_values_of_the_preset_and_no_cell_comes_twice():
    cells = grid("design", batch=[2, 2], dtype=["float16"], filters=["mixed"], family=["flat"])
    assert cells == (
        Cell(2, 151_936, "float16", "mixed", "flat"),
        Cell(2, 128_256, "float16", "mixed", "flat"),
    )


@pytest.mark.parametrize(
    ("filters", "params"),
    [
        ("none", SamplingParams(temperature=0.8)),
        ("top-k", SamplingParams(temperature=0.8, top_k=50)),
        ("top-p", SamplingParams(temperature=0.8, top_p=0.9)),
        ("both", SamplingParams(temperature=0.8, top_k=50, top_p=0.9)),
        ("min-p", SamplingParams(temperature=0.8, min_p=0.05)),
    ],
)
def test_every_row_of_a_cell_has_the_filters_of_the_cell(filters, params):
    assert Cell(3, 1000, "float32", filters, "flat").requests == [params] * 3


def test_mixed_rows_ask_for_every_kind_in_turn():
    kinds = [Cell(1, 1000, "float32", filters, "flat").requests[0] for filters in FILTERS[:5]]
    assert Cell(7, 1000, "float32", "mixed", "flat").requests == [*kinds, *kinds[:2]]


@pytest.mark.parametrize("dtype", INPUT_DTYPES)
@pytest.mark.parametrize(
    ("family", "least", "most"),
    [("peaked-7", 7, 7), ("peaked-30", 29, 31), ("gaussian", 600, 2000), ("flat", 28_300, 28_900)],
)
def test_the_nucleus_of_a_family_has_the_size_in_the_name(family, least, most, dtype):
    (logits,) = make_inputs(Cell(4, 32_000, dtype, "none", family), CPU, 1)
    assert logits.dtype == getattr(torch, dtype)
    assert least <= mean_nucleus(logits) <= most


@pytest.mark.parametrize(
    ("family", "vocab_size"),
    [
        *((family, size) for family in ("peaked-7", "peaked-30") for size in (128, 4096, 151_936)),
        *((f"peaked-{nucleus}", 4096) for nucleus in (1, 100, 300, 1000, 2000, 3000)),
        ("peaked-30000", 40_000),
    ],
)
def test_peaked_families_keep_their_nucleus_at_every_vocabulary(family, vocab_size):
    (logits,) = make_inputs(Cell(2, vocab_size, "float32", "none", family), CPU, 1)
    assert mean_nucleus(logits) == int(family.removeprefix("peaked-"))


@pytest.mark.parametrize("family", SMALL_FAMILIES)
def test_the_measured_nucleus_equals_the_reference_in_float64(family):
    (logits,) = make_inputs(Cell(5, 4000, "bfloat16", "none", family), CPU, 1)
    params = SamplingParams(temperature=0.8, top_p=0.9)
    kept = [reference.prepare(row, params).kept.sum() for row in logits.float().numpy()]
    assert mean_nucleus(logits) == pytest.approx(np.mean(kept))


@pytest.mark.parametrize("family", SMALL_FAMILIES)
def test_rows_and_buffers_are_different_and_every_run_makes_the_same(family):
    cell = Cell(3, 4000, "float32", "none", family)
    buffers = make_inputs(cell, CPU, 2)
    assert [list(buffer.shape) for buffer in buffers] == [[3, 4000]] * 2
    assert len({tuple(row.tolist()) for buffer in buffers for row in buffer}) == 6
    assert all(map(torch.equal, buffers, make_inputs(cell, CPU, 2)))


def test_mixed_rows_have_narrow_nuclei_a_tenth_of_100_tokens_and_one_in_fifty_of_thousands():
    (logits,) = make_inputs(Cell(50, 4000, "float32", "none", "mixed-nuclei"), CPU, 1)
    widths = [mean_nucleus(row[None]) for row in logits]
    assert widths[0] == 3200
    assert widths[5::10] == [100] * 5
    assert sorted(set(widths)) == [1, 2, 3, 100, 3200]


def test_padding_is_behind_each_row_and_changes_no_logits():
    plain, padded = (
        make_inputs(Cell(3, 300, "bfloat16", "none", "gaussian", row_padding=padding), CPU, 1)[0]
        for padding in (0, 3)
    )
    assert torch.equal(plain, padded)
    assert (plain.stride(), padded.stride()) == ((300, 1), (303, 1))


def test_a_vocabulary_without_room_for_a_nucleus_is_a_usage_error():
    result = call("bench", "--family", "peaked-300", "--vocab-size", 333, "--device", "cpu")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "peaked-300 needs a vocabulary of 334 or more, found 333." in result.stderr


def test_rows_without_room_for_a_nucleus_are_refused():
    with pytest.raises(ValueError, match=r"^peaked-300 needs a vocabulary of 334 or more, found 333\.$"):
        make_inputs(Cell(1, 333, "float32", "none", "peaked-300"), CPU, 1)
    (logits,) = make_inputs(Cell(1, 334, "float32", "none", "peaked-300"), CPU, 1)
    assert mean_nucleus(logits) == 300
