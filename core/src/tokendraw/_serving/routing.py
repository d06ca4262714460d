"""Who draws which rows: the chosen sampler and its companion, both built and proven."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch

from tokendraw._exchange.capabilities import Capabilities
from tokendraw._exchange.facts import BatchFacts, RowKinds
from tokendraw._exchange.metadata import SamplingMetadata
from tokendraw._exchange.row_limits import unserved
from tokendraw._messages.errors import SamplerUnavailableError
from tokendraw._messages.install import NATIVE
from tokendraw._resolution.candidate import Resolution
from tokendraw._serving.splitting import Split, is_worthwhile
from tokendraw._torch.graphs import is_capturing

_MOST_KINDS = 256
"""So many kinds of batches are remembered of a sampler; a caller may change its vocabulary all the time."""


@dataclass(slots=True, eq=False)
class Member:
    """One sampler that was built."""

    name: str
    backend: Any
    """A SamplerBackend or a VerifierBackend, by the operation that it was built for."""
    package: str = ""
    """Of its plugin's code."""
    drawn_kinds: set[tuple[object, ...]] = field(default_factory=set)
    """Kinds of batches that it has drawn: see :mod:`tokendraw._serving.fallback`."""
    failed_kinds: set[tuple[object, ...]] = field(default_factory=set)
    """Those that it has failed since, where nobody could take over."""

    def is_new(self, kind: tuple[object, ...]) -> bool:
        """Whether a batch of this kind is the first that it meets, as far as is remembered."""
        return kind not in self.drawn_kinds and len(self.drawn_kinds) < _MOST_KINDS

    def note_success(self, kind: tuple[object, ...]) -> None:
        """Remember that it drew a batch of this kind."""
        if self.is_new(kind):
            self.drawn_kinds.add(kind)
        self.failed_kinds.discard(kind)

    def note_failure(self, kind: tuple[object, ...]) -> None:
        """Remember that it failed one."""
        self.failed_kinds.add(kind)


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """Who draws one batch."""

    member: Member
    """Draws it, or all of it but the rows of ``split``."""
    split: Split | None = None
    """The rows that the companion draws."""
    lacking: tuple[str, ...] = ()
    """Kinds of rows because of which the companion draws any."""
    because: str = ""
    """Why it draws the whole batch, if it does."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Serving:
    """What a resolution came to. Replaced as a whole, so that no thread sees half of a change."""

    resolution: Resolution
    chosen: Member
    companion: Member | None = None
    capabilities: Any = None
    """Of the chosen one, in the operation's type; None: it serves whatever comes."""
    companion_capabilities: Any = None
    can_fall_back: bool = False
    """Whether another sampler may take over where a call fails, and there is one."""
    _splits: WeakKeyDictionary[RowKinds, Split] = field(default_factory=WeakKeyDictionary, repr=False)
    _captured: list[Split] = field(default_factory=list, repr=False)
    """Those whose indices are part of a CUDA graph, which does not keep them alive."""

    @property
    def needs_ranks(self) -> bool:
        """Whether rows with logprobs need their ranks too."""
        return bool(self.resolution.need.logprob_ranks)

    def lacking(self, facts: BatchFacts, vocab_size: int = 0) -> str | None:
        """A kind of row that a batch may hold and the chosen sampler cannot serve, or None."""
        return None if self.capabilities is None else unserved(self.capabilities, facts, vocab_size)

    def member(self, facts: BatchFacts, vocab_size: int = 0) -> Member:
        """Look up who draws a batch whose rows cannot be told apart.

        :raises SamplerUnavailableError: nobody here serves every row that it may hold.
        """
        lacking = self.lacking(facts, vocab_size)
        if lacking is None:
            return self.chosen
        if self.companion is None:
            raise SamplerUnavailableError(
                f"'{self.chosen.name}' cannot serve {lacking}, which this batch may hold, and has no companion. "
                f"Install one that can ({NATIVE}), or, if the batch holds none, "
                "say so in SamplingMetadata.facts."
            )
        beyond = self._beyond_companion(facts, vocab_size)
        if beyond is not None:
            raise SamplerUnavailableError(
                f"'{self.chosen.name}' cannot serve {lacking}, and its companion '{self.companion.name}' cannot serve "
                f"{beyond}, both of which this batch may hold. Install a sampler that serves both "
                f"({NATIVE}), or, if the batch holds only one of them, say so in "
                "SamplingMetadata.facts."
            )
        return self.companion

    def route(self, metadata: SamplingMetadata, rows: int, vocab_size: int, device: torch.device) -> Route:
        """Look up who draws a batch, row by row where the host knows of which kind each row is.

        :param rows: of the logits.
        :param device: of the logits.
        :raises SamplerUnavailableError: nobody here serves every row that it may hold.
        """
        facts = metadata.facts
        lacking = self.lacking(facts, vocab_size)
        if lacking is None:
            return Route(self.chosen)
        if self.companion is None or self.lacking(_UNDEMANDING, vocab_size) is not None:
            return Route(self.member(facts, vocab_size), None, (lacking,), "every row is one")
        split = self._split(metadata, rows, device)
        if isinstance(split, str):
            return Route(self.member(facts, vocab_size), None, (lacking,), split)
        if not split.num_leaving:
            return Route(self.chosen)
        self.member(split.leaving, vocab_size)
        if split.num_staying and (
            is_worthwhile(split.num_staying, split.num_leaving)
            or self._beyond_companion(facts, vocab_size) is not None
        ):
            if is_capturing():
                self._captured.append(split)
            return Route(self.chosen, split, split.reasons)
        return Route(self.companion, None, split.reasons, f"{split.num_staying} of {rows} rows would stay")

    def _split(self, metadata: SamplingMetadata, rows: int, device: torch.device) -> Split | str:
        """Tell the rows apart, or say why that cannot be."""
        kinds = metadata.row_kinds
        if kinds is None:
            return "its metadata has no row_kinds"
        if metadata.row_index is not None and kinds.slot_of_row is None:
            return "its row_index is not known on the host"
        if kinds.num_rows != rows:
            return f"its row_kinds speak of {kinds.num_rows} rows, not of {rows}"
        if not kinds.is_current():
            return "its parameters were changed after its row_kinds were made"
        split = self._splits.get(kinds)
        if split is None:
            if is_capturing():
                return "a CUDA graph is captured of it before it was drawn once"
            split = self._splits[kinds] = self._told_apart(kinds, metadata.facts, device)
        return split

    def _told_apart(self, kinds: RowKinds, facts: BatchFacts, device: torch.device) -> Split:
        lacking = [self.lacking(kind) for kind in kinds.kinds]
        split = Split.of(kinds, lacking, device)

        def width(capabilities: Capabilities | None) -> int | None:
            """As of one sampler's output: who can fills the columns of rows that did not ask too."""
            return facts.max_logprobs if capabilities is None or capabilities.logprobs_modes else None

        return replace(
            split,
            staying=replace(split.staying, max_logprobs=width(self.capabilities)),
            leaving=replace(split.leaving, max_logprobs=width(self.companion_capabilities)),
        )

    def _beyond_companion(self, facts: BatchFacts, vocab_size: int) -> str | None:
        offered = self.companion_capabilities
        return None if offered is None else unserved(offered, facts, vocab_size)


_UNDEMANDING = BatchFacts(
    any_greedy=False,
    any_seeded=False,
    max_top_k=0,
    any_top_p=False,
    any_min_p=False,
    any_joint=False,
    any_top_k_first=False,
)
"""Rows that every sampler serves, unless something about the batch as a whole is beyond it."""
