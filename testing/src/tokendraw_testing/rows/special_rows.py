"""Makes rows with NaN and infinities, as a broken model does, with the expected flag of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw_testing.logits_families import gaussian

NAN, INF = float("nan"), float("inf")
SPECIAL_SIZE = 2500
"""Three tiles, the last of them not full."""


@dataclass(frozen=True)
class SpecialRow:
    """A row with NaN or infinities."""

    logits: NDArray[Any]
    """[SIZE] float32."""
    valid: bool


def special_rows(rng: Generator, size: int = SPECIAL_SIZE) -> dict[str, SpecialRow]:
    """Make every kind of special row by name; the remaining logits are Gaussian.

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
        "one NaN": SpecialRow(row({3: NAN}), valid=False),
        "NaN in a few places": SpecialRow(row({0: NAN, size // 2: NAN, size - 1: NAN}), valid=False),
        "NaN at the top": SpecialRow(top, valid=False),
        "all NaN": SpecialRow(full(NAN), valid=False),
        "all -inf": SpecialRow(full(-INF), valid=False),
        "NaN and -inf": SpecialRow(every_other, valid=False),
        "one +inf": SpecialRow(row({size // 2 + 7: INF}), valid=True),
        "two +inf": SpecialRow(row({5: INF, size - 2: INF}), valid=True),
        "+inf, -inf and NaN": SpecialRow(row({2: INF, size // 3: INF, 5: NAN, 6: -INF}), valid=False),
        "the last tile -inf": SpecialRow(last_tile, valid=True),
        "one finite logit": SpecialRow(
            np.where(np.arange(size) == 40, np.float32(-7), np.float32(-INF)), valid=True
        ),
    }


def distant_special_rows(rng: Generator, size: int) -> dict[str, SpecialRow]:
    """Make rows by name with special values only far out: behind the last vector, tile or power of two.

    :param size: V, at least 64.
    """

    def row(value: float, *ids: int) -> NDArray[Any]:
        x = gaussian(rng, size)
        x[list(ids)] = value
        return x

    power_of_two = (1 << (size - 1).bit_length() - 1) % size  # the largest power of two below V
    both_sides = [5, *range(power_of_two, size)[:30]]
    signed_nan = row(0.0)
    signed_nan.view(np.int32)[3 * size // 4] = -0x400000  # a NaN with its sign bit set
    return {
        "NaN at the last id": SpecialRow(row(NAN, size - 1), valid=False),
        "NaN behind the last power of two": SpecialRow(row(NAN, power_of_two), valid=False),
        "a NaN with a sign": SpecialRow(signed_nan, valid=False),
        "+inf at the last id": SpecialRow(row(INF, size - 1), valid=True),
        "+inf behind the last power of two": SpecialRow(row(INF, power_of_two, size - 1), valid=True),
        "+inf on both sides of the last power of two": SpecialRow(row(INF, *both_sides), valid=True),
        "+inf and far NaN": SpecialRow(np.where(np.arange(size) == size - 2, NAN, row(INF, 1)), valid=False),
    }
