"""The filters of tokendraw itself, each registered as anybody's: see ``core/pyproject.toml``. Imports no torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tokendraw.errors import InvalidParameterError, format_value
from tokendraw.filters.installed import Filter, RowMoments

if TYPE_CHECKING:
    from torch import Tensor


class TopNSigma(Filter):
    """Tang et al., "Top-n-sigma: Not All Logits Are You Need", 2024, arXiv 2411.07641."""

    name = "top_n_sigma"
    summary = "Keep tokens at most n standard deviations below the largest."
    moments = ("std",)

    def check(self, value: Any) -> None:
        self.check_range(value, 0.0, math.inf, "a finite number >= 0 (0: off)")

    def floor(self, moments: RowMoments, value: Tensor) -> Tensor:
        return -value * moments.std


class EpsilonCutoff(Filter):
    """Hewitt, Manning and Liang, "Truncation Sampling as Language Model Desmoothing", 2022, arXiv 2210.15191."""

    name = "epsilon_cutoff"
    summary = "Keep tokens with a probability of at least e."
    moments = ("log_mass",)

    def check(self, value: Any) -> None:
        self.check_range(value, 0.0, 1.0, "a number in [0, 1] (0: off)")

    def floor(self, moments: RowMoments, value: Tensor) -> Tensor:
        return value.log() + moments.log_mass


class EtaCutoff(Filter):
    """Hewitt, Manning and Liang, as for :class:`EpsilonCutoff`."""

    name = "eta_cutoff"
    summary = "Keep tokens with p >= min(e, sqrt(e) exp(-entropy))."
    moments = ("log_mass", "entropy")

    def check(self, value: Any) -> None:
        self.check_range(value, 0.0, 1.0, "a number in [0, 1] (0: off)")

    def floor(self, moments: RowMoments, value: Tensor) -> Tensor:
        log_epsilon = value.log()
        return log_epsilon.minimum(log_epsilon / 2 - moments.entropy) + moments.log_mass


class PLess(Filter):
    """The rule of "p-less Sampling", 2025, arXiv 2509.23234."""

    name = "p_less"
    summary = "Keep tokens with p >= sum p^2, the probability that two draws agree."
    moments = ("log_mass", "collision")

    def check(self, value: Any) -> None:
        needed = "0 (off) or 1 (on)"
        self.check_range(value, 0.0, 1.0, needed)
        if float(value) not in (0.0, 1.0):
            raise InvalidParameterError(f"'{self.name}' needs {needed}, found {format_value(value)}.")

    def floor(self, moments: RowMoments, value: Tensor) -> Tensor:
        return moments.collision.log() + moments.log_mass
