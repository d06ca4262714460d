"""Rows of a covering table within the capabilities of a provider, and rows of every design in one vocabulary."""

from __future__ import annotations

from typing import Final

from numpy.random import Generator

from tokendraw.plugin import Capabilities
from tokendraw_testing.crossing.covering import covering, random_case
from tokendraw_testing.crossing.factors import NO_FILTERS, Factors, Site, is_allowed, request_factors, sites
from tokendraw_testing.crossing.rows import DESIGNS, TOPS, CrossedRow, crossed_row
from tokendraw_testing.rows.subjects import RowSubject

_WIDE_SIZE: Final = 1 << 14
"""Vocabularies above this have no rows on thresholds."""


def factors(subject: RowSubject) -> Factors:
    """Return the factors of rows of logits."""
    return {"site": sites(subject.capabilities, subject.effort), **_row_factors(subject.capabilities)}


def covering_rows(
    subject: RowSubject, rng: Generator, *, on_thresholds: bool = False
) -> dict[Site, list[CrossedRow]]:
    """Make the rows of a covering table, by site.

    :param on_thresholds: adds :func:`threshold_rows` in all but wide vocabularies, as :func:`share_among_dtypes` does.
    """
    cases = subject.effort.some(covering(factors(subject), rng, is_allowed))
    rows_by_site: dict[Site, list[CrossedRow]] = {}
    for case in cases:
        rows_by_site.setdefault(case["site"], []).append(
            crossed_row(case, rng, subject.capabilities.tie_rule)
        )
    for site, rows in rows_by_site.items() if on_thresholds else ():
        if site.size <= _WIDE_SIZE:
            on_edges = threshold_rows(subject.capabilities, site, rng)
            rows.extend(share_among_dtypes(subject, site, on_edges))
    return rows_by_site


def share_among_dtypes(subject: RowSubject, site: Site, rows: list[CrossedRow]) -> list[CrossedRow]:
    """Return the rows of a vocabulary; where kernels are interpreted, the dtypes take them by turns."""
    if not subject.effort.interpreted:
        return rows
    sizes, dtypes = subject.effort.crossed_sizes, subject.capabilities.dtypes
    turn = sizes.index(site.size) if site.size in sizes else 0
    return rows[(turn + dtypes.index(site.dtype)) % len(dtypes) :: len(dtypes)]


def rows_of_designs(capabilities: Capabilities, site: Site, rng: Generator) -> list[CrossedRow]:
    """Make a row of every design in one dtype and vocabulary, each with a random request."""
    domains = {"site": [site], **_row_factors(capabilities), "top": TOPS[:1]}
    cases = [random_case({**domains, "design": [design]}, rng, is_allowed) for design in domains["design"]]
    return [crossed_row(case, rng, capabilities.tie_rule) for case in cases]


def threshold_rows(capabilities: Capabilities, site: Site, rng: Generator) -> list[CrossedRow]:
    """Make a row on the threshold of each value of each filter, in one dtype and vocabulary."""
    domains = {"site": [site], **_row_factors(capabilities), "top": TOPS[:1]}
    thresholds = [
        (design, value) for design in domains["design"] if design.needs for value in domains[design.needs]
    ]
    disabled_filters = {name: [NO_FILTERS[name]] for name in ("top_k", "top_p", "min_p")}
    rows = []
    for design, value in thresholds:
        values = {**domains, **disabled_filters, "design": [design], design.needs: [value]}
        if is_allowed({"site": site, "design": design, design.needs: value}):
            rows.append(crossed_row(random_case(values, rng, is_allowed), rng, capabilities.tie_rule))
    return rows


def _row_factors(capabilities: Capabilities) -> Factors:
    filters = request_factors(capabilities)
    designs = [design for design in DESIGNS if design.needs is None or len(filters[design.needs]) > 1]
    return {"design": designs, "top": TOPS, **filters}
