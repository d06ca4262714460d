"""The bounds and the candidates of triton-gumbel beside numpy, in Triton's interpreter."""

import numpy as np
import torch
import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.row_candidates import (
    bound_by_granules,
    bound_by_tiles,
    list_candidates,
    list_granules,
    load_candidates,
)
from tokendraw_triton_gumbel.kernels.rows import RowAddress

GRANULES = tl.constexpr(512)
NUMBER = tl.constexpr(1024)


@triton.jit
def collect(
    x,
    size,
    maxima,
    tiles,
    bound,
    granules,
    listed,
    values,
    ids,
    counts,
    vector: tl.constexpr,
    is_aligned: tl.constexpr,
):
    hot = list_granules(maxima, tiles, bound, granules, GRANULES)
    result = list_candidates(
        RowAddress(x, size), granules, hot, bound, listed, vector, NUMBER, 32, IS_ALIGNED=is_aligned
    )
    value, token = load_candidates(x, listed, tl.minimum(result, NUMBER), vector, NUMBER)
    tl.store(values + tl.arange(0, NUMBER), value)
    tl.store(ids + tl.arange(0, NUMBER), token)
    tl.store(counts, hot)
    tl.store(counts + 1, result)


@triton.jit
def bound_both(maxima, tiles, low, top, least, number, k, most, bounds, span: tl.constexpr):
    tile = tl.arange(0, span)
    maximum = tl.load(maxima + tile, mask=tile < tiles, other=float("-inf"))
    tl.store(bounds, bound_by_tiles(maximum, top, least, number, k, span))
    tl.store(bounds + 1, bound_by_granules(maxima, tiles, low, top, k, most))


def granules_of(size, vector):
    """[V] the granule of each id: the 8 of half a tile hold runs of four vectors, in turn."""
    ids = np.arange(size)
    return ids // 1024 * 16 + ids % 1024 // 512 * 8 + ids % (32 * vector) // (4 * vector)


def rows(rng, size):
    """Yield named logits with a bound: isolated hits, runs, full vectors of eight, no hit, and all."""
    gaussian = rng.standard_normal(size).astype(np.float32)
    ids = np.arange(size)
    yield "some", gaussian, np.sort(gaussian)[-min(size, 60)]
    yield "a run of 100", np.where((ids >= 7) & (ids < 107), np.float32(5), gaussian), np.float32(5)
    yield "every third of 300", np.where((ids < 300) & (ids % 3 == 0), np.float32(9), gaussian), np.float32(9)
    yield "the last one", np.where(ids == size - 1, np.float32(9), gaussian), np.float32(9)
    yield "none", gaussian, np.float32(99)
    yield (
        "NaN and -inf",
        np.where(ids % 3 == 0, np.nan, np.where(ids % 3 == 1, -np.inf, gaussian)),
        np.float32(3),
    )
    if size < NUMBER.value:
        yield "all", gaussian, np.float32(-99)


def candidates():
    """Whether all ids from a bound upwards are collected, tile by tile, and nothing else."""
    rng, wrong, judged = np.random.default_rng(3), [], 0
    for size in (1, 20, 1000, 1024, 5000, 270_000):
        tiles = -(-size // 1024)
        for vector, offset in ((4, 0), (8, 0), (4, 1), (4, 3)):
            granule = granules_of(size, vector)
            for name, row, bound in rows(rng, size):
                x = np.asarray(row, np.float32)
                maxima = np.full(tiles * 16, -np.inf, np.float32)
                np.maximum.at(maxima, granule, np.nan_to_num(x, nan=-np.inf, posinf=np.inf, neginf=-np.inf))
                around = [np.full(offset, np.inf, np.float32), x, np.full(8, np.inf, np.float32)]
                given = [
                    torch.from_numpy(np.concatenate(around))[offset : offset + size],
                    torch.from_numpy(maxima),
                ]
                values = torch.zeros(NUMBER.value)
                granules, listed, ids, counts = (
                    torch.full((n,), -7, dtype=torch.int32)
                    for n in (GRANULES.value, NUMBER.value, NUMBER.value, 2)
                )
                collect[(1,)](
                    given[0],
                    size,
                    given[1],
                    tiles,
                    float(bound),
                    granules,
                    listed,
                    values,
                    ids,
                    counts,
                    vector,
                    offset == 0,
                )
                expected = np.flatnonzero(x >= bound)
                hot, result = counts.tolist()
                mine = ids[:result].numpy()
                judged += 1
                fine = (
                    (hot, result) == (int((maxima >= bound).sum()), len(expected))
                    and sorted(mine) == expected.tolist()
                    and (np.diff(mine // 1024) >= 0).all()
                    and (values[:result].numpy() == x[mine]).all()
                    and bool((values[result:] == -np.inf).all())
                )
                if not fine:
                    wrong.append(
                        [size, vector, offset, name, hot, result, mine.tolist()[:8], expected.tolist()[:8]]
                    )
    return {"judged": judged, "wrong": wrong}


def bounds():
    """Require about ``k`` maxima above a bound, and no bound for too few maxima."""
    rng, wrong, judged = np.random.default_rng(4), [], 0
    for count, tiles in ((1, 256), (50, 256), (149, 256), (256, 256), (2000, 2048)):
        families = {
            "gaussian": rng.standard_normal(count) * 3,
            "close": 100 + rng.random(count) * 1e-3,
            "tied": rng.integers(0, 5, count) * 1.0,
            "one far below": np.where(np.arange(count) == count // 2, -3e38, rng.standard_normal(count)),
            "half of them -inf": np.where(np.arange(count) % 2 == 1, -np.inf, rng.standard_normal(count)),
        }
        for name, family in families.items():
            maxima = family.astype(np.float32)
            finite = np.sort(maxima[maxima > -np.inf])[::-1]
            for k in (1, 2, 50, 128):
                most, result = 2 * k + 8, torch.zeros(2)
                facts = (float(finite[0]), float(finite[-1]), len(finite))
                bound_both[(1,)](torch.from_numpy(maxima), count, -np.inf, *facts, k, most, result, tiles)
                by_tiles, by_granules = result.tolist()
                judged += 1
                reach = [
                    int((finite >= bound).sum()) if bound > -np.inf else None
                    for bound in (by_tiles, by_granules)
                ]
                if len(finite) < k:
                    fine = reach == [None, None]
                else:
                    enough = int((finite >= finite[k - 1]).sum())  # ties with the k-th count
                    fine = reach[0] is not None and reach[0] >= k and (reach[1] is None or k <= reach[1])
                    if name in ("gaussian", "half of them -inf"):
                        fine = fine and reach[0] <= 1.25 * enough + 3 and reach[1] is not None
                    if reach[1] is not None and by_granules < finite[0]:
                        fine = fine and reach[1] <= most
                if not fine:
                    wrong.append([count, name, k, by_tiles, by_granules, reach])
    return {"judged": judged, "wrong": wrong}
