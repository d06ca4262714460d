"""Who draws which batch: the chosen sampler and its companion, both built and proven."""

from __future__ import annotations

from dataclasses import dataclass

from tokendraw._candidate import Resolution
from tokendraw._capabilities import Capabilities
from tokendraw._errors import SamplerUnavailableError
from tokendraw._metadata import BatchFacts
from tokendraw._plugin import SamplerBackend
from tokendraw._rows import unserved


@dataclass(slots=True, eq=False)
class Member:
    """One sampler that was built."""

    name: str
    backend: SamplerBackend
    has_drawn: bool = False
    """Whether a caller's batch was drawn with it already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving:
    """What a resolution came to. Replaced as a whole, so that no thread sees half of a change."""

    resolution: Resolution
    chosen: Member
    companion: Member | None = None
    capabilities: Capabilities | None = None
    """Of the chosen one; None: it serves whatever comes."""
    can_fall_back: bool = False
    """Whether another sampler may take over where a call fails, and there is one."""

    def lacking(self, facts: BatchFacts, vocab_size: int = 0) -> str | None:
        """A kind of row that a batch may hold and the chosen sampler cannot serve, or None."""
        return None if self.capabilities is None else unserved(self.capabilities, facts, vocab_size)

    def member(self, facts: BatchFacts, vocab_size: int = 0) -> Member:
        """Look up who draws a batch: the companion if it may hold a row that the chosen sampler cannot serve.

        :raises SamplerUnavailableError: there is such a row, and no companion.
        """
        lacking = self.lacking(facts, vocab_size)
        if lacking is None:
            return self.chosen
        if self.companion is None:
            raise SamplerUnavailableError(
                f"'{self.chosen.name}' cannot serve {lacking}, which this batch may hold, and has no companion. "
                "Install one that can (pip install 'tokendraw[native]'), or, if the batch holds none, "
                "say so in SamplingMetadata.facts."
            )
        return self.companion
