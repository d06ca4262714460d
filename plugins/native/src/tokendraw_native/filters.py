"""The filters: each is a value threshold, so together they are one number a row, the floor. Kept is ``x >= floor``.

A threshold keeps all ties, and does not depend on the order of the vocabulary or on the batch. Since every filter
keeps the largest tokens, the strictest one decides: the floor of a row is the largest of the floors of its filters.

========  ==================================================================================================
min-p     ``max x + T log(min_p)``, from ``(x - max x) / T >= log(min_p)``
top-k     the k-th largest value
top-p     the largest v such that the tokens with ``x >= v`` carry at least p of the mass: of what the other
          filters keep ("top_k_first"), or of the whole row ("joint")
greedy    the maximum
========  ==================================================================================================

The k-th largest value and the edge of the nucleus are one search: the largest value from which upwards a weight adds
up to a target, with weight 1 and target k, or with weight exp(y) and target p Z. ``torch.topk`` shortens it for small
k.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw_native.largest import largest
from tokendraw_native.request import Request
from tokendraw_native.rows import INF, Rows, kept, real_dtype, scaled
from tokendraw_native.scratch import Scratch
from tokendraw_native.search import edge, edge_of_sorted

HEAD = 1024
"""Up to here ``torch.topk`` finds the largest values faster than the search does."""


def floors(rows: Rows, weight: Tensor, request: Request, vocab_size: int, scratch: Scratch) -> Tensor:
    """The least value that each row keeps.

    :param rows: the rows, or as many of their largest values as hold all that is kept.
    :param weight: [rows, n] float64, ``exp(y)`` of each of those.
    :param vocab_size: V; a k of V or more is off.
    :returns: [rows, 1] float32, at most ``rows.top``, so that a token is left.
    """
    floor, head = None, None
    if request.min_p is not None:
        floor = min_p_floor(rows.top, request.min_p, request.temperature)
    if request.top_k is not None:
        head = _head(rows, request, vocab_size)
        kth = _kth_largest(rows, head, request, vocab_size, scratch)
        floor = kth if floor is None else floor.maximum(kth)
    if request.top_p is not None:
        nucleus = _nucleus(rows, head, weight, floor, request, scratch)
        floor = nucleus if floor is None else floor.maximum(nucleus)
    if floor is None:
        floor = torch.full_like(rows.top, -INF)
    if request.greedy is not None:
        floor = torch.where(request.greedy, rows.top, floor)
    return floor.minimum(rows.top) if request.filters else floor


def _head(rows: Rows, request: Request, vocab_size: int) -> Tensor | None:
    """[rows, n]: the largest values in descending order, as many as the largest k, or None if these are too many."""
    most = min(request.max_top_k or vocab_size, rows.x.shape[-1])
    if most > HEAD:
        return None
    return rows.x[:, :most] if rows.descending else largest(rows.x, most)[0]


def _kth_largest(
    rows: Rows, head: Tensor | None, request: Request, vocab_size: int, scratch: Scratch
) -> Tensor:
    """[rows, 1]: -inf in rows without top-k."""
    top_k, most = request.top_k, request.max_top_k
    assert top_k is not None
    if head is None:
        kth = edge(rows, torch.ones_like(rows.x, dtype=real_dtype(rows.x.device)), top_k, scratch)
    else:
        kth = head.gather(-1, (top_k - 1).clamp_(0, head.shape[-1] - 1))
    if request.all_top_k and most is not None and most < vocab_size:
        return kth  # greedy rows aside, which have no k, every row has an active one
    return torch.where((top_k > 0) & (top_k < vocab_size), kth, -INF)


def _nucleus(
    rows: Rows,
    head: Tensor | None,
    weight: Tensor,
    floor: Tensor | None,
    request: Request,
    scratch: Scratch,
) -> Tensor:
    """[rows, 1]: the edge of top-p's set, -inf in rows without it.

    :param floor: what other filters keep.
    """
    top_p = request.top_p
    assert top_p is not None
    mass = (weight if floor is None else weight * kept(rows.x, floor, scratch)).sum(-1, keepdim=True)
    if floor is not None and request.joint is not None:
        mass = torch.where(request.joint, weight.sum(-1, keepdim=True), mass)
    if head is None or not request.all_top_k:
        nucleus = edge(rows, weight, top_p * mass, scratch)
    else:  # it lies among the k largest, which are at hand
        own = weight[:, : head.shape[-1]]
        if not rows.descending:
            own = scaled(head, rows.top, request.inverse_temperature, finite=rows.finite).exp_()
        nucleus = edge_of_sorted(head, own, top_p * mass)
    return torch.where(top_p < 1, nucleus, -INF)


def min_p_floor(top: Tensor, min_p: Tensor, temperature: Tensor) -> Tensor:
    """The least float32 that min-p keeps: [rows, 1]."""
    # finite, so that it leaves an infinite maximum as it is
    below = (temperature * min_p.clamp(max=1).log()).clamp(min=torch.finfo(temperature.dtype).min)
    exact = torch.where(min_p > 0, top + below, -INF)
    rounded = exact.to(torch.float32)
    # x >= exact is the same as x >= the next float32 that is not below exact
    return torch.where(rounded < exact, rounded.nextafter(torch.full_like(rounded, INF)), rounded)
