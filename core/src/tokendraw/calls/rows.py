"""Calls with logits and parameters of rows: draws of tokens or drafts, scores of given tokens, verifications of drafts.

The checks of the inputs read no values.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import torch
from torch import Tensor

from tokendraw._torch.tensors import (
    check_device,
    check_device_of,
    check_integers,
    check_plain,
    check_vector,
    first_of,
    is_capturing,
    is_plain,
    misfit,
)
from tokendraw.backends.description import INPUT_DTYPES, VERIFY_MODES, Need, VerifyMode
from tokendraw.calls.call import Call, OutputCheck, check_type
from tokendraw.errors import InvalidInputError, InvalidParameterError, one_of, type_name
from tokendraw.output import PAD_TOKEN_ID, LogprobsTensors, SamplerOutput, ScoreOutput, VerifyOutput
from tokendraw.parameters.batch_facts import BatchFacts, RowKinds
from tokendraw.parameters.drafts import Drafts
from tokendraw.parameters.fields import FACT_OF_COLUMN, check_logprobs, of_row
from tokendraw.parameters.metadata import SamplingMetadata
from tokendraw.speculative import rows_of_requests

LogitsForm: TypeAlias = tuple[torch.Size, torch.dtype, torch.device]

_DTYPES = frozenset(getattr(torch, name) for name in INPUT_DTYPES)
_KERNEL_FACTS = attrgetter("any_greedy", "any_seeded", *dict.fromkeys(FACT_OF_COLUMN.values()))


class RowCall(Call):
    """Logits [B, V], the parameters of the rows, and the token of each row where it is given and not drawn.

    A verification is such a call as well, with drafts in place of given tokens.
    """

    __slots__ = ("is_draft", "logits", "metadata", "token_ids")

    hint_field: ClassVar[str] = "SamplingMetadata.facts"

    def __init__(
        self,
        logits: Tensor,
        metadata: SamplingMetadata,
        token_ids: Tensor | None = None,
        *,
        is_draft: bool = False,
    ) -> None:
        self.logits = logits
        self.metadata = metadata
        self.token_ids = token_ids
        self.is_draft = is_draft  # drawn from noise of separate streams: verifications use others

    def check(self, device: torch.device, need: Need) -> None:
        check_logits("logits", self.logits, device)
        ids, rows = self.token_ids, self.logits.shape[0]
        if ids is not None:
            check_vector("token_ids", ids, "Pass torch.tensor(token_ids, device=logits.device).")
            check_integers("token_ids", ids)
            mend = "Pass token_ids.to(logits.device)."
            check_device_of("token_ids", ids.device, "'logits'", self.logits.device, mend)
            if ids.shape[0] != rows:
                raise InvalidInputError(
                    f"'token_ids' needs as many ids as 'logits' has rows, {rows}, found {ids.shape[0]}."
                )
        check_metadata("logits", self.logits, self.metadata, need)
        if self.metadata.num_rows not in (None, rows):
            raise InvalidInputError(
                f"'metadata' needs as many rows as 'logits', {rows}, found {self.metadata.num_rows}."
            )

    def check_values(self) -> None:
        self.metadata.check_values()

    def tensors(self) -> dict[str, Tensor]:
        given = {} if self.token_ids is None else {"token_ids": self.token_ids}
        return {"logits": self.logits, **given}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        return type(self)(tensors["logits"], self.metadata, tensors.get("token_ids"), is_draft=self.is_draft)

    def run(self, backend: Any) -> Any:
        if self.token_ids is not None:
            return backend.score(self.logits, self.token_ids, self.metadata)
        if self.is_draft:
            return backend.sample(self.logits, self.metadata, draft=True)
        return backend.sample(self.logits, self.metadata)

    def cached_check(self, key: object) -> OutputCheck | None:
        if self.token_ids is not None or type(self.metadata) is not SamplingMetadata:
            return None
        checked: tuple[LogitsForm, OutputCheck] | None = self.metadata.memo.get(key)
        return checked[1] if checked is not None and has_form(self.logits, checked[0]) else None

    def cache_check(self, key: object, check: OutputCheck) -> None:
        if self.token_ids is None:
            logits = self.logits
            self.metadata.memo[key] = (logits.shape, logits.dtype, logits.device), check

    def output_check(self, need: Need) -> OutputCheck:
        rows = self.logits.shape[:1]
        if self.token_ids is None:
            fields = (("token_ids", rows, torch.int64), ("valid", rows, torch.bool))
            return self.output_form(SamplerOutput, fields, need).wrong
        return self.output_form(ScoreOutput, (("entropy", rows, torch.float32),), need).wrong

    def output_form(self, output_type: type[Any], fields: tuple[_Field, ...], need: Need) -> OutputForm:
        """Describe the output: a class with ``fields`` of its own, and thresholds and logprobs that were asked for."""
        facts, rows, shape = self.facts, self.logits.shape[:1], fields[0][1]
        if need.threshold:
            bounds = ("threshold", "ceiling")[: 1 + facts.any_ceiling]
            fields = (*fields, *((name, rows, torch.float32) for name in bounds))
        width, of_best = facts.logprobs_width(self.vocab_size), None
        if width is None and output_type is ScoreOutput:
            width = 0
        if width is not None:
            wide = (*shape, 1 + width)
            of_best = [("token_ids", wide, torch.int64), ("logprobs", wide, torch.float32)]
            if (given := self.metadata.given_ids) is not None:
                wide = (*shape, given.shape[1])
                of_best[:0] = [
                    ("given_token_ids", wide, torch.int64),
                    ("given_logprobs", wide, torch.float32),
                ]
        return OutputForm(output_type, self.logits.device, shape, fields, of_best, need.logprob_ranks)

    def wrong_values(self, output: Any, need: Need) -> str | None:
        wrong = self.wrong_tokens(output)
        if wrong is not None or (self.facts.max_logprobs is None and not isinstance(output, ScoreOutput)):
            return wrong
        # Raw logits alone exceed 0.
        bounded = [("log_kept_mass", output.log_kept_mass)]
        if need.logprobs_mode != "raw_logits":
            bounded.append(("logprobs.logprobs", output.logprobs.logprobs))
        for name, values in bounded:
            for index in first_of(values > 0):
                found = f"found {float(values[tuple(index)]):.3g} at {index} of {list(values.shape)}"
                return f"{name} at most 0 in the mode {need.logprobs_mode}, {found}"
        return None

    def wrong_tokens(self, output: Any) -> str | None:
        if self.token_ids is None:
            found = output.token_ids
            for (row,) in first_of((found < 0) | (found >= self.vocab_size)):
                return f"token_ids in [0, {self.vocab_size}), found {int(found[row])} in row {row} of {len(found)}"
            return None
        ids, found = self.token_ids.to(torch.int64), output.logprobs.token_ids[:, 0]
        expected = torch.where((ids >= 0) & (ids < self.vocab_size), ids, PAD_TOKEN_ID)
        for (row,) in first_of(found != expected):
            needed = f"logprobs.token_ids of row {row} to begin with {int(expected[row])}"
            return f"{needed}, found {int(found[row])}"
        return None

    def signature(self) -> Hashable:
        facts, logits, ids = self.facts, self.logits, self.token_ids
        has_logprobs, has_given_ids = facts.max_logprobs is not None, facts.any_logprob_token_ids
        return (
            *(logits.dtype, logits.shape[1], *_KERNEL_FACTS(facts), facts.filters),
            *(has_logprobs, has_given_ids, None if ids is None else ids.dtype),
        )

    @property
    def num_rows(self) -> int:
        return self.logits.shape[0] if self.token_ids is None else 0

    @property
    def facts(self) -> BatchFacts:
        return self.metadata.facts

    @property
    def vocab_size(self) -> int:
        return self.logits.shape[1]

    def row_kinds(self) -> RowKinds | str:
        """Return the kind of each row for a division between two backends, or say why the rows stay together."""
        if self.token_ids is not None:
            return "every row is one"
        metadata, rows = self.metadata, self.logits.shape[0]
        kinds = metadata.row_kinds
        if kinds is None:
            return "its metadata has no row_kinds"
        if metadata.row_index is not None and kinds.slot_of_row is None:
            return "its row_index is not known on the host"
        if kinds.num_rows != rows:
            return f"its row_kinds speak of {kinds.num_rows} rows, not of {rows}"
        if not kinds.is_current():
            return "its parameters were changed after its row_kinds were made"
        return kinds


_Field: TypeAlias = tuple[str, tuple[int, ...], torch.dtype]


class OutputForm(NamedTuple):
    """The form of the output of a row call, without references to tensors."""

    output_type: type[Any]
    device: torch.device
    shape: tuple[int, ...]
    fields: tuple[_Field, ...]
    of_best: list[_Field] | None
    """Fields of the logprobs; None: no row wants any."""
    needs_ranks: bool

    def wrong(self, output: Any) -> str | None:
        """Compare an output with the form, but look at no value: what is needed and what was found, or None."""
        output_type, device, shape, fields, of_best, needs_ranks = self
        if not isinstance(output, output_type):
            return f"a {output_type.__name__}, found {type(output).__name__}"
        for name, needed, dtype in fields:
            if reason := misfit(name, getattr(output, name), needed, dtype, device):
                return reason
        if of_best is None:
            return None
        best = output.logprobs
        if not isinstance(best, LogprobsTensors):
            return f"logprobs of the type LogprobsTensors, found {type(best).__name__}"
        for name, needed, dtype in of_best:
            if reason := misfit(f"logprobs.{name}", getattr(best, name), needed, dtype, device):
                return reason
        reason = None
        if needs_ranks or best.ranks is not None:
            reason = misfit("logprobs.ranks", best.ranks, shape, torch.int64, device)
        return reason or misfit("log_kept_mass", output.log_kept_mass, shape, torch.float32, device)


# A verification.

_TENSORS = ("draft_token_ids", "cu_num_logits", "draft_probs", "draft_logits")
_Rows: TypeAlias = tuple[Tensor, Tensor, Tensor | None]


class Verify(RowCall):
    """Logits [L, V] of the target, the drafts to verify, and parameters, an entry a request or a row."""

    __slots__ = ("drafts", "mode")

    hint_field: ClassVar[str] = "SamplingMetadata.facts or Drafts"

    def __init__(
        self, target_logits: Tensor, drafts: Drafts, metadata: SamplingMetadata, mode: VerifyMode
    ) -> None:
        super().__init__(target_logits, metadata)
        self.drafts = drafts
        self.mode = mode

    def check(self, device: torch.device, need: Need) -> None:
        target_logits, drafts, metadata = self.logits, self.drafts, self.metadata
        check_logits("target_logits", target_logits, device)
        mend = "Pass Drafts.from_lists(draft_token_ids, device=...)."
        check_type("drafts", drafts, Drafts, mend)
        check_metadata("target_logits", target_logits, metadata, need)
        if self.mode not in VERIFY_MODES:
            needed = one_of(VERIFY_MODES)
            raise InvalidParameterError(f"'mode' needs {needed}, found {self.mode!r}. Pass one of these.")
        drafts.check(target_logits)
        rows, found = target_logits.shape[0], metadata.num_rows
        if found not in (None, rows, drafts.num_requests):
            raise InvalidInputError(
                f"'metadata' needs one entry a request, {drafts.num_requests}, or one a row of 'target_logits', "
                f"{rows}, found {found}."
            )

    def check_values(self) -> None:
        super().check_values()
        self.drafts.check_values()

    def tensors(self) -> dict[str, Tensor]:
        of_drafts = {name: getattr(self.drafts, name) for name in _TENSORS}
        given = {name: tensor for name, tensor in of_drafts.items() if tensor is not None}
        return {"target_logits": self.logits, **given}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        fields: dict[str, Any] = {name: tensors[name] for name in _TENSORS if name in tensors}
        drafts = replace(self.drafts, **fields)
        return type(self)(tensors["target_logits"], drafts, self.metadata, self.mode)

    def signature(self) -> Hashable:
        drafts = self.drafts
        ids, offsets, logits = drafts.draft_token_ids, drafts.cu_num_logits, drafts.draft_logits
        dtypes = ids.dtype, offsets.dtype, None if logits is None else logits.dtype
        return super().signature(), self.mode, drafts.kind, ids.dim(), dtypes, drafts.max_drafts.bit_length()

    @property
    def num_rows(self) -> int:
        return 0

    def cached_check(self, key: object) -> OutputCheck | None:
        if type(self.drafts) is not Drafts or type(self.metadata) is not SamplingMetadata:
            return None
        # The first is the memo of the metadata.
        checked: tuple[dict[Hashable, Any], VerifyMode, LogitsForm, OutputCheck] | None
        checked = self.drafts.memo.get(key)
        if checked is None or checked[0] is not self.metadata.memo or checked[1] != self.mode:
            return None
        return checked[3] if has_form(self.logits, checked[2]) else None

    def cache_check(self, key: object, check: OutputCheck) -> None:
        drafts, logits = self.drafts, self.logits
        if drafts.num_rows is None and drafts.cu_num_logits.is_cpu:
            return  # their values are checked in every call
        form = logits.shape, logits.dtype, logits.device
        drafts.memo[key] = self.metadata.memo, self.mode, form, check

    def run(self, backend: Any) -> Any:
        metadata = by_row(self.metadata, self.drafts, self.logits.shape[0])
        return backend.verify(self.logits, self.drafts, metadata, mode=self.mode)

    def output_check(self, need: Need) -> OutputCheck:
        requests = self.drafts.num_requests
        tokens = "token_ids", (requests, self.drafts.max_drafts + 1), torch.int64
        others = ("num_accepted", (requests,), torch.int32), ("valid", (requests,), torch.bool)
        return self.output_form(VerifyOutput, (tokens, *others), need).wrong

    def wrong_tokens(self, output: VerifyOutput) -> str | None:
        drafts, vocab_size = self.drafts, self.vocab_size
        first, ids = drafts.cu_num_logits.tolist(), drafts.draft_token_ids.tolist()
        chains = zip(output.token_ids.tolist(), output.num_accepted.tolist(), strict=True)
        for b, (tokens, accepted) in enumerate(chains):
            count = first[b + 1] - first[b] - 1
            if not 0 <= accepted <= count:
                of_all = f"request {b} of {drafts.num_requests}"
                return f"num_accepted in [0, {count}], found {accepted} for {of_all}"
            start = first[b] - b
            proposed = ids[b] if drafts.draft_token_ids.dim() == 2 else ids[start : start + accepted]
            for token, draft_id in zip(tokens[:accepted], proposed, strict=False):
                if token != draft_id:
                    return f"the accepted drafts, found token {token} for draft {draft_id} of request {b}"
            for i, token in enumerate(tokens):
                if i <= accepted and not 0 <= token < vocab_size:
                    return (
                        f"token_ids in [0, {vocab_size}) up to the last token of a request, found {token} as token "
                        f"{i} of the {accepted + 1} of request {b}"
                    )
                if i > accepted and token != PAD_TOKEN_ID:
                    return (
                        f"token_ids {PAD_TOKEN_ID} behind the last token of a request, found {token} behind the "
                        f"{accepted + 1} of request {b}"
                    )
        return None


def by_row(metadata: SamplingMetadata, drafts: Drafts, rows: int) -> SamplingMetadata:
    """Make metadata of rows, also from metadata of requests with the position of each request's first row."""
    if metadata.num_rows in (None, rows):
        return metadata
    request, offset, steps = _rows_of_requests(drafts, rows)
    positions = metadata.positions
    if positions is not None and steps is not None:
        positions = torch.add(positions.unsqueeze(1), steps).view(-1)  # one launch
    elif positions is not None:
        positions = positions.index_select(0, request)
        positions = (positions if positions.dtype is torch.int64 else positions.to(torch.int64)).add_(offset)
    slot = metadata.row_index
    return metadata.for_rows(request if slot is None else slot.index_select(0, request), positions)


def _rows_of_requests(drafts: Drafts, rows: int) -> _Rows:
    """Find the request of each row, and its index within the request: [L] each, computed once for unchanged offsets.

    Inside of a CUDA graph both are computed, so that replays follow changes of ``cu_num_logits``.

    :returns: and the steps of any request, [K + 1] int64, where all requests have K drafts.
    """
    offsets = drafts.cu_num_logits
    if is_capturing() or offsets.is_inference():  # torch does not count changes of inference tensors
        return *rows_of_requests(offsets, rows), None
    stream = torch.cuda.current_stream(offsets.device) if offsets.is_cuda else None
    state: Hashable = rows, offsets._version, stream
    known: tuple[Hashable, _Rows] | None = drafts.memo.get("rows of requests")
    if known is None or known[0] != state:
        width, steps = drafts.max_drafts + 1, None
        if drafts.is_uniform and rows == drafts.num_requests * width:
            steps = torch.arange(width, device=offsets.device)
        known = state, (*rows_of_requests(offsets, rows), steps)
        drafts.memo["rows of requests"] = known
    return known[1]


# Checks of the inputs.


def check_logits(name: str, logits: Tensor, device: torch.device, *, built: str = "sampler") -> None:
    if not is_plain(logits):
        check_plain(name, logits, f"Pass torch.as_tensor({name}), of shape [B, V].")
    if logits.dim() != 2 or logits.shape[1] < 1:
        raise InvalidInputError(f"'{name}' needs shape [B, V] with V >= 1, found {list(logits.shape)}.")
    if logits.dtype not in _DTYPES:
        raise InvalidInputError(f"'{name}' needs dtype {', '.join(INPUT_DTYPES)}, found {logits.dtype}.")
    check_device(name, logits, device, built, "the logits")


def has_form(logits: object, form: LogitsForm) -> bool:
    """Whether logits have a checked form, so that :func:`check_logits` would accept them."""
    return (
        type(logits) is Tensor
        and not logits.is_nested
        and logits.shape == form[0]
        and logits.dtype is form[1]
        and logits.device == form[2]
        and logits.layout is torch.strided
        and not logits.is_neg()
    )


def check_metadata(name: str, logits: Tensor, metadata: SamplingMetadata, need: Need) -> None:
    """Refuse anything but metadata on the device of the logits, of any number of rows."""
    mend = "Pass SamplingMetadata.from_params(params, device=...)."
    check_type("metadata", metadata, SamplingMetadata, mend)
    if type(metadata) is not SamplingMetadata:
        raise InvalidInputError(
            f"'metadata' needs a tokendraw.SamplingMetadata itself, found its subclass {type_name(metadata)}. Pass "
            "values of your own as SamplingParams(filters={...}), see tokendraw.filters."
        )
    device = metadata.device
    if device is not None and device != logits.device:
        mend = "Pass device= to SamplingMetadata.from_params."
        check_device_of("metadata", device, f"'{name}'", logits.device, mend)
    given_id, size, ids = metadata.facts.max_logprob_token_id, logits.shape[1], metadata.logprob_token_ids
    if given_id is not None and given_id >= size:
        slots: list[int] = []
        if ids is not None and not is_capturing():
            slots = (ids == given_id).any(-1).nonzero().flatten().tolist()
        owner = of_row(slots[0]) if slots else ""
        needed = f"token ids in [0, {size}), found {given_id}. Ask for ids of the vocabulary."
        raise InvalidParameterError(f"'logprob_token_ids'{owner} needs {needed}")
    if given_id is not None and ids is not None and ids.shape[1] > size:
        raise InvalidParameterError(
            f"'logprob_token_ids' needs at most {size} ids of a vocabulary of {size}, found {ids.shape[1]}. "
            "Name each id once."
        )
    if need.max_logprobs is not None:
        check_logprobs(metadata.facts.max_logprobs, size, need.max_logprobs)
