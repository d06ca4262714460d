"""The properties of the operation ``sample``."""

from tokendraw_testing import kept_sets
from tokendraw_testing.kit.operation import OperationKit
from tokendraw_testing.rows.subjects import SampleSubject
from tokendraw_testing.sample import (
    calls,
    ceilings,
    corners,
    crossed_statistics,
    crossing,
    device,
    distribution,
    filters_from_moments,
    given_logprobs,
    independence,
    outputs,
    ready_tensors,
    seeds,
    special_values,
    support,
    threads,
    thresholds,
    uniform_batches,
)
from tokendraw_testing.sample.fuzz import fuzz

_EXACT = (support, special_values, calls, outputs, ready_tensors)
_STATISTICS = (distribution, independence, seeds, uniform_batches, corners, crossed_statistics)
_MODULES = (
    *_EXACT,
    *_STATISTICS,
    crossing,
    given_logprobs,
    filters_from_moments,
    ceilings,
    thresholds,
    threads,
)
KIT = OperationKit(
    view=SampleSubject,
    properties=(
        *(prop for module in _MODULES for prop in module.properties.all),
        *kept_sets.lines("sample"),
        *device.properties.all,
    ),
    fuzz=fuzz,
)

__all__ = ["KIT", "SampleSubject"]
