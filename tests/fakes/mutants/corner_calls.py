"""A call of the native sampler, and the changes that mutants of a corner make."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tokendraw import BatchFacts, Drafts, SamplingMetadata, philox, speculative
from tokendraw.parameters.fields import FACT_OF_COLUMN
from tokendraw.row_parameters import RowParameters
from tokendraw_native.row_stats import row_stats

INF = float("inf")
COLUMNS = (*FACT_OF_COLUMN, "temperature", "logprobs", "logprob_token_ids")


def sortable(logits: Tensor) -> Tensor:
    """Return logits in float32 with NaN as -inf, for sorting and maxima."""
    return logits.float().nan_to_num(nan=-INF, posinf=INF, neginf=-INF)


def descending_places(logits: Tensor) -> Tensor:
    """Return the place of each token in descending order, the lowest id of equal logits first: [rows, V]."""
    order = sortable(logits).sort(dim=-1, descending=True, stable=True).indices
    place = torch.arange(logits.shape[1], device=logits.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, place)


@dataclass(frozen=True)
class CornerCall:
    """Logits with a slot of parameters and a seed for each row, so that the call can be repeated.

    Rows without a seed get the fresh one by which the native sampler would have drawn them.
    """

    logits: Tensor
    metadata: SamplingMetadata
    unseeded: Tensor
    """[rows] bool."""
    draft: bool = False
    mode: str = "raw_logprobs"
    """The mode of logprobs."""
    slots: Tensor | None = None
    """``row_index`` of the caller's metadata."""
    drafts: Drafts | None = None
    """The drafts of a verification."""
    verify_mode: str = ""
    memory: dict = field(default_factory=dict)
    """State that a mutant keeps between the calls of one object."""

    @classmethod
    def of(cls, logits: Tensor, metadata: SamplingMetadata, **options) -> CornerCall:
        """Spread the slots of a batch over the rows."""
        rows, device = len(logits), logits.device
        seed, position = philox.seeds_and_positions(metadata, rows, device)
        unseeded = torch.ones(rows, dtype=torch.bool, device=device)
        if metadata.seed is not None:
            seeded = metadata.per_row("seeded")
            unseeded = torch.zeros_like(unseeded) if seeded is None else ~seeded
        filters = metadata.filters_per_row()
        spread = replace(
            metadata,
            **{name: metadata.per_row(name) for name in COLUMNS},
            filters=None if filters is None else dict(zip(filters[0], filters[1].unbind(1), strict=True)),
            seed=seed,
            seeded=None,
            positions=position,
            row_index=None,
            facts=replace(metadata.facts, any_seeded=True, all_seeded=True),
        )
        return cls(logits, spread, unseeded, slots=metadata.row_index, **options)

    @property
    def size(self) -> int:
        """V."""
        return self.logits.shape[1]

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.logits)

    @property
    def row(self) -> Tensor:
        """The index of each row."""
        return torch.arange(self.count, device=self.logits.device)

    def _column(self, name: str, neutral: float) -> Tensor:
        column = getattr(self.metadata, name)
        return torch.full((self.count,), neutral, device=self.logits.device) if column is None else column

    @property
    def temperature(self) -> Tensor:
        return self._column("temperature", 1.0)

    @property
    def greedy(self) -> Tensor:
        return ~(self.temperature > 0)

    @property
    def top_k(self) -> Tensor:
        return self._column("top_k", 0)

    @property
    def has_top_k(self) -> Tensor:
        """Whether top-k drops anything in a row."""
        return (self.top_k > 0) & (self.top_k < self.size)

    @property
    def top_p(self) -> Tensor:
        return self._column("top_p", 1.0)

    @property
    def has_top_p(self) -> Tensor:
        return self.top_p < 1

    @property
    def min_p(self) -> Tensor:
        return self._column("min_p", 0.0)

    @property
    def joint(self) -> Tensor:
        """Whether top-p of a row counts the whole mass."""
        joint = self.metadata.joint
        return torch.zeros_like(self.greedy) if joint is None else joint

    @property
    def shows_logprobs(self) -> bool:
        return self.metadata.facts.max_logprobs is not None

    def with_params(self, **columns: Tensor | None) -> CornerCall:
        """Replace parameters, and forget the facts about the batch."""
        facts = BatchFacts(all_seeded=True, max_logprobs=self.metadata.facts.max_logprobs)
        return self.with_fields(**columns, facts=facts)

    def with_fields(self, **columns: object) -> CornerCall:
        """Replace fields of the metadata, and keep the facts about the batch."""
        return replace(self, metadata=replace(self.metadata, **columns))

    def with_noise_of(self, source: Tensor) -> CornerCall:
        """Give rows without a seed the noise of the rows ``source`` [rows]."""
        seed, positions = self.metadata.seed, self.metadata.positions
        return self.with_fields(
            seed=torch.where(self.unseeded, seed[source], seed),
            positions=torch.where(self.unseeded, positions[source], positions),
        )

    def with_logits(self, logits: Tensor) -> CornerCall:
        """Replace the logits."""
        return replace(self, logits=logits)

    def without_ids(self, start: int) -> CornerCall:
        """Drop the ids from ``start`` on."""
        logits = self.logits.float().clone()
        logits[:, start:] = -INF
        return self.with_logits(logits)

    def without_nan(self, rows: object = slice(None), start: int = 0) -> CornerCall:
        """Take a NaN of some rows from id ``start`` on for -inf."""
        logits = self.logits.float().clone()
        kept = logits[rows]
        kept[:, start:] = sortable(kept[:, start:])
        logits[rows] = kept
        return self.with_logits(logits)

    def kept(self) -> Tensor:
        """Return the kept set: [rows, V] bool."""
        params = RowParameters.of(self.metadata, self.count, self.logits.device)
        return self.logits.float() >= row_stats(self.logits, params, masses=False).threshold

    def kept_without(self, *filters: str) -> Tensor:
        """Return the kept set with some filters off: [rows, V] bool."""
        return self.with_params(**dict.fromkeys(filters)).kept()

    def y(self) -> Tensor:
        """``(x - max x) / T`` in float64, the logits themselves where the maximum is infinite or the row is greedy."""
        x = self.logits.double()
        top = x.nan_to_num(nan=-INF, posinf=INF, neginf=-INF).amax(-1, keepdim=True)
        y = (x - top) / self.temperature.double().unsqueeze(-1)
        return torch.where(top.isfinite() & ~self.greedy.unsqueeze(-1), y, x)

    def keep(self, mask: Tensor) -> CornerCall:
        """Keep the tokens of a mask [rows, V], whatever the filters say."""
        dropped = ~mask & ~self.logits.isnan()
        off = dict.fromkeys(("top_k", "top_p", "min_p", "joint"))
        return self.with_logits(self.logits.masked_fill(dropped, -INF)).with_params(**off)

    def drawn_from(self, y: Tensor) -> CornerCall:
        """Draw from values ``y`` [rows, V] of the kept set."""
        kept, x = self.kept(), self.logits.float()
        y = torch.where(self.greedy.unsqueeze(-1) | x.isnan(), x, y.float())
        ones = torch.where(self.greedy, self.temperature, 1.0)
        return (
            self.keep(kept).with_logits(y.masked_fill(~kept & ~x.isnan(), -INF)).with_params(temperature=ones)
        )

    def exact_k(self) -> CornerCall:
        """Keep exactly k tokens, the lowest ids of ties at the k-th place."""
        k = self.top_k.unsqueeze(1)
        return self.keep(self.kept() & ((descending_places(self.logits) < k) | (k <= 0)))

    def without_crossing(self) -> CornerCall:
        """Drop the least kept logit, at the crossing of p, unless all kept logits are equal."""
        kept, x = self.kept(), self.logits.float()
        rest = kept & (x > torch.where(kept, x, INF).amin(1, keepdim=True))
        return self.keep(torch.where(rest.any(1, keepdim=True), rest, kept))

    # Verifications.

    @property
    def first_rows(self) -> Tensor:
        """The first row of each request: [B]."""
        return self.drafts.cu_num_logits[:-1].long()

    @property
    def bonus_rows(self) -> Tensor:
        return speculative.bonus_rows(self.drafts.cu_num_logits)

    @property
    def row_before_bonus(self) -> Tensor:
        """The index of each row, minus 1 in bonus rows behind drafts: [rows]."""
        rows, bonus = self.row, self.bonus_rows
        rows[bonus] = torch.where(self.draft_counts > 0, bonus - 1, bonus)
        return rows

    @property
    def request_index(self) -> Tensor:
        return torch.arange(self.drafts.num_requests)

    @property
    def draft_counts(self) -> Tensor:
        """The number of drafts of each request: [B]."""
        return self.drafts.cu_num_logits.long().diff() - 1

    @property
    def row_requests(self) -> Tensor:
        """The request of each row: [rows]."""
        return speculative.row_index(self.drafts.cu_num_logits, self.count)

    @property
    def row_steps(self) -> Tensor:
        """The place of each row in the request: [rows]."""
        return self.row - self.drafts.cu_num_logits.long()[self.row_requests]

    def with_drafts(self, **fields: object) -> CornerCall:
        """Replace fields of the drafts."""
        return replace(self, drafts=replace(self.drafts, **fields))
