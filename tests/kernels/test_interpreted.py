"""The kernels of triton-gumbel on a CPU, in Triton's interpreter: the conformance kit without a GPU.

Its lines for ``verify`` would take the interpreter too long: chains are compared in ``test_verify.py``.
"""

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

import triton_on_a_cpu
from tokendraw_testing import properties
from tokendraw_triton_gumbel import plugin

OPERATIONS = plugin.tokendraw_describe().operations
JUDGED = ("sample", "plan_paged_kv", "process_logits")
NEED_COMPILED_KERNELS = {
    "rows behind 2**31 elements",
    "widest vocabulary",
    "threads",
    "plan threads",
    "process threads",
}
PARTS = 2
"""Parts of the kit, which two processes run side by side."""


def interpreted(*what):
    return triton_on_a_cpu.interpreted("draws.py", *what)


def outcome(prop):
    """Return the expected end of a property's line; None if the property is not requested."""
    if prop.operation not in JUDGED:
        return None
    if prop.advertised is None or prop.advertised(OPERATIONS[prop.operation]):
        return "not run" if prop.needs_cuda or prop.name in NEED_COMPILED_KERNELS else "passed"
    return "refused" if prop.refusal else None


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_line_of_the_kit_is_green(part):
    found = interpreted("kit", part, PARTS, *JUDGED)
    expected = {prop.name: outcome(prop) for prop in properties()[part::PARTS] if outcome(prop)}
    wrong = {name: line for name, line in found.items() if line[0] != expected.get(name)}
    assert wrong == {}
    assert found.keys() == expected.keys()


def test_every_line_but_those_of_a_cuda_device_and_of_compiled_kernels_is_run_or_refused():
    assert {prop.name for prop in properties() if outcome(prop) == "not run"} == NEED_COMPILED_KERNELS | {
        "sync-free",
        "graph capture",
        "plan sync-free",
        "plan graph replay",
        "process sync-free",
        "process graph replay",
    }


@pytest.mark.slow
def test_seeded_draws_equal_the_reference_under_every_filter():
    found = interpreted("draws")
    assert found["wrong"] == []
    assert found["judged"] > 200


@pytest.mark.slow
def test_a_nan_that_is_alone_in_its_tile_is_told():
    found = interpreted("lonely")
    assert found["wrong"] == []
    assert found["judged"] > 40


@pytest.mark.slow
@pytest.mark.parametrize("what", ["candidates", "bounds"])
def test_candidates_are_all_that_reach_a_bound_and_bounds_are_reached_by_enough(what):
    found = triton_on_a_cpu.interpreted("candidates.py", what)
    assert found["wrong"] == []
    assert found["judged"] > 70


@pytest.mark.slow
@pytest.mark.parametrize(("what", "least"), [("wide32", 50), ("search", 50), ("few", 50)])
def test_rows_that_keep_thousands_of_tokens_are_drawn_like_the_reference_and_keep_its_mass(what, least):
    found = interpreted(what)
    assert found["wrong"] == []
    assert found["judged"] > least


@pytest.mark.slow
def test_bfloat16_that_is_read_two_at_a_time_is_what_it_is_one_by_one():
    found = interpreted("words")
    assert found["paired"] == [True, False]
    assert found["found"][0] == found["found"][1]
    assert found["certain"]
    assert found["found"][0][0][0] == found["expected"]
    assert all(found["found"][0][1])


@pytest.mark.slow
def test_no_program_searches_a_row_alone_whose_token_is_the_last_that_is_kept():
    found = interpreted("edge")
    assert found["wrong"] == []
    assert found["searches"] == 0
    assert found["judged"] == 18


@pytest.mark.slow
def test_the_pivots_of_a_first_pass_enclose_the_threshold():
    """At four standard errors. A guess from maxima that hide most tokens would miss it."""
    found = interpreted("guesses")
    assert found["missed"] == []
    assert found["rows"] == 32


@pytest.mark.slow
def test_rows_that_keep_a_hundred_tokens_are_drawn_from_candidates():
    """Nearly all rows: a few more tokens may reach the bound in some row."""
    found = interpreted("hundred")
    assert found["wrong"] == []
    assert found["passes"] <= 2
    assert found["judged"] == 8
