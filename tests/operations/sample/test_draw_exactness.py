"""DESIGN section 3, the draw, where noise is at its ends: words of the counter by their literal values."""

import numpy as np
import pytest

from calling import call
from tokendraw import SamplingParams
from tokendraw_testing import reference


def reference_tokens(logits, params, positions, dtype="fp32"):
    """Tokens of the reference, -1 where float32 may rightly differ: a near tie, or a filter on the edge."""
    drawn = []
    for x, p, position in zip(logits, params, positions, strict=True):
        row = reference.prepare(x, p)
        token, lead = reference.draw(row, p.seed, position, dtype)
        drawn.append(token if row.certain and lead > reference.NEAR_TIE else -1)
    return np.array(drawn)


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


@pytest.mark.parametrize("size", [1000, 3000])
def test_a_batch_of_top_k_reads_the_largest_values_alone_and_draws_the_same_tokens(load_native, size):
    """In one tile and in several; greedy rows beside them take the lowest id on a tie."""
    logits = np.random.default_rng(6).normal(size=(64, size)).astype(np.float32)
    logits[::8, [7, size - 5]] = 9.0
    params = [SamplingParams(temperature=float(row % 8 > 0), top_k=5, seed=row) for row in range(64)]
    found = call(load_native(), logits, params).token_ids.cpu().numpy()
    expected = reference_tokens(logits, params, range(64))
    certain = expected >= 0
    assert certain.mean() > 0.9
    assert np.array_equal(found[certain], expected[certain])
    assert found[::8].tolist() == [7] * 8
