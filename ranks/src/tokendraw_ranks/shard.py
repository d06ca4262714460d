"""A rank's part of a vocabulary, the division of tiles among ranks, and what the ranks agree on at its first call."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

import tokendraw
from tokendraw import BatchFacts, Need, SamplingMetadata, philox
from tokendraw.filters import installed_filters
from tokendraw.resolution import State
from tokendraw_ranks.messages import Transport, transport_of

TILE = philox.TILE_SIZE
MESSAGES = 2
"""Version of what ranks say to each other: others may run another release."""
_FACTS = tuple(field.name for field in fields(BatchFacts))
_COLUMNS = (
    *("temperature", "top_k", "top_p", "min_p", "joint", "seed", "seeded", "logprobs"),
    *("typical_p", "xtc_probability", "xtc_threshold", "temperature_last", "positions"),
)
"""Fields of the metadata whose values have to be the same on every rank."""
Description = tuple[tuple[int, int], Mapping[str, object]]


@functools.cache
def reader_of(device_type: str) -> str:
    """Name what reads the columns on a device: triton-gumbel where it is installed, fits, and is not switched off."""
    found = tokendraw.discover(operation="sample") if device_type == "cuda" else ()
    is_there = any(each.name == "triton-gumbel" and each.state is State.AVAILABLE for each in found)
    return "triton-gumbel" if is_there else "torch"


@dataclass(frozen=True, slots=True)
class Layout:
    """The ids of one rank among those of all. Tiles are those of 1,024 ids of the whole vocabulary.

    :ivar start: First id of this rank; ``size`` their number, ``lead`` those before it in its first tile.
    :ivar first_tile: Number of the first tile; ``tiles`` their number, 1 with a column of -inf for a rank without ids.
    :ivar whole_first: 1 if another rank holds a part of the first tile, else 0.
    :ivar whole_end: One less than ``tiles`` if other ranks hold a part of the last tile alone, else ``tiles``.
    :ivar parts: [m, 3 R] int64: for each head, whole tile and tail of all ranks in the order of their ids, 3 r, 3 r + 1
        and 3 r + 2, those in the same tile, and 0 behind the last: rank 0 has no head. None: no tile is shared.
    """

    start: int
    size: int
    lead: int
    vocab_size: int
    most_columns: int
    first_tile: int
    tiles: int
    whole_first: int
    whole_end: int
    parts: Tensor | None

    @classmethod
    def of(cls, shards: Sequence[tuple[int, int]], rank: int, vocab_size: int, device: torch.device) -> Self:
        """Lay out the ids [start, end) of all ranks, for one of them."""
        own = [_divide(start, end, vocab_size) for start, end in shards]
        of_tile: dict[int, list[int]] = {}
        for r, (first, count, whole_first, whole_end) in enumerate(own):
            if whole_first:
                of_tile.setdefault(first, []).append(3 * r)
            if whole_end < count:
                of_tile.setdefault(first + count - 1, []).append(3 * r + 2)
        parts = [[part] for part in range(3 * len(shards))]
        for together in of_tile.values():
            for part in together:
                parts[part] = together
        most = max(map(len, parts))
        start, end = shards[rank]
        first, count, whole_first, whole_end = own[rank]
        table = [[*together, *[0] * (most - len(together))] for together in parts]
        return cls(
            start,
            end - start,
            start % TILE if end > start else 0,
            vocab_size,
            max(end - start for start, end in shards),
            first,
            count,
            whole_first,
            whole_end,
            torch.tensor(table, device=device).T.contiguous() if of_tile else None,
        )


def _divide(start: int, end: int, vocab_size: int) -> tuple[int, int, int, int]:
    """Return the first tile of some ids, the number of tiles, and the first and the end of those that are whole."""
    if start == end:
        return 0, 1, 0, 1
    first, tiles = start // TILE, -(-end // TILE) - start // TILE
    has_head = start % TILE > 0
    has_tail = end % TILE > 0 and end < vocab_size and not (has_head and tiles == 1)
    return first, tiles, int(has_head), tiles - int(has_tail)


@dataclass(frozen=True, eq=False)
class VocabShard:
    """The ids ``[start, start + n)`` of a vocabulary, with n columns of logits on this rank.

    The ranks of a group hold successive ids, in rank order, of any numbers, and together all of them. Make one and keep
    it: at its first call the ranks compare what they hold, by a gather through the host, and any disagreement is the
    same error on every rank, then and later. Later calls trust that the ranks agree in everything but the logits.

    :ivar start: First id on this rank.
    :ivar vocab_size: V: number of ids on all ranks together, without padding.
    :ivar group: A torch.distributed process group; None: the default one.
    :raises InvalidParameterError: a ValueError: ``start`` or ``vocab_size`` is no integer.
    """

    start: int
    vocab_size: int
    group: Any = None
    agreed: Agreed = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("start", "vocab_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise tokendraw.InvalidParameterError(
                    f"'{name}' of VocabShard needs an integer, found {value!r}. Pass a number of ids."
                )
        object.__setattr__(self, "agreed", Agreed())


class Agreement(NamedTuple):
    """The agreement of a shard's ranks."""

    transport: Transport
    layout: Layout


@dataclass(slots=True)
class Agreed:
    """The outcome of a shard's first call; empty before it."""

    by_all: Agreement | None = None
    error: tokendraw.TokendrawError | None = None
    key: object = field(default_factory=object)
    """Stands for the shard where checks of calls are cached, and keeps nothing of it alive."""


def agree(
    shard: VocabShard,
    logits: Tensor,
    metadata: SamplingMetadata,
    need: Need,
    wrong: tokendraw.TokendrawError | None,
) -> Agreement:
    """Let the ranks of a shard agree, at its first call.

    :param wrong: what speaks against this rank's call.
    :raises InvalidInputError: they do not agree: the same on every rank, at this and every later call.
    :raises SamplerUnavailableError: likewise, if that is the error of the first rank with an error.
    """
    agreed = shard.agreed
    if agreed.by_all is None and agreed.error is None:
        if logits.is_cuda and torch.cuda.is_current_stream_capturing():
            raise wrong or tokendraw.InvalidInputError(
                "'shard' needs a call before a CUDA graph is captured, at which its ranks agree, found none. "
                "Call the sampler once with this shard, then capture."
            )
        try:
            transport = transport_of(shard.group)
        except tokendraw.InvalidInputError as error:
            raise wrong or error from None
        received = transport.gather_objects(wrong or _described(shard, logits, metadata, need))
        agreed.error = disagreement(received, shard.vocab_size)
        if agreed.error is None:
            shards = [ids for ids, _ in received]
            layout = Layout.of(shards, transport.rank, shard.vocab_size, logits.device)
            agreed.by_all = Agreement(transport, layout)
    if agreed.by_all is None:
        assert agreed.error is not None
        raise type(agreed.error)(str(agreed.error))  # a new one: a traceback would grow with every call
    if wrong is not None:
        raise wrong
    columns, size = logits.shape[1], agreed.by_all.layout.size
    if columns != size:
        raise tokendraw.InvalidInputError(
            f"'logits' needs {size} columns, as this shard had when its ranks agreed, found {columns}. "
            "Make a new VocabShard on every rank."
        )
    return agreed.by_all


def _described(shard: VocabShard, logits: Tensor, metadata: SamplingMetadata, need: Need) -> Description:
    """Return the ids of this rank, and by name what is the same on every rank."""
    facts = metadata.facts
    return (
        (shard.start, shard.start + logits.shape[1]),
        {
            "'vocab_size' of the shard": shard.vocab_size,
            "the number of rows of 'logits'": logits.shape[0],
            "the dtype of 'logits'": str(logits.dtype).removeprefix("torch."),
            "the device type of 'logits'": logits.device.type,
            "the version of the ranks' messages": MESSAGES,
            "what reads the columns": reader_of(logits.device.type),
            "'logprobs_mode' of the sampler": need.logprobs_mode,
            "'logprob_ranks' of the sampler": need.logprob_ranks,
            "'gumbel_dtype' of the sampler": need.gumbel_dtype,
            "'threshold' of the sampler": need.threshold,
            **{f"'facts.{name}' of the metadata": getattr(facts, name) for name in _FACTS},
            **_digests(metadata),
            **{  # their code, which every rank calls, has to find the same floors
                f"the filter '{record.name}'": f"{record.entry_point} of {record.distribution} {record.version}"
                for record in (installed_filters() if facts.filters else ())
                if record.name in (facts.filters or ())
            },
        },
    )


def _digests(metadata: SamplingMetadata) -> dict[str, object]:
    """Digest the values of each parameter, row by row."""
    seeded, columns = metadata.per_row("seeded"), dict[str, Tensor | None]()
    for name in _COLUMNS:
        values = metadata.per_row(name)
        if name == "seed" and values is not None and seeded is not None:
            values = values.masked_fill(~seeded, 0)
        columns[name] = values
    of_filters = metadata.filters_per_row()
    columns["filters"] = None if of_filters is None else of_filters[1]
    digests: dict[str, object] = {}
    for name, values in columns.items():
        digest = "none"
        if values is not None:
            wide = values.to(torch.float64 if values.is_floating_point() else torch.int64)
            content = bytes(wide.cpu().contiguous().flatten().view(torch.uint8).tolist())
            digest = f"values of digest {hashlib.sha256(content).hexdigest()[:8]}"
        digests[f"'{name}' of the metadata"] = digest
    return digests


def disagreement(
    received: Sequence[Description | Exception], vocab_size: int
) -> tokendraw.TokendrawError | None:
    """Return an error for the first disagreement in the messages of all ranks: the same on every rank."""
    described: list[Description] = []
    for rank, message in enumerate(received):
        if isinstance(message, Exception):
            is_unserved = isinstance(message, tokendraw.SamplerUnavailableError)
            kind = tokendraw.SamplerUnavailableError if is_unserved else tokendraw.InvalidInputError
            return kind(f"'shard' needs a call that every rank can serve, found on rank {rank}: {message}")
        described.append(message)
    first = described[0][1]
    for rank, (_, alike) in enumerate(described):
        for name, value in alike.items():
            if value != first.get(name):
                return tokendraw.InvalidInputError(
                    f"{name} needs to be the same on every rank, found {first.get(name)!r} on rank 0 and "
                    f"{value!r} on rank {rank}. Call every rank with the same batch."
                )
    return _misplaced([ids for ids, _ in described], vocab_size)


def _misplaced(shards: Sequence[tuple[int, int]], vocab_size: int) -> tokendraw.InvalidInputError | None:
    """Look for a gap or an overlap."""
    reached, before = 0, "the vocabulary begins"
    for rank, (start, end) in enumerate(shards):
        if start != reached:
            fault = "a gap" if start > reached else "an overlap"
            return tokendraw.InvalidInputError(
                f"'start' of the shard on rank {rank} needs to be {reached}, where {before}, found {start}: {fault}. "
                "Let the ranks hold successive ids in rank order."
            )
        reached, before = end, f"the shard of rank {rank} ends"
    if reached != vocab_size:
        fault = "a gap" if reached < vocab_size else "more"
        return tokendraw.InvalidInputError(
            f"the shards need to end at {vocab_size}, their 'vocab_size', found {reached} on rank {len(shards) - 1}: "
            f"{fault}. Let the ranks hold all ids and no padding: pass logits[:, :n] where columns are padded."
        )
    return None
