"""Routes the rows of a call to the selected backend and the companion."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tokendraw._torch.tensors import is_capturing
from tokendraw.backends.resolution.messages import install
from tokendraw.calls.call import Call
from tokendraw.calls.drawing import Sample
from tokendraw.calls.row_requirements import RowGroup
from tokendraw.calls.selection import LoadedBackend, Selection
from tokendraw.calls.splitting import RowSplit, is_worthwhile
from tokendraw.errors.exceptions import SamplerUnavailableError
from tokendraw.parameters.batch_facts import BatchFacts, RowKinds

_NOT_BY_ROW = "every row is one"
"""Reason for which the rows of a call are not divided."""
_log = logging.getLogger("tokendraw")


def route(selection: Selection, call: Call) -> RowSplit | LoadedBackend:
    """Find the backend for a call, or divide the rows if the host knows the kind of each row.

    :raises SamplerUnavailableError: the call may have a property that no selected backend supports.
    """
    reason = selection.backend.reason_against(call)
    if reason is None:
        return selection.backend
    kinds = _row_kinds(selection, call)
    if isinstance(kinds, str) or not isinstance(call, Sample):
        return _whole_call(selection, call, [reason], str(kinds))
    split = _split(selection, call, kinds)
    if isinstance(split, str):
        return _whole_call(selection, call, [reason], split)
    if not split.num_leaving:
        return selection.backend
    leaving = RowGroup(split.leaving, call.vocab_size)
    companion: LoadedBackend = split.companion
    if companion.reason_against(leaving) is not None:
        companion = serving_backend(selection, call, leaving)  # says what is missing
    is_split = split.num_staying and (
        is_worthwhile(split.num_staying, split.num_leaving, split.rows.device)
        or companion.reason_against(call) is not None
    )
    if not is_split:
        rows = split.num_staying + split.num_leaving
        return _whole_call(selection, call, split.reasons, f"{split.num_staying} of {rows} rows would stay")
    if is_capturing():
        selection.captured_splits.append(split)
    _log_companion(selection, companion, split.reasons)
    return split


def serving_backend(selection: Selection, call: Call, rows: RowGroup | None = None) -> LoadedBackend:
    """Find the backend for a whole call, or for rows of one kind.

    :raises SamplerUnavailableError: no selected backend supports all properties that the call may have.
    """
    backend = selection.backend
    reason = backend.reason_against(rows or call)
    if reason is None:
        return backend
    companion = selection.companion_for(call, rows)
    if companion is None:
        advice = install("one that can", selection.resolution.decisions)
        if selection.barred_companion is not None:
            advice = f"Leave out companion=False, so that {selection.barred_companion!r} serves as one"
        raise SamplerUnavailableError(
            f"'{backend.name}' cannot serve {reason}, which this batch may hold, and has no companion. "
            f"{advice}, or, if the batch holds none, say so in {call.hint_field}."
        )
    companion_reason = companion.reason_against(rows or call)
    if companion_reason is not None:
        raise SamplerUnavailableError(
            f"'{backend.name}' cannot serve {reason}, and its companion '{companion.name}' cannot serve "
            f"{companion_reason}, both of which this batch may hold. "
            f"{install('one that serves both', selection.resolution.decisions)}, or, if the batch holds only one "
            f"of them, say so in {call.hint_field}."
        )
    return companion


def is_served(selection: Selection, call: Call | RowGroup) -> bool:
    """Whether the selected backend or the companion supports all of a call."""
    return any(backend.reason_against(call) is None for backend in selection.backends)


def _row_kinds(selection: Selection, call: Call) -> RowKinds | str:
    """Return the kind of each row of a call, or say why the call is not divided."""
    backend = selection.backend
    if selection.companion is None or not isinstance(call, Sample):
        return _NOT_BY_ROW
    for requirement in backend.unsupported:
        if requirement.concerns_call and requirement.is_asked(call, backend.capabilities):
            return _NOT_BY_ROW
    return call.row_kinds()


def _split(selection: Selection, call: Sample, kinds: RowKinds) -> RowSplit | str:
    """Divide the rows of a call, or say why not."""
    splits = selection.row_splits.setdefault(kinds, {})
    split = splits.get(call.vocab_size)
    if split is None:
        if is_capturing():
            return "a CUDA graph is captured of it before it was drawn once"
        backend, reasons = selection.backend, _reasons_by_kind(selection.backend, call, kinds)
        leaving = [kind for kind, reason in zip(kinds.kinds, reasons, strict=True) if reason is not None]
        companion = selection.companion_for(call, RowGroup(BatchFacts.merged(leaving), call.vocab_size))
        assert companion is not None
        split = call.split(kinds, reasons, (backend.unsupported, companion.unsupported))
        split = splits[call.vocab_size] = replace(split, companion=companion)
    return split


def _reasons_by_kind(backend: LoadedBackend, call: Sample, kinds: RowKinds) -> list[str | None]:
    """Name the unsupported property of each kind of row."""
    return [backend.reason_against(RowGroup(kind, call.vocab_size)) for kind in kinds.kinds]


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
