"""Philox4x32-10 for tensors of a CPU, in numpy, where an operation costs a fraction of one of torch to launch.

Both lanes of a round, ``(c0, c2)`` and what they are multiplied to, are one array [2, ...], and its reversed view swaps
them. Words are uint64 whose upper halves stay 0, so that products are whole, and the halves of a product are views too:
nothing is shifted or masked, and a round is three operations.
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
def is_usable() -> bool:
    """Whether numpy is installed and fits this torch, and the low half of a word comes first in memory."""
    try:
        torch.zeros(1, dtype=torch.int64, device="cpu").numpy()  # whatever the host made the default
    except RuntimeError:
        return False
    return sys.byteorder == "little"


def random_words(
    seed: Tensor, position: Tensor, index: Tensor, stream: int | Tensor
) -> tuple[Tensor, Tensor]:
    """Compute :func:`tokendraw.philox.random_words` for int64 tensors on a CPU."""
    import numpy as np

    key, place, column = (x.numpy().view(np.uint64) for x in (seed, position, index))
    last = stream.numpy() if isinstance(stream, Tensor) else np.int64(stream)
    shape = np.broadcast(key, place, column, last).shape
    words = np.zeros((2, *shape), np.uint64)
    words[0], words[1] = column, place >> np.uint64(32)
    product, former = np.empty((2, 2, *shape), np.uint64)
    former[0], former[1] = last, place  # c3 and c1: in later rounds, the low halves of the former products

    multipliers, keys = _constants(len(shape))
    key = key.reshape((1,) * (len(shape) - key.ndim) + key.shape)
    keys = (keys + np.stack((key, key >> np.uint64(32)))).astype(np.uint32)
    low, _ = _halves(words)
    new, old = ((x, *(half[::-1] for half in _halves(x))) for x in (product, former))
    for key in keys:
        np.multiply(words, multipliers, out=new[0])
        np.bitwise_xor(new[2], old[1], out=low)
        np.bitwise_xor(low, key, out=low)
        new, old = old, new
    former = old[0]
    former &= np.uint64(0xFFFFFFFF)
    w0, w1 = torch.from_numpy(words.view(np.int64)), torch.from_numpy(former.view(np.int64))
    return w0[0], w1[1]


@functools.cache
def _constants(dim: int) -> tuple[Any, Any]:
    """Return the multipliers [2, ...], and the increments of both words of the key in each round [10, 2, ...]."""
    import numpy as np

    per_lane = (2, *(1,) * dim)
    increments = np.array(KEY_INCREMENTS, np.uint64).reshape(per_lane)
    rounds = np.arange(ROUNDS, dtype=np.uint64).reshape(ROUNDS, 1, *(1,) * dim)
    return np.array(MULTIPLIERS, np.uint64).reshape(per_lane), rounds * increments


def _halves(words: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Views of the low and of the high 32 bits of uint64."""
    halves = words.view("uint32")
    return halves[..., 0::2], halves[..., 1::2]
