"""DESIGN section 3: rows without a seed, and the independence of whatever noise two draws do not share by contract."""

import numpy as np
import pytest
import torch

from calling import call, tokens, uniform_tokens
from goodness_of_fit import FALSE_ALARM, chi_square, independence
from tokendraw import SamplingParams
from tokendraw_testing import reference


def test_torch_manual_seed_reproduces_unseeded_rows_and_successive_calls_differ(sampler):
    logits, params = torch.zeros(50, 1000), [SamplingParams()] * 49 + [SamplingParams(seed=1)]

    def run():
        torch.manual_seed(123)
        return [tokens(call(sampler, logits, params)) for _ in range(3)]

    first = run()
    assert run() == first
    assert len({tuple(drawn[:49]) for drawn in first}) == 3
    assert len({drawn[49] for drawn in first}) == 1
    torch.manual_seed(124)
    assert tokens(call(sampler, logits, params))[:49] != first[0][:49]


def test_unseeded_rows_of_one_call_have_noise_of_their_own(sampler):
    """Equal rows, equal positions, a single slot for all of them: still independent draws."""
    for row_index, params in ((None, [SamplingParams()] * 4000), ([0] * 4000, [SamplingParams()])):
        torch.manual_seed(5)
        found = np.array(tokens(call(sampler, torch.zeros(4000, 8), params, [3] * 4000, row_index)))
        assert chi_square(found, np.full(8, 0.125)) > FALSE_ALARM
        assert independence(found[:-1], found[1:]) > FALSE_ALARM


PAIRS = 4000
NEIGHBOURS = {
    "positions p and p + 1": lambda i: ((5, i), (5, i + 1)),
    "seeds s and s + 1": lambda i: ((i, 5), (i + 1, 5)),
    "seed and position swapped": lambda i: ((i, i + 7), (i + 7, i)),
    "seed + 1 and position - 1": lambda i: ((i, i + 1), (i + 1, i)),
    "seeds that differ in the high word": lambda i: ((i, 5), (i + 2**32, 5)),
    "positions that differ in the high word": lambda i: ((5, i), (5, i + 2**32)),
}


def neighbours(case):
    """(seeds, positions) of the left and of the right draws."""
    left, right = zip(*(NEIGHBOURS[case](i) for i in range(PAIRS)), strict=True)
    return tuple(zip(*left, strict=True)), tuple(zip(*right, strict=True))


def independent(one, other):
    """Whether the contingency table of two runs of draws shows no tie between them."""
    return bool((one != other).any()) and independence(one, other) > FALSE_ALARM


@pytest.mark.parametrize("case", NEIGHBOURS)
def test_draws_of_neighbouring_seeds_and_positions_are_independent(sampler, case):
    """Chi-square of the contingency table of 6 tokens, with a false alarm once in 10**7."""
    left, right = neighbours(case)
    one, other = (np.array(uniform_tokens(sampler, *pair, size=6)) for pair in (left, right))
    assert independent(one, other)


def race(key, counter):
    """A draw of 6 equal tokens in numpy, from the noise of any key and counter."""
    return reference.gumbel(np.asarray(key)[:, None], np.asarray(counter)[:, None], np.arange(6), 0).argmax(1)


@pytest.mark.parametrize(
    ("case", "bug"),
    [
        ("positions p and p + 1", lambda seed, position: (seed, [0] * PAIRS)),
        ("seeds s and s + 1", lambda seed, position: ([0] * PAIRS, position)),
        ("seed and position swapped", lambda seed, position: (np.add(seed, position), [0] * PAIRS)),
        ("seed + 1 and position - 1", lambda seed, position: (np.add(seed, position), [0] * PAIRS)),
        ("seeds that differ in the high word", lambda seed, position: (np.array(seed) % 2**32, position)),
        ("positions that differ in the high word", lambda seed, position: (seed, np.array(position) % 2**32)),
    ],
)
def test_the_check_of_independence_sees_shared_noise(case, bug):
    """Equal noise for all positions, or for all seeds, or for equal sums of the two, or for equal low words."""
    left, right = neighbours(case)
    assert independent(race(*left), race(*right))
    assert not independent(race(*bug(*left)), race(*bug(*right)))
