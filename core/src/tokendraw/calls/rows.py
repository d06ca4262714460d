"""Calls with logits and parameters of rows: a token or a draft is drawn for each row, or a given token is scored.

The checks of the inputs read no values. A proof takes its logits and parameters from here too.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
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
from tokendraw.backends.description import INPUT_DTYPES, Capabilities, Need
from tokendraw.calls.call import Call, OutputCheck, check_type
from tokendraw.errors import InvalidInputError, InvalidParameterError, PluginError, type_name
from tokendraw.output import PAD_TOKEN_ID, LogprobsTensors, SamplerOutput, ScoreOutput
from tokendraw.parameters.batch_facts import BatchFacts, RowKinds
from tokendraw.parameters.fields import FACT_OF_COLUMN, FILTER_PARAMETERS, check_logprobs, of_row
from tokendraw.parameters.metadata import SamplingMetadata
from tokendraw.parameters.params import SamplingParams

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


# Proofs.

PEAK = 100.0
"""Logit that leaves exp(-100) of the mass for all other tokens."""
_VOCAB_SIZE = 2048  # two tiles of the two-level draw


def proof_logits(rows: int, capabilities: Capabilities, device: torch.device, need: Need) -> torch.Tensor:
    """Make logits [rows, V] of 0 in a needed or advertised dtype."""
    vocab_size = min(_VOCAB_SIZE, capabilities.max_vocab_size or _VOCAB_SIZE)
    dtype = getattr(torch, need.dtype or (*capabilities.dtypes, "float32")[0])
    return torch.zeros(rows, vocab_size, dtype=dtype, device=device)


def proof_params(capabilities: Capabilities, need: Need) -> SamplingParams:
    """Make parameters for two equally likely tokens, within the advertised capabilities.

    Where kernels are compiled on demand for a dtype that nobody named they ask for nothing, which compiles least.
    """
    if capabilities.compiles_on_demand and need.dtype is None:
        return SamplingParams()
    served = {name for name, _ in capabilities.filters}
    filters = {p.name: p.example for p in FILTER_PARAMETERS if p.name in served}
    if "top_k" in filters:
        filters["top_k"] = 2
    orders = [order for order in need.filter_orders if order in capabilities.filter_orders]
    two_filters: dict[str, Any] = dict([*filters.items()][:2])  # a third one could need another kernel
    return SamplingParams(**two_filters, filter_order=(*orders, "top_k_first")[0])


def proof_output(call: RowCall, backend: Any, need: Need) -> Any:
    output = call.run(backend)
    wrong = call.output_check(need)(output)
    if wrong is not None:
        raise PluginError(f"the proof draw needs {wrong}")
    return output
