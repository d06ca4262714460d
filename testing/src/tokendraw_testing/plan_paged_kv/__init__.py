"""The properties of the operation ``plan_paged_kv``."""

from tokendraw_testing.kit.operation import OperationKit
from tokendraw_testing.plan_paged_kv import device, lines
from tokendraw_testing.plan_paged_kv.subject import PlanSubject

KIT = OperationKit(
    view=PlanSubject, properties=tuple(prop for module in (lines, device) for prop in module.properties.all)
)

__all__ = ["KIT", "PlanSubject"]
