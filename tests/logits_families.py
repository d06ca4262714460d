"""Shapes of logits that samplers meet, or stumble over. Every function gives one [V] float32 row."""

from collections.abc import Callable

import numpy as np
import torch

Family = Callable[[np.random.Generator, int], np.ndarray]


def gaussian(rng: np.random.Generator, size: int) -> np.ndarray:
    return (3 * rng.standard_normal(size)).astype(np.float32)


def zipf(rng: np.random.Generator, size: int) -> np.ndarray:
    """Peaked like a language model's, in a random order of the vocabulary."""
    ranks = rng.permutation(size) + 1
    return (12 - 1.3 * np.log(ranks) + 0.05 * rng.standard_normal(size)).astype(np.float32)


def flat(rng: np.random.Generator, size: int) -> np.ndarray:
    return np.full(size, np.float32(rng.uniform(-5, 5)), np.float32)


def bimodal(rng: np.random.Generator, size: int) -> np.ndarray:
    modes = np.where(rng.random(size) < 0.1, 9.0, -9.0)
    return (modes + 0.5 * rng.standard_normal(size)).astype(np.float32)


def cauchy(rng: np.random.Generator, size: int) -> np.ndarray:
    return rng.standard_cauchy(size).astype(np.float32)


def ascending(rng: np.random.Generator, size: int) -> np.ndarray:
    return np.sort(gaussian(rng, size))


def descending(rng: np.random.Generator, size: int) -> np.ndarray:
    return np.sort(gaussian(rng, size))[::-1].copy()


def tied(rng: np.random.Generator, size: int) -> np.ndarray:
    """Rounded to bfloat16, so that most values occur several times."""
    return torch.from_numpy(gaussian(rng, size)).bfloat16().float().numpy()


FAMILIES: dict[str, Family] = {
    family.__name__: family for family in (gaussian, zipf, flat, bimodal, cauchy, ascending, descending, tied)
}
