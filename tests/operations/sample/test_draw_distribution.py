"""DESIGN section 3, the draw: an exact draw from the softmax of the kept set, by chi-square and by tail mass.

Every check is also run on numpy draws with a planted bug, and has to see it.
"""

import numpy as np
import pytest
import torch

from calling import call
from goodness_of_fit import FALSE_ALARM, binomial_interval, chi_square
from tokendraw import SamplingParams
from tokendraw_testing import reference
from tokendraw_testing.logits_families import FAMILIES


def distribution(logits, params):
    row = reference.prepare(logits, params)
    assert row.certain
    return np.exp(reference.values(row, -1, "processed_logprobs"))


def many_draws(sampler, logits, params, draws, rows=20_000):
    """Make ``draws`` tokens of a row of logits: a position each if seeded, else a row each."""
    found = []
    for start in range(0, draws, rows):
        count = min(rows, draws - start)
        batch = torch.from_numpy(logits).expand(count, len(logits))
        found.append(call(sampler, batch, params, range(start, start + count)).token_ids.cpu().numpy())
    return np.concatenate(found)


SMALL = np.log(np.random.default_rng(3).dirichlet(np.full(40, 0.5))).astype(np.float32)
LARGE = FAMILIES["zipf"](np.random.default_rng(4), 2500)
DISTRIBUTIONS = {
    "unfiltered, one tile": (SMALL, {"seed": 1}, 12_000),
    "unfiltered, three tiles": (LARGE, {"seed": 2}, 12_000),
    "a flat temperature, three tiles": (LARGE, {"seed": 3, "temperature": 3.0}, 12_000),
    "top_k and top_p": (SMALL, {"seed": 4, "top_k": 20, "top_p": 0.9}, 100_000),
    "joint": (SMALL, {"seed": 5, "top_k": 20, "top_p": 0.9, "filter_order": "joint"}, 12_000),
    "min_p, three tiles": (LARGE, {"seed": 6, "min_p": 0.01}, 8_000),
    "top_p, three tiles": (LARGE, {"seed": 7, "top_p": 0.7}, 8_000),
    "unseeded": (SMALL, {"temperature": 0.8}, 12_000),
    "unseeded, filtered": (SMALL, {"top_k": 10}, 100_000),
}


@pytest.mark.fast_first
@pytest.mark.parametrize("case", DISTRIBUTIONS)
def test_drawn_tokens_follow_the_softmax_of_the_kept_set(load_native, case):
    """Chi-square, with a false alarm once in 10**7; dropped tokens are never drawn."""
    logits, settings, draws = DISTRIBUTIONS[case]
    params = SamplingParams(**settings)
    torch.manual_seed(99)
    found = many_draws(load_native(), logits, params, draws)
    assert chi_square(found, distribution(logits, params)) > FALSE_ALARM


def numpy_draws(
    logits,
    positions,
    *,
    tile_noise=True,
    token_uniform=lambda w0: (w0 + 0.5) / 2.0**32,
    stream=reference.TILE,
):
    """Compute the two-level draw of a row of logits at many positions, with parameters to plant bugs."""
    y = logits.astype(np.float64) - logits.max()
    tiles = -(-len(y) // reference.TILE_SIZE)
    masses = np.add.reduceat(np.exp(y), np.arange(tiles) * reference.TILE_SIZE)
    scores = np.log(masses) + tile_noise * reference.gumbel(8, positions[:, None], np.arange(tiles), stream)
    chosen = scores.argmax(1)
    drawn = np.empty(len(positions), np.int64)
    for tile in range(tiles):
        ids = np.arange(tile * reference.TILE_SIZE, min(len(y), (tile + 1) * reference.TILE_SIZE))
        rows = np.flatnonzero(chosen == tile)
        for part in np.array_split(rows, 1 + len(rows) // 4000):
            w0 = reference.random_words(8, positions[part][:, None], ids, reference.TOKEN)[0]
            with np.errstate(divide="ignore"):
                drawn[part] = ids[
                    (y[ids] - np.log(-np.log1p(-token_uniform(w0.astype(np.float64))))).argmax(1)
                ]
    return drawn


TILED = FAMILIES["zipf"](np.random.default_rng(5), 2048)
TILED[[0, 1025]] = TILED.max()  # both tiles are likely, and so is the token that has the first one's index
PLANTED = {
    "no bug": (True, {}),
    "the tile is the likeliest": (False, {"tile_noise": False}),
    "tile and token share their noise": (False, {"stream": reference.TOKEN}),
    "a uniform of 8 bits": (False, {"token_uniform": lambda w0: (np.floor(w0 / 2**24) + 0.5) / 2**8}),
    "exponential noise in place of Gumbel's": (
        False,
        {"token_uniform": lambda w0: -np.expm1(-1 / (w0 + 0.5) * 2**32)},
    ),
}


@pytest.mark.fast_first
@pytest.mark.parametrize("bug", PLANTED)
def test_the_chi_square_sees_planted_bugs(bug):
    passes, change = PLANTED[bug]
    found = numpy_draws(TILED, np.arange(6_000), **change)
    probabilities = np.exp(reference.log_softmax(TILED.astype(np.float64)))
    assert (chi_square(found, probabilities) > FALSE_ALARM) == passes


TAIL = 200_000
TAIL_SHARE = TAIL * np.exp(-18.0) / (1 + TAIL * np.exp(-18.0))
DRAWS = 12_000


def heavy_tail(device="cpu"):
    """Make a head in the middle of 200,000 equal tokens 18 below it."""
    logits = torch.full((1, TAIL + 1), -18.0, device=device)
    logits[:, 77_777] = 0.0
    return logits


@pytest.mark.slow
def test_a_heavy_tail_keeps_its_mass(load_native, device):
    """Tail mass within its 1e-9 binomial interval, and spread evenly over and within the 196 tiles."""
    logits = heavy_tail(device)
    draws, rows = (200_000, 2_000) if device.type == "cuda" else (DRAWS, 200)
    found = np.concatenate(
        [
            call(
                load_native(), logits.expand(rows, -1), SamplingParams(seed=6), range(start, start + rows)
            ).token_ids.cpu()
            for start in range(0, draws, rows)
        ]
    )
    tail = found[found != 77_777]
    low, high = binomial_interval(draws, TAIL_SHARE)
    assert 0 < low <= len(tail) <= high
    assert len(set(tail.tolist())) > 0.9 * len(tail)
    assert chi_square(tail * 4 // (TAIL + 1), np.full(4, 0.25)) > FALSE_ALARM


def test_the_tail_check_sees_planted_bugs():
    """A float32 running sum loses the tail; a uniform of 24 bits in a one-level race thins it."""
    rng = np.random.default_rng(10)
    low, high = binomial_interval(DRAWS, TAIL_SHARE)
    assert low <= rng.binomial(DRAWS, TAIL_SHARE) <= high

    running = np.cumsum(np.exp(np.append(0.0, np.full(TAIL, -18.0))).astype(np.float32), dtype=np.float32)
    inverse_cdf = np.searchsorted(running / running[-1], rng.random(DRAWS).astype(np.float32), side="right")
    assert not low <= np.count_nonzero(inverse_cdf) <= high

    smallest_of_tail = -np.expm1(np.log1p(-rng.random(200_000)) / TAIL)  # the minimum of 200,000 uniforms
    coarse = (np.floor(smallest_of_tail * 2**24) + 0.5) / 2**24
    head = -np.log(-np.log1p(-rng.random(200_000)))
    low, high = binomial_interval(200_000, TAIL_SHARE)
    fine_wins, coarse_wins = (
        np.count_nonzero(-np.log(-np.log1p(-u)) - 18.0 > head) for u in (smallest_of_tail, coarse)
    )
    assert low <= fine_wins <= high
    assert not low <= coarse_wins <= high
