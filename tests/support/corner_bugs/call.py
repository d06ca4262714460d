"""A call of the sampler as a mistake sees it, and the ways in which mistakes change one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tokendraw import BatchFacts, SamplingMetadata, philox, speculative
from tokendraw.row_parameters import RowParameters
from tokendraw_native.row_stats import row_stats

INF = float("inf")
COLUMNS = ("temperature", "top_k", "top_p", "min_p", "joint", "logprobs")


@dataclass(frozen=True)
class Call:
    """Rows of logits with their parameters: one slot a row, and a seed in each of them, so that a call can be repeated.

    Rows that had no seed have a fresh one, by which the native sampler would have drawn them, too.
    """

    logits: Tensor
    metadata: SamplingMetadata
    unseeded: Tensor
    """[rows] bool."""
    draft: bool = False
    mode: str = "raw_logprobs"
    """The mode of logprobs."""

    @classmethod
    def of(cls, logits: Tensor, metadata: SamplingMetadata, mode: str, *, draft: bool = False) -> Call:
        rows, device = len(logits), logits.device
        seed, position = philox.seeds_and_positions(metadata, rows, device)
        unseeded = torch.ones(rows, dtype=torch.bool, device=device)
        if metadata.seed is not None:
            seeded = metadata.per_row("seeded")
            unseeded = torch.zeros_like(unseeded) if seeded is None else ~seeded
        own = {name: metadata.per_row(name) for name in COLUMNS}
        facts = replace(metadata.facts, any_seeded=True, all_seeded=True)
        given = replace(
            metadata, **own, seed=seed, seeded=None, positions=position, row_index=None, facts=facts
        )
        return cls(logits, given, unseeded, draft, mode)

    @property
    def size(self) -> int:
        """V."""
        return self.logits.shape[1]

    @property
    def row(self) -> Tensor:
        """The number of each row."""
        return torch.arange(len(self.logits), device=self.logits.device)

    def param(self, name: str, off: float) -> Tensor:
        """A parameter of each row."""
        found = getattr(self.metadata, name)
        return torch.full((len(self.logits),), off, device=self.logits.device) if found is None else found

    @property
    def temperature(self) -> Tensor:
        return self.param("temperature", 1.0)

    @property
    def greedy(self) -> Tensor:
        return ~(self.temperature > 0)

    @property
    def top_k(self) -> Tensor:
        return self.param("top_k", 0)

    @property
    def top_p(self) -> Tensor:
        return self.param("top_p", 1.0)

    @property
    def min_p(self) -> Tensor:
        return self.param("min_p", 0.0)

    def request(self, **columns: Tensor | None) -> Call:
        """The same rows with other parameters, of which nothing is known before."""
        known = self.metadata.facts
        facts = BatchFacts(all_seeded=True, max_logprobs=known.max_logprobs)
        return replace(self, metadata=replace(self.metadata, **columns, facts=facts))

    def sharing(self, source: Tensor) -> Call:
        """Give rows without a seed the noise of the rows ``source`` [rows]."""
        own = {
            name: torch.where(
                self.unseeded, getattr(self.metadata, name)[source], getattr(self.metadata, name)
            )
            for name in ("seed", "positions")
        }
        return replace(self, metadata=replace(self.metadata, **own))

    def rows(self, logits: Tensor) -> Call:
        """The same requests of other logits."""
        return replace(self, logits=logits)

    def kept(self) -> Tensor:
        """Which tokens the filters keep: [rows, V] bool."""
        params = RowParameters.of(self.metadata, len(self.logits), self.logits.device)
        stats = row_stats(self.logits, params, masses=False)
        return self.logits.float() >= stats.threshold

    def y(self) -> Tensor:
        """``(x - max x) / T`` in float64, the logits themselves where the maximum is infinite or the row is greedy."""
        x = self.logits.double()
        top = x.nan_to_num(nan=-INF, posinf=INF, neginf=-INF).amax(-1, keepdim=True)
        y = (x - top) / self.temperature.double().unsqueeze(-1)
        return torch.where(top.isfinite() & ~self.greedy.unsqueeze(-1), y, x)

    def only(self, mask: Tensor) -> Call:
        """Keep the tokens of a mask [rows, V], whatever the filters say."""
        dropped = ~mask & ~self.logits.isnan()
        return self.rows(self.logits.masked_fill(dropped, -INF)).request(
            top_k=None, top_p=None, min_p=None, joint=None
        )

    def drawn_from(self, y: Tensor) -> Call:
        """Draw from other values ``y`` [rows, V] of the tokens that the filters keep."""
        cold = self.greedy.unsqueeze(-1)
        y = torch.where(cold, self.logits.float(), y.float())
        y = torch.where(self.logits.isnan(), self.logits.float(), y)
        ones = torch.where(self.greedy, self.temperature, 1.0)
        return (
            self.only(self.kept())
            .rows(y.masked_fill(~self.kept() & ~self.logits.isnan(), -INF))
            .request(temperature=ones)
        )


def places(logits: Tensor) -> Tensor:
    """The place of each token in descending order, of equal ones the lowest id first: [rows, V]."""
    order = logits.float().nan_to_num(nan=-INF, posinf=INF, neginf=-INF)
    order = order.sort(dim=-1, descending=True, stable=True).indices
    place = torch.arange(logits.shape[1], device=logits.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, place)


def request_of_rows(cu_num_logits: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """The request of each row of a verification, and the place of the row in it."""
    request = speculative.row_index(cu_num_logits, rows)
    return request, torch.arange(rows, device=request.device) - cu_num_logits.long()[request]
