"""The set of tokens that the filters kept, from one number a row, or two.

Every filter is a value threshold, so ``SamplerOutput.threshold`` [B] float32 is the sampling mask of a batch: a trainer
or an evaluator needs no list of ids, and none is cut short. ``typical_p`` and XTC drop tokens from above too, so that
the batch has ``SamplerOutput.ceiling`` as well, which is None in any other::

    sampler = tokendraw.load_sampler(need=tokendraw.Need(threshold=True))
    out = sampler.sample(logits, metadata)
    kept = tokendraw.kept_mask(logits, out.threshold, out.ceiling)

Nothing here waits for the device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokendraw._torch.tensors import check_device_of, check_dtype, check_plain
from tokendraw.errors import InvalidInputError, InvalidParameterError

_INF = float("inf")
_CHUNK_LOGITS = 1 << 24
"""Logits of the rows looked at together: temporary tensors are as large."""


class KeptIds(NamedTuple):
    """The ids of the kept tokens of each row.

    :ivar ids: [B, K] int64, ascending; -1 behind the last one.
    :ivar counts: [B] int64: the number of kept tokens, also where it exceeds K.
    :ivar overflow: [B] bool: whether a row kept more than K tokens, of which ``ids`` lists those with the lowest ids.
    """

    ids: Tensor
    counts: Tensor
    overflow: Tensor


def kept_mask(logits: Tensor, threshold: Tensor, ceiling: Tensor | None = None) -> Tensor:
    """Mark the tokens that the filters kept.

    :param logits: [B, V] floating point, as given to the sampler. Not modified.
    :param threshold: [B] float32: ``SamplerOutput.threshold``, or that of a verification's rows.
    :param ceiling: [B] float32: ``ceiling`` of the same output.
    :returns: [B, V] bool; False for tokens of NaN and -inf, and in rows with nothing else.
    :raises InvalidInputError: a ValueError: a wrong type, shape, dtype or device.
    """
    _check(logits, threshold, ceiling)
    kept = (logits >= threshold.unsqueeze(-1)) & (logits > -_INF)
    return kept if ceiling is None else kept & (logits <= ceiling.unsqueeze(-1))


def kept_ids(logits: Tensor, threshold: Tensor, max_ids: int, ceiling: Tensor | None = None) -> KeptIds:
    """List the tokens that the filters kept.

    :param logits: [B, V] floating point, as given to the sampler. Not modified.
    :param threshold: [B] float32: ``SamplerOutput.threshold``, or that of a verification's rows.
    :param max_ids: K, the number of ids listed in a row, at least 1.
    :param ceiling: [B] float32: ``ceiling`` of the same output.
    :raises InvalidInputError: a ValueError: a wrong type, shape, dtype or device.
    :raises InvalidParameterError: a ValueError: ``max_ids`` is no integer of at least 1.
    """
    _check(logits, threshold, ceiling)
    if isinstance(max_ids, bool) or not isinstance(max_ids, int) or max_ids < 1:
        raise InvalidParameterError(
            f"'max_ids' needs an integer of at least 1, found {max_ids!r}. Pass the most ids that a row may list."
        )
    rows, vocab_size = logits.shape
    width = min(max_ids, vocab_size)
    ids = torch.full((rows, max_ids), -1, dtype=torch.int64, device=logits.device)
    counts = torch.zeros(rows, dtype=torch.int64, device=logits.device)
    token = torch.arange(vocab_size, device=logits.device)
    for part in _chunks(logits):
        kept = kept_mask(logits[part], threshold[part], None if ceiling is None else ceiling[part])
        place = kept.cumsum(-1, dtype=torch.int32).sub_(1)
        # Tokens that are not listed go to a column behind the last one.
        column = place.masked_fill_(~kept, width).clamp_(max=width).to(torch.int64)
        listed = torch.full((len(kept), width + 1), -1, dtype=torch.int64, device=logits.device)
        listed.scatter_(-1, column, token.expand_as(kept))
        ids[part, :width] = listed[:, :width]
        counts[part] = kept.sum(-1)
    return KeptIds(ids, counts, counts > max_ids)


class KeptExtremes(NamedTuple):
    """The kept and the dropped values at their edges, of some columns of each row: [B] float32 each.

    :ivar max: The largest value; -inf without any.
    :ivar least_kept: The least kept value; +inf without any.
    :ivar largest_dropped: The largest dropped value; -inf without any.
    """

    max: Tensor
    least_kept: Tensor
    largest_dropped: Tensor


def kept_extremes(logits: Tensor, bound: Tensor, ceiling: Tensor | None = None) -> KeptExtremes:
    """Find the extremes of the values that reach a bound, and of those dropped. NaN counts as -inf.

    :param logits: [B, n] floating point: the columns of a row, or any of them.
    :param bound: [B] float32.
    :param ceiling: [B] float32, above which values are dropped too; None: none is.
    """
    parts = []
    for part in _chunks(logits):
        x = logits[part].to(torch.float32)
        x = torch.where(x > -_INF, x, -_INF)
        kept = (x >= bound[part].unsqueeze(-1)) & (x > -_INF)
        if ceiling is not None:
            kept &= x <= ceiling[part].unsqueeze(-1)
        # A column more, so that a row without columns has its values, too.
        x = torch.nn.functional.pad(x, (0, 1), value=-_INF)
        kept = torch.nn.functional.pad(kept, (0, 1), value=False)
        parts.append((x.amax(-1), torch.where(kept, x, _INF).amin(-1), torch.where(kept, -_INF, x).amax(-1)))
    return KeptExtremes(*map(torch.cat, zip(*parts, strict=True)))


def threshold_between(extremes: KeptExtremes) -> Tensor:
    """Return what a sampler reports as ``SamplerOutput.threshold`` [B] float32, from the extremes of entire rows.

    The least kept value; -inf where every token above -inf was kept, +inf in a row with +inf, which alone can be drawn
    there, and NaN in a row with nothing above -inf.
    """
    top, least, dropped = extremes
    threshold = torch.where(dropped > -_INF, least, -_INF)
    threshold = torch.where(top == _INF, _INF, threshold)
    return torch.where(top > -_INF, threshold, float("nan"))


def _check(logits: Tensor, threshold: Tensor, ceiling: Tensor | None) -> None:
    check_plain("logits", logits)
    if logits.dim() != 2 or not logits.is_floating_point():
        found = f"shape {list(logits.shape)} of {logits.dtype}"
        raise InvalidInputError(f"'logits' needs floating-point numbers [rows, vocabulary], found {found}.")
    bounds = {"threshold": threshold} if ceiling is None else {"threshold": threshold, "ceiling": ceiling}
    for name, bound in bounds.items():
        mend = f"Load the sampler with Need(threshold=True), and pass the {name} of its output."
        check_plain(name, bound, mend)
        check_dtype(name, bound, torch.float32, mend)
        if bound.shape != logits.shape[:1]:
            raise InvalidInputError(
                f"'{name}' needs a number for each of {len(logits)} rows, found shape {list(bound.shape)}."
            )
        check_device_of(name, bound.device, "'logits'", logits.device)


def _chunks(logits: Tensor) -> list[slice]:
    """Divide rows into at least one part, of about :data:`_CHUNK_LOGITS` logits or of a row."""
    rows, columns = logits.shape
    step = max(1, _CHUNK_LOGITS // max(columns, 1))
    return [slice(start, start + step) for start in range(0, max(rows, 1), step)]
