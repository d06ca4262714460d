"""The properties of the operation ``score``."""

from tokendraw_testing import kept_sets
from tokendraw_testing.kit.operation import OperationKit
from tokendraw_testing.score import ceilings, device, lines
from tokendraw_testing.score.subject import ScoreSubject

KIT = OperationKit(
    view=ScoreSubject,
    properties=(
        *(prop for module in (lines, ceilings) for prop in module.properties.all),
        *kept_sets.lines("score"),
        *device.properties.all,
    ),
)

__all__ = ["KIT", "ScoreSubject"]
