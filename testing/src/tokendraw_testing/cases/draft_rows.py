"""Rows of a target and its drafts, made so that a mistake in one corner of a kernel changes most chains, and seeds.

They are made in units of y, that is divided by the temperature, and rounded to the dtype of the call. Bulks of tokens
share a few values, so that the edge of a filter lies between groups and is certain in float32, too.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw_testing import reference, reference_walk

Array = NDArray[Any]

LARGE_SIZE: Final = 8192
"""Above this V tokens share values, and a request has two different rows and a bonus row: each takes milliseconds."""
FAMILIES: Final = ("gaussian", "levels", "places", "bulk", "close")
VALUE_FAMILIES: Final = ("levels",)
"""Families with ties at a filter's edge, which tell the tie rules apart."""
_NEGLIGIBLE: Final = -18.0
_FAR_SHARE: Final = 0.6
"""Share of rows of a wide vocabulary whose residual lies behind the last power of two, for the most part."""
_BORDERS: Final = (1024, 4096, 1 << 15, 1 << 16, 1 << 17, 1 << 18)
NAN, INF = float("nan"), float("inf")
FIRST_POSITIONS: Final = (0, 7, 2**31 - 3, 2**32 - 2, 2**40 + 11)
"""First positions of requests; the rows of a request cross the border of a 32-bit word."""
_MARGIN: Final = 3 * reference.NEAR_TIE
"""Least distance of a decision from its turning point, so that float32 decides likewise."""
_STEPS: Final = 17


def make_pair(rng: Generator, family: str, size: int, params: SamplingParams) -> tuple[Array, Array]:
    """Make one row of a target and of its draft: two [V] float64 in units of y."""
    if family == "gaussian":
        y = _round_to_groups(2 * rng.standard_normal(size), size)
        return y, y + _round_to_groups(0.4 * rng.standard_normal(size), size)
    if family == "levels":
        return _levels(rng, size, params)
    ids = corner_ids(rng, size, min(size, 40 if family == "close" else 14))
    y = np.full(size, _NEGLIGIBLE)
    if family == "bulk":  # about as much mass as all the heavy tokens have
        y = _bulk(rng, size)
    y[ids] = rng.uniform(-2.0, 0.0, len(ids))
    draft = y.copy()
    if family == "close":  # p and q differ by little more than they would lose in half precision
        draft[ids] += 10 ** rng.uniform(-3.3, -1.5) * rng.choice([-1, 1], len(ids))
    elif size > LARGE_SIZE and rng.random() < _FAR_SHARE:
        draft[ids] += 0.1 * rng.standard_normal(len(ids))
        draft[ids[ids >= 1 << (size - 1).bit_length() - 1]] -= 6.0
    else:
        draft[ids] = rng.permutation(y[ids])
    if family == "bulk":
        heavy, draft = draft[ids], _bulk(rng, size)
        draft[ids] = heavy
    return y, draft


def corner_ids(rng: Generator, size: int, count: int) -> Array:
    """Pick ids on special paths of kernels: at the ends, at borders of tiles, behind the last full vector, far out."""
    inside_ids = _corners(size)
    tile_ids = rng.integers(max(0, size - 1024), size, 4)
    far_ids = rng.integers(size // 2, size, 4)
    preferred_ids = np.unique(
        [*rng.permutation(inside_ids)[: count // 2].tolist(), size - 1, *tile_ids.tolist(), *far_ids.tolist()]
    )
    random_ids = rng.choice(size, min(size, 4 * count), replace=False)
    all_ids = dict.fromkeys([*rng.permutation(preferred_ids).tolist(), *random_ids.tolist()])
    chosen_ids = list(all_ids)[:count]
    if size - 1 not in chosen_ids and size > 1:
        chosen_ids[-1] = size - 1
    return np.array(chosen_ids)


@functools.cache
def _corners(size: int) -> list[int]:
    corners = {0, 1, size - 1, size - 2, size // 8 * 8 - 1, size // 8 * 8, (size - 1) // 1024 * 1024}
    for border in _BORDERS:
        corners |= {border - 1, border, border + 1}
    return [i for i in corners if 0 <= i < size]


def scale_to_logits(y: Array, params: SamplingParams, rng: Generator) -> Array:
    """Turn y into logits at the temperature of a request; some rows have their maximum at zero, of either sign."""
    temperature = params.temperature or 1.0
    shift = rng.choice([0.0, 1.0, 7.0, -30.0])
    x = temperature * (y - (y.max() if shift == 1.0 else 0.0) + (0.0 if shift == 1.0 else shift))
    if shift == 1.0:
        x = np.where((x == 0) & (rng.random(len(x)) < 0.5), -0.0, x)
    return np.asarray(x)


def poison_row(rng: Generator, row: Array, what: str, *, probs: bool = False) -> Array:
    """Return a copy of a row [V] with NaN, +inf, -1 or no mass, at ids far out."""
    row, size = row.copy(), len(row)
    if what == "nothing":
        row[:] = 0.0 if probs else -INF
        return row
    ids = np.unique(np.append(rng.integers(size // 2, size, 2), rng.choice([size - 1, size * 2 // 3])))
    row[ids] = {"NaN": rng.choice([NAN, -NAN]), "+inf": INF, "-1": -1.0}[what]
    return row


def _levels(rng: Generator, size: int, params: SamplingParams) -> tuple[Array, Array]:
    """Groups of ties of about equal mass: 30, then 600 where a small k ends, then thousands for a large k."""
    values = -np.arange(9) * 0.75
    counts = np.minimum(30 * np.exp(-values), size)
    counts[1] = 600
    counts = np.maximum(1, counts * min(1.0, 0.95 * size / counts.sum())).astype(int)
    if params.min_p > 0:  # levels on both sides of the threshold, closer than a step of bfloat16
        threshold = np.log(params.min_p)
        near_values = threshold + 0.0015 * np.arange(-6.5, 7.0)
        count_near = int(max(1, min(size / 40, 0.1 * (counts * np.exp(values)).sum() / params.min_p)))
        values, counts = (
            np.append(values, near_values),
            np.append(counts // 2 + 1, np.full(len(near_values), count_near)),
        )
    order = rng.permutation(size)
    y, start = np.full(size, _NEGLIGIBLE), 0
    for value, count in zip(values, counts, strict=True):
        y[order[start : start + count]] = value
        start += count
    is_raised = rng.random(size) < 0.3
    return y, np.where(is_raised & (y < 0) & (y > _NEGLIGIBLE), y + 0.75, y)


def _bulk(rng: Generator, size: int) -> Array:
    return _round_to_groups(1.5 - np.log(size) + 0.5 * rng.standard_normal(size), size)


def _round_to_groups(y: Array, size: int) -> Array:
    """Round values of a wide vocabulary to groups of some mass."""
    return y if size <= LARGE_SIZE else np.round(y * 64) / 64


class AcceptanceNoise:
    """The variates u of many seeds at the positions of a request."""

    def __init__(self, rng: Generator, seeds: int) -> None:
        self.seeds: Array = rng.integers(0, 2**64, seeds, np.uint64)
        self._u: dict[int, Array] = {}

    def u(self, first: int) -> Array:
        """Return u from position ``first`` on: [seeds, 17]."""
        if first not in self._u:
            positions = np.arange(_STEPS).astype(np.uint64) + np.uint64(first)
            words = reference.random_words(self.seeds[:, None], positions, 0, reference_walk.ACCEPT)
            self._u[first] = reference.uniform(words[0])
        return self._u[first]

    def narrow(self, first: int, ratios: Sequence[float], rejected: bool, critical: int) -> int | None:
        """Find a seed that accepts by p / q = ``ratios`` and comes closest to the turning point in one step.

        :param rejected: whether the last of them is to be rejected.
        :param critical: the step that is to be narrow.
        :returns: None if no seed does so.
        """
        ratio_array = np.asarray(ratios)
        u = self.u(first)[:, : len(ratio_array)]
        is_accepted = u < ratio_array
        pattern = np.ones(len(ratio_array), bool)
        pattern[len(ratio_array) - 1] = not rejected
        gap = np.abs(u - ratio_array)
        is_usable = (is_accepted == pattern).all(1) & (gap >= _MARGIN).all(1)
        if not is_usable.any():
            return None
        return int(self.seeds[np.where(is_usable, gap[:, critical], np.inf).argmin()])
