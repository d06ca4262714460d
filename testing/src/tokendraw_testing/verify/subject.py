"""The subject in the operation ``verify``: its calls, and verifications to be refused."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from numpy.typing import NDArray

from tokendraw import Drafts, SamplerOutput, SamplingMetadata, SamplingParams, VerifyOutput, speculative
from tokendraw.plugin import Call, DraftKind, GumbelDtype, LogprobsMode, VerifyCapabilities, VerifyMode
from tokendraw.tools import find_unsupported
from tokendraw_testing.kit.property import Refusal
from tokendraw_testing.rows.subjects import RowSubject


class VerifySubject(RowSubject):
    """A subject in the operation ``verify``."""

    operation = "verify"
    capabilities: VerifyCapabilities

    @property
    def ways(self) -> list[tuple[VerifyMode, DraftKind]]:
        """List every mode with every kind of drafts."""
        return list(itertools.product(self.capabilities.verify_modes, self.capabilities.draft_kinds))

    @property
    def outer_ways(self) -> list[tuple[VerifyMode, DraftKind]]:
        """Return the first and the last way, for checks that hardly depend on the way."""
        return self.ways[:: max(1, len(self.ways) - 1)]

    def cycle_dtypes(self) -> Iterator[str]:
        """Yield the advertised dtypes in an endless cycle, for checks of many similar cases."""
        return itertools.cycle(self.capabilities.dtypes)

    def share_requests(self, sizes: Iterable[int], count: int) -> list[tuple[str, int, int]]:
        """Share ``count`` requests of each vocabulary among the advertised dtypes.

        :returns: dtype, V and number of requests. Where kernels are interpreted, each V has one dtype, by turns.
        """
        dtypes, rows = self.capabilities.dtypes, self.effort.rows(count, least=3)
        limit = self.capabilities.max_vocab_size
        served_sizes = [size for size in sizes if size <= (limit or size)]
        if self.effort.mixed:
            return [(dtypes[i % len(dtypes)], size, rows) for i, size in enumerate(served_sizes)]
        return [(dtype, size, -(-rows // len(dtypes))) for size in served_sizes for dtype in dtypes]

    def upload(self, rows: NDArray[Any], dtype: str) -> torch.Tensor:
        """Put rows on the device, in a dtype by its torch name."""
        return torch.from_numpy(rows).to(getattr(torch, dtype)).to(self.device)

    def upload_draft(self, rows: NDArray[Any], dtype: str, kind: DraftKind) -> torch.Tensor:
        """Put rows of drafts on the device: logits in the dtype, probabilities in float32."""
        return self.upload(rows, dtype if kind == "logits" else "float32")

    def drafts(
        self, ids: Sequence[Sequence[int]], size: int, kind: DraftKind, rows: torch.Tensor | None = None
    ) -> Drafts:
        """Lay out the drafts of each request on the device.

        :param rows: [L - B, V] probabilities or logits, by kind.
        """
        flat = [token for tokens in ids for token in tokens]
        return Drafts.from_counts(
            torch.tensor(flat, dtype=torch.int64, device=self.device),
            [len(tokens) for tokens in ids],
            draft_probs=rows if kind == "probs" else None,
            draft_logits=rows if kind == "logits" else None,
            any_placeholder=not all(0 <= token < size for token in flat),
        )

    def verify_ids(
        self,
        target: torch.Tensor,
        ids: Sequence[Sequence[int]],
        way: tuple[VerifyMode, DraftKind],
        rows: torch.Tensor,
        params: Sequence[SamplingParams] | None = None,
        first: Sequence[int] | None = None,
    ) -> VerifyOutput:
        """Verify the drafts ``ids`` of each request, by default of plain requests at position 0.

        :param rows: [L - B, V] probabilities or logits of the drafts, by kind.
        """
        drafts = self.drafts(ids, target.shape[1], way[1], rows)
        params, first = params or [SamplingParams()] * len(ids), first or [0] * len(ids)
        return self.verify(target, drafts, row_metadata(drafts, params, first), way[0])

    def verify(
        self,
        target_logits: torch.Tensor,
        drafts: Drafts,
        metadata: SamplingMetadata,
        mode: VerifyMode,
        *,
        logprobs_mode: LogprobsMode | None = None,
        gumbel_dtype: GumbelDtype | None = None,
    ) -> VerifyOutput:
        """Make one verification on the subject's device and check the form of the output.

        :raises Violation: the output has a wrong shape, dtype or device, or holds chains that cannot be.
        """
        call = self.new_call("verify", target_logits, drafts, metadata, mode=mode)
        need = self.need(logprobs_mode, gumbel_dtype)
        unsupported = find_unsupported(call, self.capabilities, operation=self.operation, need=need)
        assert unsupported is None, f"the kit asked for what is not advertised: {unsupported}"
        output: VerifyOutput = self.make(call, need)
        return output

    def draft(
        self, logits: torch.Tensor, metadata: SamplingMetadata, *, gumbel_dtype: GumbelDtype | None = None
    ) -> SamplerOutput:
        """Draw one draft a row with the verifier, and check the output as in :meth:`SampleSubject.sample`."""
        output: SamplerOutput = self.make(
            self.new_call("draft", logits, metadata), self.need(None, gumbel_dtype)
        )
        return output

    def calls(self) -> tuple[str, ...]:
        """Name the modes, and ``draft``."""
        return (*(f"verify {mode}" for mode in self.capabilities.verify_modes), "verify draft")

    def rows_of(self, call: Any) -> tuple[str, torch.Tensor, SamplingMetadata]:
        """Return the mode of a verification or ``verify draft``, and the logits and metadata of the rows."""
        if not hasattr(call, "mode"):
            return "verify draft", call.logits, call.metadata
        logits = call.logits
        return f"verify {call.mode}", logits, _by_row(call.metadata, call.drafts, len(logits))


def row_metadata(drafts: Drafts, params: Sequence[SamplingParams], first: Sequence[int]) -> SamplingMetadata:
    """Build the parameters of a verification's rows from the requests and their first positions."""
    rows = drafts.num_rows
    assert rows is not None
    start = torch.tensor(first, dtype=torch.int64, device=drafts.device)
    return SamplingMetadata.from_params(
        params,
        device=drafts.device,
        positions=speculative.row_positions(drafts.cu_num_logits, start, rows),
        row_index=speculative.row_index(drafts.cu_num_logits, rows),
    )


def _by_row(metadata: SamplingMetadata, drafts: Drafts, rows: int) -> SamplingMetadata:
    """Make metadata of the target's rows from metadata of requests with the positions of the first rows."""
    if metadata.num_rows in (None, rows):
        return metadata
    request, step = speculative.rows_of_requests(drafts.cu_num_logits, rows)
    positions, slot = metadata.positions, metadata.row_index
    if positions is not None:
        positions = positions.to(torch.int64).index_select(0, request) + step
    return metadata.for_rows(request if slot is None else slot.index_select(0, request), positions)


def draft_refusal(
    *,
    params: SamplingParams | None = None,
    mode: VerifyMode | None = None,
    kind: DraftKind | None = None,
    ragged: bool = False,
    placeholder: bool = False,
    **need: Any,
) -> Refusal:
    """Make the refusal of two requests with a draft each, or only the first with a draft.

    :param mode: None: one that is advertised, as for ``kind``.
    :param need: fields of the need that belong to it.
    """

    def call(subject: VerifySubject) -> Call:
        capabilities, device = subject.capabilities, subject.device
        counts = [1, 0] if ragged else [1, 1]
        ids = torch.full((sum(counts),), -1 if placeholder else 0, device=device)
        draft_kind = kind or (*capabilities.draft_kinds, "chosen")[0]
        uniform_rows = torch.full((len(ids), 4), 0.25, device=device)
        drafts = Drafts.from_counts(
            ids,
            counts,
            draft_probs=uniform_rows if draft_kind == "probs" else None,
            draft_logits=uniform_rows if draft_kind == "logits" else None,
            any_placeholder=placeholder,
        )
        rows = sum(counts) + len(counts)
        metadata = SamplingMetadata.from_params(
            [params or SamplingParams()] * rows, device=device, positions=list(range(rows))
        )
        verify_mode = mode or (*capabilities.verify_modes, "rejection")[0]
        target_logits = torch.zeros(rows, 4, device=device)
        return subject.new_call("verify", target_logits, drafts, metadata, mode=verify_mode)

    return Refusal(need, call)
