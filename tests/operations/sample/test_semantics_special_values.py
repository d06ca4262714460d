"""DESIGN section 2: NaN, infinities and extreme values, beside unchanged neighbours."""

import numpy as np
import pytest
import torch

from calling import assert_same_rows, call, shown_values, tokens
from goodness_of_fit import KINDS, MODES, POISON, V, gaussians, with_values
from tokendraw import SamplingParams
from tokendraw_testing import reference

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_row_holds_no_other_row_changes_by_a_bit(load_native, kind):
    """Each special row lies between clean rows; the batch is compared with itself, special rows replaced."""
    clean = gaussians(2 * len(POISON) + 1)
    poisoned = clean.clone()
    poisoned[1::2] = torch.stack(list(POISON.values()))
    params, untouched = [KINDS[kind]] * len(clean), slice(0, None, 2)
    for mode in MODES:
        outputs = []
        for logits in (clean, poisoned):
            torch.manual_seed(11)
            outputs.append(call(load_native(mode), logits, params))
        assert_same_rows(*outputs, rows=untouched)
        ids = outputs[1].token_ids
        assert bool(((ids >= 0) & (ids < V)).all())
        assert outputs[1].valid[untouched].all()
        assert not outputs[1].log_kept_mass.isnan().any()
        assert not outputs[1].logprobs.logprobs.isnan().any()
        assert bool(((outputs[1].logprobs.ranks >= 1) & (outputs[1].logprobs.ranks <= V)).all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_valid_is_false_for_nan_and_for_rows_without_anything_above_minus_infinity(sampler, kind, dtype):
    logits = torch.stack(list(POISON.values())).to(dtype)
    out = call(sampler, logits, KINDS[kind])
    found = dict(zip(POISON, out.valid.tolist(), strict=True))
    expected = {
        name: reference.prepare(x, KINDS[kind]).valid for name, x in zip(POISON, logits.float(), strict=True)
    }
    assert found == expected
    assert [name for name, valid in expected.items() if not valid][:5] == [
        "one NaN",
        "NaN at the ends",
        "all NaN",
        "all -inf",
        "NaN and -inf",
    ]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "unseeded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.fast_first
def test_special_rows_draw_the_token_of_the_reference(sampler, kind, dtype):
    """NaN counts as -inf; +inf draws uniformly among its equals; nothing above -inf gives token 0."""
    names = [name for name in POISON for _ in range(8)]
    logits = torch.stack([POISON[name] for name in names]).to(dtype)
    found = tokens(call(sampler, logits, KINDS[kind]))
    for i, (name, x) in enumerate(zip(names, logits.float(), strict=True)):
        row = reference.prepare(x, KINDS[kind])
        token, lead = reference.draw(row, 3, i)
        assert found[i] == token or lead < reference.NEAR_TIE or not row.certain, name
        if row.empty:
            assert found[i] == 0, name


def test_nan_counts_as_minus_infinity(load_native):
    logits = gaussians(6)
    masked, poisoned = logits.clone(), logits.clone()
    masked[:, ::3], poisoned[:, ::3] = -INF, NAN
    params = list(KINDS.values())[:6]
    for mode in MODES:
        outputs = [call(load_native(mode), x, params) for x in (masked, poisoned)]
        assert outputs[0].valid.tolist() == [True] * 6
        assert outputs[1].valid.tolist() == [False] * 6
        assert tokens(outputs[0]) == tokens(outputs[1])
        assert torch.equal(outputs[0].logprobs.logprobs, outputs[1].logprobs.logprobs)
        assert torch.equal(outputs[0].logprobs.ranks, outputs[1].logprobs.ranks)


@pytest.mark.fast_first
@pytest.mark.parametrize(
    "params", [KINDS["plain"], KINDS["all"], KINDS["joint"], SamplingParams(seed=3, top_k=1)]
)
def test_plus_infinity_draws_uniformly_among_its_equals(sampler, params):
    row = with_values({5: INF, 800: INF, 1400: INF, 20: NAN, 21: 3e38})
    drawn = tokens(call(sampler, row.expand(3000, V), params))
    assert set(drawn) == {5, 800, 1400}
    assert min(drawn.count(token) for token in (5, 800, 1400)) > 840  # 6.2 standard deviations


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


def test_a_large_offset_common_to_all_logits_changes_nothing(load_native):
    logits = (gaussians(8) * 8).round() / 8  # steps of 1/8 stay exact up to 2**20
    params = list(KINDS.values())[:6] + [KINDS["plain"]] * 2
    near, far = (
        call(load_native("processed_logprobs"), logits + offset, params) for offset in (0.0, 2.0**19)
    )
    assert_same_rows(near, far)
