"""Brings logits and parameters into the form of kernels that draw from probabilities.

Such kernels (FlashInfer, AMD's aiter) want a contiguous [rows, V] of float32 probabilities, and parameters that are in
range for every row: their arithmetic has no notion of NaN, of an infinite logit, or of a filter that is off. Here all
of that is settled before one of them runs, by operations that wait for no device and can be captured in a CUDA graph.

::

    wanted = Filters.of(metadata, vocab_size)
    y, valid = relative(logits)
    probs = torch.softmax(y / wanted.temperature[:, None], -1)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

import torch
from torch import Tensor

from tokendraw.output import SamplerOutput
from tokendraw.parameters.metadata import SamplingMetadata
from tokendraw.row_parameters import PerRow, filter_columns

OFF_TOP_P: Final = 2.0
"""A top-p that keeps every token. 1 would not: float32 sums of the more likely tokens reach it before the last one."""

MAX_ELEMENTS: Final = 1 << 31
"""Logits in one launch of a kernel that counts elements with 32 bits."""

_LEAST_TEMPERATURE = 1e-37
"""Least temperature: its reciprocal is a normal float32 number, as is that of the largest temperature."""
_LEAST_TOP_P = 1e-30
_INF = float("inf")
_LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True, slots=True)
class Filters(PerRow):
    """Filter parameters [rows] on the device, in range in every row; None where no row can have the filter.

    :ivar temperature: float32, positive, with a finite reciprocal. 0 and below, and NaN, become the least such value.
    :ivar top_k: int32 in [1, V]. Off is V: some kernels take 0 for "keep nothing".
    :ivar top_p: float32, positive. Off is :data:`OFF_TOP_P`.
    :ivar min_p: float32 in [0, 1]. Off is 0.
    :ivar joint: bool: rows whose top-p counts the unfiltered mass; None: no row does.
    :ivar any_top_k_first: Whether a row may have top-p count the mass that other filters left.
    """

    temperature: Tensor | None
    top_k: Tensor | None
    top_p: Tensor | None
    min_p: Tensor | None
    joint: Tensor | None
    any_top_k_first: bool

    @classmethod
    def of(cls, metadata: SamplingMetadata, vocab_size: int) -> Self:
        """Bring the parameters of a batch into range. Reads none of them on the host."""
        temperature, columns = metadata.per_row("temperature"), filter_columns(metadata)
        top_k, top_p, min_p = columns["top_k"], columns["top_p"], columns["min_p"]
        if temperature is not None:
            temperature = temperature.nan_to_num(nan=0.0)
            temperature = temperature.clamp(_LEAST_TEMPERATURE, 1 / _LEAST_TEMPERATURE).float()
        if top_k is not None:
            top_k = torch.where((top_k <= 0) | (top_k > vocab_size), vocab_size, top_k).int()
        if top_p is not None:
            top_p = torch.where(top_p < 1, top_p.clamp(min=_LEAST_TOP_P), OFF_TOP_P).float()  # NaN is off
        if min_p is not None:
            min_p = min_p.nan_to_num(nan=0.0).clamp(0, 1).float()
        return cls(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            joint=columns["joint"],
            any_top_k_first=metadata.facts.any_top_k_first,
        )


def relative(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Make logits relative to the largest of their row, fit for any softmax, whatever the row holds.

    NaN counts as -inf, +inf as the largest float32, and a row without any logit has all its mass on token 0.

    :param logits: [rows, V] float32, bfloat16 or float16, any row stride. Not modified.
    :returns: [rows, V] float32, contiguous, at most 0, with a 0 in every row; [rows] bool: ``SamplerOutput.valid``.
    """
    y = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    if logits.shape[0] == 0:
        return y, torch.empty(0, dtype=torch.bool, device=logits.device)
    largest = logits.amax(-1)  # NaN where the row has one
    # The largest float32 is no number of a half, which is why these are widened first.
    wide = logits if logits.dtype == y.dtype else y.copy_(logits)
    torch.nan_to_num(wide, nan=-_INF, posinf=_LARGEST, neginf=-_INF, out=y)
    top = y.amax(-1, keepdim=True)
    y.sub_(top.clamp(min=-_LARGEST))
    y[:, 0].masked_fill_(top.squeeze(-1) == -_INF, 0.0)
    return y, largest > -_INF


def drop_below(probs: Tensor, min_p: Tensor) -> Tensor:
    """Apply min-p and renormalise, in place.

    :param probs: [rows, V] float32 probabilities.
    :param min_p: [rows] float32 in [0, 1].
    :returns: [rows] float32: the share of the mass that was kept, at most 1.
    """
    floor = probs.amax(-1, keepdim=True).mul_(min_p.unsqueeze(-1))
    probs.masked_fill_(probs < floor, 0.0)
    mass = probs.sum(-1, keepdim=True)
    probs.div_(mass)
    return mass.squeeze(-1).clamp_(max=1.0)


def top_p_of_kept(top_p: Tensor, joint: Tensor | None, kept_mass: Tensor) -> Tensor:
    """Restate the top-p of joint rows for probabilities renormalised by other filters.

    A token is in the nucleus if the tokens above it hold less than p. Renormalised, they hold ``1 / kept_mass`` times
    as much, so p grows by as much; at 1 and above it drops nothing.

    :param top_p: [rows] float32.
    :param joint: [rows] bool: rows that count the unfiltered mass; None: all rows do.
    :param kept_mass: [rows] float32: the share of the mass that the other filters kept.
    :returns: [rows] float32.
    """
    restated = top_p / kept_mass.clamp(max=1.0)  # a quotient of rounded masses may be larger
    restated = torch.where(restated < 1, restated, OFF_TOP_P)
    return restated if joint is None else torch.where(joint, restated, top_p)


def min_p_threshold(x_max: Tensor, min_p: Tensor, temperature: Tensor) -> Tensor:
    """Return the least float32 kept by min-p, [rows, 1]; -inf where min-p is off.

    :param x_max: [rows, 1] float32: the largest value.
    :param min_p: [rows, 1] in the widest float; 0 and below, and NaN, are off.
    :param temperature: [rows, 1] in the widest float, positive and finite.
    """
    return floor_threshold(x_max, torch.where(min_p > 0, min_p.clamp(max=1).log(), -_INF), temperature)


def floor_threshold(x_max: Tensor, floor: Tensor, temperature: Tensor) -> Tensor:
    """Return the least float32 x with ``(x - x_max) / temperature >= floor``, [rows, 1].

    :param x_max: [rows, 1] float32: the largest value.
    :param floor: [rows, 1] floating point, at most 0; -inf keeps every token, and the threshold is -inf.
    :param temperature: [rows, 1] in the widest float, positive and finite.
    """
    # finite, so that it leaves an infinite maximum as it is
    below = (temperature * floor).clamp(min=torch.finfo(temperature.dtype).min)
    exact = torch.where(floor > -_INF, x_max + below, -_INF)
    rounded = exact.to(torch.float32)
    # x >= exact is the same as x >= the next float32 that is not below exact
    return torch.where(rounded < exact, rounded.nextafter(torch.full_like(rounded, _INF)), rounded)


def threshold_of_sorted(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Return the largest value v where the weight of ``x >= v`` is at least ``target``, or comes nearest to it.

    :param x: [rows, n] in descending order.
    :param weight: [rows, n], non-negative.
    :param target: [rows, 1]; 0 or less finds the first with a weight.
    :returns: [rows, 1], a value of the row.
    """
    return x.gather(-1, first_reaching(weight.cumsum(-1), target))


def first_reaching(from_above: Tensor, target: Tensor) -> Tensor:
    """Return the first index where a running sum [rows, n] reaches the target: [rows, 1] int64."""
    tiny = torch.finfo(from_above.dtype).tiny
    reachable = target.to(from_above.dtype).minimum(from_above[:, -1:]).clamp_(min=tiny)
    return torch.searchsorted(from_above, reachable).clamp_(max=from_above.shape[-1] - 1)


def sample_in_parts(
    logits: Tensor,
    wanted: Filters,
    draw: Callable[[Tensor, Filters], tuple[Tensor, Tensor]],
    *,
    max_elements: int = MAX_ELEMENTS,
) -> SamplerOutput:
    """Draw a token in each row, some rows at a time, by kernels with a limited number of logits.

    ``draw`` is not called for an empty batch, nor for a vocabulary of one token.

    :param logits: [rows, V].
    :param wanted: what the rows ask for.
    :param draw: takes some of the rows and what they ask for; returns token ids [n] int64 and validity [n] bool.
    :param max_elements: most logits of one call of ``draw``, but at least one row.
    """
    rows, vocab_size = logits.shape
    if rows == 0 or vocab_size == 1:
        _, valid = relative(logits)
        return SamplerOutput(torch.zeros(rows, dtype=torch.int64, device=logits.device), valid)
    step = max(1, max_elements // vocab_size)
    starts = range(0, rows, step)
    parts = [draw(logits[i : i + step], wanted.chunk(slice(i, i + step))) for i in starts]
    tokens, valid = (torch.cat(column) for column in zip(*parts, strict=True))
    return SamplerOutput(tokens, valid)
