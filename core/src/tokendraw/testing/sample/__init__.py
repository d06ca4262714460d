"""What the kit holds the operation ``sample`` to."""

from tokendraw.testing.sample import (
    calls,
    device,
    distribution,
    filters,
    independence,
    logprobs,
    seeds,
    special_values,
    support,
)

_MODULES = (support, special_values, calls, filters, distribution, independence, seeds, logprobs, device)
PROPERTIES = tuple(prop for module in _MODULES for prop in module.properties.all)
"""In the order of a report: what is exact first, then statistics, then what capabilities switch on."""
