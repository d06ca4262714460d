"""The subjects in operations on rows and in ``sample``: their calls, and rows to be refused."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from tokendraw import Need, SamplerOutput, SamplingMetadata, SamplingParams
from tokendraw.plugin import FILTER_ORDERS, Call, Capabilities, Filter, FilterOrder, GumbelDtype, LogprobsMode
from tokendraw_testing.kit.matrix import Place, places, width_class
from tokendraw_testing.kit.property import Refusal
from tokendraw_testing.kit.subject import OperationSubject


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

    def need(
        self, logprobs_mode: LogprobsMode | None = None, gumbel_dtype: GumbelDtype | None = None
    ) -> Need:
        """Return the usual need with a logprobs mode and a precision of the noise; None: the usual value."""
        usual_need = self.usual_need
        return replace(
            usual_need,
            logprobs_mode=logprobs_mode or usual_need.logprobs_mode,
            gumbel_dtype=gumbel_dtype or usual_need.gumbel_dtype,
        )

    @property
    def usual_need(self) -> Need:
        """Return the usual need, with the fields of :meth:`with_need`."""
        need: Need = super().usual_need
        return replace(need, **self._need)

    def with_need(self, **fields: Any) -> Self:
        """Copy the view for calls of another need; the copy counts rows in the same matrix.

        :param fields: of the need, such as ``gumbel_dtype="fp64"``.
        """
        view = copy.copy(self)
        view._need = fields
        return view

    @property
    def dtypes(self) -> list[torch.dtype]:
        """Return the advertised dtypes."""
        return [getattr(torch, name) for name in self.capabilities.dtypes]

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

    def calls(self) -> tuple[str, ...]:
        """Name the calls counted separately."""
        return (self.operation,)

    def places(self) -> tuple[Place, ...]:
        """Cross the calls, the advertised dtypes, the served widths and the kinds of rows."""
        c = self.capabilities
        return places(self.calls(), c.dtypes, c.max_vocab_size, _kinds(c))

    def rows_by_place(self, call: Call) -> Mapping[Place, int]:
        """Count the rows of a call by place."""
        name, logits, metadata = self.rows_of(call)
        dtype, up_to = str(logits.dtype).removeprefix("torch."), width_class(logits.shape[1])
        rows = _rows_by_kind(metadata, len(logits))
        return {Place(name, dtype, up_to, kind): number for kind, number in rows.items() if number}

    def rows_of(self, call: Any) -> tuple[str, torch.Tensor, SamplingMetadata]:
        """Return a call's name among :meth:`calls`, its logits [B, V], and the metadata of its rows."""
        return self.operation, call.logits, call.metadata


class SampleSubject(RowSubject):
    """A subject in the operation ``sample``."""

    operation = "sample"

    def sample(
        self,
        logits: torch.Tensor | NDArray[Any],
        params: SamplingParams | Sequence[SamplingParams],
        positions: Any = None,
        *,
        row_index: Any = None,
        mode: LogprobsMode | None = None,
        gumbel_dtype: GumbelDtype | None = None,
    ) -> SamplerOutput:
        """Make one call on the subject's device and check the form of the output.

        :param logits: [B, V], an array or a tensor anywhere; kept as it is if it is on the device already.
        :param params: one for every row, or one for all.
        :param positions: [B]; None: 0, 1, 2 ... where a row has a seed.
        :raises Violation: the output has a wrong shape, dtype or device, or an id outside [0, V).
        """
        logits = torch.as_tensor(logits).to(self.device)
        if isinstance(params, SamplingParams):
            if params.seed is None and positions is None and row_index is None and len(logits):
                metadata = equal_rows(params, len(logits), self.device)
                return self.call(logits, metadata, mode=mode, gumbel_dtype=gumbel_dtype)
            params = [params] * len(logits)
        if positions is None and any(p.seed is not None for p in params):
            positions = torch.arange(len(logits))
        metadata = SamplingMetadata.from_params(
            params, device=self.device, positions=positions, row_index=row_index
        )
        return self.call(logits, metadata, mode=mode, gumbel_dtype=gumbel_dtype)

    def call(
        self,
        logits: torch.Tensor,
        metadata: SamplingMetadata,
        *,
        mode: LogprobsMode | None = None,
        gumbel_dtype: GumbelDtype | None = None,
    ) -> SamplerOutput:
        """Make one call with ready arguments and check the output as in :meth:`sample`."""
        output: SamplerOutput = self.make(
            self.new_call("sample", logits, metadata), self.need(mode, gumbel_dtype)
        )
        return output

    def tokens(self, *args: Any, **kwargs: Any) -> NDArray[Any]:
        """Make the call of :meth:`sample` and return its ids, [B] int64 on the host."""
        tokens: NDArray[Any] = self.sample(*args, **kwargs).token_ids.cpu().numpy()
        return tokens


def crossed_orders(capabilities: Capabilities) -> tuple[FilterOrder, ...]:
    """List the advertised filter orders to cross with everything else; ``temperature_last`` has a line of its own."""
    orders = tuple(order for order in capabilities.filter_orders if order != "temperature_last")
    return orders or capabilities.filter_orders or ("top_k_first",)


def equal_rows(
    params: SamplingParams,
    rows: int,
    device: torch.device,
    seeds: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
) -> SamplingMetadata:
    """Make the metadata of ``rows`` equal requests; only one is checked and laid out.

    :param seeds: one a row, in [0, 2**64), each with its position; None: no row has one.
    """
    row = SamplingMetadata.from_params([params], device=device)
    fields_of_row = {field.name: getattr(row, field.name) for field in fields(row)}
    columns: dict[str, Any] = {
        name: c.repeat(rows) for name, c in fields_of_row.items() if isinstance(c, torch.Tensor)
    }
    if row.filters is not None:
        columns["filters"] = {name: column.repeat(rows) for name, column in row.filters.items()}
    if seeds is not None:
        columns["seed"] = torch.from_numpy(np.array(seeds, np.uint64).view(np.int64)).to(device)
        columns["positions"] = torch.tensor(positions, dtype=torch.int64, device=device)
        columns["facts"] = replace(row.facts, any_seeded=True, all_seeded=True)
    return replace(row, **columns)


def row_refusal(params: SamplingParams, **need: Any) -> Refusal:
    """Make the refusal of a row that needs a capability.

    :param need: fields of the need that belong to it.
    """

    def call(subject: SampleSubject) -> Call:
        metadata = SamplingMetadata.from_params([params], device=subject.device, positions=[0])
        return subject.new_call("sample", torch.zeros(1, 4, device=subject.device), metadata)

    return Refusal(need, call)


def _kinds(capabilities: Capabilities) -> tuple[str, ...]:
    """List the kinds of rows drawn by a provider."""
    greedy = ("greedy",) if capabilities.greedy else ()
    return (*greedy, "unseeded") if capabilities.seeding == "none" else (*greedy, "seeded", "unseeded")


def _rows_by_kind(metadata: SamplingMetadata, rows: int) -> Mapping[str, int]:
    """Count the rows of each kind, from the host's facts if possible: only mixed batches are read.

    :param metadata: with an entry for each of the ``rows``, or of no particular number of rows.
    """
    facts = metadata.facts
    if facts.all_greedy:
        return {"greedy": rows}
    if not facts.any_greedy and not facts.any_seeded:
        return {"unseeded": rows}
    if not facts.any_greedy and facts.all_seeded:
        return {"seeded": rows}
    temperature, seeded = metadata.per_row("temperature"), metadata.per_row("seeded")
    none = torch.zeros(rows, dtype=torch.bool)
    greedy = none if temperature is None else ~(temperature > 0).cpu()
    is_seeded = none if metadata.seed is None else ~greedy
    if seeded is not None:
        is_seeded = is_seeded & seeded.cpu()
    counts = {"greedy": int(greedy.sum()), "seeded": int(is_seeded.sum())}
    return counts | {"unseeded": rows - sum(counts.values())}
