"""Shapes of logits that samplers meet, or stumble over. Every function gives one row [V] float32."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

Array = NDArray[np.float32]
Family = Callable[[Generator, int], Array]


def gaussian(rng: Generator, size: int) -> Array:
    """Independent, of standard deviation 3."""
    return (3 * rng.standard_normal(size)).astype(np.float32)


def zipf(rng: Generator, size: int) -> Array:
    """Peaked like a language model's, in a random order of the vocabulary."""
    ranks = rng.permutation(size) + 1
    return (12 - 1.3 * np.log(ranks) + 0.05 * rng.standard_normal(size)).astype(np.float32)


def flat(rng: Generator, size: int) -> Array:
    """All equal."""
    return np.full(size, np.float32(rng.uniform(-5, 5)), np.float32)


def bimodal(rng: Generator, size: int) -> Array:
    """A tenth of the tokens 18 above the rest."""
    modes = np.where(rng.random(size) < 0.1, 9.0, -9.0)
    return (modes + 0.5 * rng.standard_normal(size)).astype(np.float32)


def cauchy(rng: Generator, size: int) -> Array:
    """Heavy tails: maxima in the thousands."""
    return rng.standard_cauchy(size).astype(np.float32)


def ascending(rng: Generator, size: int) -> Array:
    """Sorted, the largest last."""
    return np.sort(gaussian(rng, size))


def descending(rng: Generator, size: int) -> Array:
    """Sorted, the largest first."""
    return np.sort(gaussian(rng, size))[::-1].copy()


def tied(rng: Generator, size: int) -> Array:
    """Gaussian values rounded to bfloat16: most values occur several times."""
    values: Array = torch.from_numpy(gaussian(rng, size)).bfloat16().float().numpy()
    return values


FAMILIES: dict[str, Family] = {
    family.__name__: family for family in (gaussian, zipf, flat, bimodal, cauchy, ascending, descending, tied)
}
