"""The subject in the operation ``verify``: its calls, and the verifications that have to be refused."""

from __future__ import annotations

from typing import Any

import torch

from tokendraw import Drafts, SamplerOutput, SamplingMetadata, SamplingParams, VerifyOutput, speculative
from tokendraw.plugin import Call, DraftKind, GumbelDtype, LogprobsMode, VerifyCapabilities, VerifyMode
from tokendraw.tools import find_unsupported
from tokendraw_testing.kit.property import Ask
from tokendraw_testing.rows.sampling import RowSubject, Sampling


class Verifying(RowSubject):
    """A subject in the operation ``verify``."""

    operation = "verify"
    capabilities: VerifyCapabilities

    @property
    def sampling(self) -> Sampling | None:
        """Return the subject in the operation ``sample``; None if it does not offer that."""
        return Sampling(self.subject) if Sampling.operation in self.subject.capabilities else None

    @property
    def seeded_sampling(self) -> Sampling | None:
        """That view, if seeds tie both operations together; else None."""
        sampling = self.sampling
        if sampling is None or {self.capabilities.seeding, sampling.capabilities.seeding} != {"counter"}:
            return None
        return sampling

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
        """Make one verification on the subject's device; the form of what it returns is checked every time.

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
        """Draw one draft a row with the verifier, its output checked as in :meth:`Sampling.sample`."""
        output: SamplerOutput = self.make(
            self.new_call("draft", logits, metadata), self.need(None, gumbel_dtype)
        )
        return output

    def calls(self) -> tuple[str, ...]:
        """Name the modes, and ``draft``."""
        return (*(f"verify {mode}" for mode in self.capabilities.verify_modes), "verify draft")

    def rows_of(self, call: Any) -> tuple[str, torch.Tensor, SamplingMetadata]:
        """Return the mode of a verification, the logits of its rows and their metadata; likewise for drafts."""
        if not hasattr(call, "mode"):
            return "verify draft", call.logits, call.metadata
        logits = call.logits
        return f"verify {call.mode}", logits, _by_row(call.metadata, call.drafts, len(logits))


def _by_row(metadata: SamplingMetadata, drafts: Drafts, rows: int) -> SamplingMetadata:
    """Make metadata of the target's rows from metadata of requests, whose positions are those of their first rows."""
    if metadata.num_rows in (None, rows):
        return metadata
    request, step = speculative.rows_of_requests(drafts.cu_num_logits, rows)
    positions, slot = metadata.positions, metadata.row_index
    if positions is not None:
        positions = positions.to(torch.int64).index_select(0, request) + step
    return metadata.for_rows(request if slot is None else slot.index_select(0, request), positions)


def draft_ask(
    *,
    params: SamplingParams | None = None,
    mode: VerifyMode | None = None,
    kind: DraftKind | None = None,
    ragged: bool = False,
    placeholder: bool = False,
    **need: Any,
) -> Ask:
    """Ask for the verification of two requests with a draft each, or one of them without.

    :param mode: None: one that is advertised, as for ``kind``.
    :param need: fields of the need that belong to it.
    """

    def call(subject: Verifying) -> Call:
        offered, device = subject.capabilities, subject.device
        counts = [1, 0] if ragged else [1, 1]
        ids = torch.full((sum(counts),), -1 if placeholder else 0, device=device)
        given = kind or (*offered.draft_kinds, "chosen")[0]
        even = torch.full((len(ids), 4), 0.25, device=device)
        drafts = Drafts.from_counts(
            ids,
            counts,
            draft_probs=even if given == "probs" else None,
            draft_logits=even if given == "logits" else None,
            any_placeholder=placeholder,
        )
        rows = sum(counts) + len(counts)
        metadata = SamplingMetadata.from_params(
            [params or SamplingParams()] * rows, device=device, positions=list(range(rows))
        )
        asked = mode or (*offered.verify_modes, "rejection")[0]
        target_logits = torch.zeros(rows, 4, device=device)
        return subject.new_call("verify", target_logits, drafts, metadata, mode=asked)

    return Ask(need, call)
