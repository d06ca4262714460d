"""DESIGN section 2, log-probabilities: five modes, the N best, ranks, padding and the kept mass, against float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from calling import call, shown_values, tokens
from tokendraw import BatchFacts, Drafts, SamplingMetadata, SamplingParams
from tokendraw_testing import reference
from tokendraw_testing.logits_families import FAMILIES, gaussian

MODES = ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits", "temperature_logprobs"]
INF = float("inf")
ROWS = 64
PAD = (-1, -INF)


def some_params(rng, wanted=-1):
    """Two thirds of the rows are filtered, and an eighth is greedy."""

    def pick(*values):
        return values[rng.integers(len(values))]

    return SamplingParams(
        temperature=pick(0.0, 0.3, 0.7, 1.0, 1.0, 1.5, 2.0, 0.9),
        top_k=pick(0, 0, 1, 5, 40),
        top_p=pick(1.0, 1.0, 0.5, 0.9),
        min_p=pick(0.0, 0.0, 0.05),
        filter_order=pick("top_k_first", "joint"),
        seed=17,
        logprobs=wanted,
    )


def batch(family, size, seed=0, wanted=-1):
    rng = np.random.default_rng(seed)
    logits = np.stack([FAMILIES[family](rng, size) for _ in range(ROWS)])
    params = [some_params(rng, wanted) for _ in range(ROWS)]
    rows = [reference.prepare(x, p) for x, p in zip(logits, params, strict=True)]
    judged = [i for i, row in enumerate(rows) if row.certain]
    assert len(judged) >= 0.9 * ROWS
    return logits, params, rows, judged


def assert_values(found, expected):
    """Compare within 1e-5, or the last bits of a large float32; -inf has to be exact."""
    np.testing.assert_allclose(found, np.asarray(expected, np.float64), rtol=5e-7, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [1, 50, 3000])
def test_every_mode_agrees_with_float64(load_native, mode, family, size):
    logits, params, rows, judged = batch(family, size)
    out = call(load_native(mode), logits, params)
    found = shown_values(out)
    for i in judged:
        token = int(out.token_ids[i])
        expected = reference.values(rows[i], token, mode)
        assert_values(found[i], expected)
        assert_values(out.logprobs.logprobs[i, 0].item(), expected[token])
    assert tokens(out) == out.logprobs.token_ids[:, 0].tolist()
    if mode == "raw_logits":
        assert np.array_equal(found, logits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mode", MODES)
def test_half_precision_logits_give_float32_logprobs_of_their_values(load_native, dtype, mode):
    logits, params, _, _ = batch("gaussian", 700)
    logits = torch.from_numpy(logits).to(dtype)
    out = call(load_native(mode), logits, params)
    assert out.logprobs.logprobs.dtype == torch.float32
    found = shown_values(out)
    for i, (x, p) in enumerate(zip(logits, params, strict=True)):
        row = reference.prepare(x.float(), p)
        if row.certain:
            assert_values(found[i], reference.values(row, int(out.token_ids[i]), mode))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wanted", [0, 1, 20])
def test_the_drawn_token_comes_first_then_the_n_best_in_descending_order(load_native, mode, wanted):
    """The lowest id first on a tie, the -inf of dropped tokens included; the tied family is full of ties."""
    logits, params, rows, judged = batch("tied", 900, seed=1, wanted=wanted)
    out = call(load_native(mode), logits, params)
    assert out.logprobs.token_ids.shape == out.logprobs.logprobs.shape == (ROWS, 1 + wanted)
    for i in judged:
        token = int(out.token_ids[i])
        expected = reference.values(rows[i], token, mode)
        best = np.argsort(-expected, kind="stable")[:wanted].tolist()
        assert out.logprobs.token_ids[i].tolist() == [token, *best], params[i]
        assert_values(out.logprobs.logprobs[i].cpu(), expected[[token, *best]])


@pytest.mark.parametrize("mode", MODES)
def test_the_n_best_are_the_first_columns_of_all_v(load_native, mode):
    """However the best N are found, they equal the first N of the full order."""
    rng = np.random.default_rng(2)
    logits = np.stack([gaussian(rng, 5000) for _ in range(8)])
    params = [SamplingParams(temperature=t, top_k=k, seed=4) for t in (0.0, 0.5, 1.0, 2.0) for k in (0, 10)]

    def ask(wanted):
        return call(load_native(mode), logits, [replace(p, logprobs=wanted) for p in params])

    everything = ask(-1)
    assert everything.logprobs.token_ids.shape == (8, 5001)
    for wanted in (0, 1, 20, 1500):
        few = ask(wanted)
        assert torch.equal(few.logprobs.token_ids, everything.logprobs.token_ids[:, : 1 + wanted])
        torch.testing.assert_close(
            few.logprobs.logprobs, everything.logprobs.logprobs[:, : 1 + wanted], rtol=0, atol=2e-6
        )
        assert torch.equal(few.logprobs.ranks, everything.logprobs.ranks)


def test_minus_1_means_all_of_the_vocabulary(sampler):
    out = call(sampler, np.zeros((2, 31), np.float32), SamplingParams(logprobs=-1))
    assert out.logprobs.token_ids.shape == (2, 32)
    assert out.logprobs.token_ids[:, 1:].tolist() == [list(range(31))] * 2


def test_more_than_the_vocabulary_is_all_of_it(load_native):
    """Rows with fewer are padded as ever; nothing of the requested width is allocated."""
    logits = np.array([[0.0, 1.0, 1.0], [2.0, -1.0, 0.0]], np.float32)
    for mode in MODES:
        for wanted in (6, 10**7, 10**9, 2**31, 10**30):
            params = [SamplingParams(logprobs=n, seed=1, top_k=2) for n in (wanted, 1)]
            out = call(load_native(mode), logits, params)
            everything = call(load_native(mode), logits, [replace(params[0], logprobs=-1), params[1]])
            assert out.logprobs.token_ids[:, 1:].tolist() == [[1, 2, 0], [0, -1, -1]]
            assert out.logprobs.logprobs[1, 2:].tolist() == [-INF, -INF]
            assert torch.equal(out.logprobs.token_ids, everything.logprobs.token_ids)
            assert torch.equal(out.logprobs.logprobs, everything.logprobs.logprobs)


def test_drafts_and_verifications_are_no_wider_than_the_vocabulary(sampler, device):
    logits, params = torch.zeros(2, 4, device=device), [SamplingParams(logprobs=10**9)]
    drafted = sampler.draft(logits, SamplingMetadata.from_params(params * 2, device=device))
    assert drafted.logprobs.token_ids.shape == (2, 5)
    drafts = Drafts.from_lists([[1]], device=device)
    verified = sampler.verify(logits, drafts, SamplingMetadata.from_params(params, device=device))
    assert verified.logprobs.token_ids.shape == (1, 2, 5)
    nobody = sampler.sample(logits[:0], SamplingMetadata(facts=BatchFacts(max_logprobs=10**9)))
    assert nobody.logprobs.token_ids.shape == (0, 5)


def test_rows_that_asked_for_fewer_carry_the_documented_padding(load_native):
    """Token id -1 and logprob -inf beyond a row's width; column 0 and the rank are present for every row."""
    logits = np.log(np.array([[0.1, 0.2, 0.3, 0.4]] * 5)).astype(np.float32)
    params = [SamplingParams(seed=1, logprobs=n) for n in (3, 0, 1, None, 2)]
    for mode in MODES:
        out = call(load_native(mode), logits, params)
        drawn, best = tokens(out), [3, 2, 1]
        for i, width in enumerate((3, 0, 1, 0, 2)):
            expected = [drawn[i], *best[:width], *[PAD[0]] * (3 - width)]
            assert out.logprobs.token_ids[i].tolist() == expected
            shown = out.logprobs.logprobs[i].tolist()
            assert np.isfinite(shown[: 1 + width]).all()
            assert shown[1 + width :] == [PAD[1]] * (3 - width)
        assert out.logprobs.ranks.tolist() == [4 - token for token in drawn]


def test_a_row_that_wants_all_sets_the_width_for_its_batch(sampler):
    params = [SamplingParams(logprobs=n) for n in (2, -1)]
    out = call(sampler, np.arange(10, dtype=np.float32).reshape(2, 5), params)
    assert out.logprobs.token_ids[:, 1:].tolist() == [[4, 3, -1, -1, -1], [4, 3, 2, 1, 0]]


def test_no_logprobs_are_made_when_nobody_asks(load_native):
    for mode in MODES:
        out = call(load_native(mode), np.zeros((2, 7), np.float32), SamplingParams(top_k=3))
        assert out.logprobs is None
        assert out.log_kept_mass is None


def test_ready_tensors_ask_per_row_too(sampler, device):
    metadata = SamplingMetadata(
        logprobs=torch.tensor([1, 0, -1], device=device, dtype=torch.int32), facts=BatchFacts(max_logprobs=-1)
    )
    logits = torch.tensor([[0.0, 2.0, 1.0]] * 3, device=device)
    out = sampler.sample(logits, metadata)
    assert out.logprobs.token_ids[:, 1:].tolist() == [[1, -1, -1], [-1, -1, -1], [1, 2, 0]]


@pytest.mark.parametrize("mode", MODES)
def test_the_rank_counts_the_tokens_whose_value_is_at_least_the_drawn_ones(load_native, mode):
    """1-based, ties included: three equal best tokens all have rank 3."""
    logits, params, rows, judged = batch("tied", 60, seed=3, wanted=1)
    out = call(load_native(mode), logits, params)
    for i in judged:
        if not rows[i].greedy:
            token = int(out.token_ids[i])
            assert out.logprobs.ranks[i] == (rows[i].x >= rows[i].x[token]).sum()


def test_the_rank_of_a_tied_token_is_that_of_the_last_of_the_ties(sampler):
    logits = np.array([[5.0, 5.0, 5.0, -90.0]] * 64, np.float32)
    out = call(sampler, logits, SamplingParams(seed=1, logprobs=0))
    assert set(tokens(out)) == {0, 1, 2}
    assert out.logprobs.ranks.tolist() == [3] * 64


@pytest.mark.parametrize("family", ["gaussian", "zipf", "tied", "flat"])
def test_processed_is_temperature_less_the_log_of_the_kept_mass(load_native, family):
    """The same call gives both values: the identity holds for every kept token, and the mass equals float64's."""
    logits, params, rows, judged = batch(family, 2000, seed=4)
    processed = call(load_native("processed_logprobs"), logits, params)
    temperature = call(load_native("temperature_logprobs"), logits, params)
    assert torch.equal(processed.log_kept_mass, temperature.log_kept_mass)
    before, after = shown_values(temperature), shown_values(processed)
    mass = processed.log_kept_mass.cpu().numpy()
    assert mass.dtype == np.float32
    for i in judged:
        kept = np.isfinite(after[i])
        np.testing.assert_allclose(after[i][kept], before[i][kept] - mass[i], atol=1e-5)
        assert_values(mass[i], reference.log_kept_mass(rows[i]))
    assert mass.min() < -0.05 or family == "flat"


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_carries_the_log_of_the_kept_mass(load_native, mode):
    logits = np.log(np.array([[0.1, 0.2, 0.3, 0.4]])).astype(np.float32)
    out = call(load_native(mode), logits, SamplingParams(top_k=2, logprobs=0))
    np.testing.assert_allclose(out.log_kept_mass.cpu(), [np.log(0.7)], atol=1e-6)


def test_a_kept_mass_of_a_tiny_share_keeps_its_relative_precision(load_native):
    """A kept share of 2e-5 is as exact as a share of 0.9: importance weights use the identity."""
    logits = np.zeros((2, 50_000), np.float32)
    logits[1, 7] = 1e-3
    out = call(load_native("temperature_logprobs"), logits, SamplingParams(top_k=1, logprobs=0))
    np.testing.assert_allclose(out.log_kept_mass.cpu(), [0.0, 1e-3 - np.log(50_000 + 1e-3)], atol=1e-5)


def test_greedy_rows_show_the_limit_of_small_temperatures(load_native):
    """The drawn token has probability 1 after temperature; raw modes show the logits as given."""
    logits = np.array([[1.0, 3.0, 3.0, -2.0]], np.float32)
    raw = reference.log_softmax(logits[0].astype(np.float64))
    expected = {mode: [0.0, 0.0, -INF, -INF, -INF] for mode in MODES} | {
        "raw_logprobs": raw[[1, 1, 2, 0, 3]],
        "raw_logits": [3.0, 3.0, 3.0, 1.0, -2.0],
    }
    for mode in MODES:
        out = call(load_native(mode), logits, SamplingParams(temperature=0.0, top_k=1, logprobs=-1))
        assert tokens(out) == [1]
        assert_values(out.logprobs.logprobs[0].cpu(), expected[mode])
        assert out.log_kept_mass.tolist() == [0.0]
    ranked = call(load_native("raw_logprobs"), logits, SamplingParams(temperature=0.0, logprobs=0))
    assert ranked.logprobs.ranks.tolist() == [2]


def test_special_rows_show_what_the_draw_saw(load_native):
    """NaN is -inf, +inf is uniform among its equals, and an empty row is -inf everywhere, of rank V."""
    nan = float("nan")
    logits = np.array([[nan, 1.0, nan, 1.0], [INF, 3.0, INF, -INF], [-INF, nan, -INF, nan]], np.float32)
    half = -np.log(2.0)
    uniform = {
        "two NaN": [-INF, half, -INF, half],
        "two +inf": [half, -INF, half, -INF],
        "nothing": [-INF] * 4,
    }
    logit_rows = [[-INF, 1.0, -INF, 1.0], [INF, 3.0, INF, -INF], [-INF] * 4]
    processed_rows = [[-INF, 0.0, -INF, 0.0], [0.0, -INF, 0.0, -INF], [-INF] * 4]
    for mode in MODES:
        out = call(load_native(mode), logits, SamplingParams(seed=2, logprobs=-1))
        special = {"raw_logits": logit_rows, "processed_logits": processed_rows}
        assert_values(shown_values(out), special.get(mode, list(uniform.values())))
        assert out.logprobs.ranks.tolist() == [2, 2, 4]
        assert out.logprobs.logprobs[2, 0] == -INF
        assert out.log_kept_mass.tolist()[:2] == [0.0, 0.0]


def test_asking_for_logprobs_does_not_change_the_draw(load_native):
    logits, params, _, _ = batch("zipf", 3000, seed=5)
    expected = tokens(call(load_native(), logits, [replace(p, logprobs=None) for p in params]))
    for mode in MODES:
        for wanted in (0, 5, -1):
            asking = [replace(p, logprobs=wanted) for p in params]
            assert tokens(call(load_native(mode), logits, asking)) == expected
