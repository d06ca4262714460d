"""The properties of the operation ``verify``."""

from tokendraw.testing.kit.operation import OperationKit
from tokendraw.testing.verify import bonus, device, draws, edges, lines, seeds
from tokendraw.testing.verify.verifying import Verifying

_MODULES = (lines, edges, draws, bonus, seeds, device)
KIT = OperationKit(
    view=Verifying, properties=tuple(prop for module in _MODULES for prop in module.properties.all)
)

__all__ = ["KIT", "Verifying"]
