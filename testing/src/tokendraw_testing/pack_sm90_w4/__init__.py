"""The properties of the operation ``pack_sm90_w4``."""

from tokendraw_testing.kit.operation import OperationKit
from tokendraw_testing.pack_sm90_w4 import lines
from tokendraw_testing.pack_sm90_w4.subject import PackSubject

KIT = OperationKit(view=PackSubject, properties=tuple(lines.properties.all))

__all__ = ["KIT", "PackSubject"]
