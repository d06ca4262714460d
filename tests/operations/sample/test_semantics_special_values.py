"""DESIGN section 2: infinities and extreme values, by worked examples."""

import numpy as np
import pytest
import torch

from calling import call, shown_values, tokens
from goodness_of_fit import MODES, V, with_values
from tokendraw import SamplingParams

NAN, INF = float("nan"), float("inf")


def test_plus_infinity_outlasts_any_temperature_and_filter(sampler):
    """1e308 times the logarithm of min_p is infinite itself."""
    rows = with_values({700: INF}).expand(8, V)
    params = [
        SamplingParams(temperature=t, min_p=m, top_k=k)
        for t in (1e-300, 1e308)
        for m in (0.1, 1.0)
        for k in (0, 5)
    ]
    out = call(sampler, rows, params)
    assert tokens(out) == [700] * 8
    assert out.valid.all()


def test_a_greedy_row_with_plus_infinity_takes_its_lowest_id(sampler):
    logits = torch.stack([with_values({5: INF, 800: INF, 2: NAN}), with_values({V - 1: INF})])
    assert tokens(call(sampler, logits, SamplingParams(temperature=0.0))) == [5, V - 1]


def test_no_finite_input_overflows(load_native):
    """Includes differences beyond the largest float32: x - max(x) is -6e38."""
    logits = torch.tensor([[3e38, -3e38, 3e38, 0.0], [-3e38, -3.2e38, -3.4e38, -3e38]] * 2)
    params = [SamplingParams(seed=1, temperature=t, logprobs=-1) for t in (1.0, 1.0, 0.5, 2.0)]
    for mode in MODES:
        out = call(load_native(mode), logits, params)
        assert set(tokens(out)) <= {0, 2, 3}
        assert out.valid.tolist() == [True] * 4
        assert out.log_kept_mass.tolist() == [0.0] * 4
        if mode == "raw_logits":
            assert np.array_equal(shown_values(out), logits.numpy())
        elif mode != "processed_logits":
            likely = np.exp(shown_values(out).astype(np.float64))
            expected = [[0.5, 0, 0.5, 0], [0.5, 0, 0, 0.5]] * 2
            np.testing.assert_allclose(likely, expected, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_largest_values_of_half_precision_do_not_overflow(load_native, dtype):
    top = torch.finfo(dtype).max
    logits = torch.tensor([[top, -top, top, 0.0]] * 64, dtype=dtype)
    out = call(
        load_native("processed_logprobs"), logits, SamplingParams(seed=1, top_k=2, top_p=0.99, logprobs=2)
    )
    assert set(tokens(out)) == {0, 2}
    np.testing.assert_allclose(out.logprobs.logprobs.cpu(), np.log(0.5), atol=1e-6)
    assert out.logprobs.token_ids[:, 1:].tolist() == [[0, 2]] * 64
