"""Times the operation ``verify``: a buffer holds the target's logits [L, V], then the logits of the drafts.

For the mode ``coupled``, which reads no logits of drafts, the buffer ends with the target's. A draft's logits are the
target's of its row plus Gaussian noise of standard deviation 0.5. The draft is a token drawn from them; then columns of
both rows are swapped so that the id depends on the row alone: a single tensor of ids fits every buffer. Rejection
accepts about three drafts of four, of flat logits fewer; coupled accepts fewer, since drafts and target share no noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from tokendraw.plugin import VERIFY_MODES, VerifyMode
from tokendraw_bench.cells import (
    BATCH,
    DTYPE,
    REQUESTS,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    VOCABULARY,
    Cell,
)
from tokendraw_bench.operation import Axis, Prepare, Preset
from tokendraw_bench.operations.sample import logits_record

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tokendraw import Sampler, SamplingMetadata, VerifyOutput
    from tokendraw_bench.timing import Draw, TimedCall

_DRAFT_NOISE = 0.5
_PRESET_MODES: tuple[VerifyMode, ...] = ("rejection", "coupled")
"""Modes of the presets: all backends that are timed offer one of them."""


@dataclass(frozen=True)
class VerifyCell(Cell):
    """A verification to time: ``batch`` requests with the same number of drafts."""

    operation: ClassVar[str] = "verify"
    drafts: int = 4
    """K, the number of drafts of each request."""
    mode: VerifyMode = "rejection"

    @property
    def num_target_rows(self) -> int:
        """Return L."""
        return self.batch * (self.drafts + 1)

    @property
    def num_rows(self) -> int:
        """Return the rows of a buffer: the target's and, for rejection, the drafts'."""
        return self.num_target_rows + (self.batch * self.drafts if self.mode != "coupled" else 0)

    @property
    def row_index(self) -> list[int]:
        """Return the request of each row of the target, as an engine computes it once a batch."""
        return [request for request in range(self.batch) for _ in range(self.drafts + 1)]

    @property
    def description(self) -> str:
        """Describe the requests of the rows in words."""
        return ", ".join([self.filters, f"{self.mode} of {self.drafts}", *self.deviations])


PRESETS = MappingProxyType(
    {
        "quick": Preset(
            shapes=((1, 32_000), (16, 32_000)),
            axes={
                "dtype": ("float32",),
                "family": ("peaked-30",),
                "mode": _PRESET_MODES,
                "filters": ("none", "both"),
            },
        ),
        "design": Preset(
            shapes=tuple((batch, size) for size in (151_936, 128_256) for batch in (256, 64, 1)),
            axes={
                "dtype": ("float32", "bfloat16"),
                "family": ("peaked-30", "gaussian"),
                "mode": _PRESET_MODES,
                "filters": ("none", "both"),
            },
        ),
    }
)
DRAFTS = (
    Axis("drafts", "Of each request, with --op verify; may be given again. Default: 4.", "drafts to verify"),
    Axis(
        "mode",
        "With --op verify; may be given again. Default: rejection and coupled.",
        "drafts to verify",
        option="--verify-mode",
        choices=VERIFY_MODES,
    ),
)


def draft_ids(cell: VerifyCell, device: torch.device) -> Tensor:
    """Draw the drafts of every buffer of a cell: [B * K] int64."""
    import torch

    generator = torch.Generator(device).manual_seed(2)
    return torch.randint(
        cell.vocab_size, (cell.batch * cell.drafts,), generator=generator, device=device, dtype=torch.int64
    )


def _make_logits(cell: VerifyCell, device: torch.device, generator: torch.Generator) -> Tensor:
    import torch

    from tokendraw import speculative
    from tokendraw_bench.logits import make_rows, pad_rows

    target = make_rows(cell.family, cell.num_target_rows, cell.vocab_size, device, generator)
    ids = draft_ids(cell, device).unsqueeze(-1)
    counts = torch.full((cell.batch,), cell.drafts, device=device)
    judging = speculative.target_rows(speculative.cu_num_logits(counts), len(ids))
    draft = target[judging]
    draft += _DRAFT_NOISE * torch.empty_like(draft).normal_(generator=generator)
    best, best_ids = draft.topk(TOP_K)
    probability = (best / TEMPERATURE).softmax(-1)  # of the tokens that every filter keeps
    probability = probability.where(probability.cumsum(-1) - probability < TOP_P, 0.0)
    drafts = best_ids.gather(-1, probability.multinomial(1, generator=generator))
    draft_rows = torch.arange(len(ids), device=device)
    for logits, rows in ((target, judging.unsqueeze(-1)), (draft, draft_rows.unsqueeze(-1))):
        logits[rows, drafts], logits[rows, ids] = logits[rows, ids], logits[rows, drafts]
    rows = target if cell.mode == "coupled" else torch.cat([target, draft])
    return pad_rows(rows.to(getattr(torch, cell.dtype)), cell.row_padding)


def _step(sampler: Sampler, cell: VerifyCell, metadata: SamplingMetadata) -> Draw:
    from tokendraw import Drafts

    assert metadata.device is not None
    ids, rows = draft_ids(cell, metadata.device), cell.num_target_rows
    drafts = Drafts.from_counts(ids, [cell.drafts] * cell.batch, any_placeholder=False)

    def verify(logits: Tensor) -> VerifyOutput:
        given = drafts if cell.mode == "coupled" else replace(drafts, draft_logits=logits[rows:])
        return sampler.verify(logits[:rows], given, metadata, mode=cell.mode)

    return verify


def _baselines() -> Mapping[str, Prepare]:
    from tokendraw_bench.baselines import flashinfer_chain

    def chain(cell: VerifyCell, metadata: SamplingMetadata) -> Sequence[TimedCall]:
        assert metadata.device is not None
        return flashinfer_chain(cell, metadata, draft_ids(cell, metadata.device), cell.mode)

    return {"flashinfer-direct": chain, "flashinfer-unfused": chain}


BENCH = logits_record(
    name="verify",
    cell=VerifyCell,
    axes=(BATCH, VOCABULARY, DTYPE, *DRAFTS, *REQUESTS),
    presets=PRESETS,
    note="A draft's logits are those of the target plus noise. The read is of both for rejection, of the target's "
    "alone for coupled, which looks at no others.",
    make_inputs=_make_logits,
    step=_step,
    baselines=_baselines,
)
