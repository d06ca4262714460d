"""The subjects in the operations on rows of logits: their calls, and the requests to be refused."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import torch

from tokendraw import (
    Drafts,
    Need,
    SamplerOutput,
    SamplingMetadata,
    SamplingParams,
    ScoreOutput,
    VerifyOutput,
    speculative,
)
from tokendraw.plugin import (
    FILTER_ORDERS,
    Call,
    Capabilities,
    DraftKind,
    Filter,
    FilterOrder,
    GumbelDtype,
    LogprobsMode,
    VerifyCapabilities,
    VerifyMode,
)
from tokendraw.tools import find_unsupported
from tokendraw_testing.kit.property import Refusal
from tokendraw_testing.kit.subject import OperationSubject
from tokendraw_testing.reference import Array


class RowSubject(OperationSubject):
    """A subject in an operation on rows of logits."""

    capabilities: Capabilities
    _need: Mapping[str, Any] = MappingProxyType({})

    @classmethod
    def plain_need(cls, capabilities: Capabilities | None = None) -> Need:
        """Return the plainest need within the capabilities; without capabilities, a need of all filter orders."""
        if capabilities is None:
            return Need(filter_orders=FILTER_ORDERS)
        return Need(
            logprobs_mode=(*capabilities.logprobs_modes, "raw_logprobs")[0],
            filter_orders=capabilities.filter_orders,
            gumbel_dtype=(*capabilities.gumbel_dtypes, "fp32")[0],
        )

    @property
    def usual_need(self) -> Need:
        """Return the usual need, with the fields of :meth:`with_need`."""
        need: Need = super().usual_need
        return replace(need, **self._need)

    def need(
        self, logprobs_mode: LogprobsMode | None = None, gumbel_dtype: GumbelDtype | None = None
    ) -> Need:
        """Return the usual need with a logprobs mode and a precision of the noise; None: the usual value."""
        usual = self.usual_need
        mode, dtype = logprobs_mode or usual.logprobs_mode, gumbel_dtype or usual.gumbel_dtype
        return replace(usual, logprobs_mode=mode, gumbel_dtype=dtype)

    def call(self, method: str, *arguments: Any, **need: Any) -> Any:
        """Make one call with ready arguments, and check the form of the output; ``need`` as :meth:`need` takes it."""
        return self.make(self.new_call(method, *arguments), self.need(**need))

    def least_call(self, params: SamplingParams) -> Call:
        """Make a call of a row with these parameters."""
        metadata = SamplingMetadata.from_params([params], device=self.device, positions=[0])
        ids = [torch.zeros(1, dtype=torch.int64, device=self.device)] * (self.operation == "score")
        return self.new_call(self.operation, torch.zeros(1, 4, device=self.device), *ids, metadata)

    def with_need(self, **fields: Any) -> Self:
        """Copy the view for calls of a need with these fields; the copy notes places beside the view's own."""
        view = copy.copy(self)
        view._need = fields
        return view

    @property
    def filter_order(self) -> FilterOrder:
        """Return the first of :func:`crossed_orders`."""
        return crossed_orders(self.capabilities)[0]

    @property
    def gumbel_dtype(self) -> GumbelDtype:
        """Precision of the noise where a check asks for none."""
        return self.need().gumbel_dtype

    @property
    def noise_dtypes(self) -> tuple[GumbelDtype, ...]:
        """List the noise precisions of a run: all advertised precisions, unless the need fixes a single precision."""
        fixed: GumbelDtype | None = self.subject.need.get("gumbel_dtype")
        return self.capabilities.gumbel_dtypes if fixed is None else (fixed,)

    def has(self, which: Filter) -> bool:
        """Whether the subject applies a filter, per row or scalar."""
        return any(name == which for name, _ in self.capabilities.filters)


class SampleSubject(RowSubject):
    """A subject in the operation ``sample``."""

    operation = "sample"

    def sample(
        self,
        logits: torch.Tensor | Array,
        params: SamplingParams | Sequence[SamplingParams],
        positions: Any = None,
        *,
        row_index: Any = None,
        **need: Any,
    ) -> SamplerOutput:
        """Make one call on the subject's device and check the form of the output.

        :param logits: [B, V], an array or a tensor anywhere.
        :param params: one for every row, or one for all.
        :param positions: [B]; None: 0, 1, 2 ... where a row has a seed.
        :param need: as :meth:`need` takes it.
        """
        logits = torch.as_tensor(logits).to(self.device)
        params = [params] * len(logits) if isinstance(params, SamplingParams) else params
        if positions is None and any(p.seed is not None for p in params):
            positions = torch.arange(len(logits))
        metadata = SamplingMetadata.from_params(
            params, device=self.device, positions=positions, row_index=row_index
        )
        output: SamplerOutput = self.call("sample", logits, metadata, **need)
        return output

    def tokens(self, *args: Any, **kwargs: Any) -> Array:
        """Make the call of :meth:`sample` and return its ids, [B] int64 on the host."""
        return np.asarray(self.sample(*args, **kwargs).token_ids.cpu())


class ScoreSubject(RowSubject):
    """A subject in the operation ``score``."""

    operation = "score"

    def score(
        self,
        logits: torch.Tensor,
        token_ids: Sequence[int],
        params: Sequence[SamplingParams],
        mode: LogprobsMode | None = None,
        positions: Sequence[int] | None = None,
    ) -> ScoreOutput:
        """Make one call on the subject's device and check the form of the output.

        :param logits: [B, V], on any device; ``token_ids`` and ``params`` one a row.
        :param positions: [B]; None: 0, 1, 2 ...
        """
        ids = torch.tensor(token_ids, dtype=torch.int64, device=self.device)
        positions = range(len(logits)) if positions is None else positions
        metadata = SamplingMetadata.from_params(params, device=self.device, positions=positions)
        output: ScoreOutput = self.call("score", logits.to(self.device), ids, metadata, logprobs_mode=mode)
        return output


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

    def upload(self, rows: Array, dtype: str) -> torch.Tensor:
        """Put rows on the device, in a dtype by its torch name."""
        return torch.from_numpy(rows).to(getattr(torch, dtype)).to(self.device)

    def upload_draft(self, rows: Array, dtype: str, kind: DraftKind) -> torch.Tensor:
        """Put rows of drafts on the device: logits in the dtype, probabilities in float32."""
        return self.upload(rows, dtype if kind == "logits" else "float32")

    def arguments(
        self,
        target: torch.Tensor,
        ids: Sequence[Sequence[int]],
        kind: DraftKind,
        rows: torch.Tensor | None,
        params: Sequence[SamplingParams],
        first: Sequence[int],
    ) -> tuple[torch.Tensor, Drafts, SamplingMetadata]:
        """Lay out the arguments of a verification on the device, of requests with drafts ``ids`` and first positions.

        :param rows: [L - B, V], by kind.
        """
        flat, size = [token for tokens in ids for token in tokens], target.shape[1]
        drafts = Drafts.from_counts(
            torch.tensor(flat, dtype=torch.int64, device=self.device),
            [len(tokens) for tokens in ids],
            draft_probs=rows if kind == "probs" else None,
            draft_logits=rows if kind == "logits" else None,
            any_placeholder=not all(0 <= token < size for token in flat),
        )
        offsets, num_rows = drafts.cu_num_logits, len(flat) + len(ids)
        start = torch.tensor(first, dtype=torch.int64, device=self.device)
        metadata = SamplingMetadata.from_params(
            params,
            device=self.device,
            positions=speculative.row_positions(offsets, start, num_rows),
            row_index=speculative.row_index(offsets, num_rows),
        )
        return target, drafts, metadata

    def least_call(
        self,
        params: SamplingParams,
        mode: VerifyMode | None = None,
        kind: DraftKind | None = None,
        ragged: bool = False,
        placeholder: bool = False,
    ) -> Call:
        """Make a call of two requests with a draft each, or only the first with a draft.

        :param mode: None: one that is advertised, as for ``kind``.
        """
        c, ids = self.capabilities, [[-1 if placeholder else 0], [0] * (not ragged)]
        rows = torch.full((sum(map(len, ids)), 4), 0.25, device=self.device)
        target, draft_kind = torch.zeros(len(rows) + 2, 4, device=self.device), (*c.draft_kinds, "chosen")[0]
        arguments = self.arguments(target, ids, kind or draft_kind, rows, [params] * 2, [0, 0])
        return self.new_call("verify", *arguments, mode=mode or (*c.verify_modes, "rejection")[0])

    def verify_ids(
        self,
        target: torch.Tensor,
        ids: Sequence[Sequence[int]],
        way: tuple[VerifyMode, DraftKind],
        rows: torch.Tensor | None,
        params: Sequence[SamplingParams] | None = None,
        first: Sequence[int] | None = None,
        **need: Any,
    ) -> VerifyOutput:
        """Verify the drafts ``ids`` of each request, by default of plain requests at position 0."""
        params, first = params or [SamplingParams()] * len(ids), first or [0] * len(ids)
        return self.verify(*self.arguments(target, ids, way[1], rows, params, first), way[0], **need)

    def verify(
        self,
        target_logits: torch.Tensor,
        drafts: Drafts,
        metadata: SamplingMetadata,
        mode: VerifyMode,
        **need: Any,
    ) -> VerifyOutput:
        """Make one verification on the subject's device and check the form of the output."""
        call, asked = self.new_call("verify", target_logits, drafts, metadata, mode=mode), self.need(**need)
        unsupported = find_unsupported(call, self.capabilities, operation=self.operation, need=asked)
        assert unsupported is None, f"the kit asked for what is not advertised: {unsupported}"
        output: VerifyOutput = self.make(call, asked)
        return output

    def call_names(self) -> tuple[str, ...]:
        """Name the modes, and drafts that are drawn."""
        return (*(f"verify {mode}" for mode in self.capabilities.verify_modes), "verify draft")

    def call_name(self, call: Any) -> str:
        """Return the mode of a verification, or ``verify draft``."""
        return f"verify {getattr(call, 'mode', 'draft')}"


def crossed_orders(capabilities: Capabilities) -> tuple[FilterOrder, ...]:
    """List the advertised filter orders to cross with everything else; ``temperature_last`` has a line of its own."""
    orders = tuple(order for order in capabilities.filter_orders if order != "temperature_last")
    return orders or capabilities.filter_orders or ("top_k_first",)


def with_seeds(metadata: SamplingMetadata, seeds: Sequence[int]) -> SamplingMetadata:
    """Put seeds in [0, 2**64) in place of those of the requests: to check each of thousands takes seconds."""
    column = torch.from_numpy(np.array(seeds, np.uint64).view(np.int64))
    return replace(metadata, seed=column.to(metadata.device))


def row_refusal(need: Mapping[str, Any] = MappingProxyType({}), **params: Any) -> Refusal:
    """Make the refusal of a row with some parameters; ``need`` has the fields of the need that belong to it."""
    return Refusal(need, lambda subject: subject.least_call(SamplingParams(**params)))


def draft_refusal(**options: Any) -> Refusal:
    """Make the refusal of a verification; the options are those of :meth:`VerifySubject.least_call`."""
    return Refusal(call=lambda subject: subject.least_call(SamplingParams(), **options))
