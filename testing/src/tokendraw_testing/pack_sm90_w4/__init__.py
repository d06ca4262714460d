"""The properties of the operation ``pack_sm90_w4``."""

from tokendraw_testing.kit.operation import OperationKit
from tokendraw_testing.pack_sm90_w4 import lines
from tokendraw_testing.pack_sm90_w4.packing import Packing

KIT = OperationKit(view=Packing, properties=tuple(lines.properties.all))

__all__ = ["KIT", "Packing"]
