"""Who serves which rows of a call: the selected backend, its companion, or both.

Where a batch is divided, the chosen sampler draws from the logits as they are, with harmless parameters in the rows of
its companion: taking these rows out would copy nearly all logits. The companion draws from a copy of its few rows.
Neither step looks at the device, so both can be captured in a CUDA graph.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from tokendraw._torch.tensors import is_capturing, uploaded
from tokendraw.backends.description import Operation, Requirement, first_reason
from tokendraw.backends.resolution.candidate import Resolution
from tokendraw.backends.resolution.decide import install
from tokendraw.calls.call import LOGPROBS, Call, RowGroup
from tokendraw.calls.rows import RowCall
from tokendraw.errors import SamplerUnavailableError
from tokendraw.filters.installed import find_filter
from tokendraw.output import PAD_LOGPROB, PAD_TOKEN_ID, LogprobsTensors, SamplerOutput
from tokendraw.parameters.batch_facts import BatchFacts, RowKinds
from tokendraw.parameters.fields import SLOT_FIELDS
from tokendraw.parameters.metadata import SamplingMetadata

MIN_SPLIT_ROWS = 16
"""Fewer rows on a GPU are not worth a second sampler: its launches cost as much as they do. A CPU launches nothing, so
that each row counts. See ``docs/engine-authors.md``.
"""
_MAX_SIGNATURES = 256
"""Number of call signatures that a backend is known to serve, at most; a caller may change its vocabulary all the time.
"""
_log = logging.getLogger("tokendraw")


@dataclass(slots=True, eq=False)
class LoadedBackend:
    """A built and proven backend."""

    name: str
    object: Any
    capabilities: Any = None
    unsupported: tuple[Requirement, ...] = ()
    package: str = ""
    """Top-level package of the plugin's code."""
    signatures: set[Hashable] = field(default_factory=set)

    @classmethod
    def of(
        cls, operation: Operation, name: str, backend: Any, capabilities: Any, need: Any, package: str = ""
    ) -> Self:
        return cls(name, backend, capabilities, operation.unsupported(capabilities, need), package)

    def reason_against(self, call: Call | RowGroup) -> str | None:
        """Name the first unsupported property of a call or of rows; None: all are supported."""
        return first_reason(self.unsupported, call, self.capabilities)

    def is_new(self, signature: Hashable) -> bool:
        return signature not in self.signatures and len(self.signatures) < _MAX_SIGNATURES


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Selection:
    """The backend of an operation, and a companion for unsupported rows and calls.

    Replaced as a whole: no thread sees half of a change.
    """

    resolution: Resolution
    backend: LoadedBackend
    companions: tuple[LoadedBackend, ...] = ()
    """Of these the first that supports all rows or calls beyond the backend serves them, or else the last."""
    barred_companion: str | None = None
    """Name of the companion that the caller ruled out."""
    can_fall_back: bool = False
    """Whether another backend may serve a call that fails."""
    key: object = field(default_factory=object, init=False, repr=False)
    """Identifies the selection where checks of calls are cached, and keeps nothing of it alive."""
    row_splits: WeakKeyDictionary[RowKinds, dict[int, RowSplit]] = field(
        default_factory=WeakKeyDictionary, repr=False
    )
    """Splits by the vocabulary, which decides too who serves rows of the same kinds."""
    captured_splits: list[RowSplit] = field(default_factory=list, repr=False)
    """Splits whose indices are part of a CUDA graph, which does not keep them alive."""
    logged_kinds: set[tuple[str, str, bool]] = field(default_factory=set, repr=False)
    """The logged kinds of rows by the name of their companion, each with whether whole calls went with them."""

    @property
    def backends(self) -> tuple[LoadedBackend, ...]:
        return (self.backend, *self.companions)

    def companion_for(self, call: Call | RowGroup) -> LoadedBackend | None:
        """Return the companion for a call or its leaving rows, whether or not it supports them; None: there is none."""
        for companion in self.companions[:-1]:
            if companion.reason_against(call) is None:
                return companion
        return self.companions[-1] if self.companions else None


# The road of a call.


def route(selection: Selection, call: Call) -> RowSplit | LoadedBackend:
    """Find the backend for a call, or divide the rows if the host knows the kind of each row."""
    reason = selection.backend.reason_against(call)
    if reason is None:
        return selection.backend
    split = _split(selection, call)
    if isinstance(split, str):
        return _whole_call(selection, call, [reason], split)
    assert isinstance(call, RowCall)
    if not split.num_leaving:
        return selection.backend
    leaving = RowGroup(split.leaving, call.vocab_size)
    if split.companion.reason_against(leaving) is not None:
        serving_backend(selection, call, leaving)  # says what is missing
    is_split = split.num_staying and (
        is_worthwhile(split.num_staying, split.num_leaving, split.rows.device)
        or split.companion.reason_against(call) is not None
    )
    if not is_split:
        rows = split.num_staying + split.num_leaving
        return _whole_call(selection, call, split.reasons, f"{split.num_staying} of {rows} rows would stay")
    if is_capturing():
        selection.captured_splits.append(split)
    _log_companion(selection, split.companion, split.reasons)
    return split


def serving_backend(selection: Selection, call: Call, rows: RowGroup | None = None) -> LoadedBackend:
    """Find the backend for a whole call, or for rows of one kind."""
    backend, asked = selection.backend, rows or call
    reason = backend.reason_against(asked)
    if reason is None:
        return backend
    companion = selection.companion_for(asked)
    if companion is None:
        advice = install("one that can", selection.resolution.decisions)
        if selection.barred_companion is not None:
            advice = f"Leave out companion=False, so that {selection.barred_companion!r} serves as one"
        raise SamplerUnavailableError(
            f"'{backend.name}' cannot serve {reason}, which this batch may hold, and has no companion. "
            f"{advice}, or, if the batch holds none, say so in {call.hint_field}."
        )
    companion_reason = companion.reason_against(asked)
    if companion_reason is not None:
        raise SamplerUnavailableError(
            f"'{backend.name}' cannot serve {reason}, and its companion '{companion.name}' cannot serve "
            f"{companion_reason}, both of which this batch may hold. "
            f"{install('one that serves both', selection.resolution.decisions)}, or, if the batch holds only one "
            f"of them, say so in {call.hint_field}."
        )
    return companion


def is_served(selection: Selection, call: Call | RowGroup) -> bool:
    return any(backend.reason_against(call) is None for backend in selection.backends)


def _split(selection: Selection, call: Call) -> RowSplit | str:
    backend = selection.backend
    if (
        not selection.companions
        or type(call) is not RowCall
        or any(
            each.concerns_call and each.is_asked(call, backend.capabilities) for each in backend.unsupported
        )
    ):
        return "every row is one"
    kinds = call.row_kinds()
    if isinstance(kinds, str):
        return kinds
    splits = selection.row_splits.setdefault(kinds, {})
    split = splits.get(call.vocab_size)
    if split is None:
        if is_capturing():
            return "a CUDA graph is captured of it before it was drawn once"
        split = splits[call.vocab_size] = RowSplit.of(selection, call, kinds)
    return split


def _whole_call(selection: Selection, call: Call, reasons: Sequence[str], because: str) -> LoadedBackend:
    """Send a whole call to the companion, for unsupported ``reasons``, and ``because`` rows stay together."""
    companion = serving_backend(selection, call)
    _log_companion(selection, companion, reasons, because)
    return companion


def _log_companion(
    selection: Selection, companion: LoadedBackend, reasons: Iterable[str], because: str = ""
) -> None:
    """Log the first rows of a kind for a companion, and the first whole call on their account."""
    for kind in reasons:
        entry = companion.name, kind, bool(because)
        if entry not in selection.logged_kinds:
            selection.logged_kinds.add(entry)
            whole = f", and with them the whole batch, since {because}" if because else ""
            names = selection.backend.name, kind, companion.name, whole
            _log.info("%r cannot serve %s: they go to %r%s", *names)


def is_worthwhile(staying: int, leaving: int, device: torch.device) -> bool:
    return staying >= (leaving if device.type == "cpu" else max(MIN_SPLIT_ROWS, leaving))


# A divided batch.


@dataclass(frozen=True, slots=True, eq=False)
class RowSplit:
    """The companion's rows of a batch. Indices lie on the device, so that a step uploads none."""

    staying: BatchFacts
    leaving: BatchFacts
    reasons: tuple[str, ...]
    """Kinds of rows that the chosen sampler cannot serve, in words."""
    num_staying: int
    num_leaving: int
    rows: Tensor
    """[num_leaving] int64: the companion's rows, ascending."""
    slots: Tensor
    """[num_leaving] int64: their slots."""
    slot_leaves: Tensor
    """[slots] bool."""
    companion: LoadedBackend
    """Draws the leaving rows."""

    @classmethod
    def of(cls, selection: Selection, call: RowCall, kinds: RowKinds) -> Self:
        backend, vocab_size = selection.backend, call.vocab_size
        of_row = kinds.slot_of_row or range(kinds.num_rows)
        reasons = [backend.reason_against(RowGroup(kind, vocab_size)) for kind in kinds.kinds]
        leaves = [reason is not None for reason in reasons]
        rows = [row for row, slot in enumerate(of_row) if leaves[kinds.of_slot[slot]]]
        present = sorted({kinds.of_slot[slot] for slot in of_row})
        staying, leaving = (
            BatchFacts.merged(kinds.kinds[i] for i in present if leaves[i] is is_leaving)
            for is_leaving in (False, True)
        )
        companion = selection.companion_for(RowGroup(leaving, vocab_size))
        assert companion is not None
        indices = uploaded(
            {
                "rows": (rows, torch.int64),
                "slots": ([of_row[row] for row in rows], torch.int64),
                "slot_leaves": ([leaves[kind] for kind in kinds.of_slot], torch.bool),
            },
            call.logits.device,
        )
        # Logprob columns as from a single sampler: if it supports logprobs, rows that did not ask get them too.
        widest = call.facts.max_logprobs
        return cls(
            staying=replace(staying, max_logprobs=None if LOGPROBS in backend.unsupported else widest),
            leaving=replace(leaving, max_logprobs=None if LOGPROBS in companion.unsupported else widest),
            reasons=tuple(dict.fromkeys(reasons[i] or "" for i in present if leaves[i])),
            num_staying=len(of_row) - len(rows),
            num_leaving=len(rows),
            companion=companion,
            **indices,
        )

    def for_chosen(self, metadata: SamplingMetadata) -> SamplingMetadata:
        """Return the parameters of all rows, with harmless values in the leaving rows, fast for any sampler."""
        facts, leaves = self.staying, self.slot_leaves
        parameters = {
            name: _where(leaves, field.quick, getattr(metadata, name)) if facts.may_use(name) else None
            for name, field in SLOT_FIELDS.items()
        }
        if facts.any_seeded and metadata.seeded is None:
            parameters["seeded"] = leaves.logical_not()
        from_moments = {
            name: values.masked_fill(leaves, find_filter(name).off)
            for name, values in (metadata.filters or {}).items()
            if name in (facts.filters or ())
        }
        given_ids = metadata.logprob_token_ids if facts.any_logprob_token_ids else None
        return replace(
            metadata,
            **parameters,
            filters=from_moments or None,
            logprob_token_ids=_where(leaves.unsqueeze(1), PAD_TOKEN_ID, given_ids),
            facts=replace(facts, all_greedy=False, all_seeded=False),
            row_kinds=None,
        )

    def for_companion(self, metadata: SamplingMetadata) -> SamplingMetadata:
        facts, positions = self.leaving, metadata.positions
        return replace(
            metadata,
            seed=metadata.seed if facts.any_seeded else None,
            seeded=metadata.seeded if facts.any_seeded else None,
            logprobs=metadata.logprobs if facts.max_logprobs is not None else None,
            logprob_token_ids=metadata.logprob_token_ids if facts.any_logprob_token_ids else None,
            filters=metadata.filters if facts.any_filters else None,
            positions=None if positions is None else positions.index_select(0, self.rows),
            row_index=self.slots,
            facts=facts,
            row_kinds=None,
        )

    def calls(self, call: RowCall) -> tuple[RowCall, RowCall]:
        """Make the calls of the chosen sampler and of the companion, with a copy of the leaving rows."""
        leaving = call.logits.index_select(0, self.rows)
        return (
            RowCall(call.logits, self.for_chosen(call.metadata), is_draft=call.is_draft),
            RowCall(leaving, self.for_companion(call.metadata), is_draft=call.is_draft),
        )

    def merged(self, chosen: SamplerOutput, companion: SamplerOutput, width: int | None) -> SamplerOutput:
        """Merge the outputs in the order of the rows, with ``width`` best tokens each; None: no row wants any."""
        rows, best, mass = self.rows, None, None
        if width is not None:
            target, masses = _shown(chosen, self.staying, width)
            source, companion_masses = _shown(companion, self.leaving, width)
            best = LogprobsTensors(
                target.token_ids.index_copy(0, rows, source.token_ids),
                target.logprobs.index_copy(0, rows, source.logprobs),
                self._joined(target.ranks, source.ranks),
                self._joined(target.given_token_ids, source.given_token_ids, PAD_TOKEN_ID),
                self._joined(target.given_logprobs, source.given_logprobs, PAD_LOGPROB),
            )
            mass = masses.index_copy(0, rows, companion_masses)
        return SamplerOutput(
            chosen.token_ids.index_copy(0, rows, companion.token_ids),
            chosen.valid.index_copy(0, rows, companion.valid),
            best,
            mass,
            self._joined(chosen.threshold, companion.threshold),
            self._joined(chosen.ceiling, companion.ceiling, math.inf),
        )

    def _joined(
        self, chosen: Tensor | None, companion: Tensor | None, padding: float | None = None
    ) -> Tensor | None:
        """Merge a tensor that a sampler may lack: its rows are ``padding`` then; with None there is none of any row."""
        if chosen is None and companion is not None and padding is not None:
            shape = (self.num_staying + self.num_leaving, *companion.shape[1:])
            chosen = companion.new_full(shape, padding)
        if companion is None and chosen is not None and padding is not None:
            companion = chosen.new_full((self.num_leaving, *chosen.shape[1:]), padding)
        if chosen is None or companion is None:
            return None
        return chosen.index_copy(0, self.rows, companion)


def _shown(output: SamplerOutput, facts: BatchFacts, width: int) -> tuple[LogprobsTensors, Tensor]:
    """Return logprobs and the log of the kept mass; padding beside the drawn tokens of a sampler without logprobs."""
    if facts.max_logprobs is not None:
        assert output.logprobs is not None
        assert output.log_kept_mass is not None
        return output.logprobs, output.log_kept_mass
    tokens = output.token_ids
    mass = torch.full(tokens.shape, PAD_LOGPROB, dtype=torch.float32, device=tokens.device)
    ids = torch.nn.functional.pad(tokens.unsqueeze(1), (0, width), value=PAD_TOKEN_ID)
    values = mass.new_full(ids.shape, PAD_LOGPROB)
    return LogprobsTensors(ids, values, torch.zeros_like(tokens)), mass


def _where(leaves: Tensor, harmless: float | None, values: Tensor | None) -> Tensor | None:
    return values if values is None or harmless is None else values.masked_fill(leaves, harmless)
