"""The operation ``verify`` of a :class:`tokendraw.Sampler`: the check of a call, and who verifies which requests.

As for ``sample``, requests that the chosen verifier cannot serve go to its companion, and the others stay: see
:mod:`tokendraw._serving.splitting`, whose rows are requests here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokendraw import speculative
from tokendraw._exchange.facts import BatchFacts
from tokendraw._exchange.metadata import SamplingMetadata
from tokendraw._exchange.output import PAD_TOKEN_ID, VerifyOutput
from tokendraw._exchange.output_checks import wrong_chains, wrong_verify_output
from tokendraw._exchange.row_limits import unserved
from tokendraw._messages.errors import InvalidInputError, InvalidParameterError, SamplerUnavailableError
from tokendraw._messages.install import NATIVE
from tokendraw._messages.words import one_of
from tokendraw._serving.routing import Member, Serving
from tokendraw._serving.splitting import Split
from tokendraw._serving.watch import Watch, fault
from tokendraw._torch.forked import reseed_if_due
from tokendraw._torch.graphs import is_capturing
from tokendraw._torch.upload import uploaded
from tokendraw.operations.verify.backend import VerifierBackend
from tokendraw.operations.verify.capabilities import VERIFY_MODES, VerifyMode
from tokendraw.operations.verify.drafts import Drafts
from tokendraw.operations.verify.limits import undrafted


def verify(
    serving: Serving,
    target_logits: Tensor,
    drafts: Drafts,
    metadata: SamplingMetadata,
    mode: VerifyMode,
    *,
    debug: bool = False,
) -> VerifyOutput:
    """Verify a batch that was checked. See :meth:`tokendraw.Sampler.verify`.

    :param metadata: one entry a request or one a row of the target.
    :param debug: hold every call against the contract.
    """
    reseed_if_due()
    rows, vocab_size = target_logits.shape
    spread = by_row(metadata, drafts, rows)
    if _refusal(serving, serving.chosen, drafts, spread.facts, vocab_size, mode) is None:
        return _call(serving, serving.chosen, target_logits, drafts, spread, mode, debug=debug)
    shares = _shares(serving, target_logits, drafts, metadata, mode)
    if shares is not None:
        assert serving.companion is not None
        own = target_logits.index_select(0, shares.rows)
        apart = _call(
            serving, serving.companion, own, shares.of(drafts), shares.metadata(spread), mode, debug=debug
        )
        staying = shares.split.for_chosen(spread)
        return shares.merged(
            _call(serving, serving.chosen, target_logits, drafts, staying, mode, debug=debug), apart
        )
    refusals = unverified(serving, drafts, spread.facts, vocab_size, mode)
    if refusals or serving.companion is None:
        raise SamplerUnavailableError(
            f"No sampler here can verify this batch: {'; '.join(refusals)}, which it may hold. Install one that can "
            f"({NATIVE}), or, if the batch holds none, say so in its facts."
        )
    return _call(serving, serving.companion, target_logits, drafts, spread, mode, debug=debug)


def unverified(
    serving: Serving, drafts: Drafts, facts: BatchFacts, vocab_size: int, mode: VerifyMode
) -> tuple[str, ...]:
    """Why nobody here verifies a batch by itself, one reason for each who could; empty if somebody does."""
    members = (serving.chosen, *([serving.companion] if serving.companion else []))
    refusals = [_refusal(serving, member, drafts, facts, vocab_size, mode) for member in members]
    return () if None in refusals else tuple(refusal for refusal in refusals if refusal)


def check(target_logits: Tensor, drafts: Drafts, metadata: SamplingMetadata, mode: VerifyMode) -> None:
    """Refuse drafts and metadata that do not fit the logits.

    :raises InvalidInputError: names what does not fit.
    :raises InvalidParameterError: there is no such mode.
    """
    if mode not in VERIFY_MODES:
        raise InvalidParameterError(
            f"'mode' needs {one_of(VERIFY_MODES)}, found {mode!r}. Pass one of these."
        )
    drafts.check(target_logits)
    rows, found = target_logits.shape[0], metadata.num_rows
    if found not in (None, rows) and not (metadata.row_index is None and found == drafts.num_requests):
        raise InvalidInputError(
            f"'metadata' needs one entry a request, {drafts.num_requests}, or one a row of 'target_logits', {rows}, "
            f"found {found}."
        )


def by_row(metadata: SamplingMetadata, drafts: Drafts, rows: int) -> SamplingMetadata:
    """The metadata of rows, also from those of requests, whose positions are those of their first rows."""
    found = metadata.num_rows
    if found is None or found == rows:
        return metadata
    positions = metadata.positions
    if positions is not None:
        positions = speculative.row_positions(drafts.cu_num_logits, positions, rows)
    return replace(metadata, row_index=speculative.row_index(drafts.cu_num_logits, rows), positions=positions)


@dataclass(frozen=True, slots=True, eq=False)
class _Shares:
    """A batch that two verifiers share. Indices lie on the device."""

    split: Split
    """Of the requests."""
    rows: Tensor
    """[n] int64: rows of the target that the companion verifies."""
    slots: Tensor
    """[n] int64: their requests."""
    drafts: Tensor
    """[m] int64: their drafts, of all drafts in order."""
    num_drafts: tuple[int, ...]
    """Of each request that leaves."""
    cu_num_logits: Tensor

    @classmethod
    def made(cls, split: Split, num_drafts: Sequence[int], device: torch.device) -> Self:
        """Find the rows and drafts of the requests that leave."""
        leaving = split.on_host
        first = [0]
        for count in num_drafts:
            first.append(first[-1] + count + 1)
        rows = [row for b in leaving for row in range(first[b], first[b + 1])]
        slots = [b for b in leaving for _ in range(first[b], first[b + 1])]
        drafts = [row - b for b in leaving for row in range(first[b], first[b + 1] - 1)]
        counts = tuple(num_drafts[b] for b in leaving)
        ends = [0]
        for count in counts:
            ends.append(ends[-1] + count + 1)
        columns = {"rows": rows, "slots": slots, "drafts": drafts, "cu_num_logits": ends}
        there = uploaded({name: (values, torch.int64) for name, values in columns.items()}, device)
        return cls(split, num_drafts=counts, **there)

    def of(self, drafts: Drafts) -> Drafts:
        """Those of the requests that leave."""
        ids, split = drafts.draft_token_ids, self.split
        own = ids.index_select(0, split.rows if ids.dim() == 2 else self.drafts)
        given = {
            name: tensor.index_select(0, self.drafts)
            for name in ("draft_probs", "draft_logits")
            if (tensor := getattr(drafts, name)) is not None
        }
        return replace(
            drafts,
            draft_token_ids=own,
            cu_num_logits=self.cu_num_logits,
            num_drafts=self.num_drafts,
            max_drafts=drafts.max_drafts,
            **given,
        )

    def metadata(self, spread: SamplingMetadata) -> SamplingMetadata:
        """That of the rows of the requests that leave."""
        return replace(self.split, rows=self.rows, slots=self.slots).for_companion(spread)

    def merged(self, chosen: VerifyOutput, companion: VerifyOutput) -> VerifyOutput:
        """One output of both, in the order of the requests."""
        requests = self.split.rows
        missing = chosen.token_ids.shape[1] - companion.token_ids.shape[1]
        ids = pad(companion.token_ids, (0, missing), value=PAD_TOKEN_ID) if missing else companion.token_ids
        return VerifyOutput(
            chosen.token_ids.index_copy(0, requests, ids),
            chosen.num_accepted.index_copy(0, requests, companion.num_accepted),
            chosen.valid.index_copy(0, requests, companion.valid),
        )


def _shares(
    serving: Serving, target_logits: Tensor, drafts: Drafts, metadata: SamplingMetadata, mode: VerifyMode
) -> _Shares | None:
    """Share a batch by requests; None where the host cannot tell them apart, or it is not worth it.

    Log-probabilities are not put together: a batch that asks for them goes one way.
    """
    offered, rest = serving.capabilities, serving.companion_capabilities
    counts = drafts.num_drafts
    if offered is None or serving.companion is None or counts is None or metadata.row_index is not None:
        return None
    if metadata.num_rows != drafts.num_requests or metadata.facts.max_logprobs is not None:
        return None
    if undrafted(offered, drafts, mode) is not None or is_capturing():  # which uploads no indices
        return None
    route = serving.route(metadata, drafts.num_requests, target_logits.shape[1], target_logits.device)
    split = route.split
    if split is None or (rest is not None and undrafted(rest, drafts, mode) is not None):
        return None
    return _Shares.made(split, counts, target_logits.device)


def _refusal(
    serving: Serving, member: Member, drafts: Drafts, facts: BatchFacts, vocab_size: int, mode: VerifyMode
) -> str | None:
    offered = serving.capabilities if member is serving.chosen else serving.companion_capabilities
    if offered is None:
        return None
    lacking = unserved(offered, facts, vocab_size) or undrafted(offered, drafts, mode)
    return None if lacking is None else f"'{member.name}' cannot serve {lacking}"


def _call(
    serving: Serving,
    member: Member,
    target_logits: Tensor,
    drafts: Drafts,
    metadata: SamplingMetadata,
    mode: VerifyMode,
    *,
    debug: bool,
) -> VerifyOutput:
    """Call one verifier.

    :raises PluginError: what it returned has the wrong form, or ``debug`` found another fault.
    """
    backend: VerifierBackend = member.backend
    watch = None
    if debug and not is_capturing():
        given = {
            f.name: tensor for f in fields(drafts) if isinstance(tensor := getattr(drafts, f.name), Tensor)
        }
        watch = Watch(member.name, {"target_logits": target_logits, **given})
    try:
        output = backend.verify(target_logits, drafts, metadata, mode=mode)
    except Exception as error:
        if watch is not None:
            watch.check_given(error)
        raise
    width = metadata.facts.logprobs_width(target_logits.shape[1])
    wrong = wrong_verify_output(output, target_logits, drafts, width, ranks=serving.needs_ranks)
    if watch is not None:
        watch.check_given()
        watch.check_returned(wrong or wrong_chains(output, target_logits, drafts))
    if wrong is not None:
        raise fault(member.name, f"to return {wrong}")
    return output
