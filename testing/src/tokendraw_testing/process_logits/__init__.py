"""The properties of the operation ``process_logits``."""

from tokendraw_testing.kit.operation import OperationKit
from tokendraw_testing.process_logits import contract, device, drafts, formulas, fuzz, threads
from tokendraw_testing.process_logits.subject import ProcessSubject

KIT = OperationKit(
    view=ProcessSubject,
    properties=tuple(
        prop for module in (formulas, contract, drafts, threads, device) for prop in module.properties.all
    ),
    fuzz=fuzz.random_case,
)

__all__ = ["KIT", "ProcessSubject"]
