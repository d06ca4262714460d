"""Makes rows as a broken model does, with the answer that each has to get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokendraw_testing.logits_families import gaussian

NAN, INF = float("nan"), float("inf")
SIZE = 2500
"""Three tiles, the last of them not full."""


@dataclass(frozen=True)
class Poison:
    """A kind of poisoned row."""

    logits: NDArray[Any]
    """[SIZE] float32."""
    valid: bool


def poisons(rng: np.random.Generator, size: int = SIZE) -> dict[str, Poison]:
    """Make every kind of poisoned row by name; their other logits are Gaussian.

    :param size: V, at least 64.
    """

    def row(values: dict[int, float]) -> NDArray[Any]:
        x = gaussian(rng, size)
        x[list(values)] = list(values.values())
        return x

    def full(value: float) -> NDArray[Any]:
        return np.full(size, np.float32(value))

    top = gaussian(rng, size)
    top[np.argsort(top)[-3:]] = NAN
    last_tile = gaussian(rng, size)
    last_tile[(size - 1) // 1024 * 1024 if size > 1024 else size // 2 :] = -INF
    every_other = full(-INF)
    every_other[::2] = NAN
    return {
        "one NaN": Poison(row({3: NAN}), valid=False),
        "NaN in a few places": Poison(row({0: NAN, size // 2: NAN, size - 1: NAN}), valid=False),
        "NaN at the top": Poison(top, valid=False),
        "all NaN": Poison(full(NAN), valid=False),
        "all -inf": Poison(full(-INF), valid=False),
        "NaN and -inf": Poison(every_other, valid=False),
        "one +inf": Poison(row({size // 2 + 7: INF}), valid=True),
        "two +inf": Poison(row({5: INF, size - 2: INF}), valid=True),
        "+inf, -inf and NaN": Poison(row({2: INF, size // 3: INF, 5: NAN, 6: -INF}), valid=False),
        "the last tile -inf": Poison(last_tile, valid=True),
        "one finite logit": Poison(
            np.where(np.arange(size) == 40, np.float32(-7), np.float32(-INF)), valid=True
        ),
    }


def far_poisons(rng: np.random.Generator, size: int) -> dict[str, Poison]:
    """Make rows by name that are poisoned in far places alone: behind the last vector, tile or power of two.

    :param size: V, at least 64.
    """

    def row(value: float, *ids: int) -> NDArray[Any]:
        x = gaussian(rng, size)
        x[list(ids)] = value
        return x

    behind = (1 << (size - 1).bit_length() - 1) % size  # the largest power of two below V
    both = [5, *range(behind, size)[:30]]
    signed = row(0.0)
    signed.view(np.int32)[3 * size // 4] = -0x400000  # a NaN with its sign bit set
    return {
        "NaN at the last id": Poison(row(NAN, size - 1), valid=False),
        "NaN behind the last power of two": Poison(row(NAN, behind), valid=False),
        "a NaN with a sign": Poison(signed, valid=False),
        "+inf at the last id": Poison(row(INF, size - 1), valid=True),
        "+inf behind the last power of two": Poison(row(INF, behind, size - 1), valid=True),
        "+inf on both sides of the last power of two": Poison(row(INF, *both), valid=True),
        "+inf and far NaN": Poison(np.where(np.arange(size) == size - 2, NAN, row(INF, 1)), valid=False),
    }
