"""What one request asks of the sampler."""

from __future__ import annotations

from dataclasses import dataclass

from tokendraw._capabilities import FilterOrder


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of one request. The defaults sample from the plain softmax.

    Values are checked where a batch is built, in :meth:`tokendraw.SamplingMetadata.from_params`, so that an error can
    name the row. The stages run in the order temperature, min-p, top-k, top-p, draw.
    """

    temperature: float = 1.0
    """``y = (x - max x) / temperature``; 0 is greedy: the argmax, the lowest token id on a tie."""
    top_k: int = 0
    """Keep every token whose value is at least the k-th largest. 0, -1 or >= V: off."""
    top_p: float = 1.0
    """Keep the smallest set of largest tokens that carries at least this share of the mass, and all ties. 1: off."""
    min_p: float = 0.0
    """Keep tokens at least this likely relative to the likeliest. 0: off."""
    seed: int | None = None
    """Any integer in [-2**63, 2**64), taken modulo 2**64. None: a fresh seed per call from torch's generator."""
    logprobs: int | None = None
    """Return log-probabilities of the drawn token and this many best ones; -1 is all, None is not at all."""
    filter_order: FilterOrder = "top_k_first"
    """``top_k_first``: top-p counts the mass that top-k left. ``joint``: both count the unfiltered mass."""
