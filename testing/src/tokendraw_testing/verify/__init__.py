"""The properties of the operation ``verify``."""

from tokendraw_testing import kept_sets
from tokendraw_testing.kit.operation import OperationKit
from tokendraw_testing.verify import (
    ceilings,
    device,
    draws,
    edges,
    lines,
    near_distributions,
    seeds,
    threads,
    unseeded_noise,
)
from tokendraw_testing.verify.crossing import drafts as crossed_drafts
from tokendraw_testing.verify.crossing import lines as crossing
from tokendraw_testing.verify.subject import VerifySubject

_EXACT = (lines, edges, ceilings, crossing, crossed_drafts)
_MODULES = (*_EXACT, draws, near_distributions, unseeded_noise, seeds, threads)
KIT = OperationKit(
    view=VerifySubject,
    properties=(
        *(prop for module in _MODULES for prop in module.properties.all),
        *kept_sets.lines("verify"),
        *device.properties.all,
    ),
    fuzz=crossing.fuzz,
)

__all__ = ["KIT", "VerifySubject"]
