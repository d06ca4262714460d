"""Lets the ranks of a shard agree once on their columns and settings, or raise the same error."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from tokendraw._torch.graphs import is_capturing
from tokendraw.backends.description.capabilities import Need
from tokendraw.errors.exceptions import InvalidInputError, SamplerUnavailableError, TokendrawError
from tokendraw.errors.formatting import format_value
from tokendraw.filters.installed import installed_filters
from tokendraw.parameters.batch_facts import BatchFacts
from tokendraw.parameters.fields import SLOT_FIELDS
from tokendraw.parameters.metadata import SamplingMetadata
from tokendraw.vocab_parallel.messages import transport_of
from tokendraw.vocab_parallel.shard import Agreement, Layout, Span, VocabShard

_FACTS = tuple(field.name for field in fields(BatchFacts))
MESSAGES = 1
"""Version of what ranks say to each other: others may run another release."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """A rank's message in the first call of a shard."""

    ids: Span
    alike: Mapping[str, object]
    """Values that have to be the same on every rank, by their names in messages."""


def agree(
    shard: VocabShard,
    logits: Tensor,
    metadata: SamplingMetadata,
    need: Need,
    sampler: str,
    wrong: TokendrawError | None,
) -> None:
    """Run the agreement of a shard's ranks, at the first call.

    :param sampler: name of the selected backend.
    :param wrong: what speaks against this rank's call.
    :raises InvalidInputError: they do not agree: the same on every rank, at this and every later call.
    :raises SamplerUnavailableError: likewise, if that is the error of the first rank with an error.
    """
    agreed = shard.agreed
    if agreed.by_all is None and agreed.error is None:
        if is_capturing():
            raise wrong or InvalidInputError(
                "'shard' needs a call before a CUDA graph is captured, at which its ranks agree, found none. "
                "Call the sampler once with this shard, then capture."
            )
        try:
            transport = transport_of(shard.group)
        except InvalidInputError as error:
            raise wrong or error from None
        received = transport.gather_objects(wrong or _described(shard, logits, metadata, need, sampler))
        agreed.error = disagreement(received, shard.vocab_size)
        if agreed.error is None:
            shards = [description.ids for description in received]
            agreed.by_all = Agreement(
                transport, Layout.of(shards, transport.rank, shard.vocab_size, logits.device)
            )
    if agreed.by_all is None:
        assert agreed.error is not None
        raise type(agreed.error)(str(agreed.error))  # a new one: a traceback would grow with every call
    if wrong is not None:
        raise wrong
    columns, size = logits.shape[1], agreed.by_all.layout.ids.size
    if columns != size:
        raise InvalidInputError(
            f"'logits' needs {size} columns, as this shard had when its ranks agreed, found {columns}. "
            "Make a new VocabShard on every rank."
        )


def _described(
    shard: VocabShard, logits: Tensor, metadata: SamplingMetadata, need: Need, sampler: str
) -> Description:
    facts = metadata.facts
    return Description(
        ids=Span(shard.start, shard.start + logits.shape[1]),
        alike={
            "'vocab_size' of the shard": shard.vocab_size,
            "the number of rows of 'logits'": logits.shape[0],
            "the dtype of 'logits'": str(logits.dtype).removeprefix("torch."),
            "the device type of 'logits'": logits.device.type,
            "the sampler": sampler,
            "the version of the ranks' messages": MESSAGES,
            "'logprobs_mode' of the sampler": need.logprobs_mode,
            "'logprob_ranks' of the sampler": need.logprob_ranks,
            "'gumbel_dtype' of the sampler": need.gumbel_dtype,
            **{f"'facts.{name}' of the metadata": getattr(facts, name) for name in _FACTS},
            **_digests(metadata),
            **_filters(facts.filters or ()),
        },
    )


def _digests(metadata: SamplingMetadata) -> dict[str, object]:
    """Digest the values of each parameter, row by row."""
    seeded = metadata.per_row("seeded")
    digests: dict[str, object] = {}
    for name in (*SLOT_FIELDS, "positions"):
        values = metadata.per_row(name)
        if values is None:
            digests[f"'{name}' of the metadata"] = "none"
            continue
        if name == "seed" and seeded is not None:
            values = values.masked_fill(~seeded, 0)
        digests[f"'{name}' of the metadata"] = _digest(values)
    of_filters = metadata.filters_per_row()
    if of_filters is not None:
        digests["'filters' of the metadata"] = _digest(of_filters[1])
    return digests


def _digest(values: Tensor) -> str:
    values = values.to(torch.float64 if values.is_floating_point() else torch.int64)
    digest = hashlib.sha256(bytes(values.cpu().contiguous().flatten().view(torch.uint8).tolist()))
    return f"values of digest {digest.hexdigest()[:8]}"


def _filters(names: Collection[str]) -> dict[str, object]:
    """Describe the code of filters from moments, which every rank calls, and which has to find the same floors."""
    return {
        f"the filter '{record.name}'": f"{record.entry_point} of {record.distribution} {record.version}"
        for record in (installed_filters() if names else ())
        if record.name in names
    }


def disagreement(received: Sequence[Description | Exception], vocab_size: int) -> TokendrawError | None:
    """Return an error for the first disagreement in the messages of all ranks: the same on every rank."""
    described: list[Description] = []
    for rank, message in enumerate(received):
        if isinstance(message, Exception):
            is_unserved = isinstance(message, SamplerUnavailableError)
            kind = SamplerUnavailableError if is_unserved else InvalidInputError
            return kind(f"'shard' needs a call that every rank can serve, found on rank {rank}: {message}")
        described.append(message)
    first = described[0].alike
    for rank, other in enumerate(described):
        for name, value in other.alike.items():
            if value != first.get(name):
                return InvalidInputError(
                    f"{name} needs to be the same on every rank, found {format_value(first.get(name))} on rank 0 and "
                    f"{format_value(value)} on rank {rank}. Call every rank with the same batch."
                )
    return _misplaced([each.ids for each in described], vocab_size)


def _misplaced(shards: Sequence[Span], vocab_size: int) -> InvalidInputError | None:
    """Look for a gap or an overlap."""
    end, before = 0, "the vocabulary begins"
    for rank, ids in enumerate(shards):
        if ids.start != end:
            fault = "a gap" if ids.start > end else "an overlap"
            return InvalidInputError(
                f"'start' of the shard on rank {rank} needs to be {end}, where {before}, found {ids.start}: {fault}. "
                "Let the ranks hold successive ids in rank order."
            )
        end, before = ids.end, f"the shard of rank {rank} ends"
    if end != vocab_size:
        fault = "a gap" if end < vocab_size else "more"
        return InvalidInputError(
            f"the shards need to end at {vocab_size}, their 'vocab_size', found {end} on rank {len(shards) - 1}: "
            f"{fault}. Let the ranks hold all ids and no padding: pass logits[:, :n] where columns are padded."
        )
    return None
