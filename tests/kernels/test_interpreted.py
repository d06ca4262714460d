"""The kernels of triton-gumbel on a CPU, in Triton's interpreter: the conformance kit without a GPU.

Its lines for ``verify`` would take the interpreter too long: chains are compared in ``test_verify.py``.
"""

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from tokendraw_testing import properties
from tokendraw_triton_gumbel import plugin
from triton_stand_ins import interpreted

OPERATIONS = plugin.tokendraw_describe().operations
JUDGED = ("sample", "score", "process_logits")
NEED_COMPILED_KERNELS = {
    "threads",
    "score threads",
    "process threads",
}
PARTS = 4
"""Parts of the kit: short enough that two processes end together."""


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
    result = interpreted("draws", "kit", part, PARTS, *JUDGED)
    expected = {prop.name: outcome(prop) for prop in properties()[part::PARTS] if outcome(prop)}
    wrong = {name: line for name, line in result.items() if line[0] != expected.get(name)}
    assert wrong == {}
    assert result.keys() == expected.keys()


def test_every_line_but_those_of_a_cuda_device_and_of_compiled_kernels_is_run_or_refused():
    assert {prop.name for prop in properties() if outcome(prop) == "not run"} == NEED_COMPILED_KERNELS | {
        "sync-free",
        "graph capture",
        "score sync-free",
        "score graph capture",
        "process sync-free",
        "process graph replay",
    }


JUDGED_ROWS = {
    "seeded draws under every filter": ("draws", "draws", 200),
    "NaN as the only finite logit of a tile": ("draws", "lonely", 40),
    "candidates above a bound": ("candidates", "candidates", 150),
    "bounds below enough maxima": ("candidates", "bounds", 70),
    "an inverse temperature beyond float32": ("logprobs", "tiny", 29),
    "temperatures beyond float32 in ready tensors": ("draws", "extremes", 200),
    "thousands of kept tokens": ("draws", "wide32", 50),
    "thousands of kept tokens, one pass": ("draws", "search", 50),
    "thousands of kept tokens, few in a bracket": ("draws", "few", 50),
}
"""Script, function and least number of rows of comparisons with the reference."""


@pytest.mark.slow
@pytest.mark.parametrize("name", JUDGED_ROWS)
def test_every_row_equals_the_reference(name):
    script, function, least = JUDGED_ROWS[name]
    result = interpreted(script, function)
    assert result["wrong"] == []
    assert result["judged"] > least


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
def test_a_row_at_any_address_has_the_sums_of_an_aligned_copy_and_nothing_around_it_is_read(dtype):
    result = interpreted("unaligned", "compare", dtype)
    assert result["wrong"] == []
    assert result["compared"] == {"bfloat16": 63, "float32": 27, "float16": 63}[dtype]


@pytest.mark.slow
def test_bfloat16_at_any_address_draws_the_tokens_of_aligned_rows():
    result = interpreted("draws", "words")
    assert result["aligned"] == [True, False, False]
    assert result["found"][0] == result["found"][1] == result["found"][2]
    assert result["certain"]
    assert result["found"][0][0][0] == result["expected"]
    assert all(result["found"][0][1])


@pytest.mark.slow
def test_no_program_searches_a_row_alone_for_the_last_kept_token():
    assert interpreted("draws", "edge") == {"judged": 18, "wrong": [], "searches": 0}


@pytest.mark.slow
def test_kept_sets_of_some_hundred_tokens_are_collected_or_else_weighed():
    """A scattered set takes one pass. A set side by side, and a guess that misses tokens, take passes that weigh."""
    result = interpreted("draws", "collected")
    assert result["wrong"] == []
    assert result["passes"]["scattered"] == 0
    assert min(result["passes"]["side by side"], result["passes"]["too few"]) > 0


@pytest.mark.slow
def test_kept_intervals_are_those_of_native_with_their_thresholds_and_logprobs():
    assert interpreted("draws", "intervals") == {"wrong": []}


@pytest.mark.slow
def test_a_large_k_is_found_in_a_list_of_the_set_or_of_a_bracket():
    """A set that a sample shows to be small takes no pass that weighs; other small sets, and too short lists, do."""
    result = interpreted("draws", "large_k")
    assert result["wrong"] == []
    assert result["guessed"] == [0, 0, 0, 3, 2]
    assert result["bounded"] == [1, 1, 1, 3, 2]


def test_small_p_keeps_the_nucleus_of_a_flat_row_whatever_its_mass():
    """Of the last but one of these rows top-k decides."""
    assert interpreted("draws", "flat") == {"judged": 6, "wrong": [], "tokens": []}


@pytest.mark.slow
def test_the_pivots_of_a_first_pass_enclose_the_threshold():
    """At four standard errors. A guess from maxima of a few visible tokens would miss the threshold."""
    assert interpreted("draws", "guesses") == {"missed": [], "rows": 32}


@pytest.mark.slow
def test_rows_with_a_hundred_kept_tokens_are_drawn_from_candidates():
    """Nearly all rows: a few more tokens may reach the bound in some row."""
    result = interpreted("draws", "hundred")
    assert (result["wrong"], result["judged"]) == ([], 8)
    assert result["passes"] <= 2


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
