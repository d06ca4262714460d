"""What a verification must answer, request by request in float64 numpy: the walk of the conformance kit."""

from tokendraw.testing.reference_walk import (
    ACCEPT,
    RESIDUAL_TILE,
    RESIDUAL_TOKEN,
    Answer,
    distribution,
    walk,
)

__all__ = ["ACCEPT", "RESIDUAL_TILE", "RESIDUAL_TOKEN", "Answer", "distribution", "walk"]
