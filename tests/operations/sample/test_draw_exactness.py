"""DESIGN section 3, the draw: token by token against the float64 two-level draw."""

import itertools

import numpy as np
import pytest
import torch

from calling import call
from tokendraw import SamplingParams
from tokendraw_testing import reference
from tokendraw_testing.logits_families import FAMILIES

SIZES = [2, 31, 1023, 1024, 1025, 2049, 5000, 10_007]
FILTERS = [
    {},
    {"top_k": 40},
    {"top_p": 0.9},
    {"min_p": 0.02},
    {"top_k": 200, "top_p": 0.95, "min_p": 0.001},
    {"top_k": 40, "top_p": 0.8, "filter_order": "joint"},
    {"top_p": 0.5},
    {"temperature": 1.7, "top_k": 1000},
]


def reference_tokens(logits, params, positions, dtype="fp32"):
    """Tokens of the reference, -1 where float32 may rightly differ: a near tie, or a filter on the edge."""
    drawn = []
    for x, p, position in zip(logits, params, positions, strict=True):
        row = reference.prepare(x, p)
        token, lead = reference.draw(row, p.seed, position, dtype)
        drawn.append(token if row.certain and lead > reference.NEAR_TIE else -1)
    return np.array(drawn)


@pytest.mark.slow
@pytest.mark.parametrize("gumbel_dtype", ["fp32", "fp64"])
def test_tokens_equal_the_two_level_draw_of_the_reference(load_native, gumbel_dtype):
    """At least 99.99 % of all seeded draws, and every draw without a near tie."""
    same = judged = total = 0
    rng = np.random.default_rng(1)
    for size, (name, family) in itertools.product(SIZES, FAMILIES.items()):
        logits = np.stack([family(rng, size) for _ in range(8 * len(FILTERS))])
        params = [
            SamplingParams(**({"temperature": t} | f), seed=int(rng.integers(-(2**63), 2**63)))
            for t in (0.3, 0.7, 0.8, 1.0, 1.0, 1.2, 2.0, 5.0)
            for f in FILTERS
        ]
        positions = rng.integers(0, 2**40, len(params)).tolist()
        expected = reference_tokens(logits, params, positions, gumbel_dtype)
        found = (
            call(load_native(gumbel_dtype=gumbel_dtype), logits, params, positions).token_ids.cpu().numpy()
        )
        certain = expected >= 0
        wrong = np.flatnonzero(certain & (found != expected))
        assert not len(wrong), (name, size, params[wrong[0]], positions[wrong[0]])
        same, judged, total = same + (found == expected).sum(), judged + certain.sum(), total + len(params)
    assert judged > 0.97 * total
    assert same >= 0.9999 * judged


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_draws_the_tokens_of_its_float32_values(load_native, dtype):
    rng = np.random.default_rng(2)
    params = [SamplingParams(**f, seed=5) for f in FILTERS] * 16
    logits = torch.from_numpy(np.stack([FAMILIES["gaussian"](rng, 3000) for _ in params])).to(dtype)
    found = call(load_native(), logits, params).token_ids.cpu().numpy()
    expected = reference_tokens(logits.float(), params, range(len(params)))
    certain = expected >= 0
    assert np.array_equal(found[certain], expected[certain])
    assert certain.mean() > 0.95


ROWS = 400


def near_ties(level):
    """Return two tokens a row within a float32 rounding after ``level`` noise: (ids, logits of the two, noise)."""
    ids = np.array([3, 900] if level == reference.TOKEN else [3, 1500])
    indices = ids if level == reference.TOKEN else ids // reference.TILE_SIZE
    noise = reference.gumbel(41, np.arange(ROWS)[:, None], indices, level, "fp64")
    gap = (noise[:, 0] - noise[:, 1]).astype(np.float32)
    return ids, np.minimum(0, np.stack([-gap, gap], 1)), noise


@pytest.mark.parametrize("level", [reference.TOKEN, reference.TILE])
def test_fp64_noise_decides_what_float32_cannot(load_native, level):
    """At either level: two tokens with scores closer than the rounding of a float32."""
    ids, two, noise = near_ties(level)
    scores = two + noise
    lead = np.abs(scores[:, 0] - scores[:, 1])
    clear = lead > 1e-11
    assert lead.max() < 1e-6
    assert clear.mean() > 0.9
    rounded = (two + noise.astype(np.float32)).argmax(1)
    assert (rounded != scores.argmax(1)).mean() > 0.1, "the rows have to be too close for float32"
    logits = np.full((ROWS, 2000), -np.inf, np.float32)
    logits[:, ids] = two
    found = call(load_native(gumbel_dtype="fp64"), logits, SamplingParams(seed=41)).token_ids.cpu().numpy()
    assert np.array_equal(found[clear], ids[scores.argmax(1)][clear])


def test_ties_in_the_noisy_scores_and_empty_tiles_do_not_confuse_the_draw(load_native):
    """Only the last token of the last tile is left, or a token in every tile, or a tile of -inf between two."""
    size = 4097
    logits = np.full((64, size), -np.inf, np.float32)
    logits[:16, size - 1] = 3.0
    logits[16:32, ::1024] = 1.0
    logits[32:48, :5] = logits[32:48, 3000:3005] = -2.0
    logits[48:, 1023:1025] = 0.0
    params = [SamplingParams(seed=77)] * 64
    found = call(load_native(), logits, params).token_ids.cpu().numpy()
    assert np.array_equal(found, reference_tokens(logits, params, range(64)))
    assert (found[:16] == size - 1).all()


SMALL_WORDS = [17328888, 21443116, 43407172, 57895210, 67506913, 68249969, 71290664, 79328208]
"""Positions at which, for seed 20261121, token 5 has w0 < 256: a uniform below 2**-24."""


def draw_from_24_bits(y, seed, position):
    """A planted bug: the Gumbel race with a uniform of 24 bits."""
    w0 = reference.random_words(seed, position, np.arange(len(y)), reference.TOKEN)[0]
    return int(np.argmax(y - np.log(-np.log1p(-(np.floor(w0 / 256) + 0.5) / 2**24))))


def test_a_uniform_below_2_to_the_minus_24_wins_from_far_behind(load_native):
    """The rarest winners: impossible for a uniform of 24 bits, required of a uniform of 32."""
    words = reference.random_words(20261121, np.array(SMALL_WORDS), 5, reference.TOKEN)[0]
    assert (words < 256).all()
    heads = reference.gumbel(20261121, np.array(SMALL_WORDS), 0, reference.TOKEN)
    tails = reference.gumbel(20261121, np.array(SMALL_WORDS), 5, reference.TOKEN)
    logits = np.full((len(SMALL_WORDS), 8), -np.inf, np.float32)
    logits[:, 0], logits[:, 5] = 0.0, heads - tails + 0.01
    found = call(load_native(), logits, SamplingParams(seed=20261121), SMALL_WORDS).token_ids.tolist()
    assert found == [5] * len(SMALL_WORDS)
    with np.errstate(invalid="ignore"):
        planted = [draw_from_24_bits(row, 20261121, p) for row, p in zip(logits, SMALL_WORDS, strict=True)]
    assert 0 in planted


@pytest.mark.parametrize("gumbel_dtype", ["fp32", "fp64"])
def test_a_uniform_that_rounds_to_1_in_float32_leaves_a_finite_score(load_native, gumbel_dtype):
    """Tile 0 has w0 >= 2**32 - 128 at the first positions, token 0 at the others: the only candidate still wins."""
    tile, token = [14262141, 40768624, 53153873], [4843414, 17457908, 17485642]
    assert (reference.random_words(20261121, np.array(tile), 0, reference.TILE)[0] >= 2**32 - 128).all()
    assert (reference.random_words(20261121, np.array(token), 0, reference.TOKEN)[0] >= 2**32 - 128).all()
    logits = np.full((6, 3000), -np.inf, np.float32)
    logits[:3, 7:9] = 1.0
    logits[3:, 0] = 1.0
    params = [SamplingParams(seed=20261121)] * 6
    found = call(load_native(gumbel_dtype=gumbel_dtype), logits, params, tile + token).token_ids.cpu().numpy()
    assert np.array_equal(found, reference_tokens(logits, params, tile + token, gumbel_dtype))


@pytest.mark.parametrize("size", [400, 20_000])
@pytest.mark.parametrize("min_p", [0.0, 0.01])
def test_tokens_tied_with_the_k_th_count_in_the_mass_of_top_p(load_native, size, min_p):
    """Two hundred tokens tie at k = 10 and hold 30 % of the surviving mass: they decide the number of drawn ones."""
    rng, k = np.random.default_rng(8), 10
    y = np.concatenate([np.linspace(0.0, -1.0, k - 1), np.full(200, -4.3), np.full(size - 200 - k + 1, -9.0)])
    logits = np.stack([rng.permutation(y) for _ in range(100)]).astype(np.float32)
    params = [SamplingParams(top_k=k, top_p=0.5, min_p=min_p, seed=row) for row in range(len(logits))]
    found = call(load_native(), logits, params, positions=[0] * len(params)).token_ids.tolist()
    expected = [
        reference.draw(reference.prepare(x, p), p.seed, 0) for x, p in zip(logits, params, strict=True)
    ]
    assert min(lead for _, lead in expected) > reference.NEAR_TIE
    assert found == [token for token, _ in expected]
