"""Rows of a covering table within what a provider advertises, and rows of every design in one vocabulary."""

from __future__ import annotations

import numpy as np

from tokendraw.plugin import Capabilities
from tokendraw_testing.crossing.covering import covering, random_case
from tokendraw_testing.crossing.factors import NO_FILTERS, Factors, Site, allowed, request_factors, sites
from tokendraw_testing.crossing.rows import DESIGNS, TOPS, CrossedRow, crossed_row
from tokendraw_testing.rows.sampling import RowSubject


def factors(subject: RowSubject) -> Factors:
    """Return the factors that rows of logits are crossed over."""
    return {"site": sites(subject.capabilities, subject.effort), **_of_rows(subject.capabilities)}


def table(subject: RowSubject, rng: np.random.Generator) -> dict[Site, list[CrossedRow]]:
    """Make the rows of a covering table, by site."""
    cases = subject.effort.some(covering(factors(subject), rng, allowed))
    found: dict[Site, list[CrossedRow]] = {}
    for case in cases:
        found.setdefault(case["site"], []).append(crossed_row(case, rng, subject.capabilities.tie_rule))
    return found


def designed(capabilities: Capabilities, site: Site, rng: np.random.Generator) -> list[CrossedRow]:
    """Make a row of every design in one dtype and vocabulary, each with a request at random."""
    given = {"site": [site], **_of_rows(capabilities), "top": TOPS[:1]}
    cases = [random_case({**given, "design": [design]}, rng, allowed) for design in given["design"]]
    return [crossed_row(case, rng, capabilities.tie_rule) for case in cases]


def by_value(capabilities: Capabilities, site: Site, rng: np.random.Generator) -> list[CrossedRow]:
    """Make a row on the threshold of each value of each filter, in one dtype and vocabulary."""
    given = {"site": [site], **_of_rows(capabilities), "top": TOPS[:1]}
    fixed = [(design, value) for design in given["design"] if design.needs for value in given[design.needs]]
    off = {name: [NO_FILTERS[name]] for name in ("top_k", "top_p", "min_p")}
    found = []
    for design, value in fixed:
        own = {**given, **off, "design": [design], design.needs: [value]}
        if allowed({"site": site, "design": design, design.needs: value}):
            found.append(crossed_row(random_case(own, rng, allowed), rng, capabilities.tie_rule))
    return found


def _of_rows(capabilities: Capabilities) -> Factors:
    asked = request_factors(capabilities)
    designs = [design for design in DESIGNS if design.needs is None or len(asked[design.needs]) > 1]
    return {"design": designs, "top": TOPS, **asked}
