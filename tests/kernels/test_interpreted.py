"""The kernels of triton-gumbel on a CPU, in Triton's interpreter: the conformance kit without a GPU, and rows for the
paths of the kernels that it does not take there.
"""

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from tokendraw_testing import properties
from tokendraw_triton_gumbel import plugin
from triton_stand_ins import interpreted

OPERATIONS = plugin.tokendraw_describe().operations
NEED_COMPILED_KERNELS = {"threads", "score threads", "process threads"}
VERIFICATIONS = ("verify crossing", "verify further filters")
"""Lines that take every way through the kernels of verifications. All of them would take the interpreter too long."""
PARTS = 5
"""Parts of the kit: short enough that two processes end together."""


def outcome(prop):
    """Return the expected end of a property's line; None if it has none here."""
    if prop.operation == "verify" and prop.name not in VERIFICATIONS:
        return None
    if prop.operation not in OPERATIONS:
        return None
    if prop.advertised is None or prop.advertised(OPERATIONS[prop.operation]):
        return "not run" if prop.needs_cuda or prop.name in NEED_COMPILED_KERNELS else "passed"
    return "refused" if prop.refusal else None


EXPECTED = {prop.name: end for prop in properties() if (end := outcome(prop))}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_line_of_the_kit_is_green(part):
    expected = dict([*EXPECTED.items()][part::PARTS])
    lines = interpreted("directed", "kit", *expected)
    assert {name: line for name, line in lines.items() if line[0] != expected[name]} == {}
    assert lines.keys() == expected.keys()


@pytest.mark.slow
def test_programs_that_share_a_row_edit_as_one_does():
    lines = interpreted("directed", "kit_by_small_programs")
    assert {name: line[0] for name, line in lines.items()} == {
        name: end for name, end in EXPECTED.items() if name in lines
    }
    assert len(lines) == 8


@pytest.mark.fast_first
@pytest.mark.parametrize(("first", "end"), [(0, 1), (1, 6)])
def test_small_p_keeps_the_nucleus_of_a_flat_row_whatever_its_mass(first, end):
    found = interpreted("directed", "flat", first, end)
    assert found == {"rows": end - first, "wrong": [], "apart": []}


ROWS = {
    "thousands of kept tokens": (("large_sets", "all passes"), 100),
    "thousands of kept tokens, by even pivots": (("large_sets", "even pivots"), 80),
    "thousands of kept tokens, without lists": (("large_sets", "no lists"), 80),
    "thousands of kept tokens, few in a bracket": (("large_sets", "few in a bracket"), 80),
    "kept sets that are collected": (("lists", "guessed"), 14),
    "kept sets that a guess misses": (("lists", "too short"), 8),
    "kept sets without a guess": (("lists", "bounded"), 8),
    "XTC and temperature_last": (("intervals",), 140),
    "temperatures beyond float32": (("extremes",), 70),
    "log-probabilities at the limits of sums and searches": (("described",), 60),
}
"""Function of ``directed.py`` and the least number of tokens that it judges."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_every_row_is_that_of_float64(name):
    call, least = ROWS[name]
    result = interpreted("directed", *call)
    assert result["wrong"] == []
    assert result["judged"] >= least


@pytest.mark.slow
def test_what_a_row_keeps_has_the_same_bits_under_every_seed():
    assert interpreted("directed", "kept_by_seed") == []


@pytest.mark.slow
def test_chains_in_vocabularies_of_many_tiles_are_those_of_float64():
    ((status, detail),) = interpreted("directed", "kit_of_many_tiles").values()
    assert status == "passed", detail


@pytest.mark.slow
def test_rows_of_shared_slots_are_described_as_rows_of_their_own():
    assert interpreted("directed", "slots") == []


@pytest.mark.slow
def test_edits_of_full_slots_stay_inside_their_tensors():
    assert interpreted("directed", "full_slots") == 3


@pytest.mark.slow
def test_tokens_appended_by_the_launch_are_edited_as_those_that_torch_appended():
    edited = interpreted("directed", "appends")
    assert [by_launch for by_launch, _ in edited] == [by_torch for _, by_torch in edited]
    assert len({str(pair) for pair in edited}) > 4


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_adapter_to_vllm_computes_the_probabilities_of_drawn_drafts(dtype):
    """A row with NaN, one with +inf and one of -inf alone have no probabilities."""
    found = interpreted("drawn_drafts", "probabilities", dtype)
    assert found["error"] < 2e-5
    assert (found["nan"], found["unequal"]) == (3, 0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_adapter_to_vllm_keeps_the_logits_of_drawn_drafts(dtype):
    assert interpreted("drawn_drafts", "kept", dtype) == {
        "cache": True,
        "rows": [4, 0, 0, 2, 0],
        "places": [[1, 30], [0, 31], [2, 32], [1, 33], [0, 34]],
    }
