"""The thresholds of rows whose values lie on several ranks, as one device finds them: the same on every rank.

The K largest values of each rank, and how many more tie with the last of them, hold the k-th largest value of the row
for every k <= K, and all that such a top-k keeps. A nucleus without a top-k may be wider than that. Where the host may
look at values, on a CPU, it looks whether any is. Elsewhere ranks go through the search for all rows, but none reads
the values of a row whose nucleus is found: the floor of what weighs anything there is inf.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from tokendraw.probabilities import min_p_threshold, threshold_of_sorted
from tokendraw.row_parameters import FilterPresence
from tokendraw.vocab_parallel.local import Bounds, Survey, Weighing
from tokendraw.vocab_parallel.parameters import Parameters
from tokendraw.vocab_parallel.radix import BINS, Histograms, begun, search

MOST_VALUES: Final = 1024
"""Largest K. A search by digits takes twice the bytes, and three rounds more."""
_NUCLEUS_VALUES: Final = 64
"""K where a nucleus without a top-k may be found among the largest values. More of them take every row longer."""
_NUCLEUS_VALUES_ON_CPUS: Final = 256
"""It takes the place of that on CPUs, where ranks leave out the search if no row needs it."""
_INF: Final = float("inf")


def may_look(device: torch.device) -> bool:
    """Whether the host reads values of a device without waiting for it."""
    return device.type == "cpu"


class Plan(NamedTuple):
    """Holds what the host knows of the filters of a batch: the same on every rank.

    :ivar vocab_size: Vocabulary size V of all ranks together.
    :ivar filters: Parameters of the rows that filter, as tensors.
    :ivar values: K, the number of largest values that each rank sends.
    :ivar any_large_k: Whether a k may be above K.
    :ivar any_wide: Whether a nucleus may hold more than the K largest values of a rank.
    :ivar has_nucleus: Whether the nucleus may be found among the K largest values of the ranks.
    :ivar may_look: Whether the plan may read values of the parameters, which waits for the device.
    :ivar masses: Number of masses that each rank sends: 0, 1 (the row's), or one for each first digit.
    """

    vocab_size: int
    filters: FilterPresence
    values: int
    any_large_k: bool
    any_wide: bool
    has_nucleus: bool
    may_look: bool
    masses: int

    @property
    def unit_bits(self) -> int:
        """Return :attr:`Weighing.bits`, such that no sum overflows."""
        return 62 - self.vocab_size.bit_length()

    @classmethod
    def of(
        cls,
        filters: FilterPresence,
        params: Parameters,
        vocab_size: int,
        device: torch.device,
        *,
        of_survivors: bool,
    ) -> Plan:
        """Plan a batch.

        :param device: of the logits.
        :param of_survivors: whether a nucleus may be of what other filters keep.
        """
        on_cpu = may_look(device)
        most = params.max_top_k
        is_small = most is not None and min(most, vocab_size) <= MOST_VALUES
        if filters.top_k and not is_small and on_cpu:
            assert params.top_k is not None
            active = torch.where(params.top_k < vocab_size, params.top_k, 0)
            most = int(active.amax()) if len(active) else 0
        any_large_k = filters.top_k and (most is None or min(most, vocab_size) > MOST_VALUES)
        any_wide = filters.top_p and not (params.all_top_k and is_small)
        values = max(1, 0 if not filters.top_k or any_large_k else most or 0)
        # A device would look for a nucleus of what a large k keeps before it knows that k.
        has_nucleus = filters.top_p and (not any_large_k or on_cpu)
        if any_wide and has_nucleus:
            values = max(values, _NUCLEUS_VALUES_ON_CPUS if on_cpu else _NUCLEUS_VALUES)
        masses = int(filters.top_p and (filters.joint or (any_wide and has_nucleus)))
        if any_wide and not of_survivors and (on_cpu or not has_nucleus):
            masses = BINS  # of which a device that looks for a nucleus would add up all in vain
        values = min(values, vocab_size)
        return cls(vocab_size, filters, values, any_large_k, any_wide, has_nucleus, on_cpu, masses)


def thresholds(heard: Survey, plan: Plan, params: Parameters, histograms: Histograms) -> Bounds:
    """Find the largest value of each row and the least that it keeps.

    :param heard: tensors [R, B, n].
    """
    largest = _Largest(heard, params)
    base = torch.full_like(largest.max, -_INF)
    if params.min_p is not None:
        base = min_p_threshold(largest.max, params.min_p, params.temperature)
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

    def __init__(self, heard: Survey, params: Parameters) -> None:
        ranks, rows, count = heard.x.shape
        self.complete_from = heard.x[..., -1:].amax(0)
        """[B, 1]: at and above it every value of the row is there; -inf behind the last makes that all of them."""
        times = torch.ones_like(heard.x, dtype=torch.int64)
        times[..., -1:] += heard.ties
        self.x, order = heard.x.transpose(0, 1).reshape(rows, ranks * count).sort(-1, descending=True)
        """[B, R K] in descending order."""
        self.max = self.x[:, :1]
        y = (self.x.to(params.inverse_temperature.dtype) - self.max) * params.inverse_temperature
        times = times.transpose(0, 1).reshape(rows, ranks * count).gather(-1, order)
        self.weight = y.nan_to_num_(nan=0.0, neginf=-_INF).exp_() * times
        """Weights ``exp(y)``, those of ties together."""
        self.masses = None
        """[B, 1 or 256]: the weight of the row, if ranks told theirs."""
        if heard.mass is not None:
            below = (heard.x[..., :1].to(y.dtype) - self.max) * params.inverse_temperature
            self.masses = (heard.mass * below.nan_to_num_(nan=0.0, neginf=-_INF).exp_()).sum(0)

    def mass_from(self, least: Tensor) -> Tensor:
        """Return the weight of those that are at least ``least`` [B, 1]: [B, 1]."""
        return (self.weight * (self.x >= least)).sum(-1, keepdim=True)

    def kth(self, k: Tensor) -> Tensor:
        """Return the k-th largest values, [B, 1]."""
        return self.x.gather(-1, (k - 1).clamp(0, self.x.shape[-1] - 1))


def _nucleus(
    histograms: Histograms, params: Parameters, plan: Plan, largest: _Largest, base: Tensor
) -> Tensor:
    """Return the smallest value of top-p's set, [B, 1]; -inf in rows without top-p.

    :param base: [B, 1]: threshold of the other filters.
    """
    top_p = params.top_p
    assert top_p is not None
    counts_all = base == -_INF if params.joint is None else params.joint | (base == -_INF)
    whole = None if largest.masses is None else top_p * largest.masses.sum(-1, keepdim=True)
    found = complete = None
    if plan.has_nucleus:
        target = top_p * largest.mass_from(base)
        if whole is not None:
            target = torch.where(counts_all, whole, target)
        found = threshold_of_sorted(largest.x, largest.weight, target)
        known = largest.complete_from
        is_reached = (known == -_INF) | (largest.mass_from(known) >= target)
        complete = is_reached & (counts_all | (base >= known))
    if (
        found is None
        or complete is None
        or (plan.any_wide and not (plan.may_look and _all(complete, params)))
    ):
        floor = torch.where(counts_all, -_INF, base)
        if complete is not None:
            floor = torch.where(complete | (top_p >= 1), _INF, floor)
        first = None
        if largest.masses is not None and whole is not None and plan.masses == BINS:
            first = begun(largest.masses, whole, plan.unit_bits)
        weighing = Weighing(largest.max, floor, plan.unit_bits)
        wide = search(histograms, weighing, lambda total: (top_p * total).ceil().to(torch.int64), first)
        found = wide if found is None or complete is None else torch.where(complete, found, wide)
    return torch.where(top_p < 1, found, -_INF)


def _all(complete: Tensor, params: Parameters) -> bool:
    """Return whether every row that has a nucleus has its threshold. Waits for the device, so only for CPUs."""
    assert params.top_p is not None
    settled = complete | (params.top_p >= 1)
    return bool((settled if params.greedy is None else settled | params.greedy).all())
