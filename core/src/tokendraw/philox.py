"""The random numbers of tokendraw: a pure function of (seed, position, index, stream), the same on every backend.

Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011; the Random123
library) with

=========  ==========================================================
key        (seed low 32 bits, seed high 32 bits)
counter    (index, position low 32 bits, position high 32 bits, stream)
=========  ==========================================================

``index`` is a token id or the number of a tile of :data:`TILE_SIZE` ids, ``position`` the index in its sequence of
the token whose hidden state made the logits. From the first output word ``w0`` come

* the uniform ``u = (w0 + 1/2) / 2**32``, in (0, 1), by which a draft is accepted, or XTC applied,
* the exponential variate ``E = -log1p(-u)``, and
* the Gumbel variate ``G = -log(E)``.

A Gumbel maximum is decided by the largest G, so by the smallest u, and there float32 is fine-grained: it keeps every
bit of ``w0`` below 2**24. ``dtype="fp64"`` takes 53 bits from two words and computes in float64 throughout.

Words are held in int64 tensors, since torch has no 32-bit multiply-high; everything runs on the tensors' device. For a
CPU the words come from numpy where that is installed, and Gumbel variates are made in blocks that its caches hold: the
same bits in less time. Every backend that advertises ``seeding="counter"`` is held to this module.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from tokendraw.backends.description import GumbelDtype

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokendraw.parameters.metadata import SamplingMetadata

TILE_SIZE: Final = 1024
"""Consecutive token ids that share one noise variate of the :data:`TILE` stream."""

TOKEN: Final = 0
TILE: Final = 1
ACCEPT: Final = 2
RESIDUAL_TOKEN: Final = 3
RESIDUAL_TILE: Final = 4
DRAFT_TOKEN: Final = 5
DRAFT_TILE: Final = 6
XTC: Final = 7
"""Streams: a draft and its verification never share noise. ACCEPT and XTC hold one uniform a position, at index 0."""

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MASK = 0xFFFFFFFF
_BLOCK_VARIATES = 1 << 15
"""Variates made at once on a CPU: their words, products and logarithms fit its L2 cache."""


@functools.cache
def numpy_is_usable() -> bool:
    """Whether numpy is installed and fits this torch, and the low half of a word comes first in memory."""
    try:
        torch.zeros(1, dtype=torch.int64, device="cpu").numpy()  # whatever the host made the default
    except RuntimeError:
        return False
    return sys.byteorder == "little"


def philox4x32(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute Philox4x32-10.

    :param counter: four int64 tensors of 32-bit words, broadcast against each other and the key.
    :param key: two int64 tensors of 32-bit words.
    :returns: four int64 tensors of 32-bit words.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # The products wrap modulo 2**64, and >> repeats the sign: the mask below clears what that puts on top.
        # c1, c3 and the keys are left unmasked, since only their low words reach a masked result.
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = ((product1 >> 32) ^ c1 ^ k0) & _MASK
        c2 = ((product0 >> 32) ^ c3 ^ k1) & _MASK
        c1, c3 = product1, product0
        k0, k1 = k0 + _KEY_INCREMENTS[0], k1 + _KEY_INCREMENTS[1]
    return c0, c1 & _MASK, c2, c3 & _MASK


def random_words(
    seed: Tensor, position: Tensor, index: Tensor, stream: int | Tensor
) -> tuple[Tensor, Tensor]:
    """Return the first two output words at (seed, position, index, stream).

    :param seed: int64, the 64 bits of the seed.
    :param position: int64, non-negative.
    :param index: int64, in [0, 2**32). The three are broadcast against each other.
    :param stream: one for all, or int64 and broadcast too.
    """
    if _in_numpy(index):
        words = _words_in_numpy(seed, position, index, stream)
        return (words >> 32) & _MASK, words & _MASK
    if not isinstance(stream, Tensor):
        stream = torch.full_like(index, stream)
    counter = (index, position & _MASK, (position >> 32) & _MASK, stream)
    w0, w1, _, _ = philox4x32(counter, (seed & _MASK, (seed >> 32) & _MASK))
    return w0, w1


def exponential(w0: Tensor) -> Tensor:
    """Return float32 exponential variates ``-log1p(-u)`` with ``u = (w0 + 1/2) / 2**32``.

    The distance to the nearer end of (0, 1) is what float32 can hold: u itself below one half, 1 - u above. So no
    low bit of a small ``w0`` is lost, and u never rounds to 1.
    """
    return _log_survival(w0.to(torch.int32)).neg_()


def _log_survival(bits: Tensor) -> Tensor:
    """Return ``log1p(-u)``, float32 from 32 bits of u, or float64 from the upper 53 of 64: the highest is the sign."""
    dtype, width = (torch.float64, 53) if bits.dtype == torch.int64 else (torch.float32, 32)
    num_bits = 8 * bits.itemsize
    distance = bits ^ (bits >> (num_bits - 1))  # u where it is below one half, 1 - u above
    if num_bits > width:
        distance >>= num_bits - width
    distance = distance.to(dtype).add_(0.5).mul_(2.0**-width)
    return torch.where(bits < 0, distance.log(), distance.neg_().log1p_())


def uniform(
    seed: Tensor, position: Tensor, index: Tensor, stream: int | Tensor, dtype: GumbelDtype = "fp32"
) -> Tensor:
    """Return uniform variates in (0, 1) at (seed, position, index, stream), in the device's widest float.

    ``fp32`` forms ``u`` from the 32 bits of ``w0``, which float64 holds exactly, ``fp64`` from 53 as :func:`gumbel`
    does.
    """
    w0, w1 = random_words(seed, position, index, stream)
    bits, width = ((w0 << 21) | (w1 >> 11), 53) if dtype == "fp64" else (w0, 32)
    real = torch.float32 if bits.device.type == "mps" else torch.float64
    largest = 1.0 - torch.finfo(real).eps / 2  # the sum below rounds up to 1 where it needs a bit too many
    return ((bits.to(real) + 0.5) * 2.0**-width).clamp_(max=largest)


def gumbel(
    seed: Tensor, position: Tensor, index: Tensor, stream: int | Tensor, dtype: GumbelDtype = "fp32"
) -> Tensor:
    """Return standard Gumbel variates at (seed, position, index, stream), float32 or float64 by ``dtype``.

    ``fp64`` forms ``u`` from 53 bits, the 32 of ``w0`` above the upper 21 of ``w1``: ``(bits + 1/2) / 2**53``.
    """
    if index.device.type != "cpu" or seed.numel() * position.numel() * index.numel() <= _BLOCK_VARIATES:
        return _gumbel(seed, position, index, stream, dtype)
    inputs = (seed, position, index, torch.as_tensor(stream, dtype=torch.int64, device="cpu"))
    # torch.broadcast_shapes imports sympy: half a second, or three where no bytecode is kept.
    shape = torch.broadcast_tensors(*inputs)[0].shape  # type: ignore[no-untyped-call]
    noise = torch.empty(shape, dtype=torch.float64 if dtype == "fp64" else torch.float32, device="cpu")
    for block in _blocks(shape):
        seeds, positions, indices, streams = (_part(x, block) for x in inputs)
        noise[block] = _gumbel(seeds, positions, indices, streams, dtype)
    return noise


def fresh_seeds(rows: int, device: torch.device) -> Tensor:
    """Draw a 64-bit seed for each row from torch's generator of the device, [rows] int64.

    They are drawn on the device: ``torch.manual_seed`` reproduces them, and a CUDA graph gets new ones at each replay.
    """
    return torch.empty(rows, dtype=torch.int64, device=device).random_(-(2**63), None)


def seeds_and_positions(
    metadata: SamplingMetadata, rows: int, device: torch.device, fresh: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the seed and the position of each logits row, [rows] int64 each.

    Rows without a seed get a fresh one; position is 0 where the metadata has no positions.

    :param fresh: [rows] int64: what those rows get; None: :func:`fresh_seeds`.
    """
    seed, seeded = metadata.per_row("seed"), metadata.per_row("seeded")
    if seed is None or not metadata.facts.all_seeded:
        fresh = fresh_seeds(rows, device) if fresh is None else fresh
        if seed is None:
            seed = fresh
        elif seeded is not None:
            seed = torch.where(seeded, seed.to(torch.int64), fresh)
    position = metadata.positions
    if position is None:
        position = torch.zeros(rows, dtype=torch.int64, device=device)
    return seed.to(torch.int64), position.to(torch.int64)


def _gumbel(
    seed: Tensor, position: Tensor, index: Tensor, stream: int | Tensor, dtype: GumbelDtype
) -> Tensor:
    if _in_numpy(index):
        words = _words_in_numpy(seed, position, index, stream)
        bits = words if dtype == "fp64" else words.unsqueeze(-1).view(torch.int32)[..., 1]
    else:
        w0, w1 = random_words(seed, position, index, stream)
        bits = (w0 << 32) | w1 if dtype == "fp64" else w0.to(torch.int32)
    return _log_survival(bits).neg_().log_().neg_()


def _in_numpy(index: Tensor) -> bool:
    return index.device.type == "cpu" and numpy_is_usable() and not torch.compiler.is_compiling()


def _blocks(shape: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Cut a tensor of this shape into blocks of at most :data:`_BLOCK_VARIATES` elements, last dimensions first."""
    steps, capacity = [], _BLOCK_VARIATES
    for size in reversed(shape):
        steps.append(max(1, min(size, capacity)))
        capacity //= steps[-1]
    ranges = (range(0, size, step) for size, step in zip(shape, reversed(steps), strict=True))
    for corner in itertools.product(*ranges):
        yield tuple(slice(start, start + step) for start, step in zip(corner, reversed(steps), strict=True))


def _part(x: Tensor, block: tuple[slice, ...]) -> Tensor:
    slices = block[len(block) - x.dim() :]
    return x[tuple(part if size > 1 else slice(None) for part, size in zip(slices, x.shape, strict=True))]


def _words_in_numpy(seed: Tensor, position: Tensor, index: Tensor, stream: int | Tensor) -> Tensor:
    """Compute :func:`random_words` for int64 tensors on a CPU, where numpy starts an operation faster than torch.

    A lane of the state, ``(c0, c1)`` or ``(c2, c3)``, is one uint64 with its first word above its second. The
    product of 64 bits that a round makes of the other lane's first word is one too, and the round is
    ``product ^ (lane << 32) ^ (key << 32)``, without masks. Of the first two rounds only what depends on every counter
    is computed for each, and of the last round only the lane that is returned.

    :returns: int64, the first word above the second.
    """
    import numpy as np

    key, positions, indices = (x.numpy().view(np.uint64) for x in (seed, position, index))
    streams = stream.numpy().view(np.uint64) if isinstance(stream, Tensor) else np.uint64(stream)
    shape = np.broadcast(key, positions, indices, streams).shape
    half, (m0, m1), multipliers, increments = _constants(len(shape))
    key = key.reshape((1,) * (len(shape) - key.ndim) + key.shape)
    keys = (np.stack((key, key >> half)) << half) + increments

    first = ((positions >> half) * m1) ^ (positions << half) ^ keys[0, 0]
    second = (indices * m0) ^ (streams << half) ^ keys[0, 1]
    lanes, products = np.empty((2, *shape), np.uint64), np.empty((2, *shape), np.uint64)
    lane, other = lanes[0, ...], lanes[1, ...]
    np.right_shift(second, half, out=lane)
    np.multiply(lane, m1, out=lane)
    np.bitwise_xor(lane, (first << half) ^ keys[1, 0], out=lane)
    np.left_shift(second, half, out=other)
    np.bitwise_xor(other, ((first >> half) * m0) ^ keys[1, 1], out=other)
    for round_key in keys[2:-1]:
        np.right_shift(lanes[::-1], half, out=products)
        np.multiply(products, multipliers, out=products)
        np.left_shift(lanes, half, out=lanes)
        np.bitwise_xor(lanes, round_key, out=lanes)
        np.bitwise_xor(lanes, products, out=lanes)
    np.right_shift(other, half, out=other)
    np.multiply(other, m1, out=other)
    np.left_shift(lane, half, out=lane)
    np.bitwise_xor(lane, keys[-1, 0], out=lane)
    np.bitwise_xor(lane, other, out=lane)
    return torch.from_numpy(lane.view(np.int64))


@functools.cache
def _constants(dim: int) -> tuple[Any, Any, NDArray[Any], NDArray[Any]]:
    """Return 32, both multipliers, those of each lane [2, ...], and the key increments of each round [10, 2, ...]."""
    import numpy as np

    half, ones = np.uint64(32), (1,) * dim
    multipliers = np.array(_MULTIPLIERS, np.uint64)
    rounds = np.arange(_ROUNDS, dtype=np.uint64).reshape(_ROUNDS, 1, *ones)
    increments = (rounds * np.array(_KEY_INCREMENTS, np.uint64).reshape(2, *ones)) << half
    return half, tuple(multipliers), multipliers[::-1].reshape(2, *ones), increments
