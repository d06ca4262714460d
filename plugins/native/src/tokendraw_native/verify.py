"""Chain verification of drafts: tokens from exactly the target's distribution, several for a pass of the target.

The drafts of a request are judged in order; the accepted drafts are emitted, and a token more. At the row that judges
a draft x, p is the distribution of ``sample`` and q the distribution of the draft. There are two modes.

``rejection`` (Leviathan, Kalman and Matias, "Fast inference from transformers via speculative decoding", 2023; Chen et
al., "Accelerating large language model decoding with speculative sampling", 2023): x is accepted if u < p(x) / q(x).
The first rejected draft is replaced by a token drawn from the residual max(p - q, 0), the recovered token. If all are
accepted, the bonus token is drawn from p of the bonus row.

``block`` (Sun et al., "Block verification accelerates speculative decoding", 2024, arXiv 2403.10444): drafts are judged
together, which accepts at least as many on average. With p_i and q_i of the i-th of g drafts x_i, r_0 = 1 and
r_i = min(1, r_(i-1) p_i(x_i) / q_i(x_i)). For i < g, a_i is the sum of max(r_i p_(i+1) - q_(i+1), 0) over the tokens,
and h_i = a_i / (a_i + 1 - r_i), where 0 / 0 is 1; h_g = r_g. Accepted are as many drafts as the largest i with
u_i <= h_i. The next token comes from p_(g+1) if that is g, else from max(r_i p_(i+1) - q_(i+1), 0), renormalised. All u
are looked at, and the positions behind the accepted drafts are judged again by the next verification. So u_i is the
uniform at index i - 1, and no two verifications of a sequence share one.

``coupled``: every row draws the token of ``sample``, and drafts are accepted while they are equal to it. The mode needs
no q, and the text is token for token the text without drafts.

====================  ======================================================================================
token                 noise, at the seed and the position of its row
====================  ======================================================================================
a draft               u of ACCEPT at index 0; in a block at the number of drafts before it
a recovered token     RESIDUAL_TOKEN and RESIDUAL_TILE, in the two levels of :mod:`tokendraw_native.draw`
any other             TOKEN and TILE: the token of ``sample``
====================  ======================================================================================

* p and q are float64, u lies in (0, 1). So p(x) = 0 always rejects and p(x) = q(x) > 0 always accepts, save in a block
  after a draft of less p than q. q(x) = 0 rejects: x cannot have been drawn.
* A greedy request accepts the argmax, the lowest id on a tie, and emits it in the place of another draft.
* A placeholder was drawn from nothing, so q is 0 and the residual is p itself; see :class:`tokendraw.Drafts`.
* A draft chosen without a draw has q(x) = 1: it is accepted with probability p(x), and the residual is p without x.
* Where rounding leaves nothing of a residual, the token is recovered from p.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokendraw import Drafts, Need, SamplingMetadata, VerifyOutput, philox, speculative
from tokendraw.plugin import (
    PAD_TOKEN_ID,
    GumbelDtype,
    VerifyMode,
    log_kept_mass_by_step,
    logprobs_by_step,
)
from tokendraw.row_parameters import RowParameters, widest_float
from tokendraw_native.draw import RESIDUAL, draw, draw_or_recover
from tokendraw_native.filters import decide_xtc
from tokendraw_native.logprobs import KeptBounds, kept_bounds, log_kept_mass, logprobs
from tokendraw_native.row_stats import RowStats, row_stats
from tokendraw_native.row_threads import Buffers, map_chunks
from tokendraw_native.rows import INF, Noise, clean, scale


def verify(
    target_logits: Tensor, drafts: Drafts, metadata: SamplingMetadata, need: Need, mode: VerifyMode
) -> VerifyOutput:
    """Verify the drafts of B requests.

    :param target_logits: [L, V].
    :param metadata: of the L rows. Each row without a seed gets a fresh one.
    """
    rows, gumbel_dtype, width = (
        len(target_logits),
        need.gumbel_dtype,
        metadata.facts.logprobs_width(target_logits.shape[1]),
    )
    params = RowParameters.of(metadata, rows, target_logits.device)
    noise = Noise.of(metadata, rows, target_logits.device)
    params = decide_xtc(params, noise, gumbel_dtype)
    stats = row_stats(target_logits, params, masses=width is not None)
    target, chain = ProcessedLogits(target_logits, stats, params), Chain.of(drafts, rows)
    if mode == "coupled" or metadata.facts.all_greedy:
        count, last, valid = _coupled(target, chain, noise, gumbel_dtype)
    else:
        is_block = mode == "block"
        count, last, valid = _judged(target, drafts, chain, noise, gumbel_dtype, is_block=is_block)
    tokens = torch.where(chain.up_to(count), chain.by_step(chain.drafted), last.unsqueeze(-1))
    is_emitted = chain.up_to(count + 1)
    tokens = torch.where(is_emitted, tokens, PAD_TOKEN_ID)
    best = mass = None
    if width is not None:
        token = tokens[chain.request, chain.offset.clamp(max=drafts.max_drafts)].clamp(min=0)
        mode_of_best, has_ranks = need.logprobs_mode, need.logprob_ranks
        best = logprobs(target_logits, token, stats, params, metadata, mode_of_best, has_ranks=has_ranks)
        steps = drafts.cu_num_logits, count, drafts.max_drafts
        best = logprobs_by_step(best, *steps)
        mass = log_kept_mass_by_step(log_kept_mass(stats, params), *steps)
    valid = (chain.by_step(valid) | ~is_emitted).all(-1)
    bounds = kept_bounds(target_logits, stats, params) if need.threshold else KeptBounds()
    return VerifyOutput(tokens, count.to(torch.int32), valid, best, mass, *bounds)


def _coupled(
    target: ProcessedLogits, chain: Chain, noise: Noise, dtype: GumbelDtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the number of accepted drafts [B], the token after them [B], and the valid rows [L]."""
    token = draw(target.logits, target.stats, target.params, noise, dtype)
    count = num_accepted(chain, chain.drafted == token)
    return count, token[chain.first + count], target.valid


def _judged(
    target: ProcessedLogits, drafts: Drafts, chain: Chain, noise: Noise, dtype: GumbelDtype, *, is_block: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same as :func:`_coupled`, for ``rejection`` or ``block``."""
    vocab_size, greedy = target.logits.shape[-1], target.params.greedy
    is_drawn = (chain.drafted >= 0) & (chain.drafted < vocab_size)
    ids = torch.where(is_drawn, chain.drafted, 0)
    draft, draft_row = _draft_distribution(drafts, chain, ids, target.params, vocab_size)
    rows = torch.arange(len(ids), device=ids.device)
    u = noise.uniform(philox.ACCEPT, dtype, chain.offset if is_block else None).squeeze(-1)
    p, q = target.probs_at(rows, ids), draft.probs_at(draft_row, ids)
    accepted = is_drawn & accepts(u, p, q)
    if greedy is not None:
        greedy = greedy.squeeze(-1)
        best = draw(target.logits, target.stats, target.params, None, dtype)
        accepted, is_drawn = torch.where(greedy, chain.drafted == best, accepted), is_drawn & ~greedy
    count = num_accepted(chain, accepted)
    share = None
    if is_block:
        shares = block_shares(chain, p, q, is_drawn)
        excess = _excess(target, draft, draft_row, chain, shares, is_drawn)
        block_count = num_accepted_in_block(chain, shares, chain.by_step(excess), chain.by_step(u))
        count = block_count if greedy is None else torch.where(greedy[chain.first], count, block_count)
        share = shares.gather(-1, count.unsqueeze(-1))
    row = chain.first + count
    is_plain = count == chain.num_drafts
    if greedy is not None:
        is_plain = is_plain | greedy[row]
    token = _last_token(target, draft, row, draft_row[row], is_drawn[row], is_plain, share, noise, dtype)
    return count, token, target.valid & (draft.valid[draft_row] | ~is_drawn)


def accepts(u: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Return whether a draft of probabilities p and q is accepted: [n] bool."""
    return (q > 0) & (u < p / q)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Return ``max(p - q, 0)`` [n, V] as weights; p in rows without a positive difference."""
    difference = (p - q).clamp_(min=0.0)
    return torch.where(difference.amax(-1, keepdim=True) > 0, difference, p)


def block_shares(chain: Chain, p: Tensor, q: Tensor, is_drawn: Tensor) -> Tensor:
    """Return the ``r_i`` of each request, [B, K + 1]: of a draft that cannot have been drawn, and behind it, 0.

    :param p: [L]: probability of each draft; ``q`` that of the distribution from which it was drawn.
    """
    ratio = chain.by_step(torch.where(is_drawn & (q > 0), p / q, 0.0))
    shares = [torch.ones_like(ratio[:, 0])]
    for step in range(ratio.shape[1] - 1):
        shares.append((shares[-1] * ratio[:, step]).clamp(max=1.0))
    return torch.stack(shares, -1)


def num_accepted_in_block(chain: Chain, shares: Tensor, excess: Tensor, u: Tensor) -> Tensor:
    """Return the number of accepted drafts, [B] int64: the largest i with ``u_i <= h_i``.

    :param excess: [B, K + 1]: the ``a_i`` of each request. ``u`` is that of the step that judges the draft i + 1.
    """
    mass = excess + 1.0 - shares
    likely = torch.where(mass > 0, excess / mass, 1.0)
    is_last = chain.steps == chain.num_drafts.unsqueeze(-1)
    likely = torch.where(is_last, shares, likely)
    is_accepted = chain.up_to(chain.num_drafts + 1)[:, 1:] & (u[:, :-1] <= likely[:, 1:])
    return (is_accepted * chain.steps[1:]).amax(-1) if is_accepted.shape[1] else torch.zeros_like(chain.first)


def _excess(
    target: ProcessedLogits,
    draft: Distribution,
    draft_row: Tensor,
    chain: Chain,
    shares: Tensor,
    is_drawn: Tensor,
) -> Tensor:
    """Return ``sum max(r p - q, 0)`` of each row of the target, [L], with the r of the drafts before the row."""
    last = shares.shape[1] - 1
    share = shares[chain.request, chain.offset.clamp(max=last)].unsqueeze(-1)
    row = torch.arange(len(share), device=share.device)

    def chunk_excess(part: slice, _: Buffers) -> Tensor:
        p, q = target.probs(row[part]), draft.probs(draft_row[part]) * is_drawn[part].unsqueeze(-1)
        return (p * share[part] - q).clamp_(min=0.0).sum(-1)

    return torch.cat(map_chunks(chunk_excess, len(row), target.logits))


def _draft_distribution(
    drafts: Drafts, chain: Chain, ids: Tensor, params: RowParameters, vocab_size: int
) -> tuple[Distribution, Tensor]:
    """Return the distribution of the drafts, and its row for each row of the target: [L] int64, any at bonus rows."""
    row = torch.arange(len(ids), device=ids.device)
    total = len(ids) - drafts.num_requests
    if total and drafts.draft_probs is not None:
        draft: Distribution = DraftProbs(drafts.draft_probs)
    elif total and drafts.draft_logits is not None:
        draft_params = params.chunk(speculative.target_rows(drafts.cu_num_logits, total))
        draft_params = decide_xtc(draft_params, None, "fp32")
        draft = ProcessedLogits(
            drafts.draft_logits, row_stats(drafts.draft_logits, draft_params, masses=False), draft_params
        )
    else:
        return ChosenDrafts(ids, vocab_size), row
    return draft, (row - chain.request).clamp(max=total - 1)


def _last_token(
    target: ProcessedLogits,
    draft: Distribution,
    row: Tensor,
    draft_row: Tensor,
    is_drawn: Tensor,
    is_plain: Tensor,
    share: Tensor | None,
    noise: Noise,
    dtype: GumbelDtype,
) -> Tensor:
    """Draw the token after the accepted drafts: [B] int64.

    :param row: [B] int64: its row of the target.
    :param draft_row: [B] int64: the row of the rejected draft, any row where all were accepted.
    :param is_drawn: [B] bool: whether the rejected draft was drawn from a distribution.
    :param is_plain: [B] bool: whether ``sample`` draws the same token.
    :param share: [B, 1]: the r of a block, by which p counts in the residual; None: 1.
    """

    def chunk_tokens(part: slice, _: Buffers) -> Tensor:
        target_row = row[part]
        p, q = target.probs(target_row), draft.probs(draft_row[part]) * is_drawn[part].unsqueeze(-1)
        return draw_or_recover(
            target.logits[target_row],
            target.stats.chunk(target_row),
            residual(p if share is None else p * share[part], q),
            is_plain[part],
            target.params.chunk(target_row),
            noise.chunk(target_row),
            dtype,
            RESIDUAL,
        )

    return torch.cat(map_chunks(chunk_tokens, len(row), target.logits))


# The rows of target logits, assigned to requests and drafts.

NO_DRAFT = -1


@dataclass(frozen=True, slots=True)
class Chain:
    """The L rows of B requests with at most K drafts each. All tensors are int64."""

    request: Tensor
    """[L]: the request of each row."""
    offset: Tensor
    """[L]: the index of each row among those of its request."""
    drafted: Tensor
    """[L]: the id that each row judges, :data:`NO_DRAFT` in bonus rows."""
    first: Tensor
    """[B]: first row of each request."""
    num_drafts: Tensor
    """[B]."""
    steps: Tensor
    """[K + 1]: 0 .. K."""

    @classmethod
    def of(cls, drafts: Drafts, rows: int) -> Chain:
        """Assign the drafts to ``rows`` rows of logits."""
        cu_num_logits = drafts.cu_num_logits.to(torch.int64)
        first, num_drafts = cu_num_logits[:-1], (cu_num_logits.diff() - 1).clamp_(0, drafts.max_drafts)
        request = speculative.row_index(cu_num_logits, rows)
        row = torch.arange(rows, device=request.device)
        offset = row - first[request]
        ids = pad(drafts.draft_token_ids.to(torch.int64), (0, 1), value=NO_DRAFT)
        column = (offset if ids.dim() == 2 else row - request).clamp(max=ids.shape[-1] - 1)
        draft_ids = ids[request, column] if ids.dim() == 2 else ids[column]
        return cls(
            request=request,
            offset=offset,
            drafted=torch.where(offset < num_drafts[request], draft_ids, NO_DRAFT),
            first=first,
            num_drafts=num_drafts,
            steps=torch.arange(drafts.max_drafts + 1, device=request.device),
        )

    def by_step(self, values: Tensor) -> Tensor:
        """Rearrange ``values`` [L, ...] by request and step: [B, K + 1, ...]. After a request's own rows come any."""
        rows = (self.first.unsqueeze(-1) + self.steps).clamp(max=max(len(values) - 1, 0))
        return values[rows]

    def up_to(self, count: Tensor) -> Tensor:
        """Return [B, K + 1] bool: True in the first ``count`` [B] steps of each request."""
        return self.steps < count.unsqueeze(-1)


def num_accepted(chain: Chain, accepted: Tensor) -> Tensor:
    """Count the accepted drafts of each request up to its first rejection; ``accepted`` is [L] bool: [B] int64."""
    return (chain.by_step(accepted) & chain.up_to(chain.num_drafts)).cumprod(-1).sum(-1)


# A distribution is read at a token in each row, and made in full only for the rows that draw from a residual.


class Distribution(Protocol):
    """Probabilities of V tokens in each of some rows, in the widest float."""

    @property
    def valid(self) -> Tensor:
        """Return the valid rows, as in ``SamplerOutput``: [rows] bool."""
        ...

    def probs_at(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Return the probability of the token ``ids[i]`` in the row ``rows[i]``: [n] from two [n] int64."""
        ...

    def probs(self, rows: Tensor) -> Tensor:
        """Return the probabilities of all tokens in the rows ``rows`` [n] int64: [n, V]."""
        ...


@dataclass(frozen=True, slots=True)
class ProcessedLogits:
    """The distribution of ``sample``: logits after temperature and filters. Not for greedy rows."""

    logits: Tensor
    stats: RowStats
    params: RowParameters

    @property
    def valid(self) -> Tensor:
        """Return the rows without NaN and with a value above -inf."""
        return self.stats.valid.squeeze(-1)

    def probs_at(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Compute the probability of a token in each row."""
        ids = ids.unsqueeze(-1)
        return self._probs(rows, ids, self.logits[rows.unsqueeze(-1), ids]).squeeze(-1)

    def probs(self, rows: Tensor) -> Tensor:
        """Compute the probabilities of all tokens."""
        ids = torch.arange(self.logits.shape[-1], device=rows.device)
        return self._probs(rows, ids, self.logits[rows])

    def _probs(self, rows: Tensor, ids: Tensor, logits: Tensor) -> Tensor:
        stats, inverse_temperature = self.stats.chunk(rows), self.params.chunk(rows).inverse_temperature
        x = clean(logits, finite=stats.finite)
        y = scale(x, stats.peak, inverse_temperature, finite=stats.finite)
        weight = y.masked_fill_(stats.drops(x), -INF).exp_()
        probs = weight / stats.tile_weights.sum(-1, keepdim=True)
        is_token_0 = (ids == 0).to(probs.dtype)  # a row of -inf throughout draws token 0
        return torch.where(stats.max > -INF, probs, is_token_0)


@dataclass(frozen=True, slots=True)
class DraftProbs:
    """The caller's probabilities, with 0 for NaN, negative and infinite entries."""

    values: Tensor

    @property
    def valid(self) -> Tensor:
        """Return the rows of finite entries, without a negative and with a positive entry."""
        largest = self.values.amax(-1)  # NaN where the row has one
        return (self.values.amin(-1) >= 0) & (largest > 0) & (largest < INF)

    def probs_at(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Look up the probability of a token in each row."""
        return _clean_probs(self.values[rows, ids])

    def probs(self, rows: Tensor) -> Tensor:
        """Look up the probabilities of all tokens."""
        return _clean_probs(self.values[rows])


@dataclass(frozen=True, slots=True)
class ChosenDrafts:
    """Drafts chosen without a draw: a row has all its probability on its draft."""

    ids: Tensor
    """[rows] int64."""
    vocab_size: int

    @property
    def valid(self) -> Tensor:
        """Return True in every row."""
        return torch.ones_like(self.ids, dtype=torch.bool)

    def probs_at(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Return 1 for the chosen token, else 0."""
        return (self.ids[rows] == ids).to(widest_float(ids.device))

    def probs(self, rows: Tensor) -> Tensor:
        """Return 1 for the chosen token of each row, else 0."""
        tokens = torch.arange(self.vocab_size, device=rows.device)
        return (tokens == self.ids[rows].unsqueeze(-1)).to(widest_float(rows.device))


def _clean_probs(probs: Tensor) -> Tensor:
    return probs.to(widest_float(probs.device)).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).clamp_(min=0.0)
