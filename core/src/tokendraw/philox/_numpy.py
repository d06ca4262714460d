"""Philox4x32-10 in numpy for CPU tensors: a numpy operation starts at a fraction of torch's launch cost.

A lane of the state, ``(c0, c1)`` or ``(c2, c3)``, is one uint64 with its first word above its second. So is the product
of 64 bits that a round makes of the other lane's first word, and the round is ``product ^ (lane << 32) ^ (key << 32)``:
nothing is masked. Of the first two rounds only what depends on every counter is computed for each, and of the last one
only the lane that is returned.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
KEY_INCREMENTS: Final = (0x9E3779B9, 0xBB67AE85)
ROUNDS: Final = 10


@functools.cache
def numpy_is_usable() -> bool:
    """Whether numpy is installed and fits this torch, and the low half of a word comes first in memory."""
    try:
        torch.zeros(1, dtype=torch.int64, device="cpu").numpy()  # whatever the host made the default
    except RuntimeError:
        return False
    return sys.byteorder == "little"


def random_words(seed: Tensor, position: Tensor, index: Tensor, stream: int | Tensor) -> Tensor:
    """Compute the words of :func:`tokendraw.philox.random_words` for int64 tensors on a CPU.

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
    multipliers = np.array(MULTIPLIERS, np.uint64)
    rounds = np.arange(ROUNDS, dtype=np.uint64).reshape(ROUNDS, 1, *ones)
    increments = (rounds * np.array(KEY_INCREMENTS, np.uint64).reshape(2, *ones)) << half
    return half, tuple(multipliers), multipliers[::-1].reshape(2, *ones), increments
