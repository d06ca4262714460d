"""Compares logprobs of triton-gumbel and native in Triton's interpreter; compiles the kernels for every target."""

from itertools import cycle

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

import torch

import triton_on_a_cpu
from tokendraw import SamplingMetadata, SamplingParams
from triton_on_a_cpu import TARGETS, code_of, compiled_call
from triton_stand_ins import kernels, sampler_for

__all__ = ["kernels"]

V = 4096


def interpreted(what):
    """Run a script with interpreted kernels; return (number of judged rows, wrong rows)."""
    found = triton_on_a_cpu.interpreted("logprobs.py", what)
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


def described(target, dtype, num_logprobs, vocab_size=V):
    """Make a call with log-probabilities, for the stand-ins to record."""
    params = SamplingParams(temperature=0.8, top_k=50, seed=1, logprobs=num_logprobs)
    metadata = SamplingMetadata.from_params([params, params], positions=[0, 1])
    sampler_for(target).sample(torch.zeros(2, vocab_size, dtype=dtype), metadata)


def machine_code(kernel, target):
    """Compile the last call of a kernel."""
    return code_of(compiled_call(kernel.calls[-1], target))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "bounds"), [*zip(TARGETS, cycle(("tiles", "quarters of tiles")), strict=False)]
)
def test_the_kernel_compiles(kernels, target, bounds):
    """The maxima of tiles bound the N-th value, or with few tiles the maxima of their quarters."""
    dtype, num_logprobs = (torch.bfloat16, 1) if bounds == "tiles" else (torch.float32, 20)
    described(target, dtype, num_logprobs)
    config = kernels["row_logprobs"].calls[-1][2]["config"]
    assert (config.QUARTERS > 0) == (num_logprobs > 2)
    assert len(machine_code(kernels["row_logprobs"], target)) > 1000


@pytest.mark.slow
def test_the_kernel_compiles_for_a_vocabulary_of_one(kernels):
    described("sm_90", torch.float32, 1, vocab_size=1)
    assert len(machine_code(kernels["row_logprobs"], "sm_90")) > 1000


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_count_of_ranks_compiles(kernels, target, dtype):
    described(target, dtype, 1)
    assert len(machine_code(kernels["count_ranks"], target)) > 1000


@pytest.mark.slow
def test_what_is_shown_as_minus_infinity_stands_in_the_order_of_its_ids():
    """Rows with +inf, and quotients beyond float32; triton-gumbel and native, N by kernels and by torch.topk."""
    judged, wrong = interpreted("order")
    assert wrong == []
    assert judged == 2 * 2 * 2 * 3


@pytest.mark.slow
def test_rows_at_any_temperature_draw_as_the_oracle_does():
    """Temperatures down to an inverse beyond float32, in sample, draft and verify."""
    judged, wrong = interpreted("tiny")
    assert wrong == []
    assert judged >= 30


@pytest.mark.slow
def test_logprobs_of_logits_that_require_grad_do_not_and_ranks_are_left_out_where_nobody_wants_them():
    judged, wrong = interpreted("calls")
    assert wrong == []
    assert judged == 2 * 2 * 3


@pytest.mark.slow
def test_no_log_probability_and_no_kept_mass_exceeds_0():
    """Rows with one kept token, with all mass on one token, and uniform rows, by kernels and by torch.topk."""
    judged, wrong = interpreted("bounds")
    assert wrong == []
    assert judged == 3 * 3 * 2 * 8 * 2


@pytest.mark.slow
def test_thresholds_of_rows_that_keep_thousands_of_tokens_are_found_among_what_is_collected():
    judged, wrong = interpreted("collected")
    assert wrong == []
    assert judged == 18
