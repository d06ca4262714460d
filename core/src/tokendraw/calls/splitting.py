"""Divides a batch between a sampler and a companion, and merges the outputs.

The chosen sampler draws from the logits as they are, with harmless parameters in the rows of its companion: taking
these rows out would copy nearly all logits. The companion draws from a copy of its few rows. Neither step looks at the
device, so both can be captured in a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from tokendraw._torch.upload import uploaded
from tokendraw.backends.description.requirement import Requirement
from tokendraw.calls.drawing import RowCall
from tokendraw.calls.row_requirements import LOGPROBS
from tokendraw.filters.installed import find_filter
from tokendraw.output import PAD_LOGPROB, PAD_TOKEN_ID, LogprobsTensors, SamplerOutput
from tokendraw.parameters.batch_facts import BatchFacts, RowKinds
from tokendraw.parameters.fields import FILTER_PARAMETERS
from tokendraw.parameters.metadata import SamplingMetadata

MIN_SPLIT_ROWS = 16
"""Fewer rows on a GPU are not worth a second sampler: its launches cost as much as they do. A CPU launches nothing, so
that each row counts. See ``docs/engine-authors.md``.
"""


def is_worthwhile(staying: int, leaving: int, device: torch.device) -> bool:
    """Whether two samplers draw a batch faster than the companion alone."""
    return staying >= (leaving if device.type == "cpu" else max(MIN_SPLIT_ROWS, leaving))


@dataclass(frozen=True, slots=True, eq=False)
class RowSplit:
    """The companion's rows of a batch. Indices lie on the device, so that a step uploads none."""

    staying: BatchFacts
    """Facts about the rows that the chosen sampler draws."""
    leaving: BatchFacts
    """Facts about the rows that the companion draws."""
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
    companion: Any
    """The loaded backend that draws the leaving rows."""

    @classmethod
    def of(
        cls,
        call: RowCall,
        kinds: RowKinds,
        reasons: Sequence[str | None],
        companion: Any,
        unsupported: Sequence[tuple[Requirement, ...]],
    ) -> Self:
        """Divide the rows of a call between the chosen sampler and a companion.

        :param reasons: for each of the kinds the property that the chosen sampler does not support, or None.
        :param unsupported: the requirements that the chosen sampler does not meet, and those of the companion.
        """
        of_row, widest = kinds.slot_of_row or range(kinds.num_rows), call.facts.max_logprobs
        leaves = [reason is not None for reason in reasons]
        rows = [row for row, slot in enumerate(of_row) if leaves[kinds.of_slot[slot]]]
        present = sorted({kinds.of_slot[slot] for slot in of_row})
        indices = uploaded(
            {
                "rows": (rows, torch.int64),
                "slots": ([of_row[row] for row in rows], torch.int64),
                "slot_leaves": ([leaves[kind] for kind in kinds.of_slot], torch.bool),
            },
            call.logits.device,
        )
        # Logprob columns as from a single sampler: if it supports logprobs, rows that did not ask get them too.
        staying, leaving = (
            replace(
                BatchFacts.merged(kinds.kinds[i] for i in present if leaves[i] is leaving),
                max_logprobs=None if LOGPROBS in missing else widest,
            )
            for leaving, missing in zip((False, True), unsupported, strict=True)
        )
        return cls(
            staying=staying,
            leaving=leaving,
            reasons=tuple(dict.fromkeys(reasons[i] or "" for i in present if leaves[i])),
            num_staying=len(of_row) - len(rows),
            num_leaving=len(rows),
            companion=companion,
            **indices,
        )

    def for_chosen(self, metadata: SamplingMetadata) -> SamplingMetadata:
        """Return the parameters of all rows, with harmless values in the leaving rows, fast for any sampler."""
        facts, width = self.staying, self.staying.max_logprobs
        leaves = self.slot_leaves
        filters = {
            p.name: _where(leaves, p.quick, getattr(metadata, p.name)) if facts.may_use(p.name) else None
            for p in FILTER_PARAMETERS
        }
        from_moments = {
            name: values.masked_fill(leaves, find_filter(name).off)
            for name, values in (metadata.filters or {}).items()
            if name in (facts.filters or ())
        }
        seeded = leaves.logical_not() if metadata.seeded is None else metadata.seeded & ~leaves
        return replace(
            metadata,
            temperature=_where(leaves, 1, metadata.temperature),
            **filters,
            filters=from_moments or None,
            seed=metadata.seed if facts.any_seeded else None,
            seeded=seeded if facts.any_seeded else None,
            **{
                flag: _where(leaves, False, getattr(metadata, flag)) if facts.may_use(flag) else None
                for flag in ("joint", "temperature_last")
            },
            logprobs=None if width is None else _where(leaves, 0, metadata.logprobs),
            logprob_token_ids=_where(leaves.unsqueeze(1), PAD_TOKEN_ID, metadata.logprob_token_ids)
            if facts.any_logprob_token_ids
            else None,
            facts=replace(facts, all_greedy=False, all_seeded=False),
            row_kinds=None,
        )

    def for_companion(self, metadata: SamplingMetadata) -> SamplingMetadata:
        """Return the parameters of the leaving rows."""
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


def _where(leaves: Tensor, harmless: float, values: Tensor | None) -> Tensor | None:
    return None if values is None else values.masked_fill(leaves, harmless)
