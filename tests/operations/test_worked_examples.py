"""What draws, logprobs and scores promise, by rows small enough to check by eye; the kit looks at all others."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import call_tables
import tokendraw
from calling import call, kept_sets, shown_values, tokens
from fake_dists import plugin
from tokendraw import (
    BatchFacts,
    Drafts,
    Need,
    SamplerUnavailableError,
    SamplingMetadata,
    SamplingParams,
    philox,
)
from tokendraw_testing import reference

INF, NAN = math.inf, math.nan
MODES = ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits", "temperature_logprobs"]
FIVE = (0.4, 0.3, 0.2, 0.06, 0.04)
LAST = {"filter_order": "temperature_last"}
ALWAYS = {"xtc_probability": 1.0}


@pytest.fixture(scope="module")
def with_threshold():
    return tokendraw.load_sampler("native", device="cpu", need=Need(threshold=True))


def logits_of(*probabilities):
    return torch.tensor(probabilities).log()


# Which tokens a row keeps


def kept(sampler, logits, metadata):
    out = sampler.sample(logits, metadata)
    mask = tokendraw.kept_mask(logits, out.threshold, out.ceiling)
    assert mask[0, out.token_ids[0]]
    return mask[0].nonzero().flatten().tolist()


def test_the_worked_examples_of_kept_sets(with_threshold):
    def of_request(probabilities, **fields):
        metadata = SamplingMetadata.from_params([SamplingParams(**fields)])
        return kept(with_threshold, logits_of(probabilities), metadata)

    def of_tensors(probabilities, **fields):
        tensors = {name: torch.tensor([value]) for name, value in fields.items()}
        return kept(with_threshold, logits_of(probabilities), SamplingMetadata(**tensors))

    table = call_tables.Table(__file__, "kept_sets.txt")
    names = {"request": of_request, "tensors": of_tensors, "NAN": NAN}
    assert table.found(lambda: dict(names)) == table.text


def test_bounds_are_the_least_and_the_greatest_kept_logit(with_threshold):
    params = [
        SamplingParams(),
        SamplingParams(**ALWAYS),
        SamplingParams(typical_p=0.45),
        SamplingParams(**ALWAYS),
    ]
    logits = torch.stack([*logits_of(FIVE, FIVE, FIVE), torch.full((5,), -INF)])
    out, x = with_threshold.sample(logits, SamplingMetadata.from_params(params)), logits[0].tolist()
    assert (out.threshold[:3].tolist(), out.ceiling[:3].tolist()) == ([-INF, x[4], x[2]], [INF, x[2], x[1]])
    assert out.threshold[3].isnan()
    assert out.ceiling[3].isnan()
    largest = SamplingMetadata.from_params([SamplingParams(top_k=2)] * 3)
    assert with_threshold.sample(logits[:3], largest).threshold.tolist() == [x[1]] * 3


def test_a_row_has_xtc_where_the_uniform_of_its_seed_and_position_lies_below_the_probability(with_threshold):
    seeds = torch.arange(64)
    params = [SamplingParams(xtc_probability=0.5, seed=seed) for seed in range(64)]
    out = with_threshold.sample(
        logits_of(*[FIVE] * 64), SamplingMetadata.from_params(params, positions=range(64))
    )
    u = philox.uniform(seeds, seeds, torch.zeros_like(seeds), philox.XTC)
    assert (out.threshold > -INF).tolist() == (u < 0.5).tolist()
    drafting = SamplingMetadata.from_params([SamplingParams(xtc_threshold=0.3, **ALWAYS)] * 2)
    logits = logits_of(*[(0.999, 1e-3)] * 2)
    assert with_threshold.draft(logits, drafting).token_ids.tolist() == [0, 0]  # drafts are drawn without


def test_top_p_just_below_1_still_drops_what_the_rest_outweighs_and_1_drops_nothing(load_native):
    """1 - 2**-24 is the largest float32 below 1: it drops a token of 1e-13, and keeps 1e-3 and all ties."""
    logits = np.full((4, 1000), -np.inf, np.float32)
    logits[0, [7, 500]] = 0.0, -30.0
    logits[1, [7, 500]] = 0.0, -7.0
    logits[2], logits[3] = 1.5, np.linspace(0, -1, 1000)
    processed = load_native("processed_logprobs")
    found = kept_sets(processed, logits, SamplingParams(top_p=1 - 2.0**-24, logprobs=-1))
    assert [set(np.flatnonzero(row)) for row in found[:2]] == [{7}, {7, 500}]
    assert found[2:].all()
    far = np.array([[0.0, -30.0, -80.0, -100.0, -1000.0]], np.float32)
    for order in ("top_k_first", "joint"):
        params = SamplingParams(top_p=1.0, filter_order=order, logprobs=-1)
        both = [params, SamplingParams(top_p=0.5, top_k=2, min_p=0.1, logprobs=-1)]
        assert kept_sets(processed, np.repeat(far, 2, 0), both)[0].all()


# Which token is drawn


def test_temperature_0_is_the_argmax_and_the_lowest_of_equals_whatever_else_is_asked(sampler):
    params = [
        SamplingParams(temperature=0, seed=3, top_k=5),
        SamplingParams(temperature=-0.0, top_p=0.1),
        SamplingParams(temperature=0.0, min_p=1.0, top_k=1, filter_order="joint", seed=2**63, logprobs=3),
    ]
    for size in (2, 1025, 5000):
        logits = torch.full((6, size), -3.0)
        logits[0, [0, size - 1]] = logits[1, [size // 2, size - 1]] = 2.0
        logits[2, size - 1], logits[3] = 2.0, 2.0
        logits[4, [size // 2, size - 1]] = torch.tensor([-0.0, 0.0])
        logits[5, [size // 2, size - 1]] = INF
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            out = call(sampler, logits.to(dtype), params * 2)
            assert tokens(out) == [0, size // 2, size - 1, 0, size // 2, size // 2]


def test_temperatures_at_the_ends_of_float64_leave_no_nan(load_native):
    """1e-40 is a subnormal float32, 1e-300 is 0 in float32, and 1e300 is finite, though not in float32."""
    row = np.random.default_rng(0).normal(size=37).astype(np.float32) * 3
    tiny = [
        SamplingParams(temperature=t, seed=1, logprobs=-1)
        for t in (1e-30, 1e-38, 1e-40, 1e-46, 1e-300, 5e-324)
    ]
    for mode in ("raw_logprobs", "temperature_logprobs", "processed_logprobs"):
        out = call(load_native(mode), np.stack([row] * 6), tiny)
        assert (tokens(out), out.valid.tolist()) == ([int(row.argmax())] * 6, [True] * 6)
        assert out.log_kept_mass.tolist() == [0.0] * 6
        if mode != "raw_logprobs":
            assert np.array_equal(np.exp(shown_values(out)), [np.arange(37) == row.argmax()] * 6)
    row[5:] = -np.inf
    huge = [SamplingParams(temperature=t, seed=1, logprobs=-1) for t in (1e20, 1e38, 1e39, 1e300)]
    out = call(load_native("temperature_logprobs"), np.stack([row] * 4), huge)
    uniform = np.where(np.arange(37) < 5, -np.log(5), -np.inf)
    np.testing.assert_allclose(shown_values(out), np.tile(uniform, (4, 1)), atol=1e-6)
    assert max(tokens(out)) < 5


def test_no_finite_input_overflows_and_plus_infinity_outlasts_every_temperature_and_filter(load_native):
    """Includes differences beyond the largest float32: x - max(x) is -6e38."""
    logits = torch.tensor([[3e38, -3e38, 3e38, 0.0], [-3e38, -3.2e38, -3.4e38, -3e38]] * 2)
    params = [SamplingParams(seed=1, temperature=t, logprobs=-1) for t in (1.0, 1.0, 0.5, 2.0)]
    for mode in MODES:
        out = call(load_native(mode), logits, params)
        assert (out.valid.tolist(), out.log_kept_mass.tolist()) == ([True] * 4, [0.0] * 4)
        if mode == "raw_logits":
            assert np.array_equal(shown_values(out), logits.numpy())
        elif mode != "processed_logits":
            likely = np.exp(shown_values(out).astype(np.float64))
            np.testing.assert_allclose(likely, [[0.5, 0, 0.5, 0], [0.5, 0, 0, 0.5]] * 2, atol=1e-6)
    logits[0, 3] = INF
    extreme = [
        SamplingParams(temperature=t, min_p=m, top_k=5 * (m < 1)) for t in (1e-300, 1e308) for m in (0.1, 1.0)
    ]
    assert tokens(call(load_native(), logits[:1].expand(4, -1), extreme)) == [3] * 4
    for dtype in (torch.bfloat16, torch.float16):
        top = torch.finfo(dtype).max
        halves = torch.tensor([[top, -top, top, 0.0]] * 64, dtype=dtype)
        out = call(
            load_native("processed_logprobs"), halves, SamplingParams(seed=1, top_k=2, top_p=0.99, logprobs=2)
        )
        assert set(tokens(out)) == {0, 2}
        np.testing.assert_allclose(out.logprobs.logprobs.cpu(), np.log(0.5), atol=1e-6)


SMALL_WORDS = [17328888, 21443116, 43407172, 57895210, 67506913, 68249969, 71290664, 79328208]
"""Positions at which, for seed 20261121, token 5 has w0 < 256: a uniform below 2**-24."""


def test_a_uniform_below_2_to_the_minus_24_wins_from_far_behind(load_native):
    """The rarest winners: impossible for a uniform of 24 bits, required of a uniform of 32."""
    words = reference.random_words(20261121, np.array(SMALL_WORDS), 5, reference.TOKEN)[0]
    assert (words < 256).all()
    heads, tails = (reference.gumbel(20261121, np.array(SMALL_WORDS), i, reference.TOKEN) for i in (0, 5))
    logits = np.full((len(SMALL_WORDS), 8), -np.inf, np.float32)
    logits[:, 0], logits[:, 5] = 0.0, heads - tails + 0.01
    assert tokens(call(load_native(), logits, SamplingParams(seed=20261121), SMALL_WORDS)) == [5] * len(
        SMALL_WORDS
    )


def test_unseeded_rows_follow_the_generator_and_seeded_and_greedy_ones_do_not(sampler, warmup_on_a_cpu):
    """As on two ranks of an engine that hold the same logits, where one uses its generator for something else."""
    rows = [
        SamplingParams(),
        SamplingParams(top_k=9),
        SamplingParams(seed=5),
        SamplingParams(temperature=0.0),
    ]
    flat = torch.zeros(4, 2500)

    def drawn(between):
        torch.manual_seed(3)
        first = tokens(call(sampler, flat, rows, [0] * 4))
        between()
        return first, tokens(call(sampler, flat, rows, [1] * 4))

    def load_and_warm_up():
        again = tokendraw.load_sampler("native", device=sampler.device)
        again.warmup(2500, dtypes=[torch.float32], batch_sizes=[2])
        call(sampler, flat, SamplingParams(temperature=0.0))

    alone, other = drawn(lambda: None), drawn(lambda: torch.rand(1, device=sampler.device))
    assert alone == drawn(load_and_warm_up)
    assert alone[0] == other[0]
    assert [a == b for a, b in zip(alone[1], other[1], strict=True)] == [False, False, True, True]


# Logprobs


def test_more_than_the_vocabulary_is_all_of_it(load_native, device):
    """Rows with fewer are padded as ever; nothing of the requested width is allocated."""
    logits = torch.tensor([[0.0, 1.0, 1.0], [2.0, -1.0, 0.0]], device=device)
    for mode in MODES:
        everything = call(
            load_native(mode), logits, [SamplingParams(logprobs=n, seed=1, top_k=2) for n in (-1, 1)]
        )
        assert everything.logprobs.token_ids[:, 1:].tolist() == [[1, 2, 0], [0, -1, -1]]
        assert everything.logprobs.logprobs[1, 2:].tolist() == [-INF, -INF]
        for wanted in (6, 10**7, 2**31, 10**30):
            out = call(
                load_native(mode), logits, [SamplingParams(logprobs=n, seed=1, top_k=2) for n in (wanted, 1)]
            )
            assert torch.equal(out.logprobs.token_ids, everything.logprobs.token_ids)
            assert torch.equal(out.logprobs.logprobs, everything.logprobs.logprobs)
    params = SamplingMetadata.from_params([SamplingParams(logprobs=10**9)], device=device)
    verified = load_native().verify(logits, Drafts.from_lists([[1]], device=device), params)
    assert verified.logprobs.token_ids.shape == (1, 2, 4)
    nobody = load_native().sample(logits[:0], SamplingMetadata(facts=BatchFacts(max_logprobs=10**9)))
    assert nobody.logprobs.token_ids.shape == (0, 4)


def test_a_kept_mass_of_a_tiny_share_keeps_its_relative_precision(load_native):
    """A kept share of 2e-5 is as exact as a share of 0.9: importance weights use the identity."""
    logits = np.zeros((2, 50_000), np.float32)
    logits[1, 7] = 1e-3
    out = call(load_native("temperature_logprobs"), logits, SamplingParams(top_k=1, logprobs=0))
    np.testing.assert_allclose(out.log_kept_mass.cpu(), [0.0, 1e-3 - np.log(50_000 + 1e-3)], atol=1e-5)


def test_special_rows_show_what_the_draw_saw(load_native):
    """NaN is -inf, +inf is uniform among its equals, and an empty row is -inf everywhere, of rank V."""
    logits = np.array([[NAN, 1.0, NAN, 1.0], [INF, 3.0, INF, -INF], [-INF, NAN, -INF, NAN]], np.float32)
    half = -np.log(2.0)
    expected = {mode: [[-INF, half, -INF, half], [half, -INF, half, -INF], [-INF] * 4] for mode in MODES}
    expected["raw_logits"] = [[-INF, 1.0, -INF, 1.0], [INF, 3.0, INF, -INF], [-INF] * 4]
    expected["processed_logits"] = [[-INF, 0.0, -INF, 0.0], [0.0, -INF, 0.0, -INF], [-INF] * 4]
    for mode in MODES:
        out = call(load_native(mode), logits, SamplingParams(seed=2, logprobs=-1))
        np.testing.assert_allclose(shown_values(out), expected[mode], atol=1e-5)
        assert (out.logprobs.ranks.tolist(), out.log_kept_mass.tolist()[:2]) == ([2, 2, 4], [0.0, 0.0])


def test_a_rank_counts_the_values_that_the_mode_shows(load_native):
    """In greedy rows with ties, behind XTC and typical-p, where larger tokens are not shown, and beside infinities."""
    requests = [
        SamplingParams(temperature=0.0, xtc_probability=1.0),
        SamplingParams(xtc_probability=1.0, xtc_threshold=0.01),
        SamplingParams(typical_p=0.3),
        SamplingParams(top_k=3, filter_order="joint"),
        SamplingParams(temperature=0.5, xtc_probability=1.0, filter_order="temperature_last"),
        SamplingParams(temperature=0.0),
    ]
    logits = np.array([[9.0, 9.0, 9.0, 8.5, 8.0, *np.linspace(-2, 2, 20)]] * 6, np.float32)
    logits[5, :2] = INF, -INF
    for mode in MODES:
        out = call(load_native(mode), logits, [replace(p, seed=7, logprobs=-1) for p in requests])
        shown = shown_values(out)
        drawn = np.take_along_axis(shown, out.token_ids[:, None].cpu().numpy(), 1)
        assert out.logprobs.ranks.tolist() == (shown >= drawn).sum(1).tolist(), mode


def test_values_below_a_ceiling_are_exact_at_any_temperature(load_native):
    """Three tied tokens share what XTC left, or one has all of it, however far T moves them from the largest."""
    logits = np.array([[9.0, 8.0, 8.0, 8.0, 0.0], [9.0, 8.5, 0.0, 0.0, 0.0]], np.float32)
    params, third = SamplingParams(**ALWAYS, **LAST, seed=1, logprobs=-1), -np.log(3.0)
    for temperature in (1e-3, 1e-6, 1e-9, 1e-20, 1e-30, 1e-40):
        out = call(load_native("processed_logprobs"), logits, replace(params, temperature=temperature))
        with np.errstate(over="ignore"):
            low, lower = np.float32([-8.0 / temperature + third, -8.5 / temperature])
        expected = [[-INF, third, third, third, low], [-INF, 0.0, lower, lower, lower]]
        np.testing.assert_allclose(shown_values(out), expected, rtol=5e-7, atol=1e-5)
        assert (out.logprobs.token_ids[0, 1:4].tolist(), out.logprobs.ranks.tolist()) == ([1, 2, 3], [3, 1])
    far = SamplingParams(temperature=1e-4, logprobs=-1, xtc_threshold=0.15, **ALWAYS, **LAST)
    out = call(load_native("processed_logprobs"), logits_of(FIVE), far)
    assert (tokens(out), out.logprobs.logprobs[0, :2].tolist()) == ([2], [0.0, 0.0])
    assert out.log_kept_mass.item() == pytest.approx(math.log(0.5) / 1e-4, rel=1e-6)


# Scores


def test_a_score_is_of_a_given_token_with_its_rank_beside_the_best_and_the_given_ones(dists):
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    scorer = tokendraw.load("score", device="cpu", need=Need(threshold=True))
    assert scorer.name == "native"
    requests = [
        SamplingParams(logprobs=2, seed=1),
        SamplingParams(logprob_token_ids=[1, 2]),
        *[SamplingParams(top_k=3)] * 2,
    ]
    metadata, ids = SamplingMetadata.from_params(requests, positions=range(4)), torch.tensor([0, 1, 2, 3])
    scored = scorer.score(logits, ids, metadata)
    assert scored.logprobs.logprobs[:, 0].tolist() == pytest.approx(logits.log_softmax(-1).diag().tolist())
    assert scored.logprobs.token_ids[0, 1:].tolist() == logits[0].topk(2).indices.tolist()
    assert scored.logprobs.given_token_ids[1].tolist() == [1, 2]
    assert (len(scored.logprobs.row(3)), scored.entropy.shape) == (1, (4,))
    third = logits[3].topk(3).values[-1]
    assert scored.threshold.tolist() == [-INF, -INF, logits[2].topk(3).values[-1], third]
    processed = tokendraw.load_sampler("native", device="cpu", logprobs_mode="processed_logprobs")
    second, fourth = logits[0].topk(4).indices[1::2]
    requests = [SamplingParams(top_k=3)] * 2 + [SamplingParams(temperature=0.0)] * 2
    given = torch.stack([second, fourth, logits[0].argmax(), second])
    ranks = processed.score(
        logits[:1].expand(4, -1), given, SamplingMetadata.from_params(requests)
    ).logprobs.ranks
    assert ranks.tolist() == [2, 50, 1, 50]  # a dropped token is -inf, and every other is at least that
    with_xtc = SamplingMetadata.from_params(
        [SamplingParams(seed=5, **ALWAYS), SamplingParams(**ALWAYS)], positions=[3, 3]
    )
    found = processed.score(logits_of(FIVE, FIVE), torch.tensor([0, 0]), with_xtc).logprobs.logprobs[:, 0]
    assert found.tolist() == [-INF, pytest.approx(math.log(0.4))]  # XTC where the row has a seed
    assert processed.stats() == {}
    dists.add_plugin("acme", plugin("acme"))
    with pytest.raises(SamplerUnavailableError, match="the operation score"):
        tokendraw.load_sampler("acme", device="cpu").score(logits, ids, metadata)
