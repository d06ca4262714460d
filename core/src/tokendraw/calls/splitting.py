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
from tokendraw.filters.installed import find_filter
from tokendraw.output import PAD_LOGPROB, PAD_TOKEN_ID, LogprobsTensors, SamplerOutput
from tokendraw.parameters.batch_facts import BatchFacts, RowKinds
from tokendraw.parameters.fields import SLOT_FIELDS
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
    companion: Any = None
    """The loaded backend that draws the leaving rows, once the rows are divided for a selection."""

    @classmethod
    def of(cls, row_kinds: RowKinds, reasons: Sequence[str | None], device: torch.device) -> Self:
        """Divide rows by kind, each with the property that the chosen sampler does not support, or None."""
        of_row = row_kinds.slot_of_row or range(row_kinds.num_rows)
        leaves = [reason is not None for reason in reasons]
        rows = [row for row, slot in enumerate(of_row) if leaves[row_kinds.of_slot[slot]]]
        present = {row_kinds.of_slot[slot] for slot in of_row}
        kinds = [(kind, leaves[i]) for i, kind in enumerate(row_kinds.kinds) if i in present]
        indices = uploaded(
            {
                "rows": (rows, torch.int64),
                "slots": ([of_row[row] for row in rows], torch.int64),
                "slot_leaves": ([leaves[kind] for kind in row_kinds.of_slot], torch.bool),
            },
            device,
        )
        return cls(
            staying=BatchFacts.merged(kind for kind, leaving in kinds if not leaving),
            leaving=BatchFacts.merged(kind for kind, leaving in kinds if leaving),
            reasons=tuple(dict.fromkeys(reasons[i] or "" for i in sorted(present) if leaves[i])),
            num_staying=len(of_row) - len(rows),
            num_leaving=len(rows),
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
        return replace(
            metadata,
            **parameters,
            filters=from_moments or None,
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

    def merged(self, chosen: SamplerOutput, companion: SamplerOutput, width: int | None) -> SamplerOutput:
        """Merge the outputs in the order of the rows, with ``width`` best tokens each; None: no row wants any."""
        best = mass = threshold = ceiling = None
        if chosen.threshold is not None and companion.threshold is not None:
            threshold = chosen.threshold.index_copy(0, self.rows, companion.threshold)
        if chosen.ceiling is not None or companion.ceiling is not None:
            ceiling = _ceiling_of(chosen).index_copy(0, self.rows, _ceiling_of(companion))
        if width is not None:
            best, mass = self._merged_logprobs(chosen, companion, width)
        return SamplerOutput(
            chosen.token_ids.index_copy(0, self.rows, companion.token_ids),
            chosen.valid.index_copy(0, self.rows, companion.valid),
            best,
            mass,
            threshold,
            ceiling,
        )

    def _merged_logprobs(
        self, chosen: SamplerOutput, companion: SamplerOutput, width: int
    ) -> tuple[LogprobsTensors, Tensor]:
        target, masses = _padded(chosen, width)
        source, companion_mass = _padded(companion, width)
        rows = self.rows
        return LogprobsTensors(
            target.token_ids.index_copy(0, rows, source.token_ids),
            target.logprobs.index_copy(0, rows, source.logprobs),
            None
            if target.ranks is None or source.ranks is None
            else target.ranks.index_copy(0, rows, source.ranks),
            *self._merged_given(target, source),
        ), masses.index_copy(0, rows, companion_mass)

    def _merged_given(
        self, target: LogprobsTensors, source: LogprobsTensors
    ) -> tuple[Tensor | None, Tensor | None]:
        """Merge the given ids and their logprobs; padding for the rows of a sampler that was given none."""
        pairs = [(part.given_token_ids, part.given_logprobs) for part in (target, source)]
        known = next(((ids, values) for ids, values in pairs if ids is not None and values is not None), None)
        if known is None:
            return None, None
        padded = []
        for (ids, values), part in zip(pairs, (target, source), strict=True):
            shape = (len(part.token_ids), known[0].shape[1])
            padded.append(
                (
                    known[0].new_full(shape, PAD_TOKEN_ID) if ids is None else ids,
                    known[1].new_full(shape, PAD_LOGPROB) if values is None else values,
                )
            )
        (ids, values), (source_ids, source_values) = padded
        return ids.index_copy(0, self.rows, source_ids), values.index_copy(0, self.rows, source_values)


def _ceiling_of(output: SamplerOutput) -> Tensor:
    """Return the greatest kept logits of an output; +inf where it has none."""
    tokens = output.token_ids
    if output.ceiling is not None:
        return output.ceiling
    return torch.full(tokens.shape, math.inf, dtype=torch.float32, device=tokens.device)


def _padded(output: SamplerOutput, width: int) -> tuple[LogprobsTensors, Tensor]:
    """Pad logprobs to ``width`` columns beside the drawn token; return them with the log of the kept mass."""
    best, tokens = output.logprobs, output.token_ids
    mass = output.log_kept_mass
    if mass is None:
        mass = torch.full(tokens.shape, PAD_LOGPROB, dtype=torch.float32, device=tokens.device)
    if best is None:
        best = LogprobsTensors(
            tokens.unsqueeze(1), torch.full_like(mass, PAD_LOGPROB).unsqueeze(1), torch.zeros_like(tokens)
        )
    missing = 1 + width - best.token_ids.shape[1]
    if missing:
        best = replace(
            best,
            token_ids=torch.nn.functional.pad(best.token_ids, (0, missing), value=PAD_TOKEN_ID),
            logprobs=torch.nn.functional.pad(best.logprobs, (0, missing), value=PAD_LOGPROB),
        )
    return best, mass


def _where(leaves: Tensor, harmless: float | None, values: Tensor | None) -> Tensor | None:
    return values if values is None or harmless is None else values.masked_fill(leaves, harmless)
