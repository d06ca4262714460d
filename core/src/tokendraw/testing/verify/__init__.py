"""What the kit holds the operation ``verify`` to."""

from tokendraw.testing.verify import device, draws, edges, lines, seeds

_MODULES = (lines, edges, draws, seeds, device)
PROPERTIES = tuple(prop for module in _MODULES for prop in module.properties.all)
"""In the order of a report: what is exact first, then statistics, then what capabilities switch on."""
