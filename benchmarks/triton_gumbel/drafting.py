"""Makes requests with drafts to verify: vocabularies, filters, families of logits and dtypes in turn."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from batches import RequestArrays, mixed
from families import AGREEMENT
from torch import Tensor

from tokendraw import Drafts, Sampler, SamplingMetadata, SamplingParams, VerifyOutput, speculative
from tokendraw.plugin import VerifyMode

MODES: dict[str, VerifyMode] = {
    "logits": "rejection",
    "probs": "rejection",
    "chosen": "rejection",
    "coupled": "coupled",
}
"""Kinds of drafts, and the mode in which they are verified."""
FILTERS: dict[str, SamplingParams | None] = {
    "mixed": None,
    "none": SamplingParams(),
    "top-k and top-p": SamplingParams(temperature=0.8, top_k=50, top_p=0.9),
    "greedy": SamplingParams(temperature=0.0),
    "top-p": SamplingParams(top_p=0.8),
    "top-k 700": SamplingParams(top_k=700),
    "min-p": SamplingParams(min_p=0.05),
    "joint": SamplingParams(top_k=9, top_p=0.7, min_p=0.01, filter_order="joint"),
}
"""Parameters of all requests of a batch; None: each request has others."""
_FAMILIES = ("gaussian", "zipf", "all equal", "bimodal", "cauchy", "tied", "99 % -inf")
_DTYPES = ("float32", "bfloat16", "float16")
_SHAPES = ((100, 2048), (1025, 1024), (32_000, 256), (128_256, 64), (151_936, 128))
"""Vocabulary, and requests of a batch."""
_SMALL = ((20, 8), (100, 8), (1025, 4), (2049, 3), (2500, 2))
_MOST_DRAFTS = 4
_NOISE = 0.5
_PLACEHOLDERS = 0.03


@dataclass(frozen=True)
class DraftCell:
    """A kind of batch."""

    vocab_size: int
    requests: int
    filters: str
    family: str
    dtype: str


def plan(*, small: bool) -> Iterator[DraftCell]:
    """Yield cells without end. The lengths have no common factor, so that every combination comes in time."""
    parts = (_SMALL if small else _SHAPES, FILTERS, _FAMILIES, _DTYPES)
    for (vocab_size, requests), *kind in zip(*map(itertools.cycle, parts), strict=True):
        yield DraftCell(vocab_size, requests, *kind)


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """Logits of target and drafts for B requests."""

    cell: DraftCell
    counts: tuple[int, ...]
    """Number of drafts of each request."""
    cu_num_logits: Tensor
    target: Tensor
    """[L, V]."""
    draft: Tensor
    """[L - B, V]."""
    metadata: SamplingMetadata
    """Metadata of the requests, with the positions of their first rows."""

    def proposed(self, sampler: Sampler, kind: str) -> Tensor:
        """Draw draft ids [L - B] from ``draft`` with a sampler.

        In the mode ``coupled`` with the target's noise, as a draft model does that wants them accepted.
        """
        draw = sampler.sample if MODES[kind] == "coupled" else sampler.draft
        return draw(self.draft, self._of_drafts()).token_ids

    def drafts(self, ids: Tensor, kind: str) -> Drafts:
        """Return the drafts ``ids`` with their probabilities or logits, by kind."""
        return Drafts.from_counts(
            ids,
            self.counts,
            draft_logits=self.draft if kind == "logits" else None,
            draft_probs=self.draft.float().softmax(-1) if kind == "probs" else None,
        )

    def _of_drafts(self) -> SamplingMetadata:
        """Build the metadata of the drafts' rows: seeds and positions of the target rows that judge drafts."""
        rows, first = len(self.target), self.metadata.positions
        assert first is not None
        judging = speculative.target_rows(self.cu_num_logits, len(self.draft))
        return replace(
            self.metadata,
            positions=speculative.row_positions(self.cu_num_logits, first, rows)[judging],
            row_index=speculative.row_index(self.cu_num_logits, rows)[judging],
        )


def draft_counts(rng: np.random.Generator, requests: int) -> list[int]:
    """Pick the number of drafts of each request: from none to four, or the same in all of them."""
    if rng.random() < 0.5:
        return [int(rng.integers(1, _MOST_DRAFTS + 1))] * requests
    return [int(count) for count in rng.integers(0, _MOST_DRAFTS + 1, requests)]


def speculation(
    cell: DraftCell, counts: Sequence[int], rng: np.random.Generator, generator: torch.Generator
) -> Speculation:
    """Make a batch with drafts' logits equal to the target's plus noise."""
    rows, device = sum(counts) + len(counts), generator.device
    offsets = speculative.cu_num_logits(torch.tensor(counts)).to(device)
    target = AGREEMENT[cell.family](rows, cell.vocab_size, generator).to(getattr(torch, cell.dtype))
    judging = target[speculative.target_rows(offsets, sum(counts))]
    noise = torch.randn(judging.shape, generator=generator, device=device)
    return Speculation(
        cell=cell,
        counts=tuple(counts),
        cu_num_logits=offsets,
        target=target,
        draft=noise.mul_(_NOISE).add_(judging).to(target.dtype),
        metadata=_requests(cell, rng).metadata(device),
    )


def alike(given: Speculation) -> Speculation:
    """Return a batch with p = q to the bit: drafts from the logits of the target."""
    return replace(given, draft=given.target[speculative.target_rows(given.cu_num_logits, len(given.draft))])


def with_placeholders(ids: Tensor, generator: torch.Generator) -> Tensor:
    """Replace some of the drafts by placeholders."""
    missing = torch.rand(ids.shape, generator=generator, device=ids.device) < _PLACEHOLDERS
    return ids.masked_fill(missing, -1)


def differ(one: VerifyOutput, other: VerifyOutput) -> Tensor:
    """Compare tokens, numbers of accepted drafts and validity: [B] bool, True where a request differs."""
    tokens = (one.token_ids != other.token_ids).any(-1)
    return tokens | (one.num_accepted != other.num_accepted) | (one.valid != other.valid)


def _requests(cell: DraftCell, rng: np.random.Generator) -> RequestArrays:
    batch, params = mixed(rng, cell.requests), FILTERS[cell.filters]
    if params is None:
        return batch
    same = {
        name: np.full(cell.requests, getattr(params, name))
        for name in ("temperature", "top_k", "top_p", "min_p")
    }
    return replace(batch, **same, joint=np.full(cell.requests, params.filter_order == "joint"))
