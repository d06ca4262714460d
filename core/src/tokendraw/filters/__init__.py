"""Filters from moments: truncation rules that keep ``y >= floor``, where the floor is computed from sums over a row.

With x the logits of a row and T its temperature, ``y = (x - max x) / T``. A sampler that advertises
``Capabilities.row_moments`` computes the moments of y in a pass that it makes anyway, so a rule is a few operations on
[rows] and runs on every such backend::

    # pyproject.toml
    #   [project.entry-points."tokendraw.filters"]
    #   top_n_sigma = "acme_filters:TopNSigma"

    from tokendraw.filters import Filter

    class TopNSigma(Filter):
        name = "top_n_sigma"
        moments = ("std",)

        def floor(self, moments, value):
            return -value * moments.std

Requests ask for it with ``SamplingParams(filters={"top_n_sigma": 1.0})``. ``docs/add-a-filter.md`` has the details.
Importing a filter must not import torch: ``tokendraw list`` loads every filter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokendraw._lazy import lazy_names

if TYPE_CHECKING:
    from tokendraw.errors import FilterError as FilterError
    from tokendraw.filters.floors import MomentSum as MomentSum
    from tokendraw.filters.floors import combined_floor as combined_floor
    from tokendraw.filters.floors import filter_floors as filter_floors
    from tokendraw.filters.floors import moments_of_sums as moments_of_sums
    from tokendraw.filters.floors import required_sums as required_sums
    from tokendraw.filters.installed import Filter as Filter
    from tokendraw.filters.installed import InstalledFilter as InstalledFilter
    from tokendraw.filters.installed import RowMoments as RowMoments
    from tokendraw.filters.installed import find_filter as find_filter
    from tokendraw.filters.installed import installed_filters as installed_filters
    from tokendraw.filters.installed import required_moments as required_moments

__getattr__, __dir__ = lazy_names(__name__)
