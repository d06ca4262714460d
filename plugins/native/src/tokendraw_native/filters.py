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

from tokendraw_native.request import Request
from tokendraw_native.rows import INF, Rows, kept, scaled
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
    x = rows.x
    floor = torch.full_like(rows.top, -INF)
    head = None
    if request.min_p is not None:
        floor = min_p_floor(rows.top, request.min_p, request.temperature)
    if request.top_k is not None:
        largest = min(request.max_top_k or vocab_size, x.shape[-1])
        if largest <= HEAD:
            head = x.topk(largest).values
            kth = head.gather(-1, (request.top_k - 1).clamp(0, largest - 1))
        else:
            kth = edge(rows, torch.ones_like(weight), request.top_k, scratch)
        active = (request.top_k > 0) & (request.top_k < vocab_size)
        floor = torch.where(active, floor.maximum(kth), floor)
    if request.top_p is not None:
        mass = whole = weight.sum(-1, keepdim=True)
        if request.min_p is not None or request.top_k is not None:
            mass = (weight * kept(x, floor, scratch)).sum(-1, keepdim=True)
        if request.joint is not None:
            mass = torch.where(request.joint, whole, mass)
        if head is not None and request.all_top_k:  # the nucleus lies among the k largest, which are at hand
            head_weight = scaled(head, rows.top, request.inverse_temperature).exp_()
            nucleus = edge_of_sorted(head, head_weight, request.top_p * mass)
        else:
            nucleus = edge(rows, weight, request.top_p * mass, scratch)
        floor = torch.where(request.top_p < 1, floor.maximum(nucleus), floor)
    if request.greedy is not None:
        floor = torch.where(request.greedy, rows.top, floor)
    return floor.minimum(rows.top)


def min_p_floor(top: Tensor, min_p: Tensor, temperature: Tensor) -> Tensor:
    """The least float32 that min-p keeps: [rows, 1]."""
    # finite, so that it leaves an infinite maximum as it is
    below = (temperature * min_p.clamp(max=1).log()).clamp(min=torch.finfo(temperature.dtype).min)
    exact = torch.where(min_p > 0, top + below, -INF)
    rounded = exact.to(torch.float32)
    # x >= exact is the same as x >= the next float32 that is not below exact
    return torch.where(rounded < exact, rounded.nextafter(torch.full_like(rounded, INF)), rounded)
