"""Finds the thresholds of rows with values on several ranks, equal to a single device's and the same on every rank.

The K largest values of each rank, and the number of further ties with the last, hold the k-th largest value of the row
for every k <= K, and every token kept by such a top-k. A nucleus without a top-k may be wider. On a CPU the host reads
whether any is. On other devices ranks run the search for all rows, but read no values of a row with a nucleus found:
the floor of values with a weight is inf there.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from tokendraw.backends.description.capabilities import Moment
from tokendraw.filters.base import RowMoments
from tokendraw.filters.floors import combined_floor
from tokendraw.filters.installed import required_moments
from tokendraw.parameters.batch_facts import BatchFacts
from tokendraw.probabilities import floor_threshold, min_p_threshold, threshold_of_sorted
from tokendraw.vocab_parallel.local import Bounds, Survey, Weighing
from tokendraw.vocab_parallel.moment_sums import MomentSum, combined_sums, moments_of_sums, required_sums
from tokendraw.vocab_parallel.parameters import Parameters
from tokendraw.vocab_parallel.radix import BINS, Histograms, first_digit, search

MAX_VALUES: Final = 1024
"""Largest K. A search by digits takes twice the bytes, and three rounds more."""
_NUCLEUS_VALUES: Final = 64
"""K for finding a nucleus without a top-k among the largest values: more values cost every row time."""
_NUCLEUS_VALUES_ON_CPUS: Final = 256
"""The same on CPUs: ranks skip the search there if no row needs it."""
_INF: Final = float("inf")


def may_read_values(device: torch.device) -> bool:
    """Whether the host reads values of a device without waiting for it."""
    return device.type == "cpu"


class ThresholdPlan(NamedTuple):
    """The host's knowledge of the filters of a batch: the same on every rank.

    :ivar vocab_size: Vocabulary size V of all ranks together.
    :ivar facts: Facts about the rows.
    :ivar values: K, the number of largest values that each rank sends.
    :ivar any_large_k: Whether a k may be above K.
    :ivar any_wide: Whether a nucleus may hold more than the K largest values of a rank.
    :ivar has_nucleus: Whether the nucleus may be found among the K largest values of the ranks.
    :ivar may_read_values: Whether the plan may read values of the parameters, which waits for the device.
    :ivar masses: Number of masses that each rank sends: 0, 1 (the row's), or one for each first digit.
    :ivar moments: Moments that the filters of the batch read.
    """

    vocab_size: int
    facts: BatchFacts
    values: int
    any_large_k: bool
    any_wide: bool
    has_nucleus: bool
    may_read_values: bool
    masses: int
    moments: tuple[Moment, ...]

    @property
    def sums(self) -> tuple[MomentSum, ...]:
        """Return the sums that each rank sends for the moments."""
        return required_sums(self.moments)

    @property
    def unit_bits(self) -> int:
        """Return :attr:`Weighing.bits`, small enough for every sum."""
        return 62 - self.vocab_size.bit_length()

    @classmethod
    def of(
        cls, facts: BatchFacts, params: Parameters, vocab_size: int, device: torch.device
    ) -> ThresholdPlan:
        """Plan a batch.

        :param device: of the logits.
        """
        on_cpu = may_read_values(device)
        most = params.max_top_k
        is_small = most is not None and min(most, vocab_size) <= MAX_VALUES
        if facts.any_top_k and not is_small and on_cpu:
            assert params.top_k is not None
            active = torch.where(params.top_k < vocab_size, params.top_k, 0)
            most = int(active.amax()) if len(active) else 0
        any_large_k = facts.any_top_k and (most is None or min(most, vocab_size) > MAX_VALUES)
        any_wide = facts.any_top_p and not (params.all_top_k and is_small)
        values = max(1, 0 if not facts.any_top_k or any_large_k else most or 0)
        # A device would search the nucleus of the tokens kept by a large k before knowing its threshold.
        has_nucleus = facts.any_top_p and (not any_large_k or on_cpu)
        if any_wide and has_nucleus:
            values = max(values, _NUCLEUS_VALUES_ON_CPUS if on_cpu else _NUCLEUS_VALUES)
        masses = int(facts.any_top_p and (facts.any_joint or (any_wide and has_nucleus)))
        if any_wide and not facts.any_top_k_first and (on_cpu or not has_nucleus):
            # A device with a nucleus to find among the largest values would add them up in vain.
            masses = BINS
        values = min(values, vocab_size)
        moments = required_moments(facts.filters or ())
        return cls(vocab_size, facts, values, any_large_k, any_wide, has_nucleus, on_cpu, masses, moments)


def merged_moments(received: Survey, plan: ThresholdPlan, params: Parameters) -> RowMoments:
    """Compute the moments of each row from the sums of all ranks, bit for bit the same on every rank.

    :param received: tensors [R, B, n].
    """
    if received.sums is None:  # the filters of the batch read no moments
        return RowMoments()
    sums = {name: received.sums[..., i : i + 1] for i, name in enumerate(plan.sums)}
    max_of, inverse_temperature = received.x[..., :1], params.inverse_temperature
    combined = combined_sums(sums, max_of, max_of.amax(0), inverse_temperature)
    return moments_of_sums(combined, plan.moments, inverse_temperature)


def thresholds(received: Survey, plan: ThresholdPlan, params: Parameters, histograms: Histograms) -> Bounds:
    """Find the largest value and the threshold of each row.

    :param received: tensors [R, B, n].
    :raises FilterError: a filter from moments raised, or returned another form: on every rank, since all call it with
        the same moments.
    """
    largest = _Largest(received, params)
    base = torch.full_like(largest.max, -_INF)
    if params.min_p is not None:
        base = min_p_threshold(largest.max, params.min_p, params.temperature)
    if params.filters is not None:
        floor = combined_floor(params.filter_names, params.filters, merged_moments(received, plan, params))
        base = base.maximum(floor_threshold(largest.max, floor.unsqueeze(-1), params.temperature))
    if params.top_k is not None:
        k, active = params.top_k, (params.top_k > 0) & (params.top_k < plan.vocab_size)
        kth = search(histograms, None, lambda _: k) if plan.any_large_k else largest.kth(k)
        base = torch.where(active, base.maximum(kth), base)
    threshold = base
    if params.top_p is not None:
        threshold = base.maximum(_nucleus(histograms, params, plan, largest, base))
    return Bounds(largest.max, threshold.minimum(largest.max))


class _Largest:
    """The largest values of all ranks together."""

    def __init__(self, received: Survey, params: Parameters) -> None:
        ranks, rows, count = received.x.shape
        self.complete_from = received.x[..., -1:].amax(0)
        """[B, 1]: every value of the row from here on is present; -inf behind the last value: all are."""
        times = torch.ones_like(received.x, dtype=torch.int64)
        times[..., -1:] += received.ties
        self.x, order = received.x.transpose(0, 1).reshape(rows, ranks * count).sort(-1, descending=True)
        """[B, R K] in descending order."""
        self.max = self.x[:, :1]
        y = (self.x.to(params.inverse_temperature.dtype) - self.max) * params.inverse_temperature
        times = times.transpose(0, 1).reshape(rows, ranks * count).gather(-1, order)
        self.weight = y.nan_to_num_(nan=0.0, neginf=-_INF).exp_() * times
        """Weights ``exp(y)``, summed over ties."""
        self.masses = None
        """[B, 1 or 256]: the weight of the row, if sent by the ranks."""
        if received.mass is not None:
            below = (received.x[..., :1].to(y.dtype) - self.max) * params.inverse_temperature
            self.masses = (received.mass * below.nan_to_num_(nan=0.0, neginf=-_INF).exp_()).sum(0)

    def mass_from(self, least: Tensor) -> Tensor:
        """Return the weight of the values from ``least`` [B, 1] on: [B, 1]."""
        return (self.weight * (self.x >= least)).sum(-1, keepdim=True)

    def kth(self, k: Tensor) -> Tensor:
        """Return the k-th largest values, [B, 1]."""
        return self.x.gather(-1, (k - 1).clamp(0, self.x.shape[-1] - 1))


def _nucleus(
    histograms: Histograms, params: Parameters, plan: ThresholdPlan, largest: _Largest, base: Tensor
) -> Tensor:
    """Return the smallest value of top-p's set, [B, 1]; -inf in rows without top-p.

    :param base: [B, 1]: threshold of the other filters.
    """
    top_p = params.top_p
    assert top_p is not None
    counts_all = base == -_INF if params.joint is None else params.joint | (base == -_INF)
    total = None if largest.masses is None else top_p * largest.masses.sum(-1, keepdim=True)
    nucleus = complete = None
    if plan.has_nucleus:
        target = top_p * largest.mass_from(base)
        if total is not None:
            target = torch.where(counts_all, total, target)
        nucleus = threshold_of_sorted(largest.x, largest.weight, target)
        complete_from = largest.complete_from
        is_reached = (complete_from == -_INF) | (largest.mass_from(complete_from) >= target)
        complete = is_reached & (counts_all | (base >= complete_from))
    if (
        nucleus is None
        or complete is None
        or (plan.any_wide and not (plan.may_read_values and _all(complete, params)))
    ):
        floor = torch.where(counts_all, -_INF, base)
        if complete is not None:
            floor = torch.where(complete | (top_p >= 1), _INF, floor)
        first = None
        if largest.masses is not None and total is not None and plan.masses == BINS:
            first = first_digit(largest.masses, total, plan.unit_bits)
        weighing = Weighing(largest.max, floor, plan.unit_bits)
        wide = search(histograms, weighing, lambda total: (top_p * total).ceil().to(torch.int64), first)
        nucleus = wide if nucleus is None or complete is None else torch.where(complete, nucleus, wide)
    return torch.where(top_p < 1, nucleus, -_INF)


def _all(complete: Tensor, params: Parameters) -> bool:
    """Return whether every row with a nucleus has its threshold. Waits for the device, so only for CPUs."""
    assert params.top_p is not None
    settled = complete | (params.top_p >= 1)
    return bool((settled if params.greedy is None else settled | params.greedy).all())
