"""Shapes of logits that samplers meet, or stumble over, by name. Every function gives one row [V] float32."""

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


FAMILIES: dict[str, Family] = {
    "gaussian": gaussian,
    "zipf": lambda rng, size: (12 - 1.3 * np.log(rng.permutation(size) + 1)).astype(np.float32),
    "flat": lambda rng, size: np.full(size, np.float32(rng.uniform(-5, 5))),
    "bimodal": lambda rng, size: np.where(rng.random(size) < 0.1, 9, -9).astype(np.float32),
    "cauchy": lambda rng, size: rng.standard_cauchy(size).astype(np.float32),
    "ascending": lambda rng, size: np.sort(gaussian(rng, size)),
    "descending": lambda rng, size: -np.sort(gaussian(rng, size)),
    "tied": lambda rng, size: torch.from_numpy(gaussian(rng, size)).bfloat16().float().numpy(),
}
