"""What one request asks of the sampler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from tokendraw._exchange.capabilities import FilterOrder

if TYPE_CHECKING:
    from tokendraw._exchange.ranges import Checked


class _Remembering:
    """Holds what a check found, so that a request is checked once and not in every batch that it is part of."""

    __slots__ = ("_checked",)

    _checked: Checked


@dataclass(frozen=True, slots=True)
class SamplingParams(_Remembering):
    """Sampling parameters of one request. The defaults sample from the plain softmax.

    Values are checked by :meth:`check`, and where a batch is built, in
    :meth:`tokendraw.SamplingMetadata.from_params`, where an error names the row. The stages run in the order
    temperature, min-p, top-k, top-p, draw.
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
    """Return log-probabilities of the drawn token and this many best ones; -1 or >= V is all, None is not at all."""
    filter_order: FilterOrder = "top_k_first"
    """``top_k_first``: top-p counts the mass that top-k left. ``joint``: both count the unfiltered mass."""

    def check(self, vocab_size: int | None = None, *, max_logprobs: int | None = None) -> Self:
        """Refuse this request at a server's door, before it is part of any batch. Imports no torch.

        :param vocab_size: V, if it is known. ``top_k`` and ``logprobs`` above it are not refused: they mean "off" and
            "all". What ``logprobs=-1`` asks for is held against ``max_logprobs``.
        :param max_logprobs: the most ``logprobs`` that this server grants, as ``Need(max_logprobs=)``; None: any.
            Without ``vocab_size``, -1 is beyond it.
        :returns: the parameters themselves.
        :raises InvalidParameterError: a ValueError that names the field, what it needs and what it is.
        """
        from tokendraw._exchange.ranges import check_logprobs, checked, integer

        logprobs = checked(self).logprobs
        if vocab_size is not None:
            vocab_size = integer("vocab_size", vocab_size, None, 1, 2**62)
        if max_logprobs is not None:
            check_logprobs(logprobs, vocab_size, integer("max_logprobs", max_logprobs, None, 0, 2**62))
        return self
