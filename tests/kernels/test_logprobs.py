"""The logprobs of triton-gumbel against those of native, in Triton's interpreter, and compiled for every target."""

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

import triton_on_a_cpu
from tokendraw_triton_gumbel.logprobs_row import FEW, row_logprobs
from tokendraw_triton_gumbel.ranks import SPAN, count_ranks
from triton_on_a_cpu import TARGETS

TYPES = {
    "row_stride": "i64",
    "token_ids": "*i64",
    "temperature": "*fp64",
    "row_index": "*i64",
    "wanted": "*i64",
    "maxima": "*fp32",
    "sums": "*fp32",
    "floors": "*fp32",
    "log_kept_mass": "*fp32",
    "listed": "*i32",
    "keys": "*i64",
    "ids": "*i64",
    "values": "*fp32",
    "ranks": "*i64",
}
EVERYTHING = {"TILES": 256, "FEW": FEW}


def interpreted(what):
    """How many rows were judged, and which are wrong, in a process in which Triton interprets its kernels."""
    found = triton_on_a_cpu.interpreted("triton_logprobs_kernels.py", what)
    return found["judged"], found["wrong"]


@pytest.mark.slow
def test_every_mode_agrees_with_native_for_every_family_of_logits():
    judged, wrong = interpreted("families")
    assert wrong == []
    assert judged == 8 * (3 * 7 + 2 * 12)


@pytest.mark.slow
def test_large_vocabularies_agree_with_native():
    judged, wrong = interpreted("large")
    assert wrong == []
    assert judged == 3 * 8


@pytest.mark.slow
def test_rows_of_nan_infinities_and_ties_agree_with_native():
    judged, wrong = interpreted("special")
    assert wrong == []
    assert judged == 14 * (2 * 6 + 4)


@pytest.mark.slow
def test_parameters_by_slot_or_absent_or_out_of_range_agree_with_native():
    judged, wrong = interpreted("tensors")
    assert wrong == []
    assert judged == 16 * 6


def machine_code(constants, dtype, target):
    """What the compiler made for ``target``."""
    constants = {**EVERYTHING, **constants}
    types = {**TYPES, "logits": f"*{dtype}", "granules": f"*{dtype}"}
    return triton_on_a_cpu.machine_code(row_logprobs, types, constants, target)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("dtype", "vector", "proof"), [("bf16", 8, 0), ("fp32", 4, 512)])
def test_the_kernel_compiles(target, dtype, vector, proof):
    assert len(machine_code({"VECTOR": vector, "PROOF": proof}, dtype, target)) > 1000


def test_the_kernel_compiles_for_a_vocabulary_of_one():
    one = {"VECTOR": 4, "PROOF": 0, "vocab_size": 1, "row_stride": 1}
    assert len(machine_code(one, "fp32", "sm_90")) > 1000


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("dtype", "vector"), [("bf16", 8), ("fp32", 4)])
def test_the_count_of_ranks_compiles(target, dtype, vector):
    types = {**TYPES, "logits": f"*{dtype}", "granules": f"*{dtype}"}
    constants = {"SPAN": SPAN, "VECTOR": vector}
    assert len(triton_on_a_cpu.machine_code(count_ranks, types, constants, target, aligned=True)) > 1000


@pytest.mark.slow
def test_what_is_shown_as_minus_infinity_stands_in_the_order_of_its_ids():
    """Beside +inf, and where a quotient is more than float32 holds; of triton-gumbel and of native, N in both ways."""
    judged, wrong = interpreted("order")
    assert wrong == []
    assert judged == 2 * 2 * 2 * 3


@pytest.mark.slow
def test_rows_at_any_temperature_draw_as_the_oracle_does():
    """Down to temperatures whose inverse float32 does not hold, in sample, draft and verify."""
    judged, wrong = interpreted("tiny")
    assert wrong == []
    assert judged >= 30


@pytest.mark.slow
def test_logprobs_of_logits_that_require_grad_do_not_and_ranks_are_left_out_where_nobody_wants_them():
    judged, wrong = interpreted("calls")
    assert wrong == []
    assert judged == 2 * 2 * 3
