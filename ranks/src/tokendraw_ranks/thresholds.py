"""Finds the threshold of each row from values on several ranks: that of one device, and the same on every rank.

The K largest values of each rank, and the number of further ties with the last, hold the k-th largest value of the row
for every k <= K, and every token kept by such a top-k. A wider nucleus, or the value of a larger k, is searched for by
the bits of the values: a float32 and the integer that its bits make are ordered alike once the bits of negative ones
are inverted, its key. A histogram of weights over the keys' upper 8 bits, summed over all ranks, says which digit the
threshold has there; the next one is of the values with that digit alone. Counts and weights are integers, so that their
sums are the same for any number of ranks, and every rank decides alike.

On a CPU the host reads whether any nucleus is wider than what is listed. On other devices ranks search for all rows,
but read no values of a row whose nucleus is found: its floor is inf.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from tokendraw.filters import combined_floor, required_moments
from tokendraw.plugin import Moment
from tokendraw.probabilities import first_reaching, floor_threshold, min_p_threshold, threshold_of_sorted
from tokendraw.row_parameters import MetadataParameters
from tokendraw_ranks.messages import Transport
from tokendraw_ranks.moments import moments_of_ranks

BINS: Final = 256
"""Bins of a histogram: one for each value of a digit of 8 bits."""
MAX_VALUES: Final = 1024
"""Largest K. A search by digits takes twice the bytes, and three rounds more."""
_NUCLEUS_VALUES: Final = 64
"""K for finding a nucleus without a top-k: more cost every row time. On CPUs 256: no search if no row needs one."""
_KEY_BITS: Final = 32
_DISTINCT_BITS: Final = {torch.bfloat16: 16, torch.float16: 24}
"""Upper bits of a key that tell the values of a dtype apart, in whole digits; all for float32."""
_INF = float("inf")


def reads_values(device: torch.device) -> bool:
    """Whether the host reads values of a device without waiting for it."""
    return device.type == "cpu"


class Bounds(NamedTuple):
    """Rows on all ranks, [B, 1] float32: the largest value, the least kept one, the least with a weight in a search."""

    max: Tensor
    threshold: Tensor
    floor: Tensor


class Survey(NamedTuple):
    """What each rank says of each row before the draw.

    :ivar x: [R, B, K] float32: the largest values in descending order, -inf behind the last of n < K.
    :ivar ties: [R, B, 1] int32: number of further values equal to the last of ``x``.
    :ivar mass: [R, B, 1] in the widest float: sum of ``exp(y)``, relative to the first of ``x``, or [R, B, 256]: of the
        values with each first digit. ``sums`` [R, B, S]: those behind moments, see :mod:`.moments`.
    :ivar fresh: [R, B, 1] int64: seeds for rows that have none, of which those of rank 0 count.
    """

    x: Tensor
    ties: Tensor
    mass: Tensor | None = None
    sums: Tensor | None = None
    fresh: Tensor | None = None


class Plan(NamedTuple):
    """What the host knows of the filters of a batch: the same on every rank."""

    vocab_size: int
    values: int
    """K, the number of largest values that each rank sends."""
    has_kth: bool
    """Whether every k is at most K."""
    any_large_k: bool
    any_wide: bool
    """Whether a nucleus may hold more than the K largest values of a rank."""
    has_nucleus: bool
    """Whether the nucleus may be found among the K largest values of the ranks."""
    masses: int
    """Number of masses that each rank sends: 0, 1 (the row's), or one for each first digit."""
    moments: tuple[Moment, ...]
    reads_values: bool
    """Whether the host may read values, which waits for a device other than a CPU."""
    last_shift: int
    """Number of lower bits of a key that no digit says, since they are the same in all values of the dtype."""
    unit_bits: int
    """A weight of 1 is 2 to so many units: few enough for every sum."""

    @classmethod
    def of(cls, columns: Any) -> Plan:
        """Plan the batch of a :class:`.columns.Columns`."""
        facts, params, vocab_size = columns.metadata.facts, columns.params, columns.layout.vocab_size
        on_cpu = reads_values(columns.logits.device)
        most = params.max_top_k
        is_small = most is not None and min(most, vocab_size) <= MAX_VALUES
        if facts.any_top_k and not is_small and on_cpu:
            active = torch.where(params.top_k < vocab_size, params.top_k, 0)
            most = int(active.amax())
        any_large_k = facts.any_top_k and (most is None or min(most, vocab_size) > MAX_VALUES)
        any_wide = facts.any_top_p and not (params.all_top_k and is_small)
        values = max(1, 0 if not facts.any_top_k or any_large_k else most or 0)
        has_nucleus = facts.any_top_p and not any_large_k  # else it is searched for behind that k
        if any_wide and has_nucleus:
            values = max(values, 256 if on_cpu else _NUCLEUS_VALUES)
        masses = int(facts.any_top_p and (facts.any_joint or (any_wide and has_nucleus)))
        if any_wide and not facts.any_top_k_first and columns.has_digits and (on_cpu or not has_nucleus):
            masses = BINS
        return cls(
            vocab_size,
            min(values, vocab_size),
            has_kth=facts.any_top_k and not any_large_k,
            any_large_k=any_large_k,
            any_wide=any_wide,
            has_nucleus=has_nucleus,
            masses=masses,
            moments=tuple(required_moments(facts.filters or ())),
            reads_values=on_cpu,
            last_shift=_KEY_BITS - _DISTINCT_BITS.get(columns.logits.dtype, _KEY_BITS),
            unit_bits=62 - vocab_size.bit_length(),
        )


def floors_of(survey: Survey, plan: Plan, params: MetadataParameters) -> Tensor | None:
    """Return the least y that the filters from moments of each row keep, [B] float32; None where no row has any.

    :raises FilterError: a filter from moments raised, or returned another form: on every rank, since all call it with
        the same moments.
    """
    if params.filters is None:
        return None
    sums = survey.x if survey.sums is None else survey.sums  # without moments none is read
    moments = moments_of_ranks(sums, survey.x[..., :1], params.inverse_temperature, plan.moments)
    return combined_floor(params.filter_names, params.filters, moments)


def listed_bounds(survey: Survey, plan: Plan, params: MetadataParameters) -> Bounds:
    """Find what the listed values say of the threshold of each row."""
    (ranks, rows, count), inverse = survey.x.shape, params.inverse_temperature
    x, order = survey.x.transpose(0, 1).reshape(rows, ranks * count).sort(-1, descending=True)
    top = x[:, :1]
    base = torch.full_like(top, -_INF)
    if params.min_p is not None:
        base = min_p_threshold(top, params.min_p, params.temperature)
    floor = floors_of(survey, plan, params)
    if floor is not None:
        base = base.maximum(floor_threshold(top, floor.unsqueeze(-1), params.temperature))
    if plan.has_kth:
        base = _at_least_kth(base, x.gather(-1, (params.top_k - 1).clamp(0, ranks * count - 1)), plan, params)
    if params.top_p is None:
        return Bounds(top, base.minimum(top), torch.full_like(top, _INF))
    threshold, top_p = base, params.top_p
    counts_all = base == -_INF if params.joint is None else params.joint | (base == -_INF)
    is_settled = top_p >= 1 if params.greedy is None else (top_p >= 1) | params.greedy
    if plan.has_nucleus:
        times = torch.ones_like(survey.x, dtype=torch.int64)
        times[..., -1:] += survey.ties
        times = times.transpose(0, 1).reshape(rows, ranks * count).gather(-1, order)
        weight = _relative(x, top, inverse).exp_() * times
        target = top_p * (weight * (x >= base)).sum(-1, keepdim=True)
        if survey.mass is not None:
            total = _masses(survey.x, survey.mass, top, inverse).sum(-1, keepdim=True)
            target = torch.where(counts_all, top_p * total, target)
        listed_from = survey.x[..., -1:].amax(0)  # from here on every value is listed; -inf: all are
        listed_mass = (weight * (x >= listed_from)).sum(-1, keepdim=True)
        is_found = (listed_from == -_INF) | (listed_mass >= target)
        is_found = is_found & (counts_all | (base >= listed_from))
        nucleus = base.maximum(threshold_of_sorted(x, weight, target))
        threshold = torch.where(is_found & (top_p < 1), nucleus, base)
        is_settled = is_settled | is_found
    floor = torch.where(is_settled, _INF, torch.where(counts_all, -_INF, base))
    return Bounds(top, threshold.minimum(top), floor)


def search_further(
    bounds: Bounds,
    survey: Survey,
    plan: Plan,
    params: MetadataParameters,
    columns: Any,
    transport: Transport,
) -> Tensor:
    """Return the threshold of each row, [B, 1], by searches for what the listed values do not tell.

    :param columns: the :class:`.columns.Columns`, whose histograms are added up.
    """
    top, threshold, floor = bounds
    if plan.any_large_k:
        kth = _search(columns, transport, plan, None, lambda _: params.top_k)
        threshold = _at_least_kth(threshold, kth, plan, params).minimum(top)
        counts_all = threshold == -_INF if params.joint is None else params.joint | (threshold == -_INF)
        floor = torch.where(floor == _INF, _INF, torch.where(counts_all, -_INF, threshold))
    if plan.any_wide and not (plan.reads_values and bool((floor == _INF).all())):
        first = None
        if survey.mass is not None and plan.masses == BINS:  # the first digit is known without a round
            downwards = _masses(survey.x, survey.mass, top, params.inverse_temperature).flip(-1)
            from_above = downwards.cumsum(-1)
            total = params.top_p * from_above[:, -1:]
            index = first_reaching(from_above, total)
            rest = total - (from_above - downwards).gather(-1, index)
            first = BINS - 1 - index, (rest * 2.0**plan.unit_bits).ceil().to(torch.int64)
        weighing = Bounds(top, threshold, floor)
        wide = _search(
            columns,
            transport,
            plan,
            weighing,
            lambda sum_: (params.top_p * sum_).ceil().to(torch.int64),
            first,
        )
        threshold = torch.where(floor < _INF, threshold.maximum(wide), threshold).minimum(top)
    return threshold


def _masses(x: Tensor, mass: Tensor, top: Tensor, inverse: Tensor) -> Tensor:
    """Add up the masses of all ranks, relative to the largest value: [B, 1 or 256]."""
    return (mass * _relative(x[..., :1], top, inverse).exp_()).sum(0)


def _relative(x: Tensor, top: Tensor, inverse: Tensor) -> Tensor:
    return ((x.to(inverse.dtype) - top) * inverse).nan_to_num_(nan=0.0, neginf=-_INF)


def _at_least_kth(base: Tensor, kth: Tensor, plan: Plan, params: MetadataParameters) -> Tensor:
    active = (params.top_k > 0) & (params.top_k < plan.vocab_size)
    return torch.where(active, base.maximum(kth), base)


def _search(
    columns: Any,
    transport: Transport,
    plan: Plan,
    weighing: Bounds | None,
    target_of: Callable[[Tensor], Tensor],
    first: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Return the largest value v, [B, 1] float32, with a weight of ``x >= v`` on all ranks of at least a target.

    :param weighing: None: every value weighs 1.
    :param target_of: computes the target from the total, [B, 1] int64 both; below 1 it is the largest value, above the
        total the least that weighs anything.
    :param first: the first digit, and what of the target is left to reach among the values with it: [B, 1] int64.
    """
    prefix, target = first or (None, None)
    missing = _KEY_BITS if first is None else _KEY_BITS - 8
    while missing > plan.last_shift:
        missing -= 8
        histogram = columns.histogram(prefix, missing, weighing, plan.unit_bits)
        transport.all_sum(histogram)
        downwards = histogram.flip(-1)
        from_above = downwards.cumsum(-1)
        target = target_of(from_above[:, -1:]) if target is None else target
        target = target.clamp(min=1).minimum(from_above[:, -1:])
        index = torch.searchsorted(from_above, target)
        target = target - (from_above - downwards).gather(-1, index)
        digit = BINS - 1 - index
        prefix = digit if prefix is None else (prefix << 8) + digit
    assert prefix is not None
    # The missing lower bits are common to every value of the dtype: those of a negative key are ones.
    key = (prefix << missing) + torch.where(prefix >> (31 - missing) > 0, 0, (1 << missing) - 1)
    bits = torch.where(key < 1 << 31, ~key, key - (1 << 31))
    return bits.to(torch.int32).view(torch.float32)


def keys(x: Tensor) -> Tensor:
    """Return the keys of float32 values without NaN: int64 in [0, 2^32), in the order of the values."""
    bits = (x + 0.0).view(torch.int32).to(torch.int64)  # -0.0 becomes 0.0
    return torch.where(bits < 0, ~bits, bits + (1 << 31))
